"""Images that are stored with the same bytes under different keys.

Such twins are no error, so nothing is done about them; but they spoil what a dataset is
used for where their labels differ, or where one is trained on and another tested.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

_SHOWN = 3  # groups of each kind
_SHOWN_MEMBERS = 4  # of each group

# What may be wrong with a group of twins, the worst first; the keys of conversion.json.
SEVERAL_LABELS = "with_several_labels"
SEVERAL_SPLITS = "in_several_splits"

# (shard, numbers of written records in it) → the rows of the index, in their order.
RowReader = Callable[[int, Sequence[int]], Sequence[Mapping[str, Any]]]


class StoredImages:
    """What is remembered of the written images of one shard: 12 bytes each.

    Attributes:
      split: of the shard.
      checksums: uint64 [n], the first 8 bytes of the SHA-256 of each stored image, in order.
        (Of ten million different images two have the same ones with a probability of 3e-6.)
      labels: int32 [n], class ids; -1 without a label.
    """

    def __init__(self, split: str, rows: pa.Table, label_ids: Mapping[str, int]) -> None:
        self.split = split
        written = [
            (checksum, label)
            for checksum, label in zip(
                rows["sha256"].to_pylist(), rows["label"].to_pylist(), strict=True
            )
            if checksum is not None
        ]
        self.checksums = np.array([int(text[:16], 16) for text, _ in written], np.uint64)
        self.labels = np.array([label_ids.get(label, -1) for _, label in written], np.int32)


def find_same_bytes(shards: Sequence[StoredImages], read_rows: RowReader) -> dict[str, Any]:
    """Counts the twins of a dataset and names the first of them.

    Args:
      shards: of the dataset, all of them.
      read_rows: gives the index rows of the few images that are named.

    Returns:
      {} without twins, else "images": how many have the bytes of another one,
      "in_several_splits" and "with_several_labels": how many of them are in such a
      group, "shown": groups, each a list of {"key", "split", "label"}.
    """
    checksums = np.concatenate([shard.checksums for shard in shards] or [np.empty(0, np.uint64)])
    order = np.argsort(checksums, kind="stable")
    equal = np.diff(checksums[order]) == 0
    if not equal.any():
        return {}
    # Members of groups, one group after the other; where each group starts.
    members = order[np.append(equal, False) | np.insert(equal, 0, False)]
    starts = np.flatnonzero(np.insert(np.diff(checksums[members]) != 0, 0, True))
    sizes = np.diff(np.append(starts, len(members)))
    numbers = {name: number for number, name in enumerate(sorted({s.split for s in shards}))}
    lengths = [len(shard.checksums) for shard in shards]
    splits = np.repeat([numbers[shard.split] for shard in shards], lengths)[members]
    labels = np.concatenate([shard.labels for shard in shards])[members]
    kinds = {SEVERAL_LABELS: _differ(labels, starts), SEVERAL_SPLITS: _differ(splits, starts)}
    shown: dict[int, None] = {}  # an ordered set of groups
    for chosen in (*kinds.values(), np.ones(len(starts), bool)):
        shown.update(dict.fromkeys(np.flatnonzero(chosen)[:_SHOWN].tolist()))
    named = []
    for group in shown:
        mine = slice(starts[group], starts[group] + sizes[group])
        named.append(_various(members[mine], splits[mine], labels[mine]))
    rows = _read(sorted({member for group in named for member in group}), lengths, read_rows)
    return {
        "images": len(members),
        **{kind: int(sizes[chosen].sum()) for kind, chosen in sorted(kinds.items())},
        "shown": [
            sorted((rows[member] for member in group), key=lambda row: str(row["key"]))
            for group in named
        ],
    }


def _differ(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """For each group of values, whether they are not all equal."""
    return np.minimum.reduceat(values, starts) != np.maximum.reduceat(values, starts)


def _various(members: np.ndarray, splits: np.ndarray, labels: np.ndarray) -> list[int]:
    """A few members of one group: two splits and two labels are among them if there are."""
    firsts = [np.unique(values, return_index=True)[1][:2] for values in (splits, labels)]
    few = dict.fromkeys(
        np.concatenate([*firsts, np.arange(len(members))[:_SHOWN_MEMBERS]]).tolist()
    )
    return [int(members[number]) for number in list(few)[:_SHOWN_MEMBERS]]


def _read(
    members: Sequence[int], lengths: Sequence[int], read_rows: RowReader
) -> dict[int, dict[str, Any]]:
    """The rows of members, which count on over all shards; each shard is read once."""
    ends = np.cumsum(lengths)
    rows: dict[int, dict[str, Any]] = {}
    shards = np.searchsorted(ends, members, side="right").tolist()
    for shard, mine in itertools.groupby(zip(shards, members, strict=True), lambda pair: pair[0]):
        numbers = {member: member - int(ends[shard] - lengths[shard]) for _, member in mine}
        found = read_rows(shard, list(numbers.values()))
        for member, row in zip(numbers, found, strict=True):
            rows[member] = {name: row[name] for name in ("key", "split", "label")}
    return rows


def same_bytes_warnings(found: Mapping[str, Any], *, dropped: bool = False) -> list[str]:
    """What the user should know of the result of find_same_bytes, one sentence each.

    Args:
      found: the result.
      dropped: whether inputs with the same bytes were dropped before.
    """
    if not found:
        return []
    lines = []
    for kind, differing, text in (
        (SEVERAL_LABELS, "label", "one with another label; one of the two is wrong"),
        (SEVERAL_SPLITS, "split", "one in another split; scores on them are too good"),
    ):
        if found[kind]:
            example = _example(found["shown"], differing)
            lines.append(f"{found[kind]:,} images have the same bytes as {text}: {example}")
    if not lines:
        example = _example(found["shown"], None)
        lines.append(f"{found['images']:,} images have the same bytes as another one: {example}")
    if dropped:
        lines.append("their files differ: they became equal where they were written anew")
    else:
        lines.append(
            "--equal_images drop keeps one of each, outside of train where it can, and refuses "
            "those with several labels"
        )
    return lines


def _example(groups: Sequence[Sequence[Mapping[str, str | None]]], differing: str | None) -> str:
    """`a.jpg (train) and b.jpg (test)`, of the first group that differs so."""
    for members in groups:
        if differing is None:
            return f"{members[0]['key']} and {members[1]['key']}"
        distinct = {member[differing]: member for member in reversed(members)}
        if len(distinct) > 1:
            pair = sorted(distinct.values(), key=lambda member: str(member["key"]))[:2]
            return " and ".join(f"{member['key']} ({member[differing]})" for member in pair)
    return "see same_bytes in conversion.json"
