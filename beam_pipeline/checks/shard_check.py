"""Checks one shard: framing, Examples, labels, checksums, and what the index says of it."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_pipeline.checks import framing
from beam_pipeline.checks.columns import Columns, MetadataReader, unknown_features
from beam_pipeline.checks.faults import FaultKind, FaultList
from beam_pipeline.checks.shard_records import (
    ShardCheck,
    ShardRecords,
    check_labels,
    compare_index,
)
from beam_pipeline.checks.shards import ShardTask, open_shard
from beam_pipeline.checks.wire import BytesFeatureFinder, WireError, parse_example
from beam_pipeline.errors import ImagebeamError
from beam_pipeline.examples import Role
from beam_pipeline.tfrecord_format import FRAMING_BYTES

# Records whose metadata is decoded at once.
_BATCH_RECORDS = 2048
_BATCH_BYTES = 4 << 20  # 4 MiB, without images
_DAMAGE_KINDS = {
    "length_crc": FaultKind.LENGTH_CRC,
    "data_crc": FaultKind.DATA_CRC,
    "truncated": FaultKind.TRUNCATED,
}


@dataclasses.dataclass
class ShardReport:
    """What was found in one shard.

    Attributes:
      task: the shard.
      records: intact ones.
      file_bytes: of the file.
      image_bytes: of the stored images.
      decoded: images that were decoded.
      classes: label id → records.
      keys, images: the key, and the SHA-256 of the image, of each record that has one.
      numbers: of these records in the shard.
      faults: what is wrong.
    """

    task: ShardTask
    records: int = 0
    file_bytes: int = 0
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


class _Pending(NamedTuple):
    """Intact records whose metadata is not decoded yet; one entry each in every list."""

    slim: list[bytes]  # the Example without its image
    numbers: list[int]
    offsets: list[int]
    lengths: list[int]  # with framing
    digests: list[bytes]  # SHA-256 (hex) of the image
    image_bytes: list[int]
    decoded: list[tuple[int, int, int] | str | None]  # size, or what is wrong


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
        self._pending = _Pending([], [], [], [], [], [], [])
        self._pending_bytes = 0
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
                self._check_pending()
                if compressed and stream.error is not None:
                    number = report.records + len(self._damaged)
                    self._fault(FaultKind.GZIP_DAMAGED, f"{stream.error}", number)
                raw.drain()
                report.file_bytes = raw.bytes
        except (OSError, ImagebeamError) as error:
            self._fault(FaultKind.UNREADABLE, f"it cannot be read: {error}")
            return report
        if report.file_bytes == 0:
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
        if not window.records:
            return
        self._report.records += len(window.records)
        pending, image = self._pending, None
        hashed = self._check.feature(Role.SHA256) is not None
        images = []
        for record, number, offset in zip(
            window.records, window.numbers, window.offsets, strict=True
        ):
            digest, slim = b"", record
            if self._finder is not None:
                bounds = self._finder.find(record)
                image = memoryview(record)[slice(*bounds)] if bounds else None
                if image is not None:
                    slim = self._finder.without(record, bounds[1])  # type: ignore[index]
                    if hashed:
                        digest = hashlib.sha256(image).hexdigest().encode()
                if image is None or (hashed and digest not in slim):
                    # The name of the feature may stand in other data: look exactly.
                    image, digest = self._exact_image(record, number, offset)
                    slim = record
            pending.slim.append(slim)
            pending.numbers.append(number)
            pending.offsets.append(offset)
            pending.lengths.append(len(record) + FRAMING_BYTES)
            pending.digests.append(digest)
            pending.image_bytes.append(0 if image is None else len(image))
            images.append(image)
            self._pending_bytes += len(slim)
        pending.decoded.extend(self._decode(images))
        if len(pending.slim) >= _BATCH_RECORDS or self._pending_bytes >= _BATCH_BYTES:
            self._check_pending()

    def _decode(self, images: list[Any]) -> list[tuple[int, int, int] | str | None]:
        """The size that each image decodes to; None for raw pixels or where nobody asked."""
        result: list[tuple[int, int, int] | str | None] = [None] * len(images)
        if self._check.decoder is None or self._check.raw:
            return result
        wanted = [i for i, image in enumerate(images) if image is not None]
        found = self._check.decoder([bytes(images[i]) for i in wanted])
        self._report.decoded += len(wanted)
        for i, size in zip(wanted, found, strict=True):
            result[i] = size
        return result

    def _exact_image(
        self, record: bytes, number: int, offset: int
    ) -> tuple[memoryview | None, bytes]:
        """The image and its checksum, found by parsing the whole Example."""
        assert self._image is not None
        try:
            features = parse_example(record)
        except WireError:
            return None, b""  # told when its metadata is read
        feature = features.get(self._image)
        if feature is not None and feature.kind == "bytes" and len(feature.values) == 1:
            data = feature.values[0]
            return memoryview(data), hashlib.sha256(data).hexdigest().encode()
        found = "it is missing"
        if feature is not None and feature.kind:
            found = f"found {len(feature.values)} of {feature.kind}"
        detail = f"feature {self._image!r}: expected one bytes value, {found}"
        self._fault(FaultKind.FEATURE_WRONG, detail, number, offset, self._key_of(record))
        return None, b""

    def _check_pending(self) -> None:
        """Decodes the metadata of the records that wait, and checks them one by one."""
        pending = self._pending
        if not pending.slim:
            return
        self._pending, self._pending_bytes = _Pending([], [], [], [], [], [], []), 0
        columns = self._reader.read(pending.slim)
        for misfit in columns.misfits:
            offset = pending.offsets[misfit.row]
            self._damaged.add(offset)
            key = self._key_of(pending.slim[misfit.row]) or self._indexed_key(offset)
            self._fault(
                FaultKind(misfit.kind), misfit.detail, pending.numbers[misfit.row], offset, key
            )
        rows = columns.rows
        self._report.image_bytes += sum(pending.image_bytes)
        self._numbers.append(np.array(pending.numbers, np.int64)[rows])
        self._offsets.append(np.array(pending.offsets, np.int64)[rows])
        self._lengths.append(np.array(pending.lengths, np.int64)[rows])
        self._values.append(columns.values)
        if self._image is not None:
            self._check_digests(pending, columns)
            self._check_sizes(pending, columns)

    def _check_digests(self, pending: _Pending, columns: Columns) -> None:
        name = self._check.feature(Role.SHA256)
        if name is None:
            return
        rows = columns.rows.tolist()
        found = [pending.digests[row] for row in rows]
        stored = columns.values[name].to_pylist() if rows else []
        if found == stored:
            return
        for i, (a, b) in enumerate(zip(found, stored, strict=True)):
            if a and a != b:
                detail = (
                    f"the stored image ({pending.image_bytes[rows[i]]:,} bytes) has SHA-256 "
                    f"{a.decode()[:16]}…, its record says {b.decode('utf-8', 'replace')[:16]}…"
                )
                self._record_fault(FaultKind.SHA256_WRONG, detail, row=i)

    def _check_sizes(self, pending: _Pending, columns: Columns) -> None:
        """Raw pixels must fill their shape; decoded images must have the size that is stored."""
        height, width, channels = map(self._check.feature, (Role.HEIGHT, Role.WIDTH, Role.CHANNELS))
        values, rows = columns.values, columns.rows
        if height not in values or width not in values:
            said: list[tuple[int, int, int | None]] | None = None
        else:
            sizes = [values[name].to_pylist() for name in (height, width)]
            depth = values[channels].to_pylist() if channels in values else [None] * len(rows)
            said = list(zip(*sizes, depth, strict=True))
        if self._check.raw and said is not None:
            stored = np.array(pending.image_bytes, np.int64)[rows]
            shapes = np.array([(h, w, c or 1) for h, w, c in said], np.int64).reshape(-1, 3)
            for i in np.flatnonzero(shapes.prod(axis=1) != stored).tolist():
                detail = "{:,} bytes of raw pixels, expected {} x {} x {}".format(
                    int(stored[i]), *said[i]
                )
                self._record_fault(FaultKind.IMAGE_WRONG, detail, row=i)
        for i, row in enumerate(rows.tolist()):
            found = pending.decoded[row]
            if found is None:
                continue
            if isinstance(found, str):
                self._record_fault(FaultKind.IMAGE_WRONG, found, row=i)
            elif said is not None and (
                found[:2] != said[i][:2] or said[i][2] not in (None, found[2])
            ):
                detail = "it decodes to {} x {} x {}, its record says {} x {} x {}".format(
                    *found, *said[i]
                )
                self._record_fault(FaultKind.IMAGE_WRONG, detail, row=i)

    def _record_fault(self, kind: FaultKind, detail: str, row: int) -> None:
        """A fault of a record of the last batch that was added, by its place there."""
        offset = int(self._offsets[-1][row])
        name = self._check.feature(Role.KEY)
        key = None
        if name is not None:
            key = self._values[-1][name][row].as_py().decode("utf-8", "replace")
        self._fault(kind, detail, int(self._numbers[-1][row]), offset, key)

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
        records = ShardRecords(
            task.file,
            numbers,
            _joined(self._offsets),
            _joined(self._lengths),
            values,
            self._check.feature(Role.KEY) or "",
            report.faults,
        )
        report.classes = check_labels(records, self._check)
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
        if report.file_bytes != task.expected.bytes:
            self._fault(
                FaultKind.SHARD_SIZE,
                f"it has {report.file_bytes:,} bytes, expected {task.expected.bytes:,}",
            )
        if report.records != task.expected.records:
            self._fault(
                FaultKind.RECORD_COUNT,
                f"{report.records:,} intact records, expected {task.expected.records:,}",
            )
        if self._index is not None:
            compare_index(self._index, records, self._check, self._damaged)
        if sha256 != task.expected.sha256:
            self._fault(
                FaultKind.SHARD_CHANGED,
                f"its SHA-256 is {(sha256 or '')[:16]}…, expected {task.expected.sha256[:16]}…",
            )
            self._find_unknown_features()

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


def _joined(arrays: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(arrays) if arrays else np.zeros(0, np.int64)
