"""The statistics pipeline: what a dataset holds, from its records' metadata and some pixels.

shards ─► read metadata, decode a sample ─► (split, SplitAccumulator) ─► add up ─► result
                 └─► random pictures of each class ─► the k of each ─────────────┘
"""

from __future__ import annotations

import dataclasses
import heapq
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apache_beam as beam

from beam_pipeline import storage, worker_pool
from beam_pipeline.checks import shards as shards_module
from beam_pipeline.checks.accumulator import SplitAccumulator
from beam_pipeline.checks.run import configure_storage, run_pipeline
from beam_pipeline.checks.shard_reader import UNLABELLED, Picture, ShardReader, StatisticsRequest
from beam_pipeline.checks.shards import ShardTask
from beam_pipeline.dataset_info import DatasetInfo
from beam_pipeline.errors import DatasetError
from beam_pipeline.storage import config as storage_config

# A class share differs between splits when it is this many standard errors, and this part
# of itself, away.
_DRIFT_ERRORS = 3.0
_DRIFT_PART = 0.1
_USUAL_ORDER = ("train", "validation", "test")  # other splits follow by name


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
        threads=threads or min(worker_pool.available_cores(), max(len(tasks), 1)),
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
