"""The index of a dataset: one row per input, in Parquet, one file per shard."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from beam_pipeline.records import IndexRow
from beam_pipeline.tfrecord_format import FRAMING_BYTES
from beam_pipeline.types import Outcome

TFRECORD_FRAMING = FRAMING_BYTES

INDEX_SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("outcome", pa.dictionary(pa.int8(), pa.string())),  # written, rejected, duplicate
        ("reason", pa.string()),  # of a reject; for a duplicate, the row that was kept
        ("split", pa.dictionary(pa.int16(), pa.string())),
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
        ("format", pa.dictionary(pa.int8(), pa.string())),
        ("source_format", pa.dictionary(pa.int16(), pa.string())),
        ("image_bytes", pa.int64()),
        ("notes", pa.string()),
    ]
)

# Index columns that stand in an IndexRow under the same name.
_COPIED = tuple(field for field in IndexRow._fields if field != "record_bytes")
_PLACE = ("shard", "position", "offset", "bytes")


class IndexBuilder:
    """Collects the rows of one shard and knows where each record stands in it."""

    def __init__(self, split: str, shard: int):
        self._split = split
        self._shard = shard
        self._columns: dict[str, list] = {name: [] for name in INDEX_SCHEMA.names}
        self.records = 0
        self.bytes = 0  # of the uncompressed shard so far

    def add(self, columns: Mapping[str, Sequence]) -> None:
        """Adds rows in their order; written rows follow each other in the shard.

        Args:
          columns: field of IndexRow → one value per row.
        """
        mine = self._columns
        for name in _COPIED:
            mine[name] += columns[name]
        mine["split"] += [self._split] * len(columns["key"])
        for record_bytes in columns["record_bytes"]:
            if record_bytes is None:
                for name in _PLACE:
                    mine[name].append(None)
                continue
            size = record_bytes + FRAMING_BYTES
            mine["shard"].append(self._shard)
            mine["position"].append(self.records)
            mine["offset"].append(self.bytes)
            mine["bytes"].append(size)
            self.records += 1
            self.bytes += size

    def to_parquet(self) -> bytes:
        """The rows as a Parquet file."""
        arrays = [pa.array(self._columns[field.name], field.type) for field in INDEX_SCHEMA]
        return write_table(pa.Table.from_arrays(arrays, schema=INDEX_SCHEMA))


def write_table(table: pa.Table) -> bytes:
    """An index table as the bytes of a Parquet file."""
    stream = io.BytesIO()
    pq.write_table(table, stream, compression="zstd")
    return stream.getvalue()


def read_index(data: bytes) -> pa.Table:
    """The opposite of write_table: the whole file."""
    return pq.read_table(io.BytesIO(data))


def with_shard_number(data: bytes, shard: int) -> bytes:
    """The same index file for a shard whose number changed because others were empty."""
    table = read_index(data)
    old = table["shard"]
    numbers = pa.array([None if v is None else shard for v in old.to_pylist()], pa.int32())
    return write_table(
        table.set_column(
            table.schema.get_field_index("shard"), INDEX_SCHEMA.field("shard"), numbers
        )
    )


def ledger(table: pa.Table) -> Mapping[str, int]:
    """Rows per outcome; every outcome is named."""
    counted = Counter(table["outcome"].to_pylist())
    return {outcome.value: counted[outcome.value] for outcome in Outcome}


def written_bytes(table: pa.Table) -> int:
    """Where the last record of a shard's index ends: the size of the uncompressed shard."""
    ends = [
        offset + size
        for offset, size in zip(
            table["offset"].to_pylist(), table["bytes"].to_pylist(), strict=True
        )
        if offset is not None
    ]
    return max(ends, default=0)
