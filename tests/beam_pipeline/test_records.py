"""References to records: read, checked, encoded, and every refusal with its reason."""

from __future__ import annotations

import hashlib
import os
import pathlib
import pickle
from typing import Any

import pytest

from beam_pipeline import records, storage
from beam_pipeline.errors import ImageRejectedError, InputError, StorageError
from beam_pipeline.examples import feature_specs
from beam_pipeline.options import (
    ConvertOptions,
    Encoding,
    FeatureNames,
    FeatureType,
    ImageOptions,
    InputOptions,
    OutputOptions,
)
from beam_pipeline.plan import ConversionPlan
from beam_pipeline.records import (
    CHUNK_BYTES,
    MAX_CHUNK_IMAGES,
    MIN_CHUNK_IMAGES,
    RecordMaker,
    chunks,
    make_specs,
)
from beam_pipeline.types import ImageRef, Outcome, Problem, RejectedImage
from tests import fakes

LABELS = ("angry", "happy")


def maker(labels: tuple[str, ...] | None = LABELS, **image: Any) -> RecordMaker:
    options = ImageOptions(**image)
    specs = feature_specs(
        FeatureNames.DEFAULT, labelled=labels is not None, encoding=options.encoding
    )
    return RecordMaker(options, specs, labels)


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    files = {
        "good.jpg": fakes.jpeg(1),
        "good.png": fakes.png(2),
        "empty.jpg": b"",
        "text.jpg": b"hello, this is text",
        "cut.jpg": fakes.jpeg(1)[:-40],
    }
    fakes.write_tree(tmp_path, files)
    (tmp_path / "folder.jpg").mkdir()
    return tmp_path


def ref(folder: pathlib.Path, name: str, **fields: Any) -> ImageRef:
    fields.setdefault("label", "happy")
    return ImageRef(name, str(folder / name), **fields)


def test_good_images_in_their_order(folder: pathlib.Path) -> None:
    result = maker().make([ref(folder, "good.png"), ref(folder, "good.jpg", row=7, group="g")])
    assert len(result.examples) == 2
    assert result.rejected == []
    assert result.input_bytes == len(fakes.png(2)) + len(fakes.jpeg(1))
    png, jpeg = result.rows
    assert png.record_bytes == len(result.examples[0])
    assert jpeg._asdict() == {
        "key": "good.jpg",
        "outcome": "written",
        "reason": None,
        "row": 7,
        "label": "happy",
        "group": "g",
        "record_bytes": len(result.examples[1]),
        "sha256": hashlib.sha256(fakes.jpeg(1)).hexdigest(),
        "height": 24,
        "width": 32,
        "channels": 3,
        "format": "jpeg",
        "source_format": "jpeg",
        "image_bytes": len(fakes.jpeg(1)),
        "notes": "",
    }


@pytest.mark.parametrize(
    ("name", "stage", "reason"),
    [
        ("missing.jpg", "read", "missing"),
        ("folder.jpg", "read", "not_a_file"),
        ("empty.jpg", "decode", "empty"),
        ("text.jpg", "decode", "not_an_image"),
        ("cut.jpg", "decode", "truncated"),
    ],
)
def test_a_bad_input_is_a_reject(folder: pathlib.Path, name: str, stage: str, reason: str) -> None:
    result = maker().make([ref(folder, "good.jpg"), ref(folder, name, row=3)])
    assert len(result.examples) == 1
    (reject,) = result.rejected
    assert reject._replace(detail="") == RejectedImage(
        name, str(folder / name), stage, reason, "", 3
    )
    assert reject.detail
    row = result.rows[1]
    assert (row.key, row.outcome, row.reason, row.row, row.label) == (
        name,
        "rejected",
        reason,
        3,
        "happy",
    )
    assert row[6:] == (None,) * 9


def test_too_many_bytes(folder: pathlib.Path) -> None:
    size = len(fakes.jpeg(1))
    assert maker(max_bytes=size).make([ref(folder, "good.jpg")]).rejected == []
    (reject,) = maker(max_bytes=size - 1).make([ref(folder, "good.jpg")]).rejected
    assert (reject.stage, reject.reason) == ("read", "too_many_bytes")


def test_a_verdict_of_the_listing_stands(folder: pathlib.Path) -> None:
    refused = ref(folder, "good.jpg", problem=Problem(Outcome.REJECTED, "bad_row", "why"))
    twice = ref(folder, "good.jpg", problem=Problem(Outcome.DUPLICATE, "same_path", "row 1"))
    result = maker().make([refused, twice])
    assert result.examples == []
    assert result.input_bytes == 0
    assert result.rejected == [
        RejectedImage("good.jpg", str(folder / "good.jpg"), "list", "bad_row", "why")
    ]
    assert [(row.outcome, row.reason) for row in result.rows] == [
        ("rejected", "bad_row"),
        ("duplicate", "row 1"),
    ]


def test_no_label_where_others_have_one(folder: pathlib.Path) -> None:
    (reject,) = maker().make([ref(folder, "good.jpg", label=None)]).rejected
    assert (reject.stage, reject.reason) == ("list", "no_label")


def test_labels_are_left_out_where_none_are_wanted(folder: pathlib.Path) -> None:
    result = maker(labels=None).make([ref(folder, "good.jpg")])
    assert len(result.examples) == 1
    assert b"label" not in result.examples[0]


def test_a_label_that_is_not_in_the_map_names_both(folder: pathlib.Path) -> None:
    with pytest.raises(InputError, match=r"good\.jpg has the label 'sad'.*'angry', 'happy'"):
        maker().make([ref(folder, "good.jpg", label="sad")])


def test_a_byte_range_is_a_part_of_the_file(tmp_path: pathlib.Path) -> None:
    (tmp_path / "pack").write_bytes(b"xx" + fakes.png(1) + b"yyy")
    part = ImageRef("a", str(tmp_path / "pack"), "happy", byte_range=(2, len(fakes.png(1))))
    result = maker().make([part])
    assert result.rows[0].sha256 == hashlib.sha256(fakes.png(1)).hexdigest()


def test_fer2013_pixels(tmp_path: pathlib.Path) -> None:
    text = " ".join(["7"] * 48 * 48).encode()
    (tmp_path / "fer.csv").write_bytes(text)
    part = ImageRef(
        "row", str(tmp_path / "fer.csv"), "happy", byte_range=(0, len(text)), pixels="fer2013"
    )
    result = maker(encoding=Encoding.RAW).make([part])
    row = result.rows[0]
    assert (row.height, row.width, row.channels, row.image_bytes) == (48, 48, 1, 48 * 48)


def test_names_that_are_not_utf8_are_escaped_in_rejects(tmp_path: pathlib.Path) -> None:
    uri = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.jpg")
    (reject,) = maker().make([ImageRef("\\xff.jpg", uri, "happy")]).rejected
    assert reject.uri.endswith("/\\xff.jpg")


def test_an_environment_fault_is_no_reject(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> bytes:
        raise StorageError("no such bucket")

    monkeypatch.setattr(storage, "read_bytes", fail)
    with pytest.raises(StorageError, match="no such bucket"):
        maker().make([ref(folder, "good.jpg")])


def test_a_bug_is_no_reject(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(records.images, "prepare_image", fail)
    with pytest.raises(ZeroDivisionError):
        maker().make([ref(folder, "good.jpg")])


def test_a_chunk_is_the_records_framed_and_counted(folder: pathlib.Path) -> None:
    twice = ref(folder, "good.jpg", problem=Problem(Outcome.DUPLICATE, "same_path", "row 1"))
    refs = [ref(folder, "good.png"), ref(folder, "text.jpg"), twice, ref(folder, "good.jpg")]
    refs[0] = refs[0]._replace(label="angry")
    made = maker(channels=1).make(refs)
    chunk = maker(channels=1).make_chunk(refs)
    assert chunk.rejected == made.rejected
    assert chunk.input_bytes == made.input_bytes
    assert chunk.counts["outcomes"] == {"written": 2, "rejected": 1, "duplicate": 1}
    assert chunk.counts["classes"] == {"angry": 1, "happy": 1}
    assert chunk.counts["formats"] == {"png": 1, "jpeg": 1}
    assert chunk.counts["notes"]["reencoded"] == 2
    assert chunk.channels == {1: 2}
    assert chunk.sizes == {(24, 32)}
    assert chunk.rows.to_pylist() == [row._asdict() for row in made.rows]
    # TFRecord framing: length, its checksum, data, checksum of the data.
    assert len(chunk.data) == sum(len(example) + 16 for example in made.examples)
    first = made.examples[0]
    assert chunk.data[:8] == len(first).to_bytes(8, "little")
    assert chunk.data[12 : 12 + len(first)] == first


def test_a_chunk_of_nothing() -> None:
    chunk = maker().make_chunk([])
    assert chunk.data == b""
    assert chunk.rows.num_rows == 0


def test_a_maker_travels(folder: pathlib.Path) -> None:
    original = maker(resize=(8, 8))
    copy = pickle.loads(pickle.dumps(original))
    assert copy == original
    refs = [ref(folder, "good.jpg")]
    assert copy.make(refs) == original.make(refs)


def sized(count: int, size: int) -> list[ImageRef]:
    return [ImageRef(str(i), "/x", size=size) for i in range(count)]


@pytest.mark.parametrize(
    ("count", "limit"),
    [
        (40, MIN_CHUNK_IMAGES),  # few references: every worker gets some
        (64 * 32, 64),
        (100_000, MAX_CHUNK_IMAGES),
    ],
)
def test_chunks_are_bounded_by_count(count: int, limit: int) -> None:
    refs = sized(count, 10)
    cut = list(chunks(refs, ImageOptions()))
    assert [ref for chunk in cut for ref in chunk] == refs
    assert {len(chunk) for chunk in cut[:-1]} == {limit}
    assert 1 <= len(cut[-1]) <= limit


def test_chunks_are_bounded_by_bytes() -> None:
    half = sized(5, CHUNK_BYTES // 2)
    assert [len(chunk) for chunk in chunks(half, ImageOptions())] == [2, 2, 1]
    assert [len(c) for c in chunks(sized(3, 2 * CHUNK_BYTES), ImageOptions())] == [1, 1, 1]
    # Unknown sizes count as photos, not as nothing.
    assert max(len(c) for c in chunks(sized(100_000, -1), ImageOptions())) < 50
    assert list(chunks([], ImageOptions())) == []


def test_chunks_of_raw_pixels_are_smaller() -> None:
    refs = sized(10, CHUNK_BYTES // 12)
    assert [len(c) for c in chunks(refs, ImageOptions(encoding=Encoding.RAW))] == [1] * 10
    bounded = ImageOptions(encoding=Encoding.RAW, resize=(8, 8))
    assert [len(c) for c in chunks(refs, bounded)] == [10]


def test_make_specs_follow_the_plan() -> None:
    options = ConvertOptions(
        InputOptions(("in",), features={"tags": FeatureType.TEXT, "n": FeatureType.INT64}),
        OutputOptions("out", feature_names=FeatureNames.SLIM),
    )
    plan = ConversionPlan(None, {}, 0, 0, 0, repeated_features=("tags",))
    specs = {spec.name: spec for spec in make_specs(options, plan)}
    assert specs["tags"].repeated
    assert not specs["n"].repeated
    assert "image/class/label" not in specs
    assert "image/encoded" in specs


def test_measure_size_ratio(folder: pathlib.Path) -> None:
    refs = [ref(folder, "good.png"), ref(folder, "text.jpg"), ref(folder, "missing.jpg")]
    raw = ImageOptions(encoding=Encoding.RAW)
    assert records.measure_size_ratio(refs, raw) == pytest.approx(24 * 32 * 3 / len(fakes.png(2)))
    assert records.measure_size_ratio(refs[1:], raw) == 1.0
    assert records.measure_size_ratio([], raw) == 1.0


def test_rejects_keep_their_reason_when_pickled() -> None:
    error = ImageRejectedError(records.RejectReason.EMPTY, "zero bytes")
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.reason, copy.detail) == (error.reason, error.detail)
