"""The columns of a manifest: which one means what, and typed values of kept columns."""

from __future__ import annotations

import base64
import binascii
import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from beam_pipeline.errors import InputError, UsageError
from beam_pipeline.inputs.listing import has_image_name
from beam_pipeline.labels import quoted
from beam_pipeline.options import FeatureType, InputOptions

# Column names that are found by themselves, best first, as `_plain` spells them.
_KNOWN = {
    "path": "path filepath imagepath imgpath file filename imagefile imagefilename imagename "
    "image img pth subdirectoryfilepath uri imageuri name",
    "label": "label labelname class classname emotion expression category target y",
    "split": "split splitname usage subset partition",
    "group": "group groupid subject subjectid person personid patient patientid",
}
KNOWN_COLUMNS = {role: tuple(names.split()) for role, names in _KNOWN.items()}

_INT = re.compile(r"[+-]?[0-9]{1,19}")
_INT64 = 1 << 63
_FLOAT32_MAX = 3.4028235677973366e38  # what still rounds to the largest finite float32


class Feature(NamedTuple):
    """A column kept as a feature; `repeated` for lists of any length (JSON lines)."""

    name: str
    type: FeatureType
    repeated: bool = False


def find_columns(options: InputOptions, columns: Sequence[str], where: str) -> dict[str, str]:
    """The name of the column for each role that there is one for.

    Args:
      options: its path_column, label_column … are looked for exactly, then without
        regard to case; the others among KNOWN_COLUMNS.
      columns: the names that exist.
      where: the manifest, for messages.

    Returns:
      role ("path", "label", "split", "group") → column; "path" is always there.

    Raises:
      UsageError: a column that was asked for does not exist.
      InputError: none is known to hold paths, or one that is needed stands twice.
    """
    found = {}
    by_plain: dict[str, str] = {}
    for column in columns:
        by_plain.setdefault(_plain(column), column)
    for role, known in KNOWN_COLUMNS.items():
        asked = getattr(options, f"{role}_column")
        if asked is not None:
            found[role] = _asked_column(asked, columns, f"--{role}_column", where)
            continue
        for name in known:
            if name in by_plain:
                found[role] = by_plain[name]
                break
    if "path" not in found:
        raise InputError(_no_path_column(columns, where))
    needed = [*found.values(), *options.features]
    for column in needed:
        if columns.count(column) > 1:
            raise InputError(f"{where}: the column {column!r} stands twice in the header")
    for feature in options.features:
        _asked_column(feature, columns, "--feature", where)
    return found


def _plain(column: str) -> str:
    return re.sub(r"[^a-z0-9]", "", column.lower())


def _asked_column(asked: str, columns: Sequence[str], option: str, where: str) -> str:
    if asked in columns:
        return asked
    same = [column for column in columns if column.casefold() == asked.casefold()]
    if len(same) == 1 and option != "--feature":
        return same[0]
    close = difflib.get_close_matches(asked, columns, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise UsageError(f"{option} {asked!r}: {where} has the columns {quoted(columns)}{hint}")


def _no_path_column(columns: Sequence[str], where: str) -> str:
    names = ", ".join(KNOWN_COLUMNS["path"][:10])
    columns = [column if len(column) <= 60 else column[:60] + "…" for column in columns]
    message = (
        f"{where}: no column is known to hold the paths of the images. Expected a header line "
        f"with one of {names} (and for labels one of {', '.join(KNOWN_COLUMNS['label'][:7])}); "
        f"found {quoted(columns, 8)}"
    )
    if any(has_image_name(column) for column in columns):
        return f"{message}: this looks like data; add a header line, such as path,label"
    if "pixels" in map(_plain, columns):
        return f"{message}. A FER2013 file needs the columns emotion and pixels"
    return f"{message}. Name it with --path_column"


def parse_text(text: str, kind: FeatureType) -> int | float | str | bytes:
    """The typed value of a CSV cell.

    Raises:
      ValueError: it is not of that type; the message says what was expected.
    """
    if kind is FeatureType.TEXT:
        return text
    if kind is FeatureType.BYTES:
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise ValueError("expected base64") from None
    cell = text.strip()
    if kind is FeatureType.INT64:
        if not _INT.fullmatch(cell) or not -_INT64 <= int(cell) < _INT64:
            raise ValueError("expected an integer of 64 bits")
        return int(cell)
    try:
        number = float(cell) if "_" not in cell else None
    except ValueError:
        number = None
    if number is None:
        raise ValueError("expected a number")
    return _float32(number)


def _float32(number: float) -> float:
    if abs(number) >= _FLOAT32_MAX and abs(number) != float("inf"):
        raise ValueError("expected a number that a 32-bit float can hold")
    return number


def parse_json(value: Any, feature: Feature) -> int | float | str | bytes | list:
    """The typed value of a JSON value; a list where the feature is repeated.

    Raises:
      ValueError: it is not of that type; the message says what was expected.
    """
    if not feature.repeated:
        if isinstance(value, list):
            raise ValueError("expected one value, as in the first rows, not a list")
        return _json_value(value, feature.type)
    if value is None:
        return []
    values = value if isinstance(value, list) else [value]
    return [_json_value(item, feature.type) for item in values]


def _json_value(value: Any, kind: FeatureType) -> int | float | str | bytes:
    if kind in (FeatureType.TEXT, FeatureType.BYTES):
        if not isinstance(value, str):
            raise ValueError("expected text")
        value.encode("utf-8")  # a lone surrogate cannot be stored
        return parse_text(value, kind)
    if not isinstance(value, (int, float)):
        raise ValueError("expected a number")
    if kind is FeatureType.FLOAT:
        try:
            return _float32(float(value))
        except OverflowError:
            raise ValueError("expected a number that a 32-bit float can hold") from None
    if not isinstance(value, int) or not -_INT64 <= value < _INT64:
        raise ValueError("expected an integer of 64 bits")
    return int(value)


def list_features(types: Mapping[str, FeatureType], rows: Sequence[Any]) -> tuple[Feature, ...]:
    """The kept columns; repeated where one of the first `rows` (JSON objects) has a list."""
    return tuple(
        Feature(
            name,
            kind,
            any(isinstance(row, dict) and isinstance(row.get(name), list) for row in rows),
        )
        for name, kind in types.items()
    )
