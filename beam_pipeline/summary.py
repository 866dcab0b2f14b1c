"""What a conversion tells its user at the end: counts per split and class, rejects, where to look."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from beam_pipeline import dataset_info
from beam_pipeline.dataset_info import DatasetInfo
from beam_pipeline.imaging.decoder_warnings import describe_warnings
from beam_pipeline.progress import duration
from beam_pipeline.same_bytes import same_bytes_warnings

# The sentence that tells the user what to do about each kind of reject.
ADVICE = {
    "missing": "the file is not there: correct the path, or remove the row or link",
    "not_a_file": "a directory or device stands where an image is expected: rename or remove it",
    "unreadable": "grant read permission",
    "empty": "the file has no bytes: copy or download it again",
    "too_many_bytes": "raise --max_bytes if it is meant",
    "not_an_image": "remove it, or fetch the image that it stands for",
    "unsupported_format": "convert it to JPEG or PNG first, or install the plugin named",
    "format_not_allowed": "add the format to --formats, or remove the file",
    "unsupported_pixels": "convert it to 8 or 16 bits per channel first",
    "too_many_pixels": "raise --max_pixels if it is meant",
    "truncated": "the file ends too early: copy or download it again",
    "corrupt": "the file is damaged: copy or download it again",
    "timeout": "raise --image_timeout, or store the picture in a simpler form",
    "bad_row": "correct the row",
    "no_label": "give it a label, or remove it",
    "conflicting_labels": "keep one row for each path (or picture), the right one",
    "conflicting_splits": "keep one row for each path",
}


@dataclasses.dataclass(frozen=True)
class ConversionSummary:
    """The outcome of a conversion.

    Attributes:
      info: the dataset, with ledger, rejects and run details.
      seconds: wall time of the whole conversion.
    """

    info: DatasetInfo
    seconds: float

    @property
    def inputs(self) -> int:
        """Inputs listed."""
        return self.info.ledger["inputs"]

    @property
    def written(self) -> int:
        """Images written."""
        return self.info.ledger["written"]

    @property
    def rejected(self) -> int:
        """Inputs refused."""
        return self.info.ledger["rejected"]

    @property
    def duplicates(self) -> int:
        """Inputs that named a path again, or (where asked for) had the bytes of another."""
        return self.info.ledger["duplicates"]

    def text(self) -> str:
        """The whole summary, for a terminal."""
        info = self.info
        run = info.run
        size = sum(split.bytes for split in info.splits.values())
        read = int(str(run.get("input_bytes", 0)))
        seconds = max(self.seconds, 1e-9)
        shards = sum(len(split.shards) for split in info.splits.values())
        lines = [
            class_table(info),
            "",
            f"{self.inputs:,} inputs = {self.written:,} written + {self.rejected:,} rejected + "
            f"{self.duplicates:,} duplicates",
            f"{shards:,} {'shard' if shards == 1 else 'shards'}, {size_text(size)}, in {duration(self.seconds)} "
            f"({self.inputs / seconds:,.0f} images/s, {read / seconds / 1e6:,.1f} MB/s read)",
        ]
        if run.get("ignored_text"):
            lines.append(str(run["ignored_text"]))
        lines += [f"note: {line}" for line in self._notes()]
        if info.compression != "none":
            lines.append(
                f"note: {info.compression} shards are for tf.data (and imagebeam train); TFDS, "
                "DALI and random access cannot read them"
            )
        lines += [f"warning: {line}" for line in self._warnings()]
        if self.rejected:
            lines += ["", self.rejects_text().rstrip()]
        lines += [
            "",
            f"dataset:  {info.directory}",
            f"look at:  {dataset_info.CONVERSION_FILE} (everything about this run), "
            f"{dataset_info.INDEX_DIRECTORY}/ (one row per input)"
            + (f", {dataset_info.REJECTED_FILE}" if self.rejected else ""),
        ]
        return "\n".join(lines)

    def rejects_text(self) -> str:
        """Rejects by reason: count, what to do, the first of them."""
        shown = self.info.run.get("rejects_shown", [])
        assert isinstance(shown, list)
        lines = []
        for reason, count in sorted(
            self.info.rejects.items(), key=lambda item: (-item[1], item[0])
        ):
            lines.append(f"rejected: {count:,} {reason} - {ADVICE[reason]}")
            examples = [row for row in shown if row["reason"] == reason]
            lines += [
                f"    {printable(row['key'])}: {printable(row['detail'])}" for row in examples
            ]
            if count > len(examples):
                lines.append(f"    … and {count - len(examples):,} more")
        return "".join(line + "\n" for line in lines)

    def _notes(self) -> list[str]:
        notes = self.info.run.get("notes")
        if not isinstance(notes, dict) or not notes:
            return []
        return [", ".join(f"{count:,} {note}" for note, count in notes.items())]

    def _warnings(self) -> list[str]:
        run = self.info.run
        warnings = [str(line) for line in _list(run.get("warnings"))]
        for split in _list(run.get("empty_splits")):
            warnings.append(f"split {split} came out empty: all of its inputs were refused")
        for label in _list(run.get("empty_classes")):
            warnings.append(f"class {label} has no image left: all of its inputs were refused")
        same_bytes = run.get("same_bytes")
        if isinstance(same_bytes, dict):
            options: Any = run.get("options")
            dropped = bool(options) and options["output"].get("equal_images") == "drop"
            warnings += same_bytes_warnings(same_bytes, dropped=dropped)
        counted = run.get("decoder_warnings")
        if isinstance(counted, dict):
            warnings += [f"decoder: {line}" for line in describe_warnings(counted)]
        return [printable(line) for line in warnings]


def class_table(info: DatasetInfo) -> str:
    """Images per split and class, with totals."""
    splits = list(info.splits.values())
    header = ["class", *(split.name for split in splits), "total"]
    rows = []
    for label in info.labels or ():
        counts = [split.classes[label] for split in splits]
        rows.append([printable(label), *(f"{n:,}" for n in counts), f"{sum(counts):,}"])
    totals = [split.records for split in splits]
    rows.append(["all", *(f"{n:,}" for n in totals), f"{sum(totals):,}"])
    rows.append(["shards", *(f"{len(s.shards):,}" for s in splits), ""])
    return table([header, *rows])


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as aligned text: the first column to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def size_text(size: float) -> str:
    """Bytes with a readable unit."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:,.0f} {unit}" if unit == "bytes" else f"{size:,.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"


def printable(text: str, limit: int = 200) -> str:
    """`text` on one line, without anything that a terminal would obey, cut to `limit`."""
    safe = "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )
    return safe if len(safe) <= limit else safe[: limit - 1] + "…"


def _list(value: object) -> list:
    return value if isinstance(value, list) else []
