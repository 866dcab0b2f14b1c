"""Folders of images: finds out how one is laid out, then lists it.

Images are the files whose extension is in IMAGE_EXTENSIONS, in any case; whatever they
hold, they are read and judged later. Files with another extension or none (notes.txt,
README) are no images: they are counted and shown, never silently dropped; use a glob
to take them. Hidden and system names are counted too, a folder once.

Folders below a label are nested levels and may be called anything. One that has an
image extension and holds nothing (`x.jpg/`) stands where an image was expected and is
refused; one that holds files is a level like any other. Dead links with an image
extension are refused.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence

from beam_pipeline import storage
from beam_pipeline.errors import InputError
from beam_pipeline.inputs.listing import (
    EMPTY_FOLDER,
    OTHER_NAME,
    SPLIT_FOLDERS,
    InputPlan,
    ListingReport,
    NameRule,
    Source,
    entry_problem,
    has_image_name,
    ignored_kind,
    rejected,
    skipper,
    split_name_problem,
)
from beam_pipeline.keys import key_prefixes, to_key
from beam_pipeline.labels import natural_order, quoted
from beam_pipeline.options import InputLayout, InputOptions
from beam_pipeline.types import ImageRef, RejectReason

_PROBED = 8  # class folders that are looked into

SHAPES = {
    InputLayout.LABEL: "root/label/image",
    InputLayout.SPLIT_LABEL: "root/split/label/image",
    InputLayout.SPLIT: "root/split/image",
    InputLayout.FLAT: "root/image",
}
_WITH_SPLIT = (InputLayout.SPLIT, InputLayout.SPLIT_LABEL)


class _Level:
    """One level of a folder: its folders, and how many images lie directly in it."""

    def __init__(self, uri: str):
        self.uri = uri
        self.folders: list[str] = []
        self.images: list[str] = []
        self.others = 0
        for entry in storage.list_directory(uri, sizes=False):
            if ignored_kind(entry.path):
                continue
            if entry.kind == "directory":
                self.folders.append(entry.path)
            elif has_image_name(entry.path):
                self.images.append(entry.path)
            else:
                self.others += 1

    def below(self, name: str) -> _Level:
        return _Level(storage.join(self.uri, name))


def resolve(uris: Sequence[str], options: InputOptions) -> InputPlan:
    """Finds out the layout of one or more folders, which must agree.

    Raises:
      InputError: there is nothing to convert, or the images do not lie where the
        layout wants them; the message says where they lie and what to do.
    """
    rule = NameRule(options.label_from)
    layouts, labels, splits = [], set(), set()
    for uri in uris:
        layout, found_labels, found_splits = _resolve_one(uri, options, rule)
        layouts.append(layout)
        labels.update(found_labels)
        splits.update(found_splits)
    if len(set(layouts)) > 1:
        shown = ", ".join(
            f"{uri} is {SHAPES[layout]}" for uri, layout in zip(uris, layouts, strict=True)
        )
        raise InputError(f"the folders are laid out differently: {shown}; convert them separately")
    layout = layouts[0]
    for split in sorted(splits):
        wrong = split_name_problem(split)
        if wrong:
            raise InputError(f"{uris[0]}: the folder {wrong}; rename it")
    from_layout = options.label_from is None and layout in (
        InputLayout.LABEL,
        InputLayout.SPLIT_LABEL,
    )
    labelled = from_layout or rule.is_regex or options.label_from == "parent"
    declared = tuple(sorted(map(to_key, labels), key=natural_order)) if from_layout else None
    shape = SHAPES[layout] if not rule.is_regex else f"{SHAPES[layout]}, labels by --label_from"
    counts = []
    if splits:
        counts.append(f"{_count(len(splits), 'split')} ({', '.join(sorted(splits))})")
    if declared is not None:
        counts.append(f"{_count(len(declared), 'label')} ({_shortened(declared)})")
    elif not labelled:
        counts.append("no labels")
    return InputPlan(
        options=options,
        kind="folder",
        sources=tuple(
            Source(uri, prefix, layout)
            for uri, prefix in zip(uris, key_prefixes(uris), strict=True)
        ),
        announcement=f"folder, {shape}" + (f": {', '.join(counts)}" if counts else ""),
        labelled=labelled,
        declared_labels=declared,
        splits=tuple(sorted(splits)),
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _shortened(names: Sequence[str]) -> str:
    names = [name if name.isprintable() else repr(name) for name in names]
    return ", ".join(names) if len(names) <= 10 else f"{', '.join(names[:9])}, … {names[-1]}"


def _resolve_one(
    uri: str, options: InputOptions, rule: NameRule
) -> tuple[InputLayout, set[str], set[str]]:
    """(layout, label folders, split folders) of one root."""
    root = _Level(uri)
    if not root.folders and not root.images:
        raise _nothing(uri, root)
    layout = options.layout
    from_layout = options.label_from is None or options.label_from == "parent"
    if layout is InputLayout.AUTO:
        if from_layout:
            layout = _find_layout(root)
        else:
            only_splits = root.folders and not root.images and all(map(_is_split, root.folders))
            layout = InputLayout.SPLIT if only_splits else InputLayout.FLAT
    elif layout is not InputLayout.FLAT and root.images:
        raise _images_in_root(root, f"--input_layout {layout.value} expects {SHAPES[layout]}")
    labels: set[str] = set()
    splits: set[str] = set()
    if layout in _WITH_SPLIT:
        splits.update(root.folders)
    if layout is InputLayout.LABEL:
        labels.update(_label_folders(root))
    if layout is InputLayout.SPLIT_LABEL:
        for split in root.folders:
            level = root.below(split)
            if level.images and options.label_from is None:
                raise _images_in_split(root, [split], level)
            labels.update(_label_folders(level))
    if from_layout and options.layout is InputLayout.AUTO:
        _check_depth(root, layout, labels)
    return layout, labels, splits


def _label_folders(level: _Level) -> list[str]:
    """The folders that are classes: all but empty ones that are called like an image."""
    return [
        name
        for name in level.folders
        if not (has_image_name(name) and not any(storage.walk(storage.join(level.uri, name))))
    ]


def _is_split(name: str) -> bool:
    return name.lower() in SPLIT_FOLDERS


def _find_layout(root: _Level) -> InputLayout:
    """LABEL or SPLIT_LABEL, from the names of the folders and where the images lie."""
    if root.images:
        raise _images_in_root(root, f"expected {SHAPES[InputLayout.LABEL]}")
    named = [name for name in root.folders if _is_split(name)]
    if len(named) == len(root.folders):
        levels = {name: root.below(name) for name in named}
        flat = [name for name, level in levels.items() if level.images]
        if flat:
            raise _images_in_split(root, flat, levels[flat[0]])
        return InputLayout.SPLIT_LABEL
    levels = {name: root.below(name) for name in (*named, *root.folders[:_PROBED])}
    if len(named) >= 2 and all(levels[n].folders and not levels[n].images for n in named):
        others = [name for name in root.folders if name not in named]
        raise InputError(
            f"{root.uri} has folders that look like splits ({', '.join(named)}) beside others "
            f"({quoted(others)}): move the others out, or say what the folders are with "
            "--input_layout split_label or --input_layout label"
        )
    below = [level for level in levels.values() if level.folders]
    if not below or any(level.images for level in levels.values()):
        return InputLayout.LABEL
    if len(root.folders) > 1 and all(all(map(_is_split, level.folders)) for level in below):
        raise InputError(
            f"{root.uri} looks like root/label/split/image ({root.folders[0]}/"
            f"{below[0].folders[0]}/…), where the split would be lost; use a glob: --input "
            f"'{root.uri}/*/*/*' --label_from 'regex:^(?P<label>[^/]+)/(?P<split>[^/]+)/' (or "
            "--input_layout label to ignore the splits)"
        )
    shared = set(below[0].folders)
    if (
        len(root.folders) >= 2
        and len(shared) >= 2
        and all(set(level.folders) == shared for level in levels.values())
    ):
        raise InputError(
            f"{root.uri}: every folder ({quoted(root.folders, 4)}) holds the same folders "
            f"({quoted(below[0].folders, 4)}), and none is called like a split: say which are the "
            "labels with --input_layout split_label (the inner ones) or --input_layout label "
            "(the outer ones)"
        )
    return InputLayout.LABEL


def _check_depth(root: _Level, layout: InputLayout, labels: set[str]) -> None:
    """Refuses a root that lies above the real one: a single "class" that holds only folders."""
    if len(labels) != 1:
        return
    (only,) = labels
    tops = [root.below(name) for name in root.folders]
    parents = [root] if layout is InputLayout.LABEL else [t for t in tops if only in t.folders]
    levels = [parent.below(only) for parent in parents]
    if any(level.images for level in levels) or not any(level.folders for level in levels):
        return
    level = levels[0]
    if layout is InputLayout.LABEL:
        advice = f"the root seems to be one level too high: give {level.uri}"
    else:
        advice = "take this level out"
    raise InputError(
        f"{root.uri} has one class folder only, {only!r}, and that holds no images but folders "
        f"({quoted(level.folders, 4)}): {advice} (or use --input_layout {layout.value} if {only!r} "
        "is a label)"
    )


def _nothing(uri: str, root: _Level) -> InputError:
    found = f"{root.others} other files" if root.others else "it is empty"
    return InputError(
        f"{uri} holds no folders and no files with an image extension ({found}); expected "
        f"{SHAPES[InputLayout.LABEL]} or {SHAPES[InputLayout.SPLIT_LABEL]}. To take files "
        "whatever they are called, give a glob"
    )


def _images_in_root(root: _Level, expected: str) -> InputError:
    """The error for images at the top; looks beside the root to say which mistake it is."""
    lies = (
        f"{len(root.images)} {'image lies' if len(root.images) == 1 else 'images lie'} directly "
        f"in {root.uri} (for example {root.images[0]!r})"
    )
    parent = storage.parent(root.uri)
    if not root.folders and parent != root.uri:
        name = storage.basename(root.uri)
        siblings = [
            entry.path
            for entry in storage.list_directory(parent)
            if entry.kind == "directory" and entry.path != name and not ignored_kind(entry.path)
        ]
        with_images = [
            sibling
            for sibling in siblings[:_PROBED]
            if _Level(storage.join(parent, sibling)).images
        ]
        if with_images:
            return InputError(
                f"{lies}, {expected}. {name!r} seems to be one class folder beside "
                f"{quoted(with_images, 3)}, so the root is one level too deep: give {parent}"
            )
    if root.folders:
        advice = f"move them into a class folder (there are {quoted(root.folders, 4)})"
    else:
        advice = "sort them into one folder per class, or give a manifest with their labels"
    return InputError(
        f"{lies}, {expected}: {advice}; or convert without labels (--label_from none), or take "
        "the label from the name (--label_from 'regex:(?P<label>…)')"
    )


def _images_in_split(root: _Level, splits: Sequence[str], level: _Level) -> InputError:
    return InputError(
        f"{root.uri}: images lie directly in the split folder {quoted(splits)} (for example "
        f"{level.images[0]!r}), expected {SHAPES[InputLayout.SPLIT_LABEL]}: sort them into class "
        "folders; or convert without labels (--input_layout split); or, if the folders are "
        "classes, use --input_layout label"
    )


def list_source(
    source: Source, options: InputOptions, rule: NameRule, report: ListingReport
) -> Iterator[ImageRef]:
    """Every image below one root, ordered by path."""
    layout = source.detail
    assert isinstance(layout, InputLayout)
    split_at = 0 if layout in _WITH_SPLIT else None
    label_at = None
    if options.label_from in (None, "parent"):
        label_at = {InputLayout.LABEL: 0, InputLayout.SPLIT_LABEL: 1}.get(layout)
    take_parent = options.label_from == "parent"
    levels = max(-1 if n is None else n for n in (split_at, label_at)) + 1
    prefix = source.prefix
    for entry in storage.walk(source.uri, skip=skipper(report)):
        path = entry.path
        if not has_image_name(path):
            report.ignore(EMPTY_FOLDER if entry.kind == "directory" else OTHER_NAME, path)
            continue
        parts = path.split("/")
        problem = None if entry.kind == "file" else entry_problem(entry.kind, path)
        label = split = None
        if len(parts) > levels:
            split = None if split_at is None else parts[split_at]
            label = None if label_at is None else parts[label_at]
        elif problem is None:
            problem = rejected(
                RejectReason.NO_LABEL, f"{path!r} lies above the folders of {SHAPES[layout]}"
            )
        if take_parent and problem is None:
            label = parts[-2] if len(parts) > 1 else posixpath.basename(source.uri)
        ref = ImageRef(
            prefix + to_key(path),
            entry.uri,
            None if label is None else to_key(label),
            split,
            size=entry.size,
            problem=problem,
        )
        yield rule.apply(ref) if rule.is_regex else ref
