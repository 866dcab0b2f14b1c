"""How the records of a split are cut into shards.

All records of a split stand in one global order: by the hash of their keys. A shard
is a contiguous range of that order. To choose the ranges without gathering all
references in one place, workers add up a histogram of hashes; it is exact for small
datasets and coarsens for large ones, and depends only on what was added, never on
the order in which partial histograms were merged.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from beam_pipeline.hashing import HASH_BITS

# Up to this many distinct hashes the histogram is exact (20 bytes each: 5 MB). Beyond,
# it keeps the top 20 bits: a shard is then bounded to within a millionth of its split.
EXACT_LIMIT = 1 << 18
COARSE_BITS = 20


@dataclasses.dataclass(frozen=True)
class OrderHistogram:
    """Records and bytes per hash (or per top bits of it), sorted by hash.

    Attributes:
      hashes: uint64 [n], distinct, ascending; of a coarse histogram the lower bounds
        of its buckets.
      counts: int64 [n], records.
      sizes: int64 [n], bytes.
      coarse: whether hashes were cut to their top COARSE_BITS bits.
    """

    hashes: np.ndarray
    counts: np.ndarray
    sizes: np.ndarray
    coarse: bool = False

    @classmethod
    def of(cls, hashes: Sequence[int], sizes: Sequence[int]) -> OrderHistogram:
        """A histogram of single records."""
        values = np.asarray(hashes, np.uint64)
        return cls(values, np.ones(len(values), np.int64), np.asarray(sizes, np.int64))._compacted()

    @classmethod
    def merge(cls, parts: Sequence[OrderHistogram]) -> OrderHistogram:
        """The sum of `parts`; the same for every order and grouping of them."""
        coarse = any(part.coarse for part in parts)
        if coarse:
            parts = [part._coarsened() for part in parts]
        return cls(
            np.concatenate([part.hashes for part in parts]),
            np.concatenate([part.counts for part in parts]),
            np.concatenate([part.sizes for part in parts]),
            coarse,
        )._compacted()

    def _compacted(self) -> OrderHistogram:
        hashes, inverse = np.unique(self.hashes, return_inverse=True)
        # add.at, not bincount with weights: float64 would round sizes beyond 2**53.
        counts = np.zeros(len(hashes), np.int64)
        sizes = np.zeros(len(hashes), np.int64)
        np.add.at(counts, inverse, self.counts)
        np.add.at(sizes, inverse, self.sizes)
        merged = OrderHistogram(hashes, counts, sizes, self.coarse)
        return merged if len(hashes) <= EXACT_LIMIT else merged._coarsened()

    def _coarsened(self) -> OrderHistogram:
        if self.coarse:
            return self
        shift = np.uint64(HASH_BITS - COARSE_BITS)
        coarse = OrderHistogram(
            (self.hashes >> shift) << shift, self.counts, self.sizes, coarse=True
        )
        return coarse._compacted()

    @property
    def records(self) -> int:
        """Number of records added."""
        return int(self.counts.sum())

    @property
    def bytes(self) -> int:
        """Sum of their sizes."""
        return int(self.sizes.sum())


def cut_by_count(histogram: OrderHistogram, num_shards: int) -> tuple[int, ...]:
    """Cuts into exactly `num_shards` shards of nearly equal record counts.

    Fewer only where there are fewer distinct hashes than shards.

    Returns:
      The lowest hash of every shard, ascending; the first is 0.
    """
    entries = len(histogram.hashes)
    num_shards = min(num_shards, entries)
    if num_shards <= 1:
        return (0,)
    ends = np.cumsum(histogram.counts)
    targets = ends[-1] * np.arange(1, num_shards, dtype=np.float64) / num_shards
    starts = np.searchsorted(ends, targets, side="left") + 1
    # Every shard gets at least one entry: push cuts apart from the left, then from the right.
    for position in range(1, len(starts)):
        starts[position] = max(starts[position], starts[position - 1] + 1)
    for position in range(len(starts) - 1, -1, -1):
        starts[position] = min(starts[position], entries - (len(starts) - position))
    return (0, *(int(histogram.hashes[start]) for start in starts))


def cut_by_bytes(histogram: OrderHistogram, shard_size: int) -> tuple[int, ...]:
    """Cuts into as few shards of at most `shard_size` bytes as there must be, evenly filled.

    An entry that is larger than `shard_size` on its own gets a shard of its own.

    Returns:
      The lowest hash of every shard, ascending; the first is 0.
    """
    if histogram.bytes <= shard_size or len(histogram.hashes) <= 1:
        return (0,)
    ends = np.cumsum(histogram.sizes)
    wanted = len(_fill(ends, shard_size))
    # Filling greedily leaves a small last shard. The smallest capacity that needs no
    # more shards spreads the same records evenly.
    low, high = int(histogram.bytes // wanted), shard_size
    while low < high:
        middle = (low + high) // 2
        if len(_fill(ends, middle)) <= wanted:
            high = middle
        else:
            low = middle + 1
    return (0, *(int(histogram.hashes[start]) for start in _fill(ends, high)[1:]))


def _fill(ends: np.ndarray, capacity: int) -> list[int]:
    """Index of the first entry of every shard when each is filled up to `capacity` bytes."""
    starts = [0]
    while True:
        used = int(ends[starts[-1] - 1]) if starts[-1] else 0
        following = int(np.searchsorted(ends, used + capacity, side="right"))
        following = max(following, starts[-1] + 1)
        if following >= len(ends):
            return starts
        starts.append(following)


def shard_numbers(bounds: Sequence[int], hashes: Sequence[int]) -> np.ndarray:
    """The shard (int64, 0-based) of every hash, for bounds as the cut functions give them."""
    return (
        np.searchsorted(np.asarray(bounds, np.uint64), np.asarray(hashes, np.uint64), side="right")
        - 1
    )
