"""What happens when an input is named more than once: one record, and every row accounted for."""

from __future__ import annotations

from collections.abc import Iterable

from beam_pipeline.types import ImageRef, Outcome, Problem, RejectReason


def resolve_duplicates(refs: Iterable[ImageRef]) -> list[ImageRef]:
    """Keeps one of the references that share a key and gives the others their verdict.

    Rows that agree on label and split are one image: the first (by row number) is
    kept, the others become duplicates. Rows that do not agree are all refused: at
    least one of them is wrong, and nothing here can tell which.

    Args:
      refs: references in any order, complete for every key that occurs.

    Returns:
      As many references, those of one key together, in an order that depends on
      their content alone.
    """
    by_key: dict[str, list[ImageRef]] = {}
    for ref in refs:
        by_key.setdefault(ref.key, []).append(ref)
    resolved: list[ImageRef] = []
    for same in by_key.values():
        if len(same) == 1:
            resolved += same
            continue
        same.sort(key=_row_order)
        usable = [ref for ref in same if ref.problem is None]
        resolved += [ref for ref in same if ref.problem is not None]
        resolved += _resolve(usable)
    return resolved


def _resolve(same: list[ImageRef]) -> list[ImageRef]:
    if len(same) < 2:
        return same
    for reason, what, values in (
        (RejectReason.CONFLICTING_LABELS, "label", [ref.label for ref in same]),
        (RejectReason.CONFLICTING_SPLITS, "split", [ref.split for ref in same]),
    ):
        if len(set(values)) > 1:
            named = ", ".join(
                f"{value}" + (f" (row {ref.row})" if ref.row is not None else "")
                for value, ref in zip(values, same, strict=True)
            )
            problem = Problem(
                Outcome.REJECTED,
                reason.value,
                f"the same path has more than one {what}: {named}; keep the right row",
            )
            return [ref._replace(problem=problem) for ref in same]
    kept = same[0]
    where = "" if kept.row is None else f"row {kept.row}"
    problem = Problem(Outcome.DUPLICATE, "same_path", where)
    return [kept, *(ref._replace(problem=problem) for ref in same[1:])]


def _row_order(ref: ImageRef) -> tuple[int, str, str, str]:
    return (ref.row or 0, ref.uri, ref.label or "", ref.split or "")
