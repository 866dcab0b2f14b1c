"""How an order of records is cut: exact counts, bounded bytes, never an empty shard."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from beam_pipeline import shards
from beam_pipeline.hashing import order_hash
from beam_pipeline.shards import OrderHistogram, cut_by_bytes, cut_by_count, shard_numbers


def histogram(sizes: list[int], hashes: list[int] | None = None) -> OrderHistogram:
    return OrderHistogram.of(hashes or [10 * (i + 1) for i in range(len(sizes))], sizes)


def counts_and_bytes(
    bounds: tuple[int, ...], hashes: list[int], sizes: list[int]
) -> tuple[list[int], list[int]]:
    numbers = shard_numbers(bounds, hashes)
    counts = np.bincount(numbers, minlength=len(bounds))
    total = np.bincount(numbers, weights=sizes, minlength=len(bounds))
    return counts.tolist(), total.astype(int).tolist()


@pytest.mark.parametrize(
    ("records", "asked", "counts"),
    [
        (10, 1, [10]),
        (10, 2, [5, 5]),
        (10, 3, [4, 3, 3]),
        (10, 10, [1] * 10),
        (10, 99, [1] * 10),  # never more shards than records
        (1, 5, [1]),
        (7, 4, [2, 2, 2, 1]),
    ],
)
def test_cut_by_count(records: int, asked: int, counts: list[int]) -> None:
    sizes = [100] * records
    hashes = [10 * (i + 1) for i in range(records)]
    bounds = cut_by_count(histogram(sizes), asked)
    assert bounds[0] == 0
    assert list(bounds) == sorted(set(bounds))
    found, _ = counts_and_bytes(bounds, hashes, sizes)
    assert sorted(found) == sorted(counts)


@pytest.mark.parametrize("records", [5, 17, 100, 1001])
@pytest.mark.parametrize("asked", [1, 2, 3, 5, 16, 100])
def test_count_is_exact_and_even(records: int, asked: int) -> None:
    hashes = sorted(order_hash(0, f"{i}") for i in range(records))
    bounds = cut_by_count(OrderHistogram.of(hashes, [1] * records), asked)
    found, _ = counts_and_bytes(bounds, hashes, [1] * records)
    assert len(found) == min(asked, records)
    assert min(found) >= 1
    assert max(found) - min(found) <= 1


def test_equal_hashes_share_a_shard() -> None:
    # Rows with one key (a duplicate) must meet in one shard; 3 distinct hashes, 3 shards.
    hashes = [5, 5, 5, 5, 6, 7]
    bounds = cut_by_count(OrderHistogram.of(hashes, [1] * 6), 4)
    found, _ = counts_and_bytes(bounds, hashes, [1] * 6)
    assert found == [4, 1, 1]


@pytest.mark.parametrize(
    ("sizes", "limit", "expected"),
    [
        ([10] * 10, 1000, [100]),
        ([10] * 10, 100, [100]),  # exactly full
        ([10] * 10, 99, [50, 50]),  # evenly, not 90 and 10
        ([10] * 10, 30, [30, 30, 30, 10]),
        ([10] * 10, 1, [10] * 10),  # one record is more than a shard: a shard of its own
        ([10, 500, 10, 10], 40, [10, 500, 20]),
        ([500], 40, [500]),
        ([1, 1, 1, 90, 1, 1, 1], 92, [3, 90, 3]),
    ],
)
def test_cut_by_bytes(sizes: list[int], limit: int, expected: list[int]) -> None:
    hashes = [10 * (i + 1) for i in range(len(sizes))]
    _, found = counts_and_bytes(cut_by_bytes(histogram(sizes), limit), hashes, sizes)
    assert found == expected


def test_bytes_are_bounded_with_as_few_shards_as_needed() -> None:
    generator = np.random.default_rng(0)
    for limit in (1000, 3333, 20_000):
        sizes = generator.integers(1, 1000, 500).tolist()
        hashes = sorted(order_hash(0, f"{i}") for i in range(500))
        bounds = cut_by_bytes(OrderHistogram.of(hashes, sizes), limit)
        counts, found = counts_and_bytes(bounds, hashes, sizes)
        assert max(found) <= limit
        assert min(counts) >= 1
        greedy = 1
        used = 0
        for size in sizes:
            if used + size > limit:
                greedy, used = greedy + 1, 0
            used += size
        assert len(bounds) == greedy


def test_nothing_is_one_shard() -> None:
    assert cut_by_count(histogram([]), 3) == (0,)
    assert cut_by_bytes(histogram([]), 3) == (0,)


def test_shard_numbers_include_their_lower_bound() -> None:
    assert shard_numbers((0, 10, 20), [0, 9, 10, 19, 20, 2**64 - 1]).tolist() == [0, 0, 1, 1, 2, 2]


def equal(a: OrderHistogram, b: OrderHistogram) -> bool:
    return (
        a.coarse == b.coarse
        and np.array_equal(a.hashes, b.hashes)
        and np.array_equal(a.counts, b.counts)
        and np.array_equal(a.sizes, b.sizes)
    )


def test_merging_is_the_same_in_every_order() -> None:
    parts = [
        OrderHistogram.of([order_hash(0, f"{part}-{i}") for i in range(20)], range(part, part + 20))
        for part in range(4)
    ]
    whole = OrderHistogram.merge(parts)
    assert whole.records == 80
    assert whole.bytes == sum(sum(range(part, part + 20)) for part in range(4))
    for order in itertools.permutations(parts):
        nested = OrderHistogram.merge(
            [OrderHistogram.merge(order[:2]), OrderHistogram.merge(order[2:])]
        )
        assert equal(nested, whole)


def test_a_coarse_histogram_is_the_same_however_it_became_coarse(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shards, "EXACT_LIMIT", 50)
    hashes = [order_hash(0, f"{i}") for i in range(200)]
    sizes = list(range(200))
    at_once = OrderHistogram.of(hashes, sizes)
    parts = [OrderHistogram.of(hashes[i::8], sizes[i::8]) for i in range(8)]
    assert at_once.coarse
    assert not parts[0].coarse
    assert equal(OrderHistogram.merge(parts), at_once)
    assert at_once.records == 200
    assert at_once.bytes == sum(sizes)


def test_a_coarse_histogram_still_cuts_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "EXACT_LIMIT", 50)
    hashes = [order_hash(0, f"{i}") for i in range(500)]
    bounds = cut_by_count(OrderHistogram.of(hashes, [1] * 500), 7)
    found, _ = counts_and_bytes(bounds, hashes, [1] * 500)
    assert len(found) == 7
    assert max(found) - min(found) <= 2  # 500 hashes rarely share one of 2**20 buckets


def test_sizes_beyond_float64_are_exact() -> None:
    big = (1 << 53) + 1
    assert OrderHistogram.merge([histogram([big]), histogram([2])]).bytes == big + 2
