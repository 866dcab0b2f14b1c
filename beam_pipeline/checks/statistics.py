"""The statistics pipeline: what a dataset holds, from its records' metadata and some pixels.

shards ─► read metadata, decode a sample ─► (split, SplitAccumulator) ─► add up ─► result
                 └─► random pictures of each class ─► the k of each ─────────────┘
"""

from __future__ import annotations

import dataclasses
import heapq
import io
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
import pyarrow as pa
from PIL import Image

from beam_pipeline import runners, storage
from beam_pipeline.checks import shards as shards_module
from beam_pipeline.checks.accumulator import SplitAccumulator
from beam_pipeline.checks.columns import Columns, MetadataReader
from beam_pipeline.checks.run import configure_storage, run_pipeline
from beam_pipeline.checks.shards import ShardTask
from beam_pipeline.checks.show import decode_picture
from beam_pipeline.checks.wire import BytesFeatureFinder, WireError, parse_example
from beam_pipeline.dataset_info import DatasetInfo
from beam_pipeline.errors import DatasetError
from beam_pipeline.examples import FeatureSpec, Role
from beam_pipeline.storage import config as storage_config

_BATCH_RECORDS = 2048
# A class share differs between splits when it is this many standard errors, and this part
# of itself, away.
_DRIFT_ERRORS = 3.0
_DRIFT_PART = 0.1
_USUAL_ORDER = ("train", "validation", "test")  # other splits follow by name
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


@dataclasses.dataclass
class Statistics:
    """What is known of a dataset.

    Attributes:
      what: directory or globs.
      info: the dataset, or None for foreign files.
      labels: class names in the order of their ids.
      splits: by name.
      pictures: (split, class) → thumbnails, chosen at random.
      seconds: wall time of the pipeline.
    """

    what: str
    info: DatasetInfo | None
    labels: tuple[str, ...]
    splits: dict[str, SplitAccumulator]
    pictures: dict[tuple[str, str], list[Picture]]
    seconds: float = 0.0

    @property
    def total(self) -> SplitAccumulator:
        """All splits together."""
        total = SplitAccumulator()
        for split in self.splits.values():
            total.merge(split)
        return total

    def drift(self) -> list[str]:
        """Sentences on classes whose share differs between two splits by more than chance."""
        lines: list[str] = []
        names = sorted(self.splits, key=lambda name: -self.splits[name].records)
        for i, first in enumerate(names):
            for second in names[i + 1 :]:
                lines += self._drift_between(first, second)
        return lines

    def _drift_between(self, first: str, second: str) -> Iterator[str]:
        a, b = self.splits[first], self.splits[second]
        if not a.records or not b.records:
            return
        for label in self.labels:
            share_a, share_b = a.classes[label] / a.records, b.classes[label] / b.records
            both = (a.classes[label] + b.classes[label]) / (a.records + b.records)
            error = (both * (1 - both) * (1 / a.records + 1 / b.records)) ** 0.5
            difference = abs(share_a - share_b)
            if error and difference > _DRIFT_ERRORS * error and difference > _DRIFT_PART * both:
                yield (
                    f"class {label!r} is {share_a:.1%} of {first}, but {share_b:.1%} of {second}"
                )

    def absent(self) -> list[str]:
        """Sentences on classes that a split does not have."""
        lines = []
        for name, split in self.splits.items():
            missing = [label for label in self.labels if not split.classes[label]]
            if missing:
                lines.append(
                    f"split {name} has no image of {len(missing)} of {len(self.labels)} classes: "
                    f"{', '.join(map(repr, missing[:5]))}{' …' if len(missing) > 5 else ''}"
                )
        return lines

    def to_json(self) -> dict[str, Any]:
        """For --json."""
        return {
            "what": self.what,
            "labels": list(self.labels),
            "splits": {name: split.to_json() for name, split in self.splits.items()},
            "total": self.total.to_json(),
            "drift": self.drift(),
            "absent_classes": self.absent(),
            "seconds": round(self.seconds, 3),
        }


def gather(
    directory: str | None = None,
    *,
    globs: Sequence[str] = (),
    pixels: int | None = 1000,
    pictures: int = 0,
    most_classes: int = 100,
    seed: int = 0,
    beam_options: Sequence[str] = (),
    threads: int | None = None,
) -> Statistics:
    """Reads a dataset, or foreign TFRecord files, and gathers what stats and preview show.

    Args:
      directory: written by imagebeam convert; or None with `globs`.
      globs: patterns of TFRecord files of any origin.
      pixels: about how many images to decode for pixel statistics; None for all.
      pictures: thumbnails to make of each class and split.
      most_classes: classes at most that get thumbnails.
      seed: of the choice of thumbnails.
      beam_options: Beam's own options.
      threads: shards read side by side on the local engine; None: one per core.

    Raises:
      DatasetError: the dataset cannot be read.
    """
    configure_storage(beam_options)
    info: DatasetInfo | None = None
    if globs:
        tasks = shards_module.foreign_tasks(globs)
        specs = shards_module.foreign_specs(tasks)
        if not specs:
            raise DatasetError(f"no record of {' '.join(globs)} is a tf.train.Example")
        what = " ".join(globs)
    else:
        assert directory is not None
        info = shards_module.load_info(directory)
        tasks, specs, what = shards_module.dataset_tasks(info), info.features, directory
    request = StatisticsRequest(
        specs=specs,
        labels=None if info is None else info.labels,
        every=_stride(info, tasks, pixels),
        pictures=pictures,
        picture_classes=_classes_shown(info, most_classes),
        seed=seed,
    )
    started = time.perf_counter()
    splits, chosen = run_pipeline(
        lambda root: build_pipeline(root, tasks, request),
        beam_options,
        threads=threads or min(runners.available_cores(), max(len(tasks), 1)),
    )
    seconds = time.perf_counter() - started
    if info is not None and info.labels is not None:
        labels = info.labels
    else:
        found = {label for split in splits.values() for label in split.classes}
        labels = tuple(sorted(found - {UNLABELLED}))
    usual = [name for name in _USUAL_ORDER if name in splits]
    order = usual + sorted(splits.keys() - set(usual))
    return Statistics(
        what,
        info,
        labels,
        {name: splits[name] for name in order},
        chosen,
        seconds,
    )


def _stride(info: DatasetInfo | None, tasks: Sequence[ShardTask], pixels: int | None) -> int:
    if pixels is None:
        return 1
    if pixels <= 0:
        return 0
    if info is not None:
        return max(1, info.records // pixels)
    return max(1, sum(max(task.size, 0) for task in tasks) // 20_000 // pixels)


def _classes_shown(info: DatasetInfo | None, most: int) -> frozenset[str] | None:
    """The largest classes, when there are more than can be shown."""
    if info is None or info.labels is None or len(info.labels) <= most:
        return None
    counts: Counter[str] = Counter()
    for split in info.splits.values():
        counts.update(split.classes)
    return frozenset(label for label, _ in counts.most_common(most))


def build_pipeline(
    root: beam.Pipeline, tasks: Sequence[ShardTask], request: StatisticsRequest
) -> beam.PCollection:
    """Adds the pipeline; gives one (split → SplitAccumulator, (split, class) → Pictures)."""
    read = (
        root
        | "Shards" >> beam.Create(list(tasks))
        | "SpreadShards" >> beam.Reshuffle()
        | "ReadShard"
        >> beam.ParDo(_ReadShardDoFn(storage_config.current(), request)).with_outputs(main="splits")
        # (split, SplitAccumulator); ((split, class), [Picture]) in the output "pictures"
    )
    splits = (
        read["splits"]
        | "AddUp" >> beam.CombinePerKey(_merge_accumulators)
        | "AllSplits" >> beam.combiners.ToDict()
    )
    pictures = (
        read["pictures"]
        | "ChoosePictures" >> beam.CombinePerKey(_Choose(request.pictures))
        | "AllPictures" >> beam.combiners.ToDict()
    )
    return splits | "Together" >> beam.Map(
        lambda found, chosen: (found, chosen), beam.pvalue.AsSingleton(pictures)
    )


def _merge_accumulators(accumulators: Iterable[SplitAccumulator]) -> SplitAccumulator:
    merged = SplitAccumulator()
    for accumulator in accumulators:
        merged.merge(accumulator)
    return merged


class _Choose(beam.CombineFn):
    """Lists of pictures → the `count` of smallest priority."""

    def __init__(self, count: int):
        self._count = count

    def create_accumulator(self) -> list[Picture]:
        return []

    def add_input(self, accumulator: list[Picture], element: list[Picture]) -> list[Picture]:
        return heapq.nsmallest(self._count, accumulator + element)

    def merge_accumulators(self, accumulators: Iterable[list[Picture]]) -> list[Picture]:
        return heapq.nsmallest(self._count, [item for items in accumulators for item in items])

    def extract_output(self, accumulator: list[Picture]) -> list[Picture]:
        return accumulator


class _ReadShardDoFn(beam.DoFn):
    """ShardTask → (split, SplitAccumulator), and pictures."""

    def __init__(self, config: storage.StorageConfig, request: StatisticsRequest):
        self._config, self._request = config, request

    def setup(self) -> None:
        storage.configure(self._config)

    def process(self, task: ShardTask) -> Iterator[Any]:
        reader = ShardReader(task, self._request)
        yield (task.split, reader.run())
        for label, pictures in reader.pictures().items():
            yield beam.pvalue.TaggedOutput("pictures", ((task.split, label), pictures))


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
