"""Where images are listed: folders, globs, manifests and FER2013 files, one file per kind.

`resolve_inputs` looks at the inputs where the command runs: it finds out what they are,
reads their beginning, and reports every mistake that can be seen there. `list_images`
runs in a worker: it streams every image of the resulting plan as an ImageRef.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from types import ModuleType

from beam_pipeline import storage
from beam_pipeline.errors import InputError, UsageError
from beam_pipeline.inputs import class_folder, fer2013, file_glob, manifest
from beam_pipeline.inputs.listing import InputPlan, ListingReport, NameRule, Source
from beam_pipeline.keys import is_uri
from beam_pipeline.labels import build_label_map, read_labels_file
from beam_pipeline.options import InputLayout, InputOptions
from beam_pipeline.types import ImageRef

__all__ = [
    "InputPlan",
    "ListingReport",
    "declared_labels",
    "given_labels",
    "list_images",
    "resolve_inputs",
]

_KINDS: dict[str, ModuleType] = {
    "folder": class_folder,
    "glob": file_glob,
    "manifest": manifest,
    "fer2013": fer2013,
}
_MANIFEST_ENDINGS = (*manifest.TABLE_ENDINGS, *manifest.JSON_ENDINGS, *manifest.LIST_ENDINGS)
# Files that people give as they got them.
_PACKED = ".zip .gz .tgz .tar .bz2 .xz .7z .rar .zst .parquet .xls .xlsx .h5 .mat .npz .pkl"
_PACKED_ENDINGS = (*_PACKED.split(), ".tfrecord", ".tfrecords")
_TRIED = 20  # images that --label_from is tried on before the start


def resolve_inputs(options: InputOptions) -> InputPlan:
    """Finds out what the inputs are and how they are read; shallow and fast.

    Raises:
      UsageError: options contradict each other, or name a column that does not exist.
      InputError: nothing is there, or it is not laid out as expected; the message says
        what was expected, what was found and how to mend it.
    """
    options = dataclasses.replace(
        options,
        inputs=tuple(map(_absolute, options.inputs)),
        image_root=None if options.image_root is None else _absolute(options.image_root),
    )
    if options.kind == "auto":
        kinds = [_kind_of(uri) for uri in options.inputs]
    else:
        kinds = [options.kind] * len(options.inputs)
        for uri in options.inputs:
            _check_kind(uri, options.kind)
    if len(set(kinds)) > 1:
        shown = ", ".join(
            f"{uri} ({kind})" for uri, kind in zip(options.inputs, kinds, strict=True)
        )
        raise UsageError(f"inputs must all be of one kind, got {shown}; convert them separately")
    kind = kinds[0]
    _check_options(options, kind)
    plan = _KINDS[kind].resolve(options.inputs, options)
    if options.labels_file is not None:
        plan = _with_labels_file(plan, _absolute(options.labels_file))
    if kind in ("folder", "glob") or NameRule(options.label_from).is_regex:
        _check_first_images(plan)
    return plan


def _absolute(uri: str) -> str:
    """Local paths as absolute ones: a worker may run in another directory."""
    if storage.is_local(uri):
        path = uri[len("file://") :] if uri[:7].lower() == "file://" else uri
        return os.path.abspath(os.path.expanduser(path))
    return uri.rstrip("/")


def _kind_of(uri: str) -> str:
    entry = storage.stat(uri)
    if entry is None:
        if storage.has_magic(uri):
            return "glob"
        raise _not_there(uri)
    if entry.kind == "directory":
        return "folder"
    if entry.kind == "file" and uri.lower().endswith(_PACKED_ENDINGS):
        raise InputError(
            f"{uri} is neither an image nor a manifest: unpack an archive, save a table as CSV or "
            "JSON lines"
        )
    if entry.kind == "file" and uri.lower().endswith(_MANIFEST_ENDINGS):
        return "fer2013" if fer2013.looks_like(uri) else "manifest"
    return "glob"


def _not_there(uri: str) -> InputError:
    parent = storage.parent(uri)
    while parent != storage.parent(parent) and storage.stat(parent) is None:
        parent = storage.parent(parent)
    return InputError(
        f"{uri} does not exist (the path exists up to {parent}); expected a folder of images, a "
        "glob, a manifest (.csv, .tsv, .jsonl, .txt) or a FER2013 CSV"
    )


def _check_kind(uri: str, kind: str) -> None:
    entry = storage.stat(uri)
    if kind == "glob":
        return
    if entry is None or entry.kind == "broken_link":
        raise _not_there(uri)
    wanted = "directory" if kind == "folder" else "file"
    if entry.kind != wanted:
        raise InputError(f"{uri} is a {entry.kind}, but the input kind {kind} expects a {wanted}")


def _check_options(options: InputOptions, kind: str) -> None:
    """Options that mean nothing for this kind of input are mistakes, not noise."""
    columns = ("path_column", "label_column", "split_column", "group_column", "delimiter")
    given = [name for name in (*columns, "image_root") if getattr(options, name) is not None]
    given += ["feature"] if options.features else []
    what = "FER2013 file" if kind == "fer2013" else kind
    if given and kind != "manifest":
        raise UsageError(f"--{given[0]} is for manifests, but the input is a {what}")
    if options.layout is not InputLayout.AUTO and kind != "folder":
        raise UsageError(f"--input_layout is for folders, but the input is a {what}")
    if options.label_from is not None and kind == "fer2013":
        raise UsageError("--label_from cannot be used with FER2013, whose labels are in the file")


def _with_labels_file(plan: InputPlan, labels_file: str) -> InputPlan:
    if not plan.labelled:
        raise UsageError(
            f"--labels_file is given, but the input has no labels ({plan.announcement})"
        )
    given = read_labels_file(labels_file)
    known = plan.declared_labels or plan.given_labels or ()
    build_label_map(known, given)  # raises for an unknown one, before anything is read
    return dataclasses.replace(plan, given_labels=given)


def _check_first_images(plan: InputPlan) -> None:
    """Finds at least one image, and one whose name --label_from matches."""
    report = ListingReport()
    refs = []
    for ref in list_images(plan, report):
        refs.append(ref)
        if ref.problem is None or len(refs) == _TRIED:
            break
    problems = [ref.problem for ref in refs if ref.problem is not None]
    if len(problems) == len(refs) and all(found.reason == "no_label" for found in problems):
        more = f", nor in the {len(refs) - 1} after it" if len(refs) > 1 else ""
        raise InputError(
            f"{problems[0].detail}{more}; it is searched in the key of each image, which is its "
            "path below the input"
        )


def list_images(plan: InputPlan, report: ListingReport | None = None) -> Iterator[ImageRef]:
    """Streams every image of a plan, in an order that depends on the inputs alone.

    Args:
      plan: from resolve_inputs.
      report: counts what is listed and what is passed over, and gets the plan's warnings.

    Yields:
      One ImageRef per input; `problem` is set where listing already refuses it.

    Raises:
      InputError: nothing at all is found, or a manifest cannot be read further.
    """
    report = ListingReport() if report is None else report
    rule = NameRule(plan.options.label_from)
    list_source: Callable[..., Iterator[ImageRef]] = _KINDS[plan.kind].list_source
    for warning in plan.warnings:
        report.warn(warning)
    before = report.listed
    for source in plan.sources:
        for ref in list_source(source, plan.options, rule, report):
            report.listed += 1
            yield ref
    if report.listed == before:
        raise _nothing_found(plan.sources, plan.kind, report)


def _nothing_found(sources: tuple[Source, ...], kind: str, report: ListingReport) -> InputError:
    where = ", ".join(source.uri for source in sources[:3])
    ignored = report.ignored_text()
    if kind == "folder":
        hint = "; expected files with an image extension (a glob takes files with any name)"
    elif kind == "glob":
        bare = [source.uri for source in sources if not is_uri(source.uri)]
        hint = "; check the pattern" + (" (quote it, so that the shell leaves it)" if bare else "")
    else:
        hint = "; it has no rows"
    return InputError(f"no images found in {where}{hint}" + (f" ({ignored})" if ignored else ""))


def declared_labels(plan: InputPlan) -> tuple[str, ...] | None:
    """Classes that exist whether or not they have images; None where only rows tell."""
    return plan.declared_labels


def given_labels(plan: InputPlan) -> tuple[str, ...] | None:
    """Class names by id where a labels file or FER2013 fixes them, else None."""
    return plan.given_labels
