"""The rows of a manifest as ImageRefs, streamed: every row yields exactly one.

Blank lines are counted as ignored. Rows are numbered from 1, the header not counted;
messages give the line of the file as well. A row that names no image gets a key of its
own (`list.csv/row-000007`) and the reject reason bad_row.
"""

from __future__ import annotations

import csv
import json
import posixpath
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from beam_pipeline import storage
from beam_pipeline.inputs.columns import Feature, parse_json, parse_text
from beam_pipeline.inputs.listing import (
    BLANK_LINE,
    ListingReport,
    NameRule,
    Source,
    rejected,
    split_name_problem,
)
from beam_pipeline.inputs.text_files import csv_error, csv_rows, not_utf8, text_lines
from beam_pipeline.keys import is_uri, normal_uri, normalize_path, path_below, to_key, without_root
from beam_pipeline.options import InputOptions
from beam_pipeline.types import FeatureValue, ImageRef, RejectReason

# How RAF-DB names the images of its two parts.
PARTITION = re.compile(r"(?:.*/)?(train|test)_[0-9]+[^/]*")


class Table(NamedTuple):
    """How one manifest is read.

    Attributes:
      format: "csv", "jsonl" or "list".
      base: absolute folder or URI that relative paths start from.
      delimiter: of a CSV.
      columns: of a CSV, in order.
      roles: (role, column) pairs; roles are path, label, split and group.
      features: columns kept.
      names_tell_split: the names of a list file start with train_ or test_.
    """

    format: str
    base: str
    delimiter: str = ","
    columns: tuple[str, ...] = ()
    roles: tuple[tuple[str, str], ...] = ()
    features: tuple[Feature, ...] = ()
    names_tell_split: bool = False


class _Maker:
    """Makes ImageRefs of the rows of one manifest."""

    def __init__(self, source: Source, options: InputOptions, rule: NameRule):
        assert isinstance(source.detail, Table)
        self.table = source.detail
        self.uri = source.uri
        self._prefix = source.prefix
        self._start = self.table.base.rstrip("/") + "/"
        self._is_remote = not storage.is_local(self.table.base)
        self._rule = rule
        self._parent = options.label_from == "parent"
        self.takes_label = options.label_from is None
        self._checked_splits: set[str] = set()

    def bad(self, row: int, line: int, detail: str) -> ImageRef:
        """A row that names no image."""
        key = f"{self._prefix}{to_key(storage.basename(self.uri))}/row-{row:06d}"
        problem = rejected(RejectReason.BAD_ROW, f"row {row} (line {line}): {detail}")
        return ImageRef(key, self.uri, row=row, problem=problem)

    def make(
        self,
        row: int,
        line: int,
        path: str,
        label: str | None,
        split: str | None,
        group: str | None,
        features: dict[str, FeatureValue] | None = None,
        problem: str | None = None,
    ) -> ImageRef:
        """One row; None for a column that the manifest does not have.

        Args:
          problem: what is wrong with the row although its path is known.
        """
        if path.startswith(self._start):
            uri = path
            key = self._prefix + normalize_path(path[len(self._start) :].lstrip("/"))
        elif path[:1] == "/" or is_uri(path):
            uri = path
            below = path_below(path, self._start)
            key = without_root(path) if below is None else self._prefix + below
        else:
            uri = self._start + path
            if self._is_remote:  # object stores know neither . nor ..
                uri = normal_uri(uri)
            key = normalize_path(path)
            if key and self._prefix:
                key = normalize_path(self._prefix + key)
        if not key.strip():
            return self.bad(row, line, f"the path is empty, found {path!r}")
        if "\0" in path:
            return self.bad(row, line, f"the path {path!r} holds a NUL character")
        try:
            key = to_key(key)
        except UnicodeEncodeError:
            return self.bad(row, line, f"the path {path!a} is no valid Unicode")
        reason = RejectReason.BAD_ROW
        if split is not None and split not in self._checked_splits:
            wrong = split_name_problem(split)
            if wrong:
                problem, split = problem or wrong, None
            else:
                self._checked_splits.add(split)
        if self._parent:
            label = posixpath.basename(posixpath.dirname(key)) or to_key(
                storage.basename(self._start)
            )
        elif label is not None and not label.strip():
            if problem is None:
                problem, reason = f"it has no label (found {label!r})", RejectReason.NO_LABEL
            label = None
        if problem is not None:
            verdict = rejected(reason, f"row {row} (line {line}): {problem}")
            return ImageRef(key, uri, label, split, row=row, problem=verdict)
        ref = ImageRef(key, uri, label, split, group or None, features, row)
        return self._rule.apply(ref) if self._rule.is_regex else ref


def list_source(
    source: Source, options: InputOptions, rule: NameRule, report: ListingReport
) -> Iterator[ImageRef]:
    """Every row of one manifest, in order.

    Raises:
      InputError: a part of the file is not UTF-8 or no proper CSV; names the row.
    """
    maker = _Maker(source, options, rule)
    list_rows = {"csv": _list_csv, "jsonl": _list_json, "list": _list_names}[maker.table.format]
    with storage.open_read(source.uri) as stream:
        yield from list_rows(maker, text_lines(stream), report)


def _list_csv(maker: _Maker, lines: Iterator[str], report: ListingReport) -> Iterator[ImageRef]:
    table = maker.table
    index = {name: table.columns.index(column) for name, column in table.roles}
    path_at = index["path"]
    label_at = index.get("label") if maker.takes_label else None
    split_at, group_at = index.get("split"), index.get("group")
    features = [(feature, table.columns.index(feature.name)) for feature in table.features]
    width = len(table.columns)
    reader = csv_rows(lines, table.delimiter)
    row = -1  # the header becomes row 0
    line = 0
    try:
        for fields in reader:
            line, start = reader.line_num, line + 1
            if not fields:
                report.ignore(BLANK_LINE, f"line {line}")
                continue
            row += 1
            if row == 0:
                continue
            if len(fields) != width:
                yield maker.bad(
                    row, start, f"expected {width} columns, found {len(fields)}: {_shown(fields)}"
                )
                continue
            values, problem = None, None
            if features:
                values, problem = _text_features(features, fields)
            yield maker.make(
                row,
                start,
                fields[path_at],
                None if label_at is None else fields[label_at],
                None if split_at is None else fields[split_at],
                None if group_at is None else fields[group_at],
                values,
                problem,
            )
    except UnicodeDecodeError as error:
        raise not_utf8(maker.uri, row + 1, reader.line_num + 1) from error
    except csv.Error as error:
        raise csv_error(maker.uri, row + 1, line + 1, error) from error


def _shown(fields: Sequence[str]) -> str:
    text = ", ".join(map(repr, fields[:6]))
    return text if len(text) <= 200 else text[:200] + "…"


def _text_features(
    features: Sequence[tuple[Feature, int]], fields: Sequence[str]
) -> tuple[dict[str, FeatureValue] | None, str | None]:
    values: dict[str, FeatureValue] = {}
    for feature, at in features:
        try:
            values[feature.name] = parse_text(fields[at], feature.type)
        except ValueError as error:
            return None, f"column {feature.name!r}: {error}, found {fields[at][:80]!r}"
    return values, None


def _list_json(maker: _Maker, lines: Iterator[str], report: ListingReport) -> Iterator[ImageRef]:
    columns = dict(maker.table.roles)
    label_column = columns.get("label") if maker.takes_label else None
    row = line = 0
    try:
        for line, text in enumerate(lines, 1):
            if not text.strip():
                report.ignore(BLANK_LINE, f"line {line}")
                continue
            row += 1
            try:
                data = json.loads(text)
            except (ValueError, RecursionError) as error:
                yield maker.bad(row, line, f"expected a JSON object: {error}")
                continue
            path = data.get(columns["path"]) if isinstance(data, dict) else None
            if not isinstance(path, str):
                what = f"{columns['path']!r} must be text"
                yield maker.bad(row, line, f"{what}, found {text.strip()[:80]!r}")
                continue
            cells: dict[str, str | None] = {}
            problem = None
            for role, column in (
                ("label", label_column),
                ("split", columns.get("split")),
                ("group", columns.get("group")),
            ):
                try:
                    cells[role] = None if column is None else _json_name(data.get(column))
                except ValueError as error:
                    cells[role] = None
                    problem = f"column {column!r}: {error}, found {data[column]!r}"
            values: dict[str, FeatureValue] | None = None
            if maker.table.features and problem is None:
                values, problem = _json_features(maker.table.features, data)
            yield maker.make(
                row, line, path, cells["label"], cells["split"], cells["group"], values, problem
            )
    except UnicodeDecodeError as error:
        raise not_utf8(maker.uri, row + 1, line + 1) from error


def _json_name(value: object) -> str:
    """A label, split or group: text, or an integer as text; "" for null."""
    if value is None:
        return ""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise ValueError("expected text or an integer")
    value.encode("utf-8")
    return value


def _json_features(
    features: Sequence[Feature], data: dict[str, object]
) -> tuple[dict[str, FeatureValue] | None, str | None]:
    values: dict[str, FeatureValue] = {}
    for feature in features:
        try:
            values[feature.name] = parse_json(data.get(feature.name), feature)
        except ValueError as error:
            found = repr(data.get(feature.name))[:80]
            return None, f"column {feature.name!r}: {error}, found {found}"
    return values, None


def _list_names(maker: _Maker, lines: Iterator[str], report: ListingReport) -> Iterator[ImageRef]:
    labelled = "label" in dict(maker.table.roles)
    row = line = 0
    try:
        for line, text in enumerate(lines, 1):
            words = text.strip()
            if not words:
                report.ignore(BLANK_LINE, f"line {line}")
                continue
            row += 1
            path, label = words, None
            if labelled:
                parts = words.rsplit(None, 1)
                if len(parts) != 2:
                    yield maker.bad(row, line, f"expected a name and a label, found {words!r}")
                    continue
                path, label = parts
            split = problem = None
            if maker.table.names_tell_split:
                match = PARTITION.fullmatch(path)
                split = match.group(1) if match else None
                if match is None:
                    problem = (
                        f"{path!r} starts with neither train_ nor test_, as names before it do"
                    )
            yield maker.make(
                row, line, path, label if maker.takes_label else None, split, None, None, problem
            )
    except UnicodeDecodeError as error:
        raise not_utf8(maker.uri, row + 1, line + 1) from error
