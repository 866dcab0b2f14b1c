"""Manifests: CSV, TSV, JSON lines, and list files of `name label` lines.

Every row yields exactly one ImageRef, bad rows too; blank lines are counted as ignored.
Rows are numbered from 1, the header not counted; messages give the line of the file
as well. A file that cannot be understood as a whole (not UTF-8, no header, a quote that
is never closed) is an InputError.

A relative path starts from the folder of the manifest, or from --image_root. The key of
a row is its path as written, normalized; of an absolute path or URI the part below that
folder, else all of it without scheme and leading `/`.

A list file (RAF-DB's `train_00001.jpg 5`) has no header: the last word of a line is the
label, all before it the path. When every name at its beginning starts with `train_` or
`test_`, that is the split: RAF-DB publishes its partition in this way only, and without
it the test images would be trained on.
"""

from __future__ import annotations

import csv
import itertools
import json
import posixpath
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from beam_pipeline import storage
from beam_pipeline.errors import InputError, UsageError
from beam_pipeline.inputs.columns import (
    KNOWN_COLUMNS,
    Feature,
    find_columns,
    list_features,
    parse_json,
    parse_text,
)
from beam_pipeline.inputs.listing import (
    BLANK_LINE,
    InputPlan,
    ListingReport,
    NameRule,
    Source,
    has_image_name,
    rejected,
    split_name_problem,
)
from beam_pipeline.inputs.text_files import (
    DELIMITERS,
    best_delimiter,
    csv_error,
    csv_rows,
    decoded_head,
    header_of,
    json_rows,
    not_utf8,
    read_head,
    text_lines,
)
from beam_pipeline.keys import (
    is_uri,
    key_prefixes,
    normalize_path,
    path_below,
    to_key,
    without_root,
)
from beam_pipeline.options import InputOptions
from beam_pipeline.types import FeatureValue, ImageRef, RejectReason

JSON_ENDINGS = (".jsonl", ".ndjson", ".json")
TABLE_ENDINGS = (".csv", ".tsv", ".tab")
LIST_ENDINGS = (".txt", ".lst", ".list")
_PEEKED = 5  # rows whose files are looked for before the start
_PARTITION = re.compile(r"(?:.*/)?(train|test)_[0-9]+[^/]*")


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


def resolve(uris: Sequence[str], options: InputOptions) -> InputPlan:
    """Finds out how the manifests are read; reads their beginning only.

    Raises:
      InputError: one is empty, has no rows, no header or no column for paths.
      UsageError: a column that was asked for does not exist.
    """
    if options.label_from is not None and options.label_column is not None:
        raise UsageError("--label_from and --label_column contradict each other; give one of them")
    rule = NameRule(options.label_from)
    tables = [_resolve_table(uri, options) for uri in uris]
    shapes = {(table.features, "label" in dict(table.roles)) for table in tables}
    if len(shapes) > 1:
        raise InputError(
            "the manifests differ in whether they have labels, or in which features are lists; "
            "convert them separately"
        )
    prefixes = key_prefixes([table.base for table in tables])
    sources = tuple(map(Source, uris, prefixes, tables))
    warnings = []
    for source in sources:
        warnings += _peek(source, options, rule)
    roles = dict(tables[0].roles)
    labelled = options.label_from != "none" and (options.label_from is not None or "label" in roles)
    return InputPlan(
        options=options,
        kind="manifest",
        sources=sources,
        announcement=_announcement(uris, tables[0], options, labelled),
        labelled=labelled,
        features=tuple(map(tuple, tables[0].features)),  # type: ignore[arg-type]
        warnings=tuple(warnings),
    )


def _announcement(uris: Sequence[str], table: Table, options: InputOptions, labelled: bool) -> str:
    names = {",": "CSV", "\t": "tab-separated", ";": "CSV with ;", "|": "CSV with |"}
    shape = {"jsonl": "JSON lines", "list": "list file"}.get(
        table.format, names.get(table.delimiter, f"CSV with {table.delimiter!r}")
    )
    roles = dict(table.roles)
    if options.label_from is not None:
        roles.pop("label", None)
    parts = [f"{role} from {column!r}" for role, column in roles.items()]
    if table.names_tell_split:
        parts.append("split from train_ and test_ in the names")
    if not labelled:
        parts.append("no labels")
    elif options.label_from is not None:
        parts.append("labels by --label_from")
    count = "manifest" if len(uris) == 1 else f"{len(uris)} manifests"
    return f"{count}, {shape}: {', '.join(parts)}"


def _resolve_table(uri: str, options: InputOptions) -> Table:
    base = options.image_root if options.image_root is not None else storage.parent(uri)
    head = decoded_head(read_head(uri), uri)
    ending = posixpath.splitext(uri)[1].lower()
    is_table = ending in TABLE_ENDINGS
    if ending in JSON_ENDINGS or (not is_table and head.lstrip()[:1] == "{"):
        rows = json_rows(head, uri)
        columns = list(dict.fromkeys(name for row in rows for name in row))
        roles = find_columns(options, columns, uri)
        features = list_features(options.features, rows)
        return Table("jsonl", base, roles=tuple(roles.items()), features=features)
    delimiter = _delimiter(head, ending, options)
    columns = header_of(head, delimiter)
    first = head.lstrip().split("\n", 1)[0].strip()
    if not is_table and options.delimiter is None and _is_list_line(first):
        return _list_table(uri, head, base, options)
    roles = find_columns(options, columns, uri)
    features = list_features(options.features, ())
    return Table("csv", base, delimiter, tuple(columns), tuple(roles.items()), features)


def _delimiter(head: str, ending: str, options: InputOptions) -> str:
    if options.delimiter is not None:
        given = {"\\t": "\t", "tab": "\t"}.get(options.delimiter, options.delimiter)
        if len(given) != 1 or given in '"\r\n':
            raise UsageError(f"--delimiter must be one character, got {options.delimiter!r}")
        return given
    asked = [options.path_column, options.label_column, options.split_column, options.group_column]
    wanted = {name.casefold() for name in (*asked, *options.features) if name}
    wanted.update(itertools.chain(*KNOWN_COLUMNS.values()))
    candidates = ("\t", *DELIMITERS) if ending in (".tsv", ".tab") else DELIMITERS
    return best_delimiter(head, tuple(wanted), candidates)


def _is_list_line(line: str) -> bool:
    words = line.rsplit(None, 1)
    return bool(words) and (has_image_name(words[0]) or has_image_name(line))


def _list_table(uri: str, head: str, base: str, options: InputOptions) -> Table:
    asked = [role for role in KNOWN_COLUMNS if getattr(options, f"{role}_column") is not None]
    if asked or options.features:
        what = f"--{asked[0]}_column" if asked else "--feature"
        raise UsageError(f"{what}: {uri} is a list of names and labels, it has no named columns")
    lines = [line.split() for line in head.split("\n") if line.strip()]
    labelled = not has_image_name(" ".join(lines[0]))
    names = [" ".join(words[:-1] if labelled else words) for words in lines]
    return Table(
        "list",
        base,
        roles=(("path", "name"), ("label", "last word")) if labelled else (("path", "name"),),
        names_tell_split=all(map(_PARTITION.fullmatch, names)),
    )


def _peek(source: Source, options: InputOptions, rule: NameRule) -> list[str]:
    """Looks at the first rows; returns what the user should know before a long run."""
    refs = list(itertools.islice(list_source(source, options, rule, ListingReport()), _PEEKED))
    if not refs:
        raise InputError(f"{source.uri} has a header but no rows; expected one row per image")
    assert isinstance(source.detail, Table)
    # Images in another storage are left alone: perhaps only workers may read there.
    usable = [ref for ref in refs if ref.problem is None and ref.uri.startswith(source.detail.base)]
    if usable and all(storage.stat(ref.uri) is None for ref in usable):
        return [
            f"{source.uri}: none of the first {len(usable)} images exists below "
            f"{source.detail.base} (for example {usable[0].uri!r}); if they lie elsewhere, "
            "say where with --image_root"
        ]
    return []


class _Maker:
    """Makes ImageRefs of the rows of one manifest."""

    def __init__(self, source: Source, options: InputOptions, rule: NameRule):
        assert isinstance(source.detail, Table)
        self.table = source.detail
        self.uri = source.uri
        self._prefix = source.prefix
        self._start = self.table.base.rstrip("/") + "/"
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
                match = _PARTITION.fullmatch(path)
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
