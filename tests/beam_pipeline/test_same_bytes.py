"""Images with the same bytes under different keys: found, counted, named."""

from __future__ import annotations

import collections
import itertools
import json
import pathlib
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest

from beam_pipeline.options import Writer
from beam_pipeline.same_bytes import StoredImages, find_same_bytes, same_bytes_warnings
from tests import conversions, fakes

ADVICE = (
    "--equal_images drop keeps one of each, outside of train where it can, and refuses those "
    "with several labels"
)

Image = tuple[str, str, str | None]  # content, split, label


def stored(images: Sequence[Image]) -> tuple[list[StoredImages], list[list[dict[str, Any]]]]:
    """Shards of two images, and their index rows; every second row is a rejected one."""
    shards, rows = [], []
    by_split = sorted(enumerate(images), key=lambda item: item[1][1])
    for split, members in itertools.groupby(by_split, key=lambda item: item[1][1]):
        left = list(members)
        while left:
            mine, left = left[:2], left[2:]
            table: dict[str, list[str | None]] = {"sha256": [], "label": []}
            for _, (content, _, label) in mine:
                table["sha256"] += [None, f"{int(content, 36):016x}" + "0" * 48]
                table["label"] += ["a", label]
            shards.append(StoredImages(split, pa.table(table), {"a": 0, "b": 1}))
            rows.append(
                [
                    {"key": f"{number}.png", "split": split, "label": label, "position": 0}
                    for number, (_, _, label) in mine
                ]
            )
    return shards, rows


def find(images: Sequence[Image]) -> dict[str, Any]:
    shards, rows = stored(images)
    asked: list[int] = []

    def read(shard: int, numbers: Sequence[int]) -> list[Mapping[str, Any]]:
        asked.append(shard)
        return [rows[shard][number] for number in numbers]

    found = find_same_bytes(shards, read)
    assert len(asked) == len(set(asked))  # each shard is read once
    return found


def test_different_images_are_not_told() -> None:
    assert find([]) == {}
    assert find([("x", "train", "a")]) == {}
    assert find([("x", "train", "a"), ("y", "train", "a"), ("z", "test", "b")]) == {}


def test_a_pair_across_splits_with_two_labels() -> None:
    found = find([("x", "train", "a"), ("y", "train", "a"), ("x", "test", "b")])
    assert found == {
        "images": 2,
        "in_several_splits": 2,
        "with_several_labels": 2,
        "shown": [
            [
                {"key": "0.png", "split": "train", "label": "a"},
                {"key": "2.png", "split": "test", "label": "b"},
            ]
        ],
    }


def test_counts_are_those_of_a_plain_count() -> None:
    generator = random.Random(0)
    for _ in range(200):
        images = [
            (
                generator.choice("abcdefghijkl"),
                generator.choice(("train", "test", "validation")[: generator.randint(1, 3)]),
                generator.choice(("a", "b", None)[: generator.randint(1, 3)]),
            )
            for _ in range(generator.randint(0, 25))
        ]
        groups: dict[str, list[Image]] = collections.defaultdict(list)
        for image in images:
            groups[image[0]].append(image)
        equal = [group for group in groups.values() if len(group) > 1]
        several = {
            part: [group for group in equal if len({image[part] for image in group}) > 1]
            for part in (1, 2)
        }
        found = find(images)
        if not equal:
            assert found == {}
            continue
        assert found["images"] == sum(map(len, equal))
        assert found["in_several_splits"] == sum(map(len, several[1]))
        assert found["with_several_labels"] == sum(map(len, several[2]))
        # Of each kind that there is, one is named, and shows the difference.
        for part, name in ((1, "split"), (2, "label")):
            shown = [group for group in found["shown"] if len({row[name] for row in group}) > 1]
            assert bool(shown) == bool(several[part])
        for group in found["shown"]:
            assert 2 <= len(group) <= 4
            assert group == sorted(group, key=lambda row: row["key"])
            contents = {images[int(row["key"].removesuffix(".png"))][0] for row in group}
            assert len(contents) == 1


def test_texts() -> None:
    assert same_bytes_warnings({}) == []
    plain = find([("x", "train", "a"), ("x", "train", "a")])
    assert same_bytes_warnings(plain) == [
        "2 images have the same bytes as another one: 0.png and 1.png",
        ADVICE,
    ]
    assert same_bytes_warnings(plain, dropped=True)[1:] == [
        "their files differ: they became equal where they were written anew"
    ]
    both = find([("x", "train", "a"), ("x", "train", "b"), ("y", "train", "a"), ("y", "test", "a")])
    assert same_bytes_warnings(both) == [
        "2 images have the same bytes as one with another label; one of the two is wrong: "
        "0.png (a) and 1.png (b)",
        "2 images have the same bytes as one in another split; scores on them are too good: "
        "2.png (train) and 3.png (test)",
        ADVICE,
    ]


@pytest.mark.parametrize("writer", list(Writer))
def test_a_conversion_counts_and_names_them(tmp_path: pathlib.Path, writer: Writer) -> None:
    files = {
        f"{split}/{label}/{n}.png": fakes.png(100 * len(split) + 10 * len(label) + n)
        for split in ("train", "test")
        for label in ("sad", "happy")
        for n in range(4)
    }
    files["test/sad/again.png"] = files["train/sad/1.png"]
    files["train/happy/again.png"] = files["train/sad/2.png"]
    files["train/sad/broken.png"] = b""
    fakes.write_tree(tmp_path / "in", files)
    summary = conversions.run(
        tmp_path / "in", tmp_path / "out", writer=writer, num_shards=2, max_reject_fraction=0.2
    )
    run = json.loads((tmp_path / "out" / "conversion.json").read_text())["run"]
    found = run["same_bytes"]
    assert found == summary.info.run["same_bytes"]
    assert {name: found[name] for name in found if name != "shown"} == {
        "images": 4,
        "in_several_splits": 2,
        "with_several_labels": 2,
    }
    assert [
        [(row["key"], row["split"], row["label"]) for row in group] for group in found["shown"]
    ] == [
        [
            ("train/happy/again.png", "train", "happy"),
            ("train/sad/2.png", "train", "sad"),
        ],
        [("test/sad/again.png", "test", "sad"), ("train/sad/1.png", "train", "sad")],
    ]
    assert "2 images have the same bytes as one with another label" in summary.text()
    card = (tmp_path / "out" / "README.md").read_text()
    assert (
        "Equal images under different keys: 4, of which 2 lie in several splits and 2 have "
        "several labels"
    ) in card
