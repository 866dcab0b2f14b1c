"""Every row of an input that is named twice has a verdict."""

from __future__ import annotations

import itertools

from beam_pipeline.duplicates import resolve_duplicates
from beam_pipeline.types import ImageRef, Outcome, Problem


def ref(key: str, row: int | None = None, label: str | None = "a", **fields: object) -> ImageRef:
    return ImageRef(key, f"/d/{key}", label, row=row, **fields)  # type: ignore[arg-type]


def test_different_keys_are_left_alone() -> None:
    refs = [ref("a"), ref("b"), ref("c")]
    assert resolve_duplicates(refs) == refs


def test_the_first_row_is_kept() -> None:
    problem = Problem(Outcome.DUPLICATE, "same_path", "row 2")
    for order in itertools.permutations([ref("a", 9), ref("a", 2), ref("a", 5)]):
        assert resolve_duplicates(order) == [
            ref("a", 2),
            ref("a", 5, problem=problem),
            ref("a", 9, problem=problem),
        ]


def test_rows_without_numbers() -> None:
    # The same folder given twice.
    assert resolve_duplicates([ref("a"), ref("a")]) == [
        ref("a"),
        ref("a", problem=Problem(Outcome.DUPLICATE, "same_path", "")),
    ]


def test_conflicting_labels_refuse_all_rows() -> None:
    problem = Problem(
        Outcome.REJECTED,
        "conflicting_labels",
        "the same path has more than one label: happy (row 1), sad (row 4), happy (row 6); "
        "keep the right row",
    )
    rows = [ref("a", 1, "happy"), ref("a", 4, "sad"), ref("a", 6, "happy")]
    for order in itertools.permutations(rows):
        assert resolve_duplicates(order) == [row._replace(problem=problem) for row in rows]


def test_conflicting_splits_refuse_all_rows() -> None:
    rows = [ref("a", 1, split="train"), ref("a", 2, split="test")]
    found = resolve_duplicates(rows)
    assert [row.problem.reason for row in found if row.problem] == ["conflicting_splits"] * 2
    assert found[0].problem is not None
    assert "train (row 1), test (row 2)" in found[0].problem.detail


def test_a_label_against_none_is_a_conflict() -> None:
    found = resolve_duplicates([ref("a", 1, "happy"), ref("a", 2, None)])
    assert [row.problem.reason for row in found if row.problem] == ["conflicting_labels"] * 2


def test_a_refused_row_does_not_spoil_the_other() -> None:
    bad = ref("a", 1, "x", problem=Problem(Outcome.REJECTED, "bad_row", "…"))
    good = ref("a", 2, "y")
    assert resolve_duplicates([good, bad]) == [bad, good]


def test_as_many_come_out_as_went_in() -> None:
    refs = [ref(f"{i % 7}", i, f"l{i % 3}") for i in range(100)]
    found = resolve_duplicates(refs)
    assert sorted((r.key, r.row) for r in found) == sorted((r.key, r.row) for r in refs)
