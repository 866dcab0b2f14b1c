"""Batches of image references: the element that pipelines pass on and shuffle.

One Beam element costs about 0.1 ms, whatever its size; a reference costs about 3 µs.
Batches make the difference, and their coder makes sure that nothing but references
ever crosses a shuffle.
"""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import apache_beam as beam

from beam_pipeline.types import ImageRef, Problem


@dataclasses.dataclass(frozen=True)
class RefBatch:
    """Some references; the unit that is encoded, shuffled and decoded."""

    refs: list[ImageRef]


class RefBatchCoder(beam.coders.Coder):
    """Encodes a RefBatch compactly; refuses anything else, pixels above all."""

    def encode(self, value: RefBatch) -> bytes:
        """Pickles the references as plain tuples (3× smaller and faster than as objects)."""
        if not isinstance(value, RefBatch):
            raise TypeError(f"only RefBatch crosses a shuffle here, got {type(value).__name__}")
        return pickle.dumps([tuple(ref) for ref in value.refs], protocol=4)

    def decode(self, encoded: bytes) -> RefBatch:
        """The opposite of encode."""
        return RefBatch(
            [
                ImageRef._make(fields)
                if fields[-1] is None
                else ImageRef._make((*fields[:-1], Problem._make(fields[-1])))
                for fields in pickle.loads(encoded)
            ]
        )

    def is_deterministic(self) -> bool:
        """Equal references encode equally, but a batch is never a key."""
        return False

    def to_type_hint(self) -> Any:
        """The type that this coder is for."""
        return RefBatch

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))


beam.coders.registry.register_coder(RefBatch, RefBatchCoder)
