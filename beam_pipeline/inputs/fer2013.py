"""FER2013 CSV files: emotion, pixels, Usage; 48×48 gray pixels as decimal text.

A row's ImageRef tells where its pixels stand in the file, so that pixels are read by
the worker that writes them and never cross a shuffle. Columns are found by name, in any
order, in any case, with spaces around; Usage may be absent. Rows are numbered from 1,
the header not counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from beam_pipeline import storage
from beam_pipeline.errors import ImageRejectedError, InputError
from beam_pipeline.inputs.listing import (
    BLANK_LINE,
    InputPlan,
    ListingReport,
    NameRule,
    Source,
    rejected,
)
from beam_pipeline.inputs.text_files import DELIMITERS, decoded_head, header_of, read_head
from beam_pipeline.keys import key_prefixes, to_key
from beam_pipeline.labels import quoted
from beam_pipeline.options import InputOptions
from beam_pipeline.types import ImageRef, RejectReason

SIZE = 48  # pixels, height and width
LABELS = ("angry", "disgust", "fear", "happy", "sad", "surprise", "neutral")  # as published
SPLITS = {b"training": "train", b"publictest": "validation", b"privatetest": "test"}

_LABEL_OF = {b"%d" % number: label for number, label in enumerate(LABELS)}
_NOT_PIXELS = b"0123456789 \t\r\n"
_LARGEST_ROW = 1 << 20  # 1 MiB; a good row has about 9 kB


class Columns(NamedTuple):
    """Where the columns stand (0-based), and what separates them."""

    delimiter: bytes
    width: int
    emotion: int
    pixels: int
    usage: int | None


def _find_columns(header: Sequence[str], delimiter: str) -> Columns | None:
    names = [name.strip().lower() for name in header]
    if "emotion" not in names or "pixels" not in names:
        return None
    usage = names.index("usage") if "usage" in names else None
    return Columns(
        delimiter.encode(), len(names), names.index("emotion"), names.index("pixels"), usage
    )


def _columns_of(uri: str) -> tuple[Columns | None, list[str]]:
    first = read_head(uri).lstrip().split(b"\n", 1)[0]
    header = decoded_head(first, uri)
    for delimiter in DELIMITERS:
        columns = _find_columns(header_of(header, delimiter), delimiter)
        if columns is not None:
            return columns, []
    return None, header_of(header, ",")


def looks_like(uri: str) -> bool:
    """Whether a file has the header of FER2013."""
    if not uri.lower().endswith(".csv"):
        return False
    first = read_head(uri).lstrip().split(b"\n", 1)[0].lower()
    return b"emotion" in first and b"pixels" in first and _columns_of(uri)[0] is not None


def resolve(uris: Sequence[str], options: InputOptions) -> InputPlan:
    """The plan for FER2013 files; reads their beginning only.

    Raises:
      InputError: a file is empty, or its header has no emotion or pixels.
    """
    details = []
    for uri in uris:
        columns, header = _columns_of(uri)
        if columns is None:
            raise InputError(
                f"{uri}: expected the columns emotion, pixels and Usage of FER2013, found "
                f"{quoted(header, 8)}"
            )
        details.append(columns)
    if len(uris) == 1:
        prefixes = [""]
    else:  # row numbers say nothing without the file
        folders = key_prefixes([storage.parent(uri) for uri in uris])
        prefixes = [
            f"{folder}{to_key(storage.basename(uri))}/"
            for folder, uri in zip(folders, uris, strict=True)
        ]
    sources = tuple(map(Source, uris, prefixes, details))
    for source in sources:
        if next(list_source(source, options, NameRule(None), ListingReport()), None) is None:
            raise InputError(f"{source.uri} has a header but no rows; expected one row per image")
    split = all(columns.usage is not None for columns in details)
    return InputPlan(
        options=options,
        kind="fer2013",
        sources=sources,
        announcement=f"FER2013, {SIZE}×{SIZE} gray pixels in CSV rows: {len(LABELS)} labels, "
        + ("splits from Usage" if split else "no Usage column, so no splits"),
        labelled=True,
        given_labels=LABELS,
        splits=tuple(SPLITS.values()) if split else (),
    )


def list_source(
    source: Source, options: InputOptions, rule: NameRule, report: ListingReport
) -> Iterator[ImageRef]:
    """Every row of one file, in order; the pixels are found, not read."""
    columns = source.detail
    assert isinstance(columns, Columns)
    row = -1  # the header becomes row 0
    offset = 0
    with storage.open_read(source.uri) as stream:
        for line in stream:
            start, offset = offset, offset + len(line)
            # A quoted cell may hold line ends; the row goes on until its quotes are even.
            while line.count(b'"') % 2 and len(line) < _LARGEST_ROW:
                more = stream.readline()
                if not more:
                    break
                line += more
                offset += len(more)
            if not line.strip():
                report.ignore(BLANK_LINE, f"after row {row}")
                continue
            row += 1
            if row:
                yield _row_ref(source, columns, row, start, line)


def _row_ref(source: Source, columns: Columns, row: int, start: int, line: bytes) -> ImageRef:
    """One row; `start` is its offset in the file."""
    key = f"{source.prefix}row-{row:06d}"
    cells = line.rstrip(b"\r\n").split(columns.delimiter)
    if len(cells) != columns.width:
        return _bad_row(source, key, row, f"expected {columns.width} columns, found {len(cells)}")
    at = columns.pixels
    offset = start + sum(map(len, cells[:at])) + at
    pixels = cells[at]
    if pixels[:1] == b'"' == pixels[-1:] and len(pixels) > 1:
        offset, pixels = offset + 1, pixels[1:-1]
    label = _LABEL_OF.get(_bare(cells[columns.emotion]))
    if label is None:
        found = _shown(cells[columns.emotion])
        return _bad_row(source, key, row, f"emotion must be 0 to {len(LABELS) - 1}, found {found}")
    split = None
    if columns.usage is not None:
        split = SPLITS.get(_bare(cells[columns.usage]).lower())
        if split is None:
            found = _shown(cells[columns.usage])
            wanted = "Usage must be Training, PublicTest or PrivateTest"
            return _bad_row(source, key, row, f"{wanted}, found {found}", label)
    return ImageRef(
        key,
        source.uri,
        label,
        split,
        row=row,
        size=len(pixels),
        byte_range=(offset, len(pixels)),
        pixels="fer2013",
    )


def _bare(cell: bytes) -> bytes:
    return cell.strip().strip(b'"').strip()


def _shown(cell: bytes) -> str:
    return repr(cell[:40].decode("utf-8", "backslashreplace"))


def _bad_row(source: Source, key: str, row: int, detail: str, label: str | None = None) -> ImageRef:
    problem = rejected(RejectReason.BAD_ROW, f"row {row}: {detail}")
    return ImageRef(key, source.uri, label, row=row, problem=problem)


def parse_pixels(text: bytes, row: int | None = None) -> np.ndarray:
    """The pixels of one row.

    Args:
      text: 2,304 decimal numbers, 0 to 255, separated by white space.
      row: for messages.

    Returns:
      uint8 [48, 48].

    Raises:
      ImageRejectedError: BAD_ROW: a wrong number of pixels, a value over 255, or
        something that is no number.
    """
    where = "" if row is None else f"row {row}: "
    if text.translate(None, _NOT_PIXELS):
        wrong = next(word for word in text.split() if word.translate(None, _NOT_PIXELS))
        detail = f"pixels must be numbers from 0 to 255, found {_shown(wrong)}"
        raise ImageRejectedError(RejectReason.BAD_ROW, where + detail)
    # Only digits and white space are left, which this parses without mistakes, in a fifth
    # of the time of int(); too many digits come out as the largest int64.
    values = np.fromstring(text, np.int64, sep=" ") if text.strip() else np.zeros(0, np.int64)
    if len(values) != SIZE * SIZE:
        detail = f"expected {SIZE * SIZE} pixels ({SIZE}×{SIZE}), found {len(values)}"
        raise ImageRejectedError(RejectReason.BAD_ROW, where + detail)
    if values.max() > 255:
        over = int(np.argmax(values > 255))
        detail = f"pixel {over + 1} is {_shown(text.split()[over])}, over 255"
        raise ImageRejectedError(RejectReason.BAD_ROW, where + detail)
    return values.astype(np.uint8).reshape(SIZE, SIZE)
