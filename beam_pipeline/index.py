"""The index of a dataset: one row per input, in Parquet, one file per shard.

Rows travel as Arrow: they are made in the workers and take a tenth of the memory that
Python objects would. Arrow's compute functions are not used: loading them would take
5 MB of every worker.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from beam_pipeline.tfrecord_format import FRAMING_BYTES
from beam_pipeline.types import Outcome

INDEX_SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("outcome", pa.string()),  # written, rejected, duplicate
        ("reason", pa.string()),  # of a reject; for a duplicate, what was kept instead
        ("split", pa.string()),
        ("shard", pa.int32()),  # number in the shard's file name; null unless written
        ("position", pa.int64()),  # 0-based, in the shard
        ("offset", pa.int64()),  # bytes before the record in the (uncompressed) shard
        ("bytes", pa.int64()),  # of the record with its framing
        ("sha256", pa.string()),  # hex, of the stored image bytes
        ("label", pa.string()),
        ("group", pa.string()),
        ("row", pa.int64()),  # in the manifest
        ("height", pa.int32()),
        ("width", pa.int32()),
        ("channels", pa.int8()),
        ("format", pa.string()),
        ("source_format", pa.string()),
        ("image_bytes", pa.int64()),
        ("notes", pa.string()),
    ]
)


class IndexRow(NamedTuple):
    """What the index says of one input, before its place in the shard is known."""

    key: str
    outcome: str
    reason: str | None
    row: int | None
    label: str | None
    group: str | None
    record_bytes: int | None  # of the serialized Example, without TFRecord framing
    sha256: str | None
    height: int | None
    width: int | None
    channels: int | None
    format: str | None
    source_format: str | None
    image_bytes: int | None
    notes: str | None  # comma-separated


_ROW_SCHEMA = pa.schema(
    [
        pa.field("record_bytes", pa.int64()) if name == "record_bytes" else INDEX_SCHEMA.field(name)
        for name in IndexRow._fields
    ]
)


def to_arrow(rows: Sequence[IndexRow]) -> pa.RecordBatch:
    """Rows as a record batch with the fields of IndexRow."""
    columns = zip(*rows, strict=True) if rows else [()] * len(IndexRow._fields)
    arrays = [
        pa.array(column, field.type) for column, field in zip(columns, _ROW_SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_ROW_SCHEMA)


class IndexBuilder:
    """Collects the rows of one shard and knows where each record stands in it."""

    def __init__(self, split: str, shard: int):
        self._split = split
        self._shard = shard
        self._batches: list[pa.RecordBatch] = []
        self.records = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Adds rows (see to_arrow) in their order; written rows follow each other in the shard."""
        column = rows.column("record_bytes")
        self._batches.append(rows)
        self.records += len(column) - column.null_count

    def to_parquet(self) -> bytes:
        """The rows as a Parquet file."""
        # All at once: arrow takes its time per call, whatever the number of rows.
        rows = pa.Table.from_batches(self._batches, _ROW_SCHEMA).combine_chunks()
        sizes = _integers(rows.column("record_bytes"))
        written = sizes >= 0
        framed = np.where(written, sizes + FRAMING_BYTES, 0)
        places = {
            "shard": np.full(len(sizes), self._shard, np.int32),
            "position": np.cumsum(written) - 1,
            "offset": np.cumsum(framed) - framed,
            "bytes": framed,
        }
        columns = [
            pa.repeat(self._split, len(sizes))
            if field.name == "split"
            else pa.array(places[field.name], field.type, mask=~written)
            if field.name in places
            else rows.column(field.name)
            for field in INDEX_SCHEMA
        ]
        return write_table(pa.Table.from_arrays(columns, schema=INDEX_SCHEMA))


def _integers(column: pa.ChunkedArray) -> np.ndarray:
    """A column of integers >= 0 as int64 [n]; -1 stands for null."""
    values = column.to_numpy()  # of float64 where there are nulls: exact up to 2**53
    return values if values.dtype == np.int64 else np.nan_to_num(values, nan=-1).astype(np.int64)


def write_table(table: pa.Table) -> bytes:
    """An index table as the bytes of a Parquet file."""
    stream = io.BytesIO()
    # One chunk per column: where rows were added in batches must not show in the file.
    pq.write_table(table.combine_chunks(), stream, compression="zstd")
    return stream.getvalue()


def read_index(data: bytes, columns: Sequence[str] | None = None) -> pa.Table:
    """The opposite of write_table: the whole file, or some of its columns."""
    file = pq.ParquetFile(io.BytesIO(data))
    return file.read(None if columns is None else list(columns), use_threads=False)


def with_shard_number(data: bytes, shard: int) -> bytes:
    """The same index file for a shard whose number changed because others were empty."""
    table = read_index(data)
    field = INDEX_SCHEMA.field("shard")
    numbers = pa.array(np.full(len(table), shard), field.type, mask=_integers(table["shard"]) < 0)
    return write_table(table.set_column(table.schema.get_field_index("shard"), field, numbers))


def ledger(table: pa.Table) -> Mapping[str, int]:
    """Rows per outcome; every outcome is named."""
    counted = Counter(table["outcome"].to_pylist())
    return {outcome.value: counted[outcome.value] for outcome in Outcome}


def written_bytes(table: pa.Table) -> int:
    """Where the last record of a shard's index ends: the size of the uncompressed shard."""
    offsets, sizes = _integers(table["offset"]), _integers(table["bytes"])
    return int((offsets + sizes)[offsets >= 0].max(initial=0))
