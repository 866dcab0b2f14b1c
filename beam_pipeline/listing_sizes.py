"""Sizes of inputs that listing did not tell."""

from __future__ import annotations

import os

from beam_pipeline import storage
from beam_pipeline.types import ImageRef


def with_sizes(refs: list[ImageRef]) -> list[ImageRef]:
    """Fills in unknown sizes where asking is cheap (local disk)."""
    if all(ref.size >= 0 for ref in refs):
        return refs
    return [
        ref._replace(size=_local_size(ref.uri))
        if ref.size < 0 and ref.problem is None and storage.is_local(ref.uri)
        else ref
        for ref in refs
    ]


def _local_size(uri: str) -> int:
    try:
        return os.stat(uri.removeprefix("file://")).st_size
    except (OSError, ValueError):
        return -1  # refused when it is read, with a reason
