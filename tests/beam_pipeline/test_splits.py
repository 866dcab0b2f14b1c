"""Which split an image belongs to, and that it never changes."""

from __future__ import annotations

from collections import Counter

import pytest

from beam_pipeline.hashing import HASH_BITS
from beam_pipeline.splits import DEFAULT_SPLIT, assign_split
from beam_pipeline.types import ImageRef

FRACTIONS = {"train": 0.8, "validation": 0.1, "test": 0.1}


def ref(key: str, **fields: str) -> ImageRef:
    return ImageRef(key, f"/data/{key}", **fields)  # type: ignore[arg-type]


def test_without_fractions_everything_is_train() -> None:
    assert DEFAULT_SPLIT == "train"
    assert assign_split(ref("a"), {}, 0) == "train"


@pytest.mark.parametrize("fractions", [{}, FRACTIONS])
def test_the_split_of_the_input_wins(fractions: dict[str, float]) -> None:
    assert assign_split(ref("a", split="holdout"), fractions, 0) == "holdout"


def test_fractions_are_met() -> None:
    counts = Counter(assign_split(ref(f"{i}.jpg"), FRACTIONS, 0) for i in range(20_000))
    assert set(counts) == set(FRACTIONS)
    for split, fraction in FRACTIONS.items():
        assert counts[split] / 20_000 == pytest.approx(fraction, abs=0.01)


def test_a_group_stays_together() -> None:
    splits = {assign_split(ref(f"{i}.jpg", group="person 7"), FRACTIONS, 0) for i in range(200)}
    assert len(splits) == 1


def test_an_empty_group_is_a_group() -> None:
    # None means "no group"; "" is a value like any other.
    splits = {assign_split(ref(f"{i}.jpg", group=""), FRACTIONS, 0) for i in range(200)}
    assert len(splits) == 1


def test_a_growing_first_split_only_takes_from_the_others() -> None:
    for i in range(2000):
        if assign_split(ref(str(i)), {"train": 0.7, "test": 0.3}, 0) == "train":
            assert assign_split(ref(str(i)), {"train": 0.8, "test": 0.2}, 0) == "train"


def test_another_seed_is_another_partition() -> None:
    def members(seed: int) -> set[int]:
        return {i for i in range(2000) if assign_split(ref(str(i)), FRACTIONS, seed) == "test"}

    shared = len(members(0) & members(1)) / len(members(0))
    assert shared < 0.25  # independent partitions share a tenth


def test_rounding_of_fractions_loses_no_image(monkeypatch: pytest.MonkeyPatch) -> None:
    # Ten times 0.1 is a little less than 1; the highest hash still gets a split.
    fractions = {f"s{i}": 0.1 for i in range(10)}
    assert sum(fractions.values()) < 1
    monkeypatch.setattr("beam_pipeline.splits.split_hash", lambda seed, group: 2**HASH_BITS - 1)
    assert assign_split(ref("a"), fractions, 0) == "s9"
