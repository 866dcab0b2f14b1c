"""Builds the conversion pipeline and runs it: `convert` is the whole command as a function."""

from __future__ import annotations

import contextlib
import functools
import json
import tempfile
import time
from collections.abc import Sequence
from typing import Any, NoReturn

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
from beam_pipeline.naming import (
    refuse_nested_output,
    with_absolute_output,
    with_name,
    with_plain_output,
)
from beam_pipeline.options import ConvertOptions, EqualImages, InputOptions, Writer
from beam_pipeline.output_directory import RUN_FILE, OutputDirectory
from beam_pipeline.progress import BOARD, ProgressDisplay, ProgressReporter, collect
from beam_pipeline.reference_steps import ListBatches
from beam_pipeline.run_description import describe_run
from beam_pipeline.runners import DetachedJob, Job
from beam_pipeline.storage import config as storage_config
from beam_pipeline.summary import ConversionSummary
from beam_pipeline.worker_check import WorkerCheck, make_check
from beam_pipeline.write_dataset import WriteContext, WriteDataset


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
    listed = root | "List" >> ListBatches(inputs, context.storage, context.check)
    return listed.batches | "Write" >> WriteDataset(options, context, listed.report)


def convert(
    options: ConvertOptions,
    *,
    beam_options: Sequence[str] | PipelineOptions = (),
    workers: int | None = None,
    progress: bool = False,
    announce: Any = None,
    command: Sequence[str] | None = None,
    wait: bool = True,
    shared_filesystem: bool = False,
) -> ConversionSummary | DetachedJob:
    """Converts images to a dataset directory.

    Args:
      options: what to convert, and how.
      beam_options: Beam's own options, as on the command line; a runner among them
        runs the conversion elsewhere.
      workers: processes that decode on this machine; None: one per core. A WorkerPool
        that is open already is used as it is.
      progress: show a progress line on stderr.
      announce: called with one readable line at each stage, or None.
      command: the command line to record; None: this process's.
      wait: False returns as soon as the job runs, on engines that go on alone.
      shared_filesystem: local paths are the same on every worker's machine.

    Returns:
      What was written, rejected and dropped; with wait=False a DetachedJob.

    Raises:
      ImagebeamError: with a message for the user. Nothing that looks like a dataset is
        left behind; a run that fails over its rejects keeps `{output}.failed`.
    """
    started = time.time()
    say = announce or (lambda line: None)
    if workers is not None and workers < 1:
        raise UsageError(f"workers must be at least 1, got {workers}")
    options = with_name(with_plain_output(options))
    check_feature_names(options.output.feature_names, options.input.features)
    engine = runners.choose_engine(beam_options, str(options.output.name))
    here = engine.place is runners.Place.THIS_PROCESS
    if not wait and not engine.survives:
        raise UsageError(
            f"--no_wait: on {engine.name}, with workers {engine.place.value}, the job ends with "
            "this process; leave the option out"
        )
    storage.configure(storage.config_from_options(engine.options))
    for line in engine.lines:
        say(line)
    runners.refuse_local_paths(
        engine,
        inputs=[*options.input.inputs, *filter(None, [options.input.image_root])],
        output=options.output.output,
        shared_filesystem=shared_filesystem,
    )
    if not here:
        options = with_absolute_output(options)
    with contextlib.ExitStack() as stack:
        if here and worker_pool.current() is None:
            # Started first: workers load their imports while inputs are looked at.
            stack.enter_context(worker_pool.WorkerPool(workers or worker_pool.available_cores()))
        inputs = _look_at_inputs(options.input)
        say(f"input: {inputs.announcement}")
        refuse_nested_output(options, inputs)
        if options.output.equal_images is EqualImages.DROP:
            say("equal images: every image is read once to be compared, and once more to convert")
        directory = stack.enter_context(
            OutputDirectory(options.output.output, overwrite=options.output.overwrite)
        )
        pool = worker_pool.current()
        if pool is not None:
            # Before the staging directory goes: a shard that is under way would make it anew.
            stack.callback(pool.close)
        for staging in directory.cleared:
            say(f"cleared what an interrupted run left: {staging}")
        if engine.survives:
            # Written before the job starts: it goes on should this process be killed.
            directory.describe_run(
                detached=True,
                runner=engine.name,
                status=engine.status,
                job_name=engine.job_name,
            )
        board = None
        if engine.place is not runners.Place.ELSEWHERE:
            board = stack.enter_context(tempfile.TemporaryDirectory(prefix="imagebeam-progress-"))
        BOARD.reset()
        context = WriteContext(
            staging=directory.staging,
            replaced=tuple(directory.replaced),
            run=describe_run(options, engine.runner, directory.run_id, command),
            reporter=ProgressReporter(board),
            storage=storage_config.current(),
            declared_labels=declared_labels(inputs),
            given_labels=given_labels(inputs),
            # Beam's own writer is built per split, so the splits must be known now.
            known_plan=make_dry_plan(options)[0] if options.output.writer is Writer.BEAM else None,
            check=None if here else _worker_check(inputs, directory),
        )
        job = Job(engine)
        show = job.progress if board is None else functools.partial(collect, board)
        stack.enter_context(ProgressDisplay(show, enabled=progress and wait))
        _start(job, options, inputs, context)
        if engine.survives:
            directory.describe_run(job=job.id)
        if not wait:
            directory.detach()
            return DetachedJob(
                directory.run_id, options.output.output, engine.name, job.id, engine.status
            )
        _wait(job, directory)
        info = _read_outcome(options.output.output, directory.run_id)
    failure = info.run.get("failure")
    summary = ConversionSummary(info, seconds=time.time() - started)
    if failure:
        raise ConversionError(
            f"{failure}\n{summary.rejects_text()}"
            f"All rejects and the index are kept in {failed_directory(options.output.output)}"
        )
    return summary


def _look_at_inputs(options: InputOptions) -> InputPlan:
    pool = worker_pool.current()
    listing = None if pool is None else pool.listing(options)
    return resolve_inputs(options) if listing is None else listing.plan()


def _worker_check(inputs: InputPlan, directory: OutputDirectory) -> WorkerCheck:
    return make_check(
        run_id=directory.run_id,
        run_file=storage.join(directory.staging, RUN_FILE),
        inputs=[
            *(source.uri for source in inputs.sources),
            *filter(None, [inputs.options.image_root]),
        ],
    )


def _start(job: Job, options: ConvertOptions, inputs: InputPlan, context: WriteContext) -> None:
    """Submits the pipeline; on the local engine this is the whole run."""
    pipeline = beam.Pipeline(runner=job.engine.make_runner(), options=job.engine.options)
    build_pipeline(pipeline, options, inputs, context)
    try:
        job.started(pipeline.run())
    except ImagebeamError:
        raise
    except Exception as error:
        _raise(job, error)


def _wait(job: Job, directory: OutputDirectory) -> None:
    """Waits for the job; what is left of it when this fails depends on whether it is over."""
    try:
        job.wait()
    except KeyboardInterrupt:
        if job.engine.survives and not job.cancel():
            directory.detach()
            raise ConversionError(
                f"interrupted, but job {job.id} on {job.engine.name} does not end; `imagebeam "
                f"status {directory.uri}` tells how far it is. Cancel it there"
            ) from None
        raise
    except ImagebeamError:
        raise
    except Exception as error:
        if job.engine.survives and not job.ended():
            directory.detach()
            raise ConversionError(
                f"lost contact with job {job.id} on {job.engine.name} ({error}); it may still "
                f"run: `imagebeam status {directory.uri}`"
            ) from error
        _raise(job, error)


def _raise(job: Job, error: Exception) -> NoReturn:
    """Raises what the user needs to know; a bug on the local engine keeps its traceback."""
    try:
        raise_cause(error)
    except ImagebeamError:
        raise
    except Exception:
        if job.engine.place is runners.Place.THIS_PROCESS and job.engine.name == "direct":
            raise
        raise job.failure(error) from error


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
