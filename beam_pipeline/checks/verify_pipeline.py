"""The verify pipeline: every shard is read whole, then what only all of them together can tell.

shards ──────────────► (split, number) ─┐
index files ─► rows ─► (split, number) ─┴► check each shard ─► counts and faults ─► report
                                                 └─► keys and image checksums ─► repeated ones
"""

from __future__ import annotations

import dataclasses
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pyarrow.compute as pc

from beam_pipeline import dataset_info, index, storage
from beam_pipeline.checks.faults import FaultKind, FaultList
from beam_pipeline.checks.shard_check import ShardReport, check_shard
from beam_pipeline.checks.shard_records import ShardCheck
from beam_pipeline.checks.shards import ShardTask
from beam_pipeline.index import INDEX_SCHEMA
from beam_pipeline.storage import config as storage_config

# Columns of the index that verify compares; the others are not read.
_INDEX_COLUMNS = [
    "key", "outcome", "split", "shard", "position", "offset", "bytes", "sha256", "label",
    "group", "height", "width", "channels", "format",
]  # fmt: skip
_ROWS_SCHEMA = pa.schema([INDEX_SCHEMA.field(name) for name in _INDEX_COLUMNS])
_KEYS_PER_BUCKET = 200_000


@dataclasses.dataclass
class Tally:
    """What the pipeline brings back: sums over all shards, and the faults.

    Attributes:
      records, bytes, image_bytes, decoded, shards: sums.
      classes: (split, label id) → records.
      split_records: split → records.
      outcomes: rows of the index by outcome.
      leaks: "split and split" → images whose bytes stand in both.
      leak_examples: for each of these, two keys.
      repeats: images whose bytes stand more than once in one split.
      groups: groups that stand in several splits.
      faults: what is wrong.
    """

    records: int = 0
    bytes: int = 0
    image_bytes: int = 0
    decoded: int = 0
    shards: int = 0
    classes: Counter[tuple[str, int]] = dataclasses.field(default_factory=Counter)
    split_records: Counter[str] = dataclasses.field(default_factory=Counter)
    outcomes: Counter[str] = dataclasses.field(default_factory=Counter)
    leaks: Counter[str] = dataclasses.field(default_factory=Counter)
    leak_examples: dict[str, str] = dataclasses.field(default_factory=dict)
    repeats: int = 0
    groups: int = 0
    faults: FaultList = dataclasses.field(default_factory=lambda: FaultList(100))

    def merge(self, other: Tally) -> None:
        """Adds another tally."""
        for name in ("records", "bytes", "image_bytes", "decoded", "shards", "repeats", "groups"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("classes", "split_records", "outcomes", "leaks"):
            getattr(self, name).update(getattr(other, name))
        for pair, example in other.leak_examples.items():
            self.leak_examples[pair] = min(example, self.leak_examples.get(pair, example))
        self.faults.merge(other.faults)


def build_pipeline(
    root: beam.Pipeline, tasks: Sequence[ShardTask], index_files: Sequence[str], check: ShardCheck
) -> beam.PCollection[Tally]:
    """Adds a verification to `root`; gives one Tally."""
    config = storage_config.current()
    keyed = (
        root
        | "Shards" >> beam.Create([((t.split, t.number, t.expected is None), t) for t in tasks])
        # ((split, number, is foreign), ShardTask)
    )
    rows = (
        root
        | "IndexFiles" >> beam.Create(list(index_files))
        | "SpreadIndexFiles" >> beam.Reshuffle()
        | "ReadIndex" >> beam.ParDo(_ReadIndexDoFn(config, check.keep)).with_outputs(main="rows")
    )
    checked = (
        {"task": keyed, "rows": rows["rows"]}
        | "ShardWithIndex" >> beam.CoGroupByKey()
        | "CheckShard"
        >> beam.ParDo(
            _CheckShardDoFn(config, check, bool(index_files), _buckets(tasks))
        ).with_outputs(main="tally")
        # Tally; (bucket, names of one shard) in the output "names"
    )
    repeated = (
        checked["names"]
        | "SameBucket" >> beam.GroupByKey()
        | "FindRepeated" >> beam.Map(_find_repeated, keep=check.keep)
    )
    groups = (
        rows["groups"]
        | "SameGroup" >> beam.CombinePerKey(_union)
        | "GroupsInSplits" >> beam.Map(lambda item: Tally(groups=int(len(item[1]) > 1)))
    )
    return (
        (checked["tally"], rows["tally"], repeated, groups)
        | "AllTallies" >> beam.Flatten()
        | "AddUp" >> beam.CombineGlobally(_AddTallies(check.keep))
    )


def _union(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*sets)


def _buckets(tasks: Sequence[ShardTask]) -> int:
    """How many groups the keys are dealt to, so that one group fits a worker."""
    known = sum(task.expected.records for task in tasks if task.expected)
    guessed = sum(task.size for task in tasks if not task.expected) // 2000
    return 1 + max(known, guessed) // _KEYS_PER_BUCKET


class _AddTallies(beam.CombineFn):
    """Tally → one Tally."""

    def __init__(self, keep: int):
        self._keep = keep

    def create_accumulator(self) -> Tally:
        return Tally(faults=FaultList(self._keep))

    def add_input(self, accumulator: Tally, element: Tally) -> Tally:
        accumulator.merge(element)
        return accumulator

    def merge_accumulators(self, accumulators: Iterable[Tally]) -> Tally:
        merged = self.create_accumulator()
        for accumulator in accumulators:
            merged.merge(accumulator)
        return merged

    def extract_output(self, accumulator: Tally) -> Tally:
        return accumulator


class _ReadIndexDoFn(beam.DoFn):
    """URI of an index file → ((split, shard, False), rows); outcomes and groups beside it."""

    def __init__(self, config: storage.StorageConfig, keep: int):
        self._config, self._keep = config, keep

    def setup(self) -> None:
        storage.configure(self._config)

    def process(self, uri: str) -> Iterator[Any]:
        file = f"{dataset_info.INDEX_DIRECTORY}/{storage.basename(uri)}"
        tally = Tally(faults=FaultList(self._keep))
        try:
            table = index.read_index(storage.read_bytes(uri), _INDEX_COLUMNS)
            table = table.cast(_ROWS_SCHEMA)
        except (ValueError, OSError, pa.ArrowException) as error:
            tally.faults.add(FaultKind.METADATA_DAMAGED, file, f"it cannot be read: {error}")
            yield beam.pvalue.TaggedOutput("tally", tally)
            return
        tally.outcomes.update(table["outcome"].to_pylist())
        yield beam.pvalue.TaggedOutput("tally", tally)
        written = table.filter(pc.equal(table["outcome"], "written")).combine_chunks()
        places = written.group_by(["split", "shard"]).aggregate([])
        for split, shard in zip(
            places["split"].to_pylist(), places["shard"].to_pylist(), strict=True
        ):
            of_shard = pc.and_(pc.equal(written["split"], split), pc.equal(written["shard"], shard))
            yield ((split, shard, False), written.filter(of_shard))
        grouped = written.filter(pc.is_valid(written["group"])).select(["group", "split"])
        splits: dict[str, set[str]] = defaultdict(set)
        for group, split in zip(
            *(grouped[name].to_pylist() for name in ("group", "split")), strict=True
        ):
            splits[group].add(split)
        for group, names in splits.items():
            yield beam.pvalue.TaggedOutput("groups", (group, frozenset(names)))


class _CheckShardDoFn(beam.DoFn):
    """(place, {task, rows}) → Tally; the shard's keys and checksums in the output "names"."""

    def __init__(
        self, config: storage.StorageConfig, check: ShardCheck, indexed: bool, buckets: int
    ):
        self._config, self._check = config, check
        self._indexed, self._buckets = indexed, buckets

    def setup(self) -> None:
        storage.configure(self._config)

    def process(self, element: tuple[Any, dict[str, Iterable[Any]]]) -> Iterator[Any]:
        _, grouped = element
        tables = list(grouped["rows"])
        rows = pa.concat_tables(tables) if tables else None
        tasks = list(grouped["task"])
        if not tasks and rows is not None:
            # A missing shard is told with its file; a shard that nobody knows is not.
            return
        for task in tasks:
            if rows is None and self._indexed and task.expected is not None:
                rows = _ROWS_SCHEMA.empty_table()
            report = check_shard(task, self._check, rows if task.expected else None)
            yield self._tally(report)
            # A shard that does not belong to the dataset has the keys of another one.
            if task.expected is not None or not self._check.shards_by_sha256:
                yield from self._names(report)

    def _tally(self, report: ShardReport) -> Tally:
        task = report.task
        mine = task.expected is not None or not self._check.shards_by_sha256
        return Tally(
            records=report.records if mine else 0,
            bytes=report.file_bytes,
            image_bytes=report.image_bytes,
            decoded=report.decoded,
            shards=1,
            classes=Counter(
                {(task.split, label): n for label, n in report.classes.items() if mine}
            ),
            split_records=Counter({task.split: report.records} if mine else {}),
            faults=report.faults,
        )

    def _names(self, report: ShardReport) -> Iterator[Any]:
        for kind, names in (("key", report.keys), ("image", report.images)):
            dealt: dict[int, tuple[list[bytes], list[int], list[bytes]]] = defaultdict(
                lambda: ([], [], [])
            )
            for i, name in enumerate(names):
                bucket = dealt[zlib.crc32(name) % self._buckets]
                bucket[0].append(name)
                bucket[1].append(report.numbers[i])
                bucket[2].append(report.keys[i] if i < len(report.keys) else b"")
            for bucket_number, (values, numbers, keys) in dealt.items():
                content = (report.task.file, report.task.split, values, numbers, keys)
                yield beam.pvalue.TaggedOutput("names", ((kind, bucket_number), content))


def _find_repeated(element: tuple[tuple[str, int], Iterable[Any]], keep: int) -> Tally:
    """((kind, bucket), names of many shards) → repeated keys as faults, images as counts."""
    (kind, _), contents = element
    tally = Tally(faults=FaultList(keep))
    first: dict[bytes, list[tuple[str, str, int, bytes]]] = {}  # one entry for each split
    for file, split, names, numbers, keys in sorted(contents, key=lambda content: content[0]):
        for name, number, key in zip(names, numbers, keys, strict=True):
            known = first.setdefault(name, [])
            same_split = next((entry for entry in known if entry[1] == split), None)
            earlier = same_split or (known[0] if known else None)
            if same_split is None:
                known.append((file, split, number, key))
            if earlier is None:
                continue
            if kind == "key":
                fault = FaultKind.KEY_TWICE if same_split else FaultKind.SPLITS_OVERLAP
                detail = f"this key stands in {earlier[0]}, record {earlier[2]:,} already"
                text = name.decode("utf-8", "replace")
                tally.faults.add(fault, file, detail, number, None, text)
            elif same_split:
                tally.repeats += 1
            else:
                pair = " and ".join(sorted((earlier[1], split)))
                tally.leaks[pair] += 1
                twins = [twin.decode("utf-8", "replace") for twin in (earlier[3], key)]
                tally.leak_examples.setdefault(pair, " and ".join(twins))
    return tally
