"""Changes finished datasets on purpose: records, shards and the files beside them."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from tfx_bsl.coders.example_coder import (
    ExamplesToRecordBatchDecoder,
    RecordBatchToExamplesEncoder,
)

from beam_pipeline.checks import framing
from beam_pipeline.tfrecord_format import frame


def shard(directory: pathlib.Path, split: str, number: int = 0) -> pathlib.Path:
    """The path of a shard."""
    (path,) = directory.glob(f"*-{split}.tfrecord-{number:05d}-of-*")
    return path


def read_records(path: pathlib.Path) -> tuple[list[bytes], list[int]]:
    """All records of an intact shard, and their offsets."""
    records, offsets = [], []
    with open(path, "rb") as stream:
        for window in framing.scan(stream):
            assert not window.damage
            records += window.records
            offsets += window.offsets
    return records, offsets


def write_records(path: pathlib.Path, records: list[bytes]) -> None:
    """Writes a shard with right checksums."""
    path.write_bytes(frame(records))


def edit_example(record: bytes, changes: dict[str, Any]) -> bytes:
    """A serialized Example with some features set (to a list of values) or removed (None)."""
    batch = ExamplesToRecordBatchDecoder().DecodeBatch([record])
    columns = {name: batch.column(i) for i, name in enumerate(batch.schema.names)}
    for name, values in changes.items():
        columns.pop(name, None)
        if values is not None:
            values = [v.encode() if isinstance(v, str) else v for v in values]
            kind = {float: pa.float32(), int: pa.int64()}.get(type(values[0]), pa.binary())
            columns[name] = pa.array([values], pa.list_(kind))
    batch = pa.RecordBatch.from_arrays(list(columns.values()), list(columns))
    return RecordBatchToExamplesEncoder().encode(batch)[0]


def edit_record(path: pathlib.Path, number: int, changes: dict[str, Any]) -> None:
    """Rewrites a shard with one changed Example; all CRCs are right."""
    records, _ = read_records(path)
    records[number] = edit_example(records[number], changes)
    write_records(path, records)


def edit_bytes(path: pathlib.Path, change: Callable[[bytearray], Any]) -> None:
    """Changes the bytes of a file in place."""
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(bytes(data))


def edit_json(path: pathlib.Path, change: Callable[[Any], Any]) -> None:
    """Changes a JSON file in place."""
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
