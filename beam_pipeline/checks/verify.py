"""Verifies datasets: the files of a directory, then all shards, then all of it together."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

from beam_pipeline import dataset_info, worker_pool
from beam_pipeline.checks import shards as shards_module
from beam_pipeline.checks.directory_check import check_directory
from beam_pipeline.checks.faults import Fault, FaultKind, FaultList, faults_text
from beam_pipeline.checks.run import configure_storage, run_pipeline
from beam_pipeline.checks.shard_records import ShardCheck
from beam_pipeline.checks.tf_decoder import TensorFlowDecoder
from beam_pipeline.checks.verify_pipeline import Tally, build_pipeline
from beam_pipeline.dataset_info import DatasetInfo
from beam_pipeline.summary import duration, size_text


@dataclasses.dataclass(frozen=True)
class Verification:
    """The outcome of a verification.

    Attributes:
      what: directory or globs that were verified.
      info: the dataset, or None for foreign files and unreadable descriptions.
      tally: counts and faults.
      seconds: wall time of the pipeline.
    """

    what: str
    info: DatasetInfo | None
    tally: Tally
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return self.tally.faults.total == 0

    @property
    def faults(self) -> list[Fault]:
        """What is wrong, sorted; at most `keep` of each kind and file."""
        return self.tally.faults.sorted()

    def warnings(self) -> list[str]:
        """What is allowed, but worth knowing."""
        tally, lines = self.tally, []
        for pair, count in sorted(tally.leaks.items()):
            lines.append(
                f"{_counted(count, 'image')} in both {pair} with the same bytes under different keys "
                f"(such as {tally.leak_examples[pair]}): scores on them are too good"
            )
        if tally.repeats:
            lines.append(
                f"{_counted(tally.repeats, 'image')} with the bytes of another one of the same split"
            )
        if tally.groups:
            lines.append(f"{_counted(tally.groups, 'group')} in more than one split")
        return lines

    def to_json(self) -> dict[str, Any]:
        """Everything, for --json."""
        tally = self.tally
        return {
            "ok": self.ok,
            "what": self.what,
            "fingerprint": None if self.info is None else self.info.fingerprint,
            "shards": tally.shards,
            "records": tally.records,
            "bytes": tally.bytes,
            "decoded": tally.decoded,
            "seconds": round(self.seconds, 3),
            "splits": dict(sorted(tally.split_records.items())),
            "fault_count": tally.faults.total,
            "faults_by_kind": dict(
                sorted(_sum_by_kind(tally.faults.counts).items(), key=lambda item: -item[1])
            ),
            "faults": [fault.to_json() for fault in self.faults],
            "warnings": self.warnings(),
        }

    def text(self, shown: int = 10) -> str:
        """For a terminal: faults, warnings, and one line that says how it ended."""
        tally = self.tally
        rate = tally.bytes / max(self.seconds, 1e-9)
        seen = (
            f"{tally.shards:,} shards, {tally.records:,} records, {size_text(tally.bytes)} in "
            f"{duration(self.seconds)} ({size_text(rate)}/s)"
        )
        lines = [faults_text(self.faults, tally.faults.counts, shown)] if not self.ok else []
        lines += [f"warning: {line}" for line in self.warnings()]
        if self.ok:
            decoded = f", {tally.decoded:,} images decoded by TensorFlow" if tally.decoded else ""
            lines.append(f"ok: {self.what}: {seen}{decoded}; nothing is wrong")
        else:
            kinds = _sum_by_kind(tally.faults.counts)
            counted = ", ".join(f"{n:,} {kind}" for kind, n in kinds.most_common())
            lines.append(
                f"FAILED: {self.what}: {_counted(tally.faults.total, 'fault')} ({counted}); {seen}"
            )
        return "\n".join(lines)


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _sum_by_kind(counts: Counter[tuple[str, str]]) -> Counter[str]:
    kinds: Counter[str] = Counter()
    for (_, kind), count in counts.items():
        kinds[kind] += count
    return kinds


def verify(
    directory: str | None = None,
    *,
    globs: Sequence[str] = (),
    decode: bool = False,
    keep: int = 100,
    beam_options: Sequence[str] = (),
    threads: int | None = None,
) -> Verification:
    """Checks a dataset directory, or foreign TFRecord files, from the first to the last byte.

    Args:
      directory: written by imagebeam convert; or None with `globs`.
      globs: patterns of TFRecord files of any origin.
      decode: also decode every image with TensorFlow and compare its size.
      keep: faults of each kind and file to tell in full; all are counted.
      beam_options: Beam's own options.
      threads: shards checked side by side on the local engine; None: one per core.

    Raises:
      ImagebeamError: there is nothing to verify, or the environment failed. Faults of
        the data are no exception: they are in the result.
    """
    import time

    configure_storage(beam_options)
    faults = FaultList(keep)
    info: DatasetInfo | None = None
    index_files: list[str] = []
    if globs:
        tasks = shards_module.foreign_tasks(globs)
        specs = shards_module.foreign_specs(tasks)
        for file, detail in shards_module.missing_numbers(tasks):
            faults.add(FaultKind.SHARD_MISSING, file, detail)
        what = " ".join(globs)
    else:
        assert directory is not None
        info, tasks, index_files = check_directory(directory, faults)
        specs = shards_module.foreign_specs(tasks) if info is None else info.features
        what = directory
    check = ShardCheck(
        specs=specs,
        labels=None if info is None else info.labels,
        compression=None if info is None else info.compression,
        shards_by_sha256={
            shard.sha256: shard.file
            for split in (info.splits.values() if info else ())
            for shard in split.shards
        },
        keep=keep,
        raw=info is not None and info.encoding == "raw",
        decoder=TensorFlowDecoder() if decode else None,
    )
    started = time.perf_counter()
    tally: Tally = run_pipeline(
        lambda root: build_pipeline(root, tasks, index_files if info else [], check),
        beam_options,
        threads=threads or min(worker_pool.available_cores(), max(len(tasks), 1)),
    )
    seconds = time.perf_counter() - started
    if info is not None:
        _compare_counts(info, tally)
    tally.faults.merge(faults)
    return Verification(what, info, tally, seconds)


def _compare_counts(info: DatasetInfo, tally: Tally) -> None:
    """Sums over all shards and index files against conversion.json."""

    def wrong(what: str, found: int, expected: int) -> None:
        if found != expected:
            tally.faults.add(
                FaultKind.COUNT_WRONG,
                dataset_info.CONVERSION_FILE,
                f"{what}: {found:,} found, {expected:,} expected",
            )

    wrong("records of all splits", tally.records, info.records)
    for split in info.splits.values():
        wrong(f"records of split {split.name}", tally.split_records[split.name], split.records)
        for number, label in enumerate(info.labels or ()):
            wrong(
                f"records of class {label!r} in split {split.name}",
                tally.classes[split.name, number],
                split.classes.get(label, 0),
            )
    for outcome, name in (
        ("written", "written"),
        ("rejected", "rejected"),
        ("duplicate", "duplicates"),
    ):
        expected = info.ledger.get(name, 0)
        wrong(f"index rows with outcome {outcome}", tally.outcomes[outcome], expected)
