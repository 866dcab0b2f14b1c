"""What the records of a shard say together: labels, and whether the index says the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_pipeline.checks.faults import FaultKind, FaultList
from beam_pipeline.examples import FeatureSpec, Role

# Several images → (height, width, channels) of each, or what is wrong with it.
ImageDecoder = Callable[[Sequence[bytes]], Sequence[tuple[int, int, int] | str]]

# Index column → the role of the feature that holds the same.
_INDEXED = {
    "key": Role.KEY,
    "label": Role.LABEL_NAME,
    "sha256": Role.SHA256,
    "height": Role.HEIGHT,
    "width": Role.WIDTH,
    "channels": Role.CHANNELS,
    "format": Role.FORMAT,
}


@dataclasses.dataclass(frozen=True)
class ShardCheck:
    """What shards are checked against; the same for all of them.

    Attributes:
      specs: the features of every Example.
      labels: class names by id, or None.
      compression: "none", "gzip", or None where either is right.
      shards_by_sha256: checksum → file, of all shards of the dataset.
      keep: faults of each kind and shard that are told in full; all are counted.
      raw: images are raw pixels.
      decoder: decodes images, or None.
    """

    specs: tuple[FeatureSpec, ...]
    labels: tuple[str, ...] | None
    compression: str | None
    shards_by_sha256: Mapping[str, str]
    keep: int
    raw: bool = False
    decoder: ImageDecoder | None = None

    def feature(self, role: Role) -> str | None:
        """The name of the feature with this role."""
        return next((spec.name for spec in self.specs if spec.role is role), None)


@dataclasses.dataclass(frozen=True)
class ShardRecords:
    """The intact records of a shard, one entry each in every array.

    Attributes:
      file: of the shard.
      numbers, offsets, lengths: place in the shard; lengths with framing, int64 [N].
      values: feature name → Arrow array of N values, without the image.
      key: the name of the feature that holds the key, "" without one.
      faults: takes what is wrong.
    """

    file: str
    numbers: np.ndarray
    offsets: np.ndarray
    lengths: np.ndarray
    values: Mapping[str, pa.Array]
    key: str
    faults: FaultList

    def fault(self, kind: FaultKind, detail: str, row: int) -> None:
        """A fault of one record."""
        key = None
        if self.key in self.values:
            key = self.values[self.key][row].as_py().decode("utf-8", "replace")
        self.faults.add(
            kind, self.file, detail, int(self.numbers[row]), int(self.offsets[row]), key
        )


def check_labels(records: ShardRecords, check: ShardCheck) -> dict[int, int]:
    """Label ids must be in range and belong to the label names; gives id → records."""
    label, text = check.feature(Role.LABEL) or "", check.feature(Role.LABEL_NAME) or ""
    values, labels = records.values, check.labels
    if label not in values:
        return {}
    ids = values[label].to_numpy(zero_copy_only=False)
    unique, counts = np.unique(ids, return_counts=True)
    classes = dict(zip(unique.tolist(), counts.tolist(), strict=True))
    if labels is None:
        for i in np.flatnonzero(ids < 0).tolist():
            records.fault(FaultKind.LABEL_RANGE, f"label {ids[i]} is negative", i)
        return classes
    outside = (ids < 0) | (ids >= len(labels))
    for i in np.flatnonzero(outside).tolist():
        detail = f"label {ids[i]}, expected 0 to {len(labels) - 1}"
        records.fault(FaultKind.LABEL_RANGE, detail, i)
    if text not in values:
        return classes
    known = pa.array([name.encode() for name in labels], pa.large_binary())
    named = pc.index_in(values[text], known).fill_null(-1).to_numpy(zero_copy_only=False)
    for i in np.flatnonzero(~outside & (named != ids)).tolist():
        detail = (
            f"label {ids[i]} is {labels[ids[i]]!r}, but its label name is "
            f"{values[text][i].as_py().decode('utf-8', 'replace')!r}"
        )
        records.fault(FaultKind.LABEL_WRONG, detail, i)
    return classes


def compare_index(
    index: pa.Table, records: ShardRecords, check: ShardCheck, damaged: set[int]
) -> None:
    """Every row of the index against the record at its offset, column by column.

    Args:
      index: sorted by offset.
      records: of the shard.
      check: tells the features.
      damaged: offsets whose loss is told already.
    """
    indexed = index["offset"].to_numpy()
    place = np.searchsorted(indexed, records.offsets)
    known = np.zeros(len(records.offsets), bool)
    if len(indexed):
        inside = np.minimum(place, len(indexed) - 1)
        known = indexed[inside] == records.offsets
    for i in np.flatnonzero(~known).tolist():
        records.fault(FaultKind.RECORD_FOREIGN, "the index has no record here", i)
    lost = np.ones(len(indexed), bool)
    lost[place[known]] = False
    for i in np.flatnonzero(lost).tolist():
        if int(indexed[i]) in damaged:
            continue
        row = index.slice(i, 1).to_pylist()[0]
        detail = "the index has a record here, the shard has none that is intact"
        records.faults.add(
            FaultKind.RECORD_LOST, records.file, detail, row["position"], row["offset"], row["key"]
        )
    rows, taken = index.take(pa.array(place[known])), np.flatnonzero(known)
    pairs: list[tuple[str, Any, Any]] = [
        ("bytes", rows["bytes"], pa.array(records.lengths[known])),
    ]
    if not damaged:  # behind damage nobody can count records
        pairs.append(("position", rows["position"], pa.array(records.numbers[known])))
    for column, role in _INDEXED.items():
        name = check.feature(role) or ""
        if name in records.values:
            pairs.append((column, rows[column], records.values[name].take(pa.array(taken))))
    for column, said, found in pairs:
        if pa.types.is_large_binary(found.type):
            said = said.cast(pa.large_string()).cast(pa.large_binary())
        else:
            said, found = said.cast(pa.int64()), found.cast(pa.int64())
        equal = pc.equal(said, found).fill_null(False)
        if pc.all(equal).as_py() is not False:
            continue
        for i in np.flatnonzero(~np.array(equal.to_pylist())).tolist():
            detail = f"{column}: the record has {_shown(found[i])}, the index {_shown(said[i])}"
            records.fault(FaultKind.INDEX_WRONG, detail, int(taken[i]))


def _shown(scalar: pa.Scalar) -> str:
    value = scalar.as_py()
    return repr(value.decode("utf-8", "replace") if isinstance(value, bytes) else value)
