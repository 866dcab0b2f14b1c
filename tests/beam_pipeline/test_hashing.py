"""Hashes decide splits and order; their values are part of the format."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from beam_pipeline.hashing import (
    HASH_BITS,
    bucket_hash,
    hash64,
    order_hash,
    order_hashes,
    split_hash,
)


def test_hash64_is_keyed_blake2b() -> None:
    expected = hashlib.blake2b(b"a/1.jpg", digest_size=8, key=b"salt").digest()
    assert hash64("salt", "a/1.jpg") == int.from_bytes(expected, "big")


@pytest.mark.parametrize(
    ("function", "value"),
    [
        # Another value here means that every dataset changes: a new major version.
        (lambda: order_hash(0, "happy/1.jpg"), 12397725874816991183),
        (lambda: order_hash(7, "happy/1.jpg"), 16279033846067147208),
        (lambda: split_hash(0, "happy/1.jpg"), 654061578321074973),
        (lambda: split_hash(0, "glücklich/ü.jpg"), 14593389158337170213),
        (lambda: bucket_hash("happy/1.jpg", 128), 65),
        (lambda: hash64("", ""), 16476032584258269876),
    ],
)
def test_values_are_fixed(function, value) -> None:  # type: ignore[no-untyped-def]
    assert function() == value


def test_order_and_split_are_independent() -> None:
    # The same hash for both would put each split into a contiguous range of the order.
    keys = [f"{i}.jpg" for i in range(4000)]
    order = np.array([order_hash(0, key) for key in keys], np.float64)
    split = np.array([split_hash(0, key) for key in keys], np.float64)
    assert abs(np.corrcoef(order, split)[0, 1]) < 0.05


def test_hashes_are_uniform_and_in_range() -> None:
    values = [order_hash(3, f"k{i}") for i in range(8000)]
    assert all(0 <= value < 2**HASH_BITS for value in values)
    counts = np.bincount([value >> (HASH_BITS - 3) for value in values], minlength=8)
    assert counts.min() > 850
    assert counts.max() < 1150


def test_buckets_cover_their_range() -> None:
    assert {bucket_hash(f"{i}", 5) for i in range(100)} == set(range(5))


def test_many_hashes_are_those_of_one() -> None:
    keys = [f"glücklich/{number}.jpg" for number in range(100)]
    assert order_hashes(3, keys) == [order_hash(3, key) for key in keys]
    assert order_hashes(3, []) == []
