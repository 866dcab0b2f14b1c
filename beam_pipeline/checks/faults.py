"""What a check can find wrong, and how it is told."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from beam_pipeline.summary import printable


class FaultKind(str, enum.Enum):
    """Everything that `imagebeam verify` can report."""

    # The directory and its files.
    UNFINISHED = "unfinished"  # no _SUCCESS
    METADATA_MISSING = "metadata_missing"  # conversion.json, schema.pbtxt … is not there
    METADATA_DAMAGED = "metadata_damaged"  # it cannot be read
    METADATA_WRONG = "metadata_wrong"  # it says something else than the data, or than another file
    SHARD_MISSING = "shard_missing"
    SHARD_FOREIGN = "shard_foreign"  # stale, renamed, of another dataset
    SHARD_EMPTY = "shard_empty"  # zero bytes
    SHARD_SIZE = "shard_size"
    SHARD_CHANGED = "shard_changed"  # its SHA-256 is not that of the conversion
    SHARD_SWAPPED = "shard_swapped"  # its content is that of another shard
    COMPRESSION = "compression"  # gzip where none is expected, or the opposite
    UNREADABLE = "unreadable"  # the file cannot be opened or read
    # The framing of records.
    LENGTH_CRC = "length_crc"
    DATA_CRC = "data_crc"
    TRUNCATED = "truncated"
    GZIP_DAMAGED = "gzip_damaged"
    RECORD_COUNT = "record_count"
    # Records.
    NOT_AN_EXAMPLE = "not_an_example"
    FEATURE_WRONG = "feature_wrong"  # missing, of another type, another number of values
    FEATURE_UNKNOWN = "feature_unknown"  # not in the schema
    LABEL_RANGE = "label_range"
    LABEL_WRONG = "label_wrong"  # id and name do not belong together
    SHA256_WRONG = "sha256_wrong"  # of the stored image
    IMAGE_WRONG = "image_wrong"  # does not decode, or to another size
    INDEX_WRONG = "index_wrong"  # the index says something else
    RECORD_LOST = "record_lost"  # in the index, not in the shard
    RECORD_FOREIGN = "record_foreign"  # in the shard, not in the index
    # The dataset as a whole.
    COUNT_WRONG = "count_wrong"
    KEY_TWICE = "key_twice"
    SPLITS_OVERLAP = "splits_overlap"  # one key in two splits


class Fault(NamedTuple):
    """One thing that is wrong.

    Attributes:
      kind: a FaultKind value.
      file: name of the file in the dataset directory.
      detail: a readable sentence: what was found, what was expected.
      record: number in the shard, from 0, or None where no record is meant.
      offset: where that record starts, in uncompressed bytes.
      key: of the image, where it is known.
    """

    kind: str
    file: str
    detail: str
    record: int | None = None
    offset: int | None = None
    key: str | None = None

    def text(self) -> str:
        """One line for a terminal."""
        where = printable(self.file)
        if self.record is not None:
            where += f", record {self.record:,}"
            if self.offset is not None:
                where += f" (byte {self.offset:,})"
        key = f" key {printable(self.key)!r}:" if self.key is not None else ""
        return f"{where}:{key} {printable(self.detail, 400)} [{self.kind}]"

    def to_json(self) -> dict[str, Any]:
        """As a dict without what is not known."""
        return {name: value for name, value in self._asdict().items() if value is not None}


class FaultList:
    """Collects faults; counts all of them and keeps a bounded number of each kind and file."""

    def __init__(self, keep: int):
        self._keep = keep
        self.kept: list[Fault] = []
        self.counts: Counter[tuple[str, str]] = Counter()  # (file, kind) → faults

    def add(
        self,
        kind: FaultKind,
        file: str,
        detail: str,
        record: int | None = None,
        offset: int | None = None,
        key: str | None = None,
    ) -> None:
        """Adds one fault."""
        self.counts[file, kind.value] += 1
        if self.counts[file, kind.value] <= self._keep:
            self.kept.append(Fault(kind.value, file, detail, record, offset, key))

    def merge(self, other: FaultList) -> None:
        """Adds the faults of another list."""
        self.counts.update(other.counts)
        self.kept += other.kept

    @property
    def total(self) -> int:
        """How many were added."""
        return sum(self.counts.values())

    def sorted(self) -> list[Fault]:
        """The kept faults: by file, those of the whole file first, then by record."""
        return sorted(
            self.kept,
            key=lambda fault: (
                fault.file,
                -1 if fault.record is None else fault.record,
                fault.kind,
                fault.key or "",
                fault.detail,
            ),
        )


def faults_text(faults: Iterable[Fault], counts: Counter[tuple[str, str]], shown: int) -> str:
    """Faults as lines, at most `shown` of each kind and file, with how many more there are."""
    seen: Counter[tuple[str, str]] = Counter()
    lines: list[str] = []
    for fault in faults:
        group = (fault.file, fault.kind)
        seen[group] += 1
        if seen[group] <= shown:
            lines.append(fault.text())
        if seen[group] == shown and counts[group] > shown:
            lines.append(f"    … and {counts[group] - shown:,} more {fault.kind} in {fault.file}")
    return "\n".join(lines)
