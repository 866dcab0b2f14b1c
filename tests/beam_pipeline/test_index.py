"""The index: where every input went, and where its record stands."""

from __future__ import annotations

import io

import pyarrow.parquet as pq

from beam_pipeline import index
from beam_pipeline.index import INDEX_SCHEMA, IndexBuilder, IndexRow, to_arrow

WRITTEN = IndexRow(
    "a", "written", None, 1, "x", "g", 100, "00" * 32, 2, 3, 1, "png", "gif", 50, "first_frame"
)
REJECTED = IndexRow("b", "rejected", "empty", None, "x", None, *([None] * 9))
DUPLICATE = IndexRow("a", "duplicate", "row 1", 2, "x", "g", *([None] * 9))


def add(builder: IndexBuilder, rows: list[IndexRow]) -> None:
    builder.add(to_arrow(rows))


def test_rows_know_their_place() -> None:
    builder = IndexBuilder("train", 4)
    add(builder, [WRITTEN, REJECTED])
    add(builder, [DUPLICATE, WRITTEN._replace(key="c", record_bytes=7)])
    assert builder.records == 2
    table = index.read_index(builder.to_parquet())
    assert table.schema == INDEX_SCHEMA
    nothing = dict.fromkeys(
        [
            "shard",
            "position",
            "offset",
            "bytes",
            "sha256",
            "height",
            "width",
            "channels",
            "format",
            "source_format",
            "image_bytes",
            "notes",
        ]
    )
    first = {
        "key": "a",
        "outcome": "written",
        "reason": None,
        "split": "train",
        "shard": 4,
        "position": 0,
        "offset": 0,
        "bytes": 116,
        "sha256": "00" * 32,
        "label": "x",
        "group": "g",
        "row": 1,
        "height": 2,
        "width": 3,
        "channels": 1,
        "format": "png",
        "source_format": "gif",
        "image_bytes": 50,
        "notes": "first_frame",
    }
    assert table.to_pylist() == [
        first,
        {
            **nothing,
            "key": "b",
            "outcome": "rejected",
            "reason": "empty",
            "split": "train",
            "label": "x",
            "group": None,
            "row": None,
        },
        {
            **nothing,
            "key": "a",
            "outcome": "duplicate",
            "reason": "row 1",
            "split": "train",
            "label": "x",
            "group": "g",
            "row": 2,
        },
        {**first, "key": "c", "position": 1, "offset": 116, "bytes": 23},
    ]
    assert index.ledger(table) == {"written": 2, "rejected": 1, "duplicate": 1}
    assert index.written_bytes(table) == 139


def test_an_empty_index() -> None:
    table = index.read_index(IndexBuilder("train", 0).to_parquet())
    assert table.schema == INDEX_SCHEMA
    assert index.ledger(table) == {"written": 0, "rejected": 0, "duplicate": 0}
    assert index.written_bytes(table) == 0


def test_renumbering_touches_nothing_else() -> None:
    builder = IndexBuilder("train", 9)
    add(builder, [WRITTEN, REJECTED])
    before = index.read_index(builder.to_parquet())
    after = index.read_index(index.with_shard_number(builder.to_parquet(), 2))
    assert after["shard"].to_pylist() == [2, None]
    assert after.drop(["shard"]) == before.drop(["shard"])
    assert after.schema == INDEX_SCHEMA


def test_any_parquet_reader_reads_it() -> None:
    builder = IndexBuilder("train", 0)
    add(builder, [WRITTEN])
    assert pq.ParquetFile(io.BytesIO(builder.to_parquet())).metadata.num_rows == 1
