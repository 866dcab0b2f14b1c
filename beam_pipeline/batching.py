"""How references are gathered into batches before a shuffle, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from beam_pipeline.hashing import bucket_hash
from beam_pipeline.references import RefBatch
from beam_pipeline.types import ImageRef

# References are compared with their possible duplicates in this many groups: enough to
# spread the work, few enough that batches of references stay large.
BUCKETS = 128
# References in one element, and references held before batches are sent.
BATCH_REFS = 2048
HELD_REFS = 1 << 13
# With many shards more are held, so that a batch still has about this many references: a
# batch of one takes four times the bytes of a reference in a large one.
REFS_PER_SHARD = 32
MOST_HELD_REFS = 1 << 17  # about 80 MB


def held_for(shards: int) -> int:
    """How many references are held where they are gathered by that many shards."""
    return min(MOST_HELD_REFS, max(BATCH_REFS, REFS_PER_SHARD * shards))


class Batcher:
    """Gathers references by a key and gives them out in large batches, in bounded memory."""

    def __init__(self, limit: int = HELD_REFS) -> None:
        self._groups: dict[Any, list[ImageRef]] = {}
        self._held = 0
        self._limit = limit

    def add(self, key: Any, refs: list[ImageRef]) -> Iterator[tuple[Any, RefBatch]]:
        """Adds references; yields what became large enough to go."""
        group = self._groups.setdefault(key, [])
        group += refs
        self._held += len(refs)
        if len(group) >= BATCH_REFS:
            del self._groups[key]
            self._held -= len(group)
            yield key, RefBatch(group)
        elif self._held >= self._limit:
            yield from self.rest()

    def rest(self) -> Iterator[tuple[Any, RefBatch]]:
        """Yields everything that is held."""
        groups, self._groups, self._held = self._groups, {}, 0
        yield from ((key, RefBatch(group)) for key, group in groups.items())


def batches_by_bucket(refs: Iterable[ImageRef]) -> Iterator[tuple[int, RefBatch]]:
    """Batches references so that all with the same key get the same bucket number."""
    batcher = Batcher()
    for ref in refs:
        yield from batcher.add(bucket_hash(ref.key, BUCKETS), [ref])
    yield from batcher.rest()
