"""Glob patterns and single files: whatever matches is an input, but for hidden names.

A key is relative to the longest part of its pattern that is no pattern
(`faces/*/*.png` gives `happy/1.png`), and that is what --label_from sees. Hidden and
system names are counted and passed over wherever they stand below that part. A folder
that matches is refused when it is called like an image, else counted; a dead link is
refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from beam_pipeline import storage
from beam_pipeline.inputs.listing import (
    FOLDER,
    InputPlan,
    ListingReport,
    NameRule,
    Source,
    entry_problem,
    has_image_name,
    skipper,
)
from beam_pipeline.keys import key_prefixes, to_key
from beam_pipeline.options import InputOptions
from beam_pipeline.storage.globbing import split_pattern
from beam_pipeline.types import ImageRef


def resolve(patterns: Sequence[str], options: InputOptions) -> InputPlan:
    """The plan for patterns; that something matches is checked by the caller."""
    prefixes = key_prefixes([_base(pattern) for pattern in patterns])
    labelled = options.label_from != "none"
    how = {None: "the folder of each image", "parent": "the folder of each image"}
    source = how.get(options.label_from, "--label_from") if labelled else "none"
    count = "glob" if len(patterns) == 1 else f"{len(patterns)} globs"
    return InputPlan(
        options=options,
        kind="glob",
        sources=tuple(map(Source, patterns, prefixes)),
        announcement=f"{count}, labels: {source}",
        labelled=labelled,
    )


def _base(pattern: str) -> str:
    """The directory that the keys of a pattern are relative to."""
    if storage.stat(pattern) is not None:
        return storage.parent(pattern)
    return split_pattern(pattern, storage.stat)[0]


def list_source(
    source: Source, options: InputOptions, rule: NameRule, report: ListingReport
) -> Iterator[ImageRef]:
    """Everything that one pattern matches, ordered by path."""
    take_parent = options.label_from in (None, "parent")
    for entry in storage.glob(source.uri, skip=skipper(report)):
        if entry.kind == "directory" and not has_image_name(entry.path):
            report.ignore(FOLDER, entry.path)
            continue
        label = storage.basename(storage.parent(entry.uri)) if take_parent else None
        ref = ImageRef(
            source.prefix + to_key(entry.path),
            entry.uri,
            to_key(label) if label else None,
            size=entry.size,
            problem=None if entry.kind == "file" else entry_problem(entry.kind, entry.path),
        )
        yield rule.apply(ref) if rule.is_regex else ref
