"""What the checks read with: TFRecord framing under damage, Examples without TensorFlow."""

from __future__ import annotations

import gzip
import io
import struct
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from tfx_bsl.coders.example_coder import (
    ExamplesToRecordBatchDecoder,
    RecordBatchToExamplesEncoder,
)

from beam_pipeline.checks import framing
from beam_pipeline.checks.columns import MetadataReader
from beam_pipeline.checks.wire import BytesFeatureFinder, WireError, parse_example
from beam_pipeline.examples import FeatureSpec, Role
from beam_pipeline.tfrecord_format import frame

RECORDS = [bytes([i]) * (3 * i) for i in range(8)]


def scan(data: bytes, **options: bool) -> tuple[list[bytes], list[framing.Damage]]:
    records: list[bytes] = []
    damage: list[framing.Damage] = []
    for window in framing.scan(io.BytesIO(data), **options):
        assert len(window.records) == len(window.numbers) == len(window.offsets)
        records += window.records
        damage += window.damage
    return records, damage


# ---------------------------------------------------------------- framing


def test_an_intact_stream() -> None:
    assert scan(frame(RECORDS)) == (RECORDS, [])
    assert scan(b"") == ([], [])
    assert scan(frame([b""])) == ([b""], [])


def test_records_larger_than_a_window() -> None:
    records = [b"a" * 3_000_000, b"b", b"c" * 700_000]
    assert scan(frame(records)) == (records, [])


def test_every_flipped_bit_costs_one_record_and_is_told() -> None:
    data = frame(RECORDS)
    for position in range(len(data)):
        for bit in (0, 7):
            broken = bytearray(data)
            broken[position] ^= 1 << bit
            records, damage = scan(bytes(broken))
            assert len(damage) == 1, position
            lost = damage[0].record
            assert records == RECORDS[:lost] + RECORDS[lost + 1 :], position


def test_every_cut_is_told_unless_on_a_boundary() -> None:
    data = frame(RECORDS)
    ends = np.cumsum([16 + len(record) for record in RECORDS]).tolist()
    for size in range(len(data)):
        records, damage = scan(data[:size])
        whole = sum(end <= size for end in ends)
        assert records == RECORDS[:whole]
        kinds = [item.kind for item in damage]
        assert kinds == ([] if size in (0, *ends) else ["truncated"]), size


def test_two_damaged_lengths_in_a_row_are_one_stretch() -> None:
    data = bytearray(frame(RECORDS))
    starts = np.cumsum([0, *(16 + len(record) for record in RECORDS)]).tolist()
    data[starts[3]] ^= 1
    data[starts[4]] ^= 1
    records, damage = scan(bytes(data))
    assert records == RECORDS[:3] + RECORDS[5:]
    assert [(item.kind, item.offset) for item in damage] == [("length_crc", starts[3])]


def test_a_length_with_a_right_checksum_that_is_too_long() -> None:
    length = struct.pack("<Q", 1 << 40)
    head = frame([length])[12:20]  # only to have the bytes
    assert head == length
    from beam_pipeline.tfrecord_format import masked_crc

    data = frame(RECORDS[:2]) + length + struct.pack("<I", masked_crc(length)) + b"rest"
    records, damage = scan(data)
    assert records == RECORDS[:2]
    assert [item.kind for item in damage] == ["truncated"]


def test_unchecked_data_may_differ() -> None:
    data = bytearray(frame(RECORDS))
    data[-6] ^= 1
    records, damage = scan(bytes(data), check=False)
    assert len(records) == 8
    assert damage == []


def test_random_bytes_and_long_garbage() -> None:
    garbage = np.random.default_rng(0).bytes(1_500_000)
    records, damage = scan(frame(RECORDS) + garbage + frame(RECORDS))
    assert records == RECORDS * 2
    assert [item.kind for item in damage] == ["length_crc"]
    assert scan(garbage)[0] == []


class Slow(io.BytesIO):
    """Gives a few bytes at a time, as a network may."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(min(7, size or 7))


def test_short_reads() -> None:
    windows = list(framing.scan(Slow(frame(RECORDS))))
    assert [record for window in windows for record in window.records] == RECORDS


@pytest.mark.parametrize("cut", [None, 1, 10, 40])
def test_gzip(cut: int | None) -> None:
    data = gzip.compress(frame(RECORDS)) + gzip.compress(frame(RECORDS[:2]))  # two members
    whole = data if cut is None else data[:-cut]
    reader = framing.GzipReader(io.BytesIO(whole))
    records = [r for window in framing.scan(reader) for r in window.records]
    if cut is None:
        assert records == RECORDS + RECORDS[:2]
        assert reader.error is None
    else:
        assert records[:8] == RECORDS
        assert reader.error is not None


def test_damaged_gzip() -> None:
    data = bytearray(gzip.compress(np.random.default_rng(0).bytes(10_000)))
    data[5_000] ^= 255
    reader = framing.GzipReader(io.BytesIO(bytes(data)))
    while reader.read(1000):
        pass
    assert reader.error is not None


# ---------------------------------------------------------------- Examples


def examples(count: int, image_bytes: int) -> Iterator[tuple[bytes, dict]]:
    """Serialized Examples, features in whatever order the encoder likes, and their values."""
    generator = np.random.default_rng(1)
    for i in range(count):
        values = {
            "image": [generator.bytes(image_bytes)],
            "label": [i - 2],
            "key": [f"key {i}".encode()],
            "box": generator.normal(size=i % 4).astype(np.float32).tolist(),
            "ids": generator.integers(-(1 << 62), 1 << 62, i % 3).tolist(),
        }
        types = {"label": pa.int64(), "box": pa.float32(), "ids": pa.int64()}
        columns = [
            pa.array([value], pa.list_(types.get(name, pa.binary())))
            for name, value in values.items()
        ]
        batch = pa.RecordBatch.from_arrays(columns, list(values))
        yield RecordBatchToExamplesEncoder().encode(batch)[0], values


@pytest.mark.parametrize("image_bytes", [0, 1, 100, 127, 128, 16_383, 16_384, 300_000])
def test_parsing_finding_and_leaving_out(image_bytes: int) -> None:
    finder = BytesFeatureFinder("image")
    for record, values in examples(12, image_bytes):
        parsed = parse_example(record)
        assert {name: feature.values for name, feature in parsed.items()} == values
        bounds = finder.find(record)
        assert bounds is not None
        assert record[slice(*bounds)] == values["image"][0]
        slim = finder.without(record, bounds[1])
        rest = {name: feature.values for name, feature in parse_example(slim).items()}
        assert rest == {name: value for name, value in values.items() if name != "image"}
        assert len(slim) < len(record) - image_bytes + 8
        # The real decoder reads the slim Example as well.
        batch = ExamplesToRecordBatchDecoder().DecodeBatch([slim])
        assert "image" not in batch.schema.names
        assert batch.column("label").to_pylist() == [values["label"]]


def test_parsing_damage_is_an_error_or_an_example() -> None:
    ((record, _),) = examples(1, 50)
    generator = np.random.default_rng(2)
    errors = 0
    for _ in range(2000):
        data = bytearray(record)
        data[generator.integers(len(data))] = generator.integers(256)
        try:
            parse_example(bytes(data[: generator.integers(1, len(data) + 1)]))
        except WireError:
            errors += 1
    assert errors > 1000


def test_columns_and_misfits() -> None:
    specs = [FeatureSpec("image", Role.IMAGE, "bytes"), FeatureSpec("label", Role.LABEL, "int64"),
             FeatureSpec("key", Role.KEY, "text")]  # fmt: skip
    reader = MetadataReader(specs)
    records = [record for record, _ in examples(4, 1000)]
    records[1] = b"\x0a\xff"
    records[2] = RecordBatchToExamplesEncoder().encode(
        pa.RecordBatch.from_arrays([pa.array([[b"x"]]), pa.array([[b"y"]])], ["label", "key"])
    )[0]
    for _ in range(2):  # a decoder that failed is as good as new
        columns = reader.read([reader.slim(record) for record in records])
        assert columns.rows.tolist() == [0, 3]
        assert columns.values["label"].to_pylist() == [-2, 1]
        assert [(misfit.row, misfit.kind) for misfit in columns.misfits] == [
            (1, "not_an_example"),
            (2, "feature_wrong"),
        ]
        assert "'label' is bytes, expected int64" in columns.misfits[1].detail
