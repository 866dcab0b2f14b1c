"""Beam's coder of RefBatch: makes sure that nothing but references ever crosses a shuffle."""

from __future__ import annotations

from typing import Any

import apache_beam as beam

from beam_pipeline.references import RefBatch


class RefBatchCoder(beam.coders.Coder):
    """Encodes a RefBatch compactly; refuses anything else, pixels above all."""

    def encode(self, value: RefBatch) -> bytes:
        """The batch as bytes."""
        if not isinstance(value, RefBatch):
            raise TypeError(f"only RefBatch crosses a shuffle here, got {type(value).__name__}")
        return value.encoded

    def decode(self, encoded: bytes) -> RefBatch:
        """The opposite of encode; cheap, see RefBatch."""
        return RefBatch(encoded=encoded)

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
