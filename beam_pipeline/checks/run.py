"""Runs a reading pipeline and brings its one result back to the launcher, on any runner."""

from __future__ import annotations

import pickle
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import (
    DirectOptions,
    GoogleCloudOptions,
    PipelineOptions,
)

from beam_pipeline import runners, storage
from beam_pipeline.errors import UsageError
from beam_pipeline.failures import raise_cause
from beam_pipeline.storage import config as storage_config


def run_pipeline(
    build: Callable[[beam.Pipeline], beam.PCollection],
    beam_options: Sequence[str],
    *,
    threads: int = 1,
) -> Any:
    """Runs the pipeline that `build` adds and returns the one element of its result.

    Args:
      build: adds the steps; gives a collection of exactly one picklable element.
      beam_options: Beam's own options, as on the command line.
      threads: on the local engine, workers that share this process; Beam's own
        --direct_num_workers wins.

    Raises:
      ImagebeamError: with a message for the user.
    """
    engine = runners.choose_engine(beam_options, "imagebeam-check")
    configure_storage(engine.options)
    options = engine.options
    if engine.place is runners.Place.THIS_PROCESS and threads > 1:
        direct = options.view_as(DirectOptions)
        direct.direct_num_workers = threads
        direct.direct_running_mode = "multi_threading"
    with _result_directory(engine) as directory:
        path = storage.join(directory, "result.pickle")
        pipeline = beam.Pipeline(runner=engine.make_runner(), options=options)
        _ = build(pipeline) | "ToLauncher" >> beam.Map(
            _write_result, path, storage_config.current()
        )
        try:
            pipeline.run().wait_until_finish()
        except Exception as error:
            raise_cause(error)
        return pickle.loads(storage.read_bytes(path))


def configure_storage(options: Sequence[str] | PipelineOptions) -> None:
    """Reaches object stores the way that Beam's options say."""
    if not isinstance(options, PipelineOptions):
        options = PipelineOptions(list(options))
    storage.configure(storage.config_from_options(options))


@contextmanager
def _result_directory(engine: runners.Engine) -> Iterator[str]:
    """A directory that both the launcher and the last worker reach."""
    if engine.place is not runners.Place.ELSEWHERE:
        with tempfile.TemporaryDirectory(prefix="imagebeam-check-") as directory:
            yield directory
        return
    shared = engine.options.view_as(GoogleCloudOptions).temp_location
    if not shared:
        raise UsageError(
            f"--runner {engine.name} needs --temp_location: a directory that workers and this "
            "machine share, for the result"
        )
    directory = storage.join(shared, f"imagebeam-check-{uuid.uuid4().hex}")
    try:
        yield directory
    finally:
        storage.delete_tree(directory)


def _write_result(result: Any, path: str, config: storage.StorageConfig) -> None:
    storage.configure(config)
    storage.write_bytes(path, pickle.dumps(result))
