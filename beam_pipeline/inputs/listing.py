"""What all kinds of input share: the plan, the report, which names count, label rules."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from beam_pipeline.keys import to_key
from beam_pipeline.options import SPLIT_NAME, FeatureType, InputOptions
from beam_pipeline.types import ImageRef, Outcome, Problem, RejectReason

# Names that make a file an input in folder mode, whatever its bytes turn out to be: what
# Pillow reads, and what people take for images (SVG, HEIC, JPEG XL), so that these are
# refused by name and not passed over.
_IMAGE_NAMES = """apng avif avifs bmp bw cur dcx dds dib emf eps exr fit fits fli gif heic heif hif icns
    ico im j2c j2k jfif jif jp2 jpc jpe jpeg jpf jpg jpx jxl mpo pbm pcd pcx pfm pgm png pnm ppm psd
    qoi ras rgb rgba sgi svg svgz tga tif tiff webp wmf xbm xpm"""
IMAGE_EXTENSIONS = frozenset(_IMAGE_NAMES.split())

# Names of splits, lower case, as folders of public datasets spell them.
_SPLIT_NAMES = """train training trainset train_set validation valid val validate validationset
    dev development eval evaluation test testing testset test_set holdout hold_out
    publictest privatetest"""
SPLIT_FOLDERS = frozenset(_SPLIT_NAMES.split())

_JUNK = frozenset({"thumbs.db", "desktop.ini", "__macosx"})
_EXAMPLES = 3  # names that the report keeps of each kind

HIDDEN = "hidden files and folders"
SYSTEM = "system files (Thumbs.db, desktop.ini, __MACOSX, ._*)"
OTHER_NAME = "files without an image extension"
EMPTY_FOLDER = "empty folders"
FOLDER = "folders that match the pattern"
BLANK_LINE = "blank lines"


@dataclasses.dataclass
class ListingReport:
    """What a listing passed over, counted by kind; adds up over workers with `merge`.

    Attributes:
      listed: references that were yielded.
      ignored: kind → names that were passed over (a folder counts once).
      examples: kind → the first few such names, as keys.
      warnings: what the user should look at; each once.
    """

    listed: int = 0
    ignored: Counter[str] = dataclasses.field(default_factory=Counter)
    examples: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    warnings: list[str] = dataclasses.field(default_factory=list)

    def ignore(self, kind: str, name: str) -> None:
        """Counts one name that is passed over."""
        self.ignored[kind] += 1
        if self.ignored[kind] <= _EXAMPLES:
            self.examples.setdefault(kind, []).append(to_key(name))

    def warn(self, message: str) -> None:
        """Adds a warning unless it was given before."""
        if message not in self.warnings:
            self.warnings.append(message)

    def merge(self, other: ListingReport) -> None:
        """Adds everything that `other` counted."""
        self.listed += other.listed
        self.ignored += other.ignored
        for kind, names in other.examples.items():
            mine = self.examples.setdefault(kind, [])
            mine += names[: _EXAMPLES - len(mine)]
        for message in other.warnings:
            self.warn(message)

    def ignored_text(self) -> str:
        """One readable line: `ignored: hidden files and folders: 3 ('.git', …)`, or ""."""
        if not self.ignored:
            return ""
        parts = []
        for kind, count in sorted(self.ignored.items()):
            names = list(map(repr, self.examples.get(kind, [])))
            if count > len(names):
                names.append("…")
            parts.append(f"{kind}: {count} ({', '.join(names)})")
        return "ignored: " + "; ".join(parts)


class Source(NamedTuple):
    """One input after it was looked at; what its own kind needs besides stands in `detail`.

    Attributes:
      uri: folder, pattern or file; local ones are absolute, so that workers with
        another working directory find them.
      prefix: what stands before the keys; "" unless there are several inputs.
      detail: folder: the InputLayout; glob: None; else the format of the file.
    """

    uri: str
    prefix: str
    detail: object = None


@dataclasses.dataclass(frozen=True)
class InputPlan:
    """What resolve_inputs found out; a worker lists the images from this alone.

    Attributes:
      options: as given.
      kind: "folder", "glob", "manifest" or "fer2013".
      sources: one per input.
      announcement: one readable line.
      labelled: whether images have labels.
      declared_labels: classes that exist whether or not they have images, natural
        order; None where labels come from names or rows only.
      given_labels: class names by id when something fixes them (a labels file, or
        FER2013), else None.
      splits: split names that are known before listing.
      features: (name, type, repeated) of the columns kept as features.
      warnings: what the user should know, one sentence each.
    """

    options: InputOptions
    kind: str
    sources: tuple[Source, ...]
    announcement: str
    labelled: bool
    declared_labels: tuple[str, ...] | None = None
    given_labels: tuple[str, ...] | None = None
    splits: tuple[str, ...] = ()
    features: tuple[tuple[str, FeatureType, bool], ...] = ()
    warnings: tuple[str, ...] = ()


def ignored_kind(name: str) -> str | None:
    """Why a file or folder of this name is never an input, or None when it may be one."""
    if name[:1] == ".":
        return SYSTEM if name.startswith("._") else HIDDEN
    return SYSTEM if name.lower() in _JUNK else None


def skipper(report: ListingReport) -> Callable[[str], bool]:
    """A `skip` for storage.walk and storage.glob that counts what it leaves out."""

    def skip(name: str) -> bool:
        kind = ignored_kind(name)
        if kind is None:
            return False
        report.ignore(kind, name)
        return True

    return skip


def has_image_name(path: str) -> bool:
    """Whether the extension of `path` is one of IMAGE_EXTENSIONS, in any case."""
    return path.rpartition(".")[2].lower() in IMAGE_EXTENSIONS


def rejected(reason: RejectReason, detail: str) -> Problem:
    """The verdict over an input that listing already refuses."""
    return Problem(Outcome.REJECTED, reason.value, detail)


def entry_problem(kind: str, path: str) -> Problem | None:
    """The verdict over what listing found where an image is expected."""
    if kind == "file":
        return None
    if kind == "broken_link":
        return rejected(RejectReason.MISSING, f"{path!r} is a link that leads nowhere")
    what = "a folder" if kind == "directory" else "a pipe, socket or device"
    return rejected(RejectReason.NOT_A_FILE, f"{path!r} is {what}, not a file")


def split_name_problem(split: str) -> str | None:
    """What is wrong with a split name, or None."""
    if SPLIT_NAME.fullmatch(split):
        return None
    return (
        f"{split!r} cannot be a split name: use letters, digits, _ and ., "
        "starting with a letter or digit"
    )


class NameRule:
    """Takes label, split and group from the key of an image, as --label_from tells."""

    def __init__(self, rule: str | None):
        self._pattern: re.Pattern[str] | None = None
        self.rule = rule
        if rule is not None and rule.startswith("regex:"):
            self._pattern = re.compile(rule.removeprefix("regex:"))
        groups = self._pattern.groupindex if self._pattern else {}
        self.has_split = "split" in groups
        self.has_group = "group" in groups

    @property
    def is_regex(self) -> bool:
        """Whether names are matched at all; otherwise `apply` returns its argument."""
        return self._pattern is not None

    def apply(self, ref: ImageRef) -> ImageRef:
        """`ref` with what its key tells; refused where the pattern does not match."""
        if self._pattern is None:
            return ref
        match = self._pattern.search(ref.key)
        found = match.groupdict() if match else {}
        if not found.get("label"):
            problem = rejected(
                RejectReason.NO_LABEL,
                f"--label_from {self._pattern.pattern!r} finds no label in {ref.key!r}",
            )
            return ref._replace(label=None, problem=ref.problem or problem)
        ref = ref._replace(label=found["label"])
        if self.has_group:
            ref = ref._replace(group=found["group"])
        if self.has_split and found["split"] is not None:
            wrong = split_name_problem(found["split"])
            if wrong:
                return ref._replace(problem=rejected(RejectReason.BAD_ROW, wrong))
            ref = ref._replace(split=found["split"])
        return ref
