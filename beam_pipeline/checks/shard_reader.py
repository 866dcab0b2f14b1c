"""Reads one shard for statistics: metadata of all records, pixels of some, a few thumbnails."""

from __future__ import annotations

import dataclasses
import heapq
import io
import zlib
from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from PIL import Image

from beam_pipeline.checks import shards as shards_module
from beam_pipeline.checks.accumulator import SplitAccumulator
from beam_pipeline.checks.columns import Columns, MetadataReader
from beam_pipeline.checks.shards import ShardTask
from beam_pipeline.checks.show import decode_picture
from beam_pipeline.checks.wire import BytesFeatureFinder, WireError, parse_example
from beam_pipeline.errors import DatasetError
from beam_pipeline.examples import FeatureSpec, Role

_BATCH_RECORDS = 2048
UNLABELLED = ""  # the class of images without one


class Picture(NamedTuple):
    """A picture for the contact sheet.

    Attributes:
      priority: the smaller, the rather it is shown; random but the same in every run.
      key: of the image.
      place: shard and record number.
      width, height: of the stored image, in pixels.
      data: the thumbnail, WebP.
    """

    priority: int
    key: str
    place: str
    width: int
    height: int
    data: bytes


@dataclasses.dataclass(frozen=True)
class StatisticsRequest:
    """What is asked of the workers.

    Attributes:
      specs: the features.
      labels: class names by id, or None.
      every: pixels of each `every`-th record are looked at; 0 for none.
      pictures: thumbnails of each class and split; 0 for none.
      picture_classes: classes that get thumbnails, or None for all.
      seed: of the choice of thumbnails.
      side: longest side of a thumbnail in pixels.
    """

    specs: tuple[FeatureSpec, ...]
    labels: tuple[str, ...] | None
    every: int = 0
    pictures: int = 0
    picture_classes: frozenset[str] | None = None
    seed: int = 0
    side: int = 160

    def feature(self, role: Role) -> str:
        """The name of the feature with this role; "" where there is none."""
        return next((spec.name for spec in self.specs if spec.role is role), "")


class ShardReader:
    """Reads one shard for statistics: metadata of all records, pixels of some."""

    def __init__(self, task: ShardTask, request: StatisticsRequest):
        self._task, self._request = task, request
        self._result = SplitAccumulator()
        self._reader = MetadataReader(request.specs)
        self._image = request.feature(Role.IMAGE)
        self._finder = BytesFeatureFinder(self._image) if self._image else None
        # Whole records are kept only while they may still be shown.
        self._candidates: dict[str, list[tuple[int, int, bytes]]] = defaultdict(list)
        self._needs_headers = not request.feature(Role.HEIGHT)

    def run(self) -> SplitAccumulator:
        """The counts of the shard."""
        task, result = self._task, self._result
        result.shards, result.file_bytes = 1, max(task.size, 0)
        slim: list[bytes] = []
        sizes: list[int] = []
        pending: list[tuple[int, bytes]] = []  # whole records, only where they are needed
        keep_records = bool(self._request.pictures)
        for window in shards_module.read_windows(task):
            for number, record in zip(window.numbers, window.records, strict=True):
                bounds = None if self._finder is None else self._finder.find(record)
                image_bytes = 0
                if bounds is None:
                    slim.append(record)
                else:
                    slim.append(self._finder.without(record, bounds[1]))  # type: ignore[union-attr]
                    image_bytes = bounds[1] - bounds[0]
                sizes.append(image_bytes)
                if self._request.every and number % self._request.every == 0:
                    self._look_at(record)
                if keep_records:
                    pending.append((number, record))
                if self._needs_headers and bounds is not None:
                    self._add_header(record[bounds[0] : bounds[1]], number)
            # Whole records are let go as soon as possible; without them batches are large.
            if len(slim) >= (64 if keep_records else _BATCH_RECORDS):
                self._add(slim, sizes, pending)
                slim, sizes, pending = [], [], []
        if slim:
            self._add(slim, sizes, pending)
        return result

    def _add(self, slim: list[bytes], sizes: list[int], pending: list[tuple[int, bytes]]) -> None:
        result, feature = self._result, self._request.feature
        columns = self._reader.read(slim)
        if columns.misfits:
            first = columns.misfits[0]
            raise DatasetError(
                f"{self._task.file}: {first.detail}. `imagebeam verify` lists all that is wrong"
            )
        result.records += len(slim)
        values = columns.values
        labels = self._labels(columns)
        result.classes.update(labels)
        keys = self._texts(columns, feature(Role.KEY)) or [""] * len(slim)
        formats = self._texts(columns, feature(Role.FORMAT))
        result.formats.update(formats or [])
        if feature(Role.CHANNELS) in values:
            result.channels.update(values[feature(Role.CHANNELS)].to_pylist())
        if self._image:
            result.add_image_bytes(np.array(sizes, np.int64))
        if feature(Role.SHA256) in values:
            result.add_checksums(values[feature(Role.SHA256)].cast(pa.binary()))
        if not self._needs_headers and feature(Role.WIDTH) in values:
            width, height = (
                values[feature(role)].to_numpy(zero_copy_only=False)
                for role in (Role.WIDTH, Role.HEIGHT)
            )
            result.add_sizes(width, height, keys)
        for (number, record), label, key in zip(pending, labels, keys, strict=bool(pending)):
            self._offer(number, record, label, key)

    def _labels(self, columns: Columns) -> list[str]:
        """The class of every record: by name, or its id as text, or UNLABELLED."""
        names = self._texts(columns, self._request.feature(Role.LABEL_NAME))
        if names is not None:
            return names
        label = self._request.feature(Role.LABEL)
        if label not in columns.values:
            return [UNLABELLED] * len(columns.rows)
        return [str(number) for number in columns.values[label].to_pylist()]

    def _texts(self, columns: Columns, name: str) -> list[str] | None:
        if name not in columns.values:
            return None
        return [value.decode("utf-8", "replace") for value in columns.values[name].to_pylist()]

    # ------------------------------------------------------------ pixels

    def _add_header(self, data: bytes, number: int) -> None:
        """The size of an image whose record does not tell it."""
        try:
            with Image.open(io.BytesIO(data)) as image:
                width, height = image.size
                self._result.channels[1 if image.mode in ("1", "L", "I;16") else 3] += 1
                self._result.formats[(image.format or "?").lower()] += 1
        except Exception:  # Pillow raises nearly anything
            self._result.undecodable += 1
            return
        key = f"{self._task.file}, record {number}"
        self._result.add_sizes(np.array([width]), np.array([height]), [key])

    def _decode(self, record: bytes) -> tuple[Image.Image, str] | None:
        """(picture, key) of a whole record, or None where it is none."""
        try:
            features = parse_example(record)
        except WireError:
            return None

        def value(role: Role) -> Any:
            feature = features.get(self._request.feature(role))
            return feature.values[0] if feature is not None and feature.values else None

        shape = [value(role) for role in (Role.HEIGHT, Role.WIDTH, Role.CHANNELS)]
        try:
            raw = value(Role.FORMAT) == b"raw"
            picture = decode_picture(value(Role.IMAGE) or b"", raw, shape, self._task.file)
        except DatasetError:
            return None
        return picture, (value(Role.KEY) or b"").decode("utf-8", "replace")

    def _look_at(self, record: bytes) -> None:
        if not self._image:
            return
        found = self._decode(record)
        if found is None:
            self._result.undecodable += 1
        else:
            self._result.add_picture(*found)

    # ------------------------------------------------------------ pictures

    def _offer(self, number: int, record: bytes, label: str, key: str) -> None:
        wanted = self._request.picture_classes
        if wanted is not None and label not in wanted:
            return
        name = key or f"{self._task.file}/{number}"
        priority = zlib.crc32(f"{self._request.seed}/{name}".encode())
        heap = self._candidates[label]
        entry = (-priority, -number, record)
        if len(heap) < self._request.pictures:
            heapq.heappush(heap, entry)
        elif entry > heap[0]:
            heapq.heapreplace(heap, entry)

    def pictures(self) -> dict[str, list[Picture]]:
        """The chosen thumbnails of each class; call it after run."""
        result: dict[str, list[Picture]] = {}
        for label, heap in self._candidates.items():
            made = []
            for priority, number, record in heap:
                found = self._decode(record)
                if found is None:
                    continue
                image, key = found
                place = f"{self._task.file}, record {-number:,}"
                width, height = image.size
                data = thumbnail(image, self._request.side)
                made.append(Picture(-priority, key, place, width, height, data))
            result[label] = made
        return result


def thumbnail(image: Image.Image, side: int) -> bytes:
    """A picture of at most `side` pixels as WebP; small ones are kept exactly."""
    stream = io.BytesIO()
    small = image.copy()
    small.thumbnail((side, side), Image.Resampling.LANCZOS)
    small.convert("RGB").save(stream, "WEBP", quality=82, method=4)
    return stream.getvalue()
