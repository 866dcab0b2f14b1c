"""Runs conversions for tests, and reads datasets back the way that a training script does."""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import hashlib
import json
import os
import pathlib
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq

from beam_pipeline import pipeline
from beam_pipeline.options import ConvertOptions, ImageOptions, InputOptions, OutputOptions
from beam_pipeline.summary import ConversionSummary


def make_options(source: Any, output: Any, **options: Any) -> ConvertOptions:
    """ConvertOptions from flat keywords; each goes to the dataclass that has its name."""
    inputs = (source,) if isinstance(source, (str, os.PathLike)) else tuple(source)
    parts: dict[type, dict[str, Any]] = {}
    for kind in (InputOptions, ImageOptions, OutputOptions):
        names = {field.name for field in dataclasses.fields(kind)}
        parts[kind] = {name: options.pop(name) for name in names & set(options)}
    assert not options, f"unknown options {options}"
    return ConvertOptions(
        InputOptions(tuple(map(os.fspath, inputs)), **parts[InputOptions]),
        OutputOptions(os.fspath(output), **parts[OutputOptions]),
        ImageOptions(**parts[ImageOptions]),
    )


def run(
    source: Any,
    output: Any,
    *,
    workers: int | None = None,
    beam_options: Any = (),
    announce: Any = None,
    **options: Any,
) -> ConversionSummary:
    """One conversion by the local engine.

    Args:
      source: the input, or several.
      output: the dataset directory.
      workers: worker processes; None decodes in this process, as Beam's own workers
        do, which spares a second of start-up.
      beam_options: as for convert.
      announce: as for convert.
      **options: fields of InputOptions, ImageOptions and OutputOptions.
    """
    no_pool = mock.patch.object(
        pipeline.worker_pool, "WorkerPool", return_value=contextlib.nullcontext()
    )
    with no_pool if workers is None else contextlib.nullcontext():
        return pipeline.convert(
            make_options(source, output, **options),
            workers=workers,
            beam_options=beam_options,
            announce=announce,
            command=["imagebeam", "convert"],
        )


def local_pipeline() -> Any:
    """A TestPipeline on the in-process engine, whatever Beam's default would pick."""
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner
    from apache_beam.testing import test_pipeline

    return test_pipeline.TestPipeline(runner=FnApiRunner(), options=PipelineOptions([]))


def shard_paths(directory: Any, split: str = "*") -> list[str]:
    """The shards of a dataset, sorted by name."""
    return sorted(glob.glob(os.path.join(glob.escape(str(directory)), f"*-{split}.tfrecord-*")))


def checksums(directory: Any) -> dict[str, str]:
    """File name → SHA-256 of every file whose bytes a conversion promises to repeat."""
    names = [os.path.basename(path) for path in shard_paths(directory)]
    names += ["features.json", "dataset_info.json", "schema.pbtxt", "rejected.jsonl"]
    found = {
        name: hashlib.sha256(pathlib.Path(directory, name).read_bytes()).hexdigest()
        for name in names
    }
    found["index"] = hashlib.sha256(repr(index(directory).to_pylist()).encode()).hexdigest()
    return found


def index(directory: Any) -> pa.Table:
    """The whole index, in the order of its files."""
    files = sorted(os.listdir(os.path.join(directory, "index")))
    return pa.concat_tables(pq.read_table(os.path.join(directory, "index", f)) for f in files)


def rejects(directory: Any) -> list[dict[str, Any]]:
    """The lines of rejected.jsonl."""
    with open(os.path.join(directory, "rejected.jsonl"), encoding="utf-8") as stream:
        return [json.loads(line) for line in stream]


def serialized(directory: Any, split: str = "*", compression: str = "") -> list[bytes]:
    """The records of a split in their stored order, read by TensorFlow."""
    import tensorflow as tf

    paths = shard_paths(directory, split)
    return [
        record.numpy() for record in tf.data.TFRecordDataset(paths, compression_type=compression)
    ]


def examples(directory: Any, split: str = "*", compression: str = "") -> dict[str, dict[str, list]]:
    """Key → features of every record, as a reader without any schema sees them."""
    import tensorflow as tf

    found: dict[str, dict[str, list]] = {}
    for record in serialized(directory, split, compression):
        example = tf.train.Example.FromString(record)
        features = {
            name: list(getattr(value, value.WhichOneof("kind") or "bytes_list").value)
            for name, value in example.features.feature.items()
        }
        key = features["key" if "key" in features else "image/filename"][0].decode()
        assert key not in found, f"{key} was written twice"
        found[key] = features
    return found


def names(directory: Any) -> list[str]:
    """Everything that lies in a directory, hidden files included, sorted."""
    return sorted(os.listdir(directory))
