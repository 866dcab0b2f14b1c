"""Which split an image belongs to."""

from __future__ import annotations

from collections.abc import Mapping

from beam_pipeline.hashing import HASH_BITS, split_hash
from beam_pipeline.types import ImageRef

DEFAULT_SPLIT = "train"


def assign_split(ref: ImageRef, fractions: Mapping[str, float], seed: int) -> str:
    """The split of `ref`.

    The split that the input names wins. Otherwise the salted hash of the group (or,
    without one, of the key) picks one of `fractions`, so that an image, and a whole
    group, never changes split when others are added or removed.

    Args:
      ref: the image.
      fractions: split name → share, in an order that matters; empty: one split.
      seed: another seed gives another independent partition.
    """
    if ref.split is not None:
        return ref.split
    if not fractions:
        return DEFAULT_SPLIT
    point = split_hash(seed, ref.key if ref.group is None else ref.group) / 2**HASH_BITS
    limit = 0.0
    for split, fraction in fractions.items():
        limit += fraction
        if point < limit:
            return split
    return split  # the fractions add up to 1 only to within rounding
