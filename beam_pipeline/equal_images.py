"""`--equal_images drop`: inputs with the same bytes under different names become one record.

Every input is read and hashed before the plan is made, so that what is dropped is known
to it: splits, shards and the ledger come out as if the copies had been named twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from beam_pipeline import storage
from beam_pipeline.errors import ImageRejectedError
from beam_pipeline.imaging.sniff import sniff
from beam_pipeline.records import REMOTE_READ_THREADS
from beam_pipeline.splits import DEFAULT_SPLIT
from beam_pipeline.types import ImageRef, Outcome, Problem, RejectReason
from beam_pipeline.worker_pool import available_cores

_DIGEST_BYTES = 16  # of SHA-256


def with_digests(refs: Sequence[ImageRef], max_bytes: int) -> list[ImageRef]:
    """Reads and hashes inputs, several side by side.

    Args:
      refs: the inputs.
      max_bytes: larger ones are not read.

    Returns:
      The same references with their `digest`; without one those that have a verdict
      already, and those that cannot be read or are no images, which get theirs when
      they are converted.

    Raises:
      StorageError: the environment failed (never because of one bad file).
    """
    local = all(storage.is_local(ref.uri) for ref in refs)
    # Python lets other threads run while a file is read and while it is hashed.
    with ThreadPoolExecutor(available_cores() if local else REMOTE_READ_THREADS) as pool:
        return list(pool.map(lambda ref: _with_digest(ref, max_bytes), refs))


def _with_digest(ref: ImageRef, max_bytes: int) -> ImageRef:
    if ref.problem is not None:
        return ref
    try:
        data = storage.read_bytes(ref.uri, ref.byte_range, max_bytes)
        if ref.pixels is None:
            # An error page that was downloaded a hundred times is refused for what it is.
            sniff(data)
    except ImageRejectedError:
        return ref
    return ref._replace(digest=hashlib.sha256(data).digest()[:_DIGEST_BYTES])


def drop_equal_images(refs: Iterable[ImageRef]) -> list[ImageRef]:
    """Keeps one of the inputs that share a digest and gives the others their verdict.

    Copies that agree on their label are one image. The one that is kept lies outside
    of the split "train" if any does, so that evaluation is as it was; then the first by
    split, row and key. Copies that do not agree are all refused: at least one label is
    wrong, and nothing here can tell which.

    Args:
      refs: references in any order, complete for every digest that occurs.

    Returns:
      As many references, without their digests, in an order that depends on their
      content alone.
    """
    by_digest: dict[bytes, list[ImageRef]] = {}
    resolved: list[ImageRef] = []
    for ref in refs:
        if ref.digest is None:
            resolved.append(ref)
        else:
            by_digest.setdefault(ref.digest, []).append(ref._replace(digest=None))
    for same in by_digest.values():
        resolved += _resolve(sorted(same, key=_order)) if len(same) > 1 else same
    resolved.sort(key=lambda ref: (ref.key, ref.row or 0))
    return resolved


def _order(ref: ImageRef) -> tuple[bool, str, int, str]:
    return (ref.split == DEFAULT_SPLIT, ref.split or "", ref.row or 0, ref.key)


def _resolve(same: list[ImageRef]) -> list[ImageRef]:
    first = {ref.label: ref.key for ref in reversed(same)}
    if len(first) > 1:
        named = ", ".join(sorted(f"{label or 'no label'} ({key})" for label, key in first.items()))
        if len(first) < len(same):
            named += ", …"
        problem = Problem(
            Outcome.REJECTED,
            RejectReason.CONFLICTING_LABELS.value,
            f"images with the same bytes have more than one label: {named}; keep the right one",
        )
        return [ref._replace(problem=problem) for ref in same]
    problem = Problem(Outcome.DUPLICATE, "same_bytes", f"same bytes as {same[0].key}")
    return [same[0], *(ref._replace(problem=problem) for ref in same[1:])]
