"""Manifests: CSV, TSV, JSON lines, and list files of `name label` lines.

A file that cannot be understood as a whole (not UTF-8, no header, a quote that is never
closed) is an InputError; a bad row is a reject.

A relative path starts from the folder of the manifest, or from --image_root. The key of
a row is its path as written, normalized; of an absolute path or URI the part below that
folder, else all of it without scheme and leading `/`.

A list file (RAF-DB's `train_00001.jpg 5`) has no header: the last word of a line is the
label, all before it the path. When every name at its beginning starts with `train_` or
`test_`, that is the split: RAF-DB publishes its partition in this way only, and without
it the test images would be trained on.
"""

from __future__ import annotations

import itertools
import posixpath
from collections.abc import Sequence

from beam_pipeline import storage
from beam_pipeline.errors import InputError, UsageError
from beam_pipeline.inputs.columns import KNOWN_COLUMNS, find_columns, list_features
from beam_pipeline.inputs.listing import (
    InputPlan,
    ListingReport,
    NameRule,
    Source,
    has_image_name,
)
from beam_pipeline.inputs.manifest_rows import PARTITION, Table, list_source
from beam_pipeline.inputs.text_files import (
    DELIMITERS,
    best_delimiter,
    decoded_head,
    header_of,
    json_rows,
    read_head,
)
from beam_pipeline.keys import key_prefixes
from beam_pipeline.options import InputOptions

__all__ = ["JSON_ENDINGS", "LIST_ENDINGS", "TABLE_ENDINGS", "list_source", "resolve"]

JSON_ENDINGS = (".jsonl", ".ndjson", ".json")
TABLE_ENDINGS = (".csv", ".tsv", ".tab")
LIST_ENDINGS = (".txt", ".lst", ".list")
_PEEKED = 5  # rows whose files are looked for before the start


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
        names_tell_split=all(map(PARTITION.fullmatch, names)),
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
