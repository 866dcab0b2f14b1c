"""Builds the conversion pipeline and runs it: `convert` is the whole command as a function."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import importlib.metadata
import json
import os
import platform
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from beam_pipeline import dataset_info, runners, storage, worker_pool
from beam_pipeline.dataset_info import DatasetInfo
from beam_pipeline.dry_run import make_dry_plan
from beam_pipeline.errors import ConversionError, ImagebeamError, UsageError
from beam_pipeline.examples import check_feature_names
from beam_pipeline.failures import raise_cause
from beam_pipeline.finalize import failed_directory
from beam_pipeline.inputs import InputPlan, declared_labels, given_labels, resolve_inputs
from beam_pipeline.options import ConvertOptions, Writer
from beam_pipeline.output_directory import OutputDirectory
from beam_pipeline.progress import BOARD, ProgressDisplay, ProgressReporter, collect
from beam_pipeline.storage import config as storage_config
from beam_pipeline.summary import ConversionSummary
from beam_pipeline.transforms import ListBatches, WriteContext, WriteDataset
from beam_pipeline.version import __version__


def build_pipeline(
    root: beam.Pipeline, options: ConvertOptions, inputs: InputPlan, context: WriteContext
) -> beam.PCollection[DatasetInfo]:
    """Adds a whole conversion to `root`.

    Args:
      root: the pipeline.
      options: of the conversion; output.name must be set.
      inputs: from resolve_inputs.
      context: of the run.

    Returns:
      One DatasetInfo; see WriteDataset.
    """
    listed = root | "List" >> ListBatches(inputs, context.storage)
    return listed.batches | "Write" >> WriteDataset(options, context, listed.report)


def convert(
    options: ConvertOptions,
    *,
    beam_options: Sequence[str] | PipelineOptions = (),
    workers: int | None = None,
    progress: bool = False,
    announce: Any = None,
    command: Sequence[str] | None = None,
) -> ConversionSummary:
    """Converts images to a dataset directory.

    Args:
      options: what to convert, and how.
      beam_options: Beam's own options, as on the command line; a runner among them
        runs the conversion elsewhere.
      workers: processes that decode on this machine; None: one per core.
      progress: show a progress line on stderr.
      announce: called with one readable line at each stage, or None.
      command: the command line to record; None: this process's.

    Returns:
      What was written, rejected and dropped.

    Raises:
      ImagebeamError: with a message for the user. Nothing that looks like a dataset is
        left behind; a run that fails over its rejects keeps `{output}.failed`.
    """
    started = time.time()
    say = announce or (lambda line: None)
    if workers is not None and workers < 1:
        raise UsageError(f"workers must be at least 1, got {workers}")
    pipeline_options = (
        beam_options
        if isinstance(beam_options, PipelineOptions)
        else PipelineOptions(list(beam_options))
    )
    options = with_name(options)
    check_feature_names(options.output.feature_names, options.input.features)
    in_process = runners.is_local(pipeline_options) and not runners.uses_worker_processes(
        pipeline_options
    )
    with contextlib.ExitStack() as stack:
        if in_process:
            # Started first: workers load their imports while inputs are looked at.
            stack.enter_context(worker_pool.WorkerPool(workers or runners.available_cores()))
        inputs = resolve_inputs(options.input)
        say(f"input: {inputs.announcement}")
        directory = stack.enter_context(
            OutputDirectory(options.output.output, overwrite=options.output.overwrite)
        )
        for staging in directory.cleared:
            say(f"cleared what an interrupted run left: {staging}")
        board = stack.enter_context(tempfile.TemporaryDirectory(prefix="imagebeam-progress-"))
        BOARD.reset()
        context = WriteContext(
            staging=directory.staging,
            replaced=tuple(directory.replaced),
            run=describe_run(options, pipeline_options, directory.run_id, command),
            reporter=ProgressReporter(board),
            storage=storage_config.current(),
            declared_labels=declared_labels(inputs),
            given_labels=given_labels(inputs),
            # Beam's own writer is built per split, so the splits must be known now.
            known_plan=make_dry_plan(options)[0] if options.output.writer is Writer.BEAM else None,
        )
        stack.enter_context(ProgressDisplay(lambda: collect(board), enabled=progress))
        _run(options, inputs, context, pipeline_options)
        info = _read_outcome(options.output.output, directory.run_id)
    failure = info.run.get("failure")
    summary = ConversionSummary(info, seconds=time.time() - started)
    if failure:
        raise ConversionError(
            f"{failure}\n{summary.rejects_text()}"
            f"All rejects and the index are kept in {failed_directory(options.output.output)}"
        )
    return summary


def _run(
    options: ConvertOptions,
    inputs: InputPlan,
    context: WriteContext,
    pipeline_options: PipelineOptions,
) -> None:
    pipeline = beam.Pipeline(runner=runners.make_runner(pipeline_options), options=pipeline_options)
    build_pipeline(pipeline, options, inputs, context)
    try:
        pipeline.run().wait_until_finish()
    except ImagebeamError:
        raise
    except Exception as error:
        raise_cause(error)


def _read_outcome(output: str, run_id: str) -> DatasetInfo:
    """What the finalize step of this run wrote: the dataset, or why there is none."""
    for directory in (output, failed_directory(output)):
        path = storage.join(directory, dataset_info.CONVERSION_FILE)
        if storage.stat(path) is not None:
            info = DatasetInfo.from_json(directory, json.loads(storage.read_bytes(path)))
            if info.run.get("run_id") == run_id:
                return info
    raise ConversionError(
        f"the pipeline ended, but its last step left nothing in {output}. If workers ran on "
        "other machines, they must see this path"
    )


def with_name(options: ConvertOptions) -> ConvertOptions:
    """`options` with a dataset name, made from the output directory where none is given."""
    if options.output.name is not None:
        return options
    base = storage.basename(
        os.path.abspath(options.output.output)
        if storage.is_local(options.output.output)
        else options.output.output
    )
    name = re.sub(r"\W+", "_", base, flags=re.ASCII).strip("_").lower()
    if not name or not name[0].isalpha():
        name = f"images_{name}".rstrip("_")
    return dataclasses.replace(options, output=dataclasses.replace(options.output, name=name))


def describe_run(
    options: ConvertOptions,
    pipeline_options: PipelineOptions,
    run_id: str,
    command: Sequence[str] | None,
) -> dict[str, Any]:
    """What conversion.json says of the run itself."""
    versions = {
        name: _version(name)
        for name in ("apache-beam", "tfx-bsl", "pillow", "pyarrow", "tensorflow-metadata")
    }
    return {
        "run_id": run_id,
        "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join(sys.argv if command is None else command),
        "runner": runners.describe(pipeline_options),
        "options": _plain(options),
        "versions": {"imagebeam": __version__, "python": platform.python_version(), **versions},
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _plain(value: Any) -> Any:
    """Options as JSON can hold them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict) or hasattr(value, "items"):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    return getattr(value, "value", value)
