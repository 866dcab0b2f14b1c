"""What the user reads at the end of a conversion."""

from __future__ import annotations

from typing import Any

import pytest

from beam_pipeline.summary import (
    ADVICE,
    ConversionSummary,
    class_table,
    printable,
    size_text,
    table,
)
from beam_pipeline.types import RejectReason
from tests.beam_pipeline.test_dataset_info import make_info


def summary(seconds: float = 2.0, **fields: Any) -> ConversionSummary:
    fields.setdefault("run", {"input_bytes": 4_000_000})
    return ConversionSummary(make_info(**fields), seconds)


def test_equal_images_are_told() -> None:
    same = {
        "images": 5,
        "in_several_splits": 2,
        "with_several_labels": 0,
        "shown": [
            [
                {"key": "a/1\x1b.png", "split": "test", "label": "a"},
                {"key": "b/1.png", "split": "train", "label": "a"},
            ]
        ],
    }
    text = summary(run={"same_bytes": same}).text()
    assert (
        "warning: 2 images have the same bytes as one in another split; scores on them are too "
        "good: a/1\\x1b.png (test) and b/1.png (train)\n"
    ) in text
    assert "same bytes" not in summary(run={"same_bytes": {}}).text()


def test_every_reason_has_advice() -> None:
    assert set(ADVICE) == {reason.value for reason in RejectReason}
    assert all(ADVICE.values())


def test_the_whole_text() -> None:
    run = {
        "input_bytes": 4_000_000,
        "ignored_text": "ignored: 1 hidden files and folders ('.git')",
        "notes": {"reencoded": 2, "rotated": 1},
        "warnings": ["labels 'a' and 'A' differ only in case"],
        "empty_splits": ["test"],
        "empty_classes": ["c"],
        "decoder_warnings": {"bad EXIF": 3},
        "rejects_shown": [
            {"reason": "empty", "key": "a/0.jpg", "detail": "the file has no bytes"},
        ],
    }
    text = summary(run=run, rejects={"empty": 2}).text()
    assert text.splitlines() == [
        "class   train  total",
        "a           2      2",
        "b           1      1",
        "all         3      3",
        "shards      2",
        "",
        "4 inputs = 3 written + 1 rejected + 0 duplicates",
        "2 shards, 8 bytes, in 2s (2 images/s, 2.0 MB/s read)",
        "ignored: 1 hidden files and folders ('.git')",
        "note: 2 reencoded, 1 rotated",
        "warning: labels 'a' and 'A' differ only in case",
        "warning: split test came out empty: all of its inputs were refused",
        "warning: class c has no image left: all of its inputs were refused",
        "warning: decoder: bad EXIF (3×)",
        "",
        "rejected: 2 empty - the file has no bytes: copy or download it again",
        "    a/0.jpg: the file has no bytes",
        "    … and 1 more",
        "",
        "dataset:  /d",
        "look at:  conversion.json (everything about this run), index/ (one row per input), "
        "rejected.jsonl",
    ]


def test_without_labels_and_rejects() -> None:
    ledger = {"inputs": 3, "written": 3, "rejected": 0, "duplicates": 0}
    text = summary(labels=None, rejects={}, ledger=ledger, run={}).text()
    assert text.splitlines()[:3] == [
        "class   train  total",
        "all         3      3",
        "shards      2",
    ]
    assert "rejected.jsonl" not in text
    assert "warning" not in text


def test_rejects_are_grouped_largest_first() -> None:
    shown = [
        {"reason": "empty", "key": "e", "detail": "d1"},
        {"reason": "corrupt", "key": "c", "detail": "d2"},
        {"reason": "bad_row", "key": "b", "detail": "d3"},
    ]
    text = summary(
        rejects={"bad_row": 1, "corrupt": 1, "empty": 5}, run={"rejects_shown": shown}
    ).rejects_text()
    assert [line.split()[2] for line in text.splitlines() if line.startswith("rejected")] == [
        "empty",
        "bad_row",
        "corrupt",
    ]
    assert "    e: d1\n    … and 4 more\n" in text


def test_hostile_names_cannot_reach_the_terminal() -> None:
    hostile = "\x1b[2J\nnew line\u202eright to left\x07"
    shown = [{"reason": "empty", "key": hostile, "detail": hostile}]
    info = summary(
        labels=(hostile, "b"),
        rejects={"empty": 1},
        run={"rejects_shown": shown, "warnings": [hostile]},
    )
    info.info.splits["train"].classes[hostile] = 1  # type: ignore[index]
    text = info.text()
    for char in "\x1b\x07\u202e":
        assert char not in text
    assert "\nnew line" not in text
    assert "\\x1b[2J\\nnew line\\u202eright to left\\x07" in text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1.0 kB"),
        (1_234_567, "1.2 MB"),
        (5e9, "5.0 GB"),
        (5e12, "5.0 TB"),
        (5e16, "50,000.0 TB"),
    ],
)
def test_size_text(size: float, text: str) -> None:
    assert size_text(size) == text


def test_printable_is_bounded() -> None:
    assert printable("x" * 200) == "x" * 200
    assert printable("x" * 201) == "x" * 199 + "…"
    assert printable("ü 😀") == "ü 😀"
    assert printable("a\udcff") == "a\\udcff"


def test_table_aligns() -> None:
    assert table([["a", "bb"], ["ccc", "1"]]) == "a    bb\nccc   1"


def test_numbers() -> None:
    found = summary()
    assert (found.inputs, found.written, found.rejected, found.duplicates) == (4, 3, 1, 0)
    assert class_table(found.info).count("\n") == 4
