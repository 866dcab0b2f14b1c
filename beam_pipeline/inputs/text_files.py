"""Reading the text of manifests as a stream: lines, CSV rows, and what a file is."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from beam_pipeline import storage
from beam_pipeline.errors import InputError

_HEAD_BYTES = 1 << 20  # 1 MiB: what is looked at to find out what a file is
_LARGEST_CELL = 16 << 20  # 16 MiB
DELIMITERS = (",", "\t", ";", "|")


def read_head(uri: str) -> bytes:
    """The first MiB of a manifest, without its byte order mark, cut after a whole line.

    Raises:
      InputError: it is empty, UTF-16, or has no lines.
    """
    with storage.open_read(uri) as stream:
        head = stream.read(_HEAD_BYTES)
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise InputError(f"{uri} is UTF-16 text; save it as UTF-8")
    head = head.removeprefix(b"\xef\xbb\xbf")
    if b"\r" in head and b"\n" not in head:
        raise InputError(
            f"{uri}: lines end in a carriage return alone; save the file with usual line ends"
        )
    if len(head) >= _HEAD_BYTES - 3:
        if b"\n" not in head:
            raise InputError(f"{uri} is no manifest: its first line is longer than 1 MiB")
        head = head[: head.rindex(b"\n") + 1]
    if not head.strip():
        raise InputError(f"{uri} is empty")
    return head


def decoded_head(head: bytes, uri: str) -> str:
    """The text of `read_head`; InputError names the line that is not UTF-8."""
    try:
        return head.decode("utf-8")
    except UnicodeDecodeError as error:
        line = head.count(b"\n", 0, error.start) + 1
        raise not_utf8(uri, max(line - 1, 0), line) from error


def not_utf8(uri: str, row: int, line: int) -> InputError:
    """The error for bytes that are no UTF-8; `row` 0 is the header."""
    where = f"row {row} (line {line})" if row else f"the first line (line {line})"
    return InputError(f"{uri}: {where} is not UTF-8 text; save the file as UTF-8")


def text_lines(stream: Iterable[bytes]) -> Iterator[str]:
    """The lines of a binary stream with their line ends, without a byte order mark.

    Raises:
      UnicodeDecodeError: a line is not UTF-8.
    """
    lines = iter(stream)
    for line in lines:
        yield line.decode("utf-8-sig")
        break
    for line in lines:
        yield line.decode("utf-8")


def csv_rows(lines: Iterable[str], delimiter: str) -> Any:
    """A csv.reader that takes large cells and refuses quotes that do not match."""
    if csv.field_size_limit() < _LARGEST_CELL:
        csv.field_size_limit(_LARGEST_CELL)
    return csv.reader(lines, delimiter=delimiter, strict=True)


def csv_error(uri: str, row: int, line: int, error: csv.Error) -> InputError:
    """The error for a file that is no proper CSV."""
    cause = str(error)
    if "unexpected end of data" in cause or "field limit" in cause:
        cause = "a quote that opens here is never closed"
    elif "new-line character" in cause:
        cause = "a line ends in a carriage return alone; save the file with usual line ends"
    else:
        cause = f"{cause} (a quote inside a quoted cell must be doubled)"
    return InputError(f"{uri}: row {row} (line {line}): {cause}")


def header_of(head: str, delimiter: str) -> list[str]:
    """The first line of a CSV as names; [] when it cannot be parsed with this delimiter."""
    try:
        for fields in csv_rows(io.StringIO(head, newline="\n"), delimiter):
            if fields:
                return [name.strip() for name in fields]
    except csv.Error:
        pass
    return []


def best_delimiter(head: str, wanted: Sequence[str], candidates: Sequence[str]) -> str:
    """The delimiter whose header has most of the `wanted` names, then most columns."""

    def score(delimiter: str) -> tuple[int, int]:
        names = {name.casefold() for name in header_of(head, delimiter)}
        return len(names & set(wanted)), len(names)

    return max(candidates, key=score)


def json_rows(head: str, uri: str, most: int = 1000) -> list[dict[str, Any]]:
    """The first rows of a JSON-lines file, those that are objects.

    Raises:
      InputError: the first line is no JSON object.
    """
    rows: list[dict[str, Any]] = []
    lines = [line for line in head.split("\n") if line.strip()]
    for number, line in enumerate(lines[:most]):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict):
            rows.append(row)
        elif number == 0:
            hint = (
                "it holds one JSON array: write one object per line instead"
                if line.lstrip().startswith("[")
                else f"found {line[:60]!r}"
            )
            raise InputError(
                f"{uri}: expected JSON lines, one object such as "
                f'{{"path": "a.jpg", "label": "happy"}} per line; {hint}'
            )
    return rows
