"""Checks one shard: framing, Examples, labels, checksums, and what the index says of it."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_pipeline.checks import framing
from beam_pipeline.checks.columns import Columns, MetadataReader, unknown_features
from beam_pipeline.checks.faults import FaultKind, FaultList
from beam_pipeline.checks.shards import ShardTask, open_shard
from beam_pipeline.checks.wire import BytesFeatureFinder, WireError, parse_example
from beam_pipeline.errors import ImagebeamError
from beam_pipeline.examples import FeatureSpec, Role

# (stored bytes, format) of several images → (height, width, channels) each, or why not.
ImageDecoder = Callable[[Sequence[tuple[bytes, str]]], Sequence[tuple[int, int, int] | str]]

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
_DAMAGE_KINDS = {
    "length_crc": FaultKind.LENGTH_CRC,
    "data_crc": FaultKind.DATA_CRC,
    "truncated": FaultKind.TRUNCATED,
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
      decoder: decodes images, or None.
    """

    specs: tuple[FeatureSpec, ...]
    labels: tuple[str, ...] | None
    compression: str | None
    shards_by_sha256: Mapping[str, str]
    keep: int
    decoder: ImageDecoder | None = None

    def feature(self, role: Role) -> str | None:
        """The name of the feature with this role."""
        return next((spec.name for spec in self.specs if spec.role is role), None)


@dataclasses.dataclass
class ShardReport:
    """What was found in one shard.

    Attributes:
      task: the shard.
      records: intact ones.
      bytes: of the file.
      image_bytes: of the stored images.
      decoded: images that were decoded.
      classes: label id → records.
      keys, images: the key, and the SHA-256 of the image, of each record that has one.
      numbers: of these records in the shard.
      faults: what is wrong.
    """

    task: ShardTask
    records: int = 0
    bytes: int = 0
    image_bytes: int = 0
    decoded: int = 0
    classes: dict[int, int] = dataclasses.field(default_factory=dict)
    keys: list[bytes] = dataclasses.field(default_factory=list)
    images: list[bytes] = dataclasses.field(default_factory=list)
    numbers: list[int] = dataclasses.field(default_factory=list)
    faults: FaultList = dataclasses.field(default_factory=lambda: FaultList(100))


def check_shard(task: ShardTask, check: ShardCheck, index: pa.Table | None) -> ShardReport:
    """Reads a shard from its first to its last byte and reports everything that is wrong.

    Args:
      task: the shard.
      check: what it is checked against.
      index: the rows of the index that stand for its records, in any order, or None
        where there is no index.
    """
    return _ShardChecker(task, check, index).run()


class _ShardChecker:
    def __init__(self, task: ShardTask, check: ShardCheck, index: pa.Table | None):
        self._task = task
        self._check = check
        self._index = None if index is None else index.sort_by("offset")
        self._report = ShardReport(task, faults=FaultList(check.keep))
        self._reader = MetadataReader(check.specs)
        image = check.feature(Role.IMAGE)
        self._image = image
        self._finder = None if image is None else BytesFeatureFinder(image)
        self._numbers: list[np.ndarray] = []
        self._offsets: list[np.ndarray] = []
        self._lengths: list[np.ndarray] = []
        self._values: list[dict[str, pa.Array]] = []
        self._damaged: set[int] = set()  # offsets whose loss is told already

    def run(self) -> ShardReport:
        report, task = self._report, self._task
        digest = hashlib.sha256() if self._check.shards_by_sha256 else None
        try:
            with open_shard(task, digest) as (raw, stream, compressed):
                for window in framing.scan(stream):
                    self._check_window(window)
                if compressed and stream.error is not None:
                    number = report.records + len(self._damaged)
                    self._fault(FaultKind.GZIP_DAMAGED, f"{stream.error}", number)
                raw.drain()
                report.bytes = raw.bytes
        except (OSError, ImagebeamError) as error:
            self._fault(FaultKind.UNREADABLE, f"it cannot be read: {error}")
            return report
        if report.bytes == 0:
            self._fault(FaultKind.SHARD_EMPTY, self._expected_text("it has zero bytes"))
            return report
        self._check_compression(compressed)
        self._check_whole(None if digest is None else digest.hexdigest())
        return report

    def _fault(
        self,
        kind: FaultKind,
        detail: str,
        record: int | None = None,
        offset: int | None = None,
        key: str | None = None,
    ) -> None:
        self._report.faults.add(kind, self._task.file, detail, record, offset, key)

    # ------------------------------------------------------------ records

    def _check_window(self, window: framing.Window) -> None:
        for damage in window.damage:
            self._damaged.add(damage.offset)
            key = self._key_of(damage.data) or self._indexed_key(damage.offset)
            self._fault(
                _DAMAGE_KINDS[damage.kind], damage.detail, damage.record, damage.offset, key
            )
        records = window.records
        if not records:
            return
        self._report.records += len(records)
        columns = self._reader.read(records)
        for misfit in columns.misfits:
            offset = window.offsets[misfit.row]
            self._damaged.add(offset)
            self._fault(
                FaultKind(misfit.kind),
                misfit.detail,
                window.numbers[misfit.row],
                offset,
                self._key_of(records[misfit.row]) or self._indexed_key(offset),
            )
        rows = columns.rows
        if columns.misfits:
            records = [records[row] for row in rows.tolist()]
        self._numbers.append(np.array(window.numbers, np.int64)[rows])
        self._offsets.append(np.array(window.offsets, np.int64)[rows])
        lengths = np.fromiter(map(len, records), np.int64, len(records))
        self._lengths.append(lengths + framing.TFRECORD_FRAMING)
        self._values.append(columns.values)
        if records and self._finder is not None:
            self._check_images(records, columns)

    def _check_images(self, records: list[bytes], columns: Columns) -> None:
        assert self._finder is not None
        sha256, find = hashlib.sha256, self._finder.find
        name = self._check.feature(Role.SHA256)
        stored = columns.values[name].to_pylist() if name else [None] * len(records)
        images: list[tuple[bytes, int, int]] = []
        total = 0
        hashed = name is not None
        wrong: list[int] = []
        for i, record in enumerate(records):
            bounds = find(record)
            if bounds is None:
                wrong.append(i)
                bounds = (0, 0)
            start, end = bounds
            if hashed and sha256(memoryview(record)[start:end]).hexdigest().encode() != stored[i]:
                wrong.append(i)
            images.append((record, start, end))
            total += end - start
        for i in sorted(set(wrong)):
            # The name of the feature may stand in other data: look exactly.
            data, fault = self._exact_image(records[i], stored[i])
            total += (0 if data is None else len(data)) - (images[i][2] - images[i][1])
            images[i] = (data or b"", 0, len(data or b""))
            if fault:
                self._record_fault(*fault, row=i)
        self._report.image_bytes += total
        self._check_sizes(images, columns)

    def _exact_image(
        self, record: bytes, stored: bytes | None
    ) -> tuple[bytes | None, tuple[FaultKind, str] | None]:
        assert self._image is not None
        try:
            feature = parse_example(record).get(self._image)
        except WireError as error:
            return None, (FaultKind.NOT_AN_EXAMPLE, f"not a tf.train.Example: {error}")
        if feature is None or feature.kind != "bytes" or len(feature.values) != 1:
            found = "it is missing"
            if feature is not None and feature.kind:
                found = f"found {len(feature.values)} of {feature.kind}"
            return None, (
                FaultKind.FEATURE_WRONG,
                f"feature {self._image!r}: expected one bytes value, {found}",
            )
        data = feature.values[0]
        found = hashlib.sha256(data).hexdigest()
        if stored is not None and found.encode() != stored:
            return data, (
                FaultKind.SHA256_WRONG,
                f"the stored image ({len(data):,} bytes) has SHA-256 {found[:16]}…, its record "
                f"says {stored.decode('utf-8', 'replace')[:16]}…",
            )
        return data, None

    def _record_fault(self, kind: FaultKind, detail: str, row: int) -> None:
        """A fault of a record of the last window that was added, by its place there."""
        offset = int(self._offsets[-1][row])
        name = self._check.feature(Role.KEY)
        key = None
        if name is not None:
            key = self._values[-1][name][row].as_py().decode("utf-8", "replace")
        self._fault(kind, detail, int(self._numbers[-1][row]), offset, key)

    def _check_sizes(self, images: list[tuple[bytes, int, int]], columns: Columns) -> None:
        """Raw pixels must fill their shape; other images are decoded when that is asked for."""
        values = columns.values
        names = [
            self._check.feature(role)
            for role in (Role.HEIGHT, Role.WIDTH, Role.CHANNELS, Role.FORMAT)
        ]
        if any(name is None for name in names[:2]):
            said = [None] * len(images)
        else:
            channels = values[names[2]].to_pylist() if names[2] else [None] * len(images)
            said = list(
                zip(values[names[0]].to_pylist(), values[names[1]].to_pylist(), channels, strict=True)
            )
        formats = values[names[3]].to_pylist() if names[3] else [b""] * len(images)
        decode: list[int] = []
        for i, ((_, start, end), format_) in enumerate(zip(images, formats, strict=True)):
            if format_ != b"raw":
                decode.append(i)
            elif said[i] is not None:
                height, width, channel = said[i]
                if end - start != height * width * (channel or 1):
                    self._record_fault(
                        FaultKind.IMAGE_WRONG,
                        f"{end - start:,} bytes of raw pixels, expected "
                        f"{height} x {width} x {channel}",
                        row=i,
                    )
        if self._check.decoder is None or not decode:
            return
        found = self._check.decoder(
            [(images[i][0][images[i][1] : images[i][2]], formats[i].decode()) for i in decode]
        )
        self._report.decoded += len(decode)
        for i, result in zip(decode, found, strict=True):
            if isinstance(result, str):
                self._record_fault(FaultKind.IMAGE_WRONG, result, row=i)
            elif said[i] is not None and (
                result[:2] != said[i][:2] or said[i][2] not in (None, result[2])
            ):
                self._record_fault(
                    FaultKind.IMAGE_WRONG,
                    "it decodes to {} x {} x {}, its record says {} x {} x {}".format(
                        *result, *said[i]
                    ),
                    row=i,
                )

    def _key_of(self, record: bytes | None) -> str | None:
        """The key inside a record that may be damaged."""
        name = self._check.feature(Role.KEY)
        if record is None or name is None:
            return None
        bounds = BytesFeatureFinder(name).find(record)
        if bounds is None:
            return None
        try:
            key = record[slice(*bounds)].decode()
        except UnicodeDecodeError:
            return None
        return key if key and key.isprintable() else None

    def _indexed_key(self, offset: int) -> str | None:
        if self._index is None:
            return None
        rows = self._index.filter(pc.equal(self._index["offset"], offset))
        return rows["key"][0].as_py() if rows.num_rows else None

    # ------------------------------------------------------------ the whole shard

    def _expected_text(self, found: str) -> str:
        expected = self._task.expected
        return found if expected is None else f"{found}, expected {expected.records:,} records"

    def _check_compression(self, compressed: bool) -> None:
        wanted, name = self._check.compression, self._task.file.lower()
        if wanted is None:
            if name.endswith(".gz") != compressed:
                found = "gzip-compressed" if compressed else "not compressed"
                self._fault(
                    FaultKind.COMPRESSION,
                    f"it is {found}, which its name does not tell; readers go by the name",
                )
        elif compressed != (wanted == "gzip"):
            found = "gzip-compressed" if compressed else "not compressed"
            self._fault(
                FaultKind.COMPRESSION,
                f"it is {found}, but the dataset was written with compression {wanted!r}",
            )

    def _check_whole(self, sha256: str | None) -> None:
        task, report = self._task, self._report
        numbers = _joined(self._numbers)
        values = {
            name: pa.concat_arrays([batch[name] for batch in self._values if batch])
            for name in next((batch for batch in self._values if batch), {})
        }
        self._check_labels(numbers, values)
        for role, target in ((Role.KEY, "keys"), (Role.SHA256, "images")):
            name = self._check.feature(role)
            if name in values:
                setattr(report, target, values[name].to_pylist())
        report.numbers = numbers.tolist()
        twin = self._check.shards_by_sha256.get(sha256 or "")
        if twin is not None and twin != task.file:
            kind = FaultKind.SHARD_FOREIGN if task.expected is None else FaultKind.SHARD_SWAPPED
            self._fault(kind, f"its content is that of {twin}: swapped, copied or renamed")
            return
        if task.expected is None:
            if self._check.shards_by_sha256:
                self._fault(
                    FaultKind.SHARD_FOREIGN,
                    f"it does not belong to this dataset (stale or foreign, {report.records:,} "
                    "records)",
                )
            return
        if report.bytes != task.expected.bytes:
            self._fault(
                FaultKind.SHARD_SIZE,
                f"it has {report.bytes:,} bytes, expected {task.expected.bytes:,}",
            )
        if report.records != task.expected.records:
            self._fault(
                FaultKind.RECORD_COUNT,
                f"{report.records:,} intact records, expected {task.expected.records:,}",
            )
        if self._index is not None:
            self._compare_index(self._index, numbers, values)
        if sha256 != task.expected.sha256:
            self._fault(
                FaultKind.SHARD_CHANGED,
                f"its SHA-256 is {(sha256 or '')[:16]}…, expected {task.expected.sha256[:16]}…",
            )
            self._find_unknown_features()

    def _check_labels(self, numbers: np.ndarray, values: dict[str, pa.Array]) -> None:
        label, text = self._check.feature(Role.LABEL), self._check.feature(Role.LABEL_NAME)
        if label not in values:
            return
        ids = values[label].to_numpy(zero_copy_only=False)
        unique, counts = np.unique(ids, return_counts=True)
        self._report.classes = dict(zip(unique.tolist(), counts.tolist(), strict=True))
        labels = self._check.labels
        if labels is None:
            for i in np.flatnonzero(ids < 0).tolist():
                self._value_fault(
                    FaultKind.LABEL_RANGE, f"label {ids[i]} is negative", i, numbers, values
                )
            return
        outside = (ids < 0) | (ids >= len(labels))
        for i in np.flatnonzero(outside).tolist():
            detail = f"label {ids[i]}, expected 0 to {len(labels) - 1}"
            self._value_fault(FaultKind.LABEL_RANGE, detail, i, numbers, values)
        if text not in values:
            return
        known = pa.array([name.encode() for name in labels], pa.large_binary())
        named = pc.index_in(values[text], known).fill_null(-1).to_numpy(zero_copy_only=False)
        for i in np.flatnonzero(~outside & (named != ids)).tolist():
            detail = (
                f"label {ids[i]} is {labels[ids[i]]!r}, but its label name is "
                f"{values[text][i].as_py().decode('utf-8', 'replace')!r}"
            )
            self._value_fault(FaultKind.LABEL_WRONG, detail, i, numbers, values)

    def _value_fault(
        self,
        kind: FaultKind,
        detail: str,
        row: int,
        numbers: np.ndarray,
        values: dict[str, pa.Array],
    ) -> None:
        name = self._check.feature(Role.KEY)
        key = values[name][row].as_py().decode("utf-8", "replace") if name in values else None
        self._fault(kind, detail, int(numbers[row]), int(_joined(self._offsets)[row]), key)

    def _compare_index(
        self, index: pa.Table, numbers: np.ndarray, values: dict[str, pa.Array]
    ) -> None:
        """Every row of the index against the record at its offset, column by column."""
        file = self._task.file
        offsets, lengths = _joined(self._offsets), _joined(self._lengths)
        indexed = index["offset"].to_numpy()
        place = np.searchsorted(indexed, offsets)
        known = (place < len(indexed)) & (
            indexed[np.minimum(place, max(len(indexed) - 1, 0))] == offsets
            if len(indexed)
            else np.zeros(len(offsets), bool)
        )
        for i in np.flatnonzero(~known).tolist():
            self._value_fault(
                FaultKind.RECORD_FOREIGN, "the index has no record here", i, numbers, values
            )
        lost = np.ones(len(indexed), bool)
        lost[place[known]] = False
        for i in np.flatnonzero(lost).tolist():
            if int(indexed[i]) in self._damaged:
                continue  # told with its damage
            row = index.slice(i, 1).to_pylist()[0]
            self._report.faults.add(
                FaultKind.RECORD_LOST,
                file,
                "the index has a record here, the shard has none that is intact",
                row["position"],
                row["offset"],
                row["key"],
            )
        rows = index.take(pa.array(place[known]))
        taken = np.flatnonzero(known)
        pairs: list[tuple[str, Any, Any]] = [
            ("bytes", rows["bytes"], pa.array(lengths[known])),
        ]
        if not self._damaged:  # behind damage nobody can count records
            pairs.append(("position", rows["position"], pa.array(numbers[known])))
        for column, role in _INDEXED.items():
            name = self._check.feature(role)
            if name in values:
                found = values[name].take(pa.array(taken))
                pairs.append((column, rows[column], found))
        for column, said, found in pairs:
            if pa.types.is_large_binary(found.type):
                said = said.cast(pa.large_string()).cast(pa.large_binary())
            else:
                said, found = said.cast(pa.int64()), found.cast(pa.int64())
            equal = pc.equal(said, found).fill_null(False)
            if pc.all(equal).as_py() in (True, None):
                continue
            for i in np.flatnonzero(~np.array(equal.to_pylist())).tolist():
                self._value_fault(
                    FaultKind.INDEX_WRONG,
                    f"{column}: the record has {_shown(found[i])}, the index {_shown(said[i])}",
                    int(taken[i]),
                    numbers,
                    values,
                )

    def _find_unknown_features(self) -> None:
        """Reads a changed shard once more, exactly: features that the schema does not know."""
        with open_shard(self._task) as (_, stream, _compressed):
            for window in framing.scan(stream):
                for record, number, offset in zip(
                    window.records, window.numbers, window.offsets, strict=True
                ):
                    try:
                        unknown = unknown_features(record, self._check.specs)
                    except WireError:
                        continue
                    if unknown:
                        detail = f"features that are not in the schema: {', '.join(unknown)}"
                        key = self._key_of(record)
                        self._fault(FaultKind.FEATURE_UNKNOWN, detail, number, offset, key)


def _shown(scalar: pa.Scalar) -> str:
    value = scalar.as_py()
    return repr(value.decode("utf-8", "replace") if isinstance(value, bytes) else value)


def _joined(arrays: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(arrays) if arrays else np.zeros(0, np.int64)
