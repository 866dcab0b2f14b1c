"""The nouns of the project: references, images, rejects, shards and their enums."""

from __future__ import annotations

import enum
from typing import NamedTuple

FeatureValue = int | float | str | bytes | list


class RejectReason(str, enum.Enum):
    """Why an input was refused. The values stand in rejected.jsonl and in the index."""

    # Found while reading the bytes.
    MISSING = "missing"  # dead link, manifest row without its file
    NOT_A_FILE = "not_a_file"  # a directory named x.jpg, a socket
    UNREADABLE = "unreadable"  # permission denied on this one file
    EMPTY = "empty"  # zero bytes
    TOO_MANY_BYTES = "too_many_bytes"  # over --max_bytes
    # Found in the bytes.
    NOT_AN_IMAGE = "not_an_image"  # HTML, SVG, text, PDF, video, LFS pointer …
    UNSUPPORTED_FORMAT = "unsupported_format"  # an image, but nothing here decodes it
    FORMAT_NOT_ALLOWED = "format_not_allowed"  # excluded by --formats
    UNSUPPORTED_PIXELS = "unsupported_pixels"  # 32-bit integer, float …
    TOO_MANY_PIXELS = "too_many_pixels"  # declared size over --max_pixels
    TRUNCATED = "truncated"  # the data ends too early
    CORRUPT = "corrupt"  # any other decoding failure
    TIMEOUT = "timeout"  # decoding took longer than --image_timeout
    # Found in the manifest.
    BAD_ROW = "bad_row"  # wrong number of pixels, value over 255, …
    NO_LABEL = "no_label"  # --label_from does not match, a label cell is empty
    CONFLICTING_LABELS = "conflicting_labels"  # one path, two labels
    CONFLICTING_SPLITS = "conflicting_splits"  # one path, two splits


class Stage(str, enum.Enum):
    """Where an input was refused."""

    LIST = "list"
    READ = "read"
    DECODE = "decode"


class Outcome(str, enum.Enum):
    """What became of an input; one of these per row of the index."""

    WRITTEN = "written"
    REJECTED = "rejected"
    DUPLICATE = "duplicate"


class Problem(NamedTuple):
    """A verdict that is known before the bytes are read."""

    outcome: Outcome  # REJECTED or DUPLICATE
    reason: str  # RejectReason value; for a duplicate, "same_path" or "same_bytes"
    detail: str


class ImageRef(NamedTuple):
    """A reference to one input image; about 200 bytes, the only thing that is shuffled.

    Attributes:
      key: machine-independent name (path relative to the input root, or manifest
        row id), valid UTF-8, `/` as separator, never absolute.
      uri: where the bytes are: a local path (undecodable bytes as surrogates, as
        os.fsdecode gives them) or any Beam filesystem path.
      label: class name, or None where the dataset has no labels.
      split: split name given by the input, or None.
      group: images of one group always share a split; or None.
      features: further columns kept as features, already typed; or None.
      row: 1-based row number in the manifest, or None.
      size: bytes of the stored input, or -1 when listing did not tell.
      byte_range: (offset, length) of a part of `uri`, or None for all of it.
      pixels: None, or how the bytes spell pixels: "fer2013" for decimal text.
      problem: set when the input is refused, or a duplicate, without being read.
      digest: of the bytes, where inputs are compared by them and until they were.
    """

    key: str
    uri: str
    label: str | None = None
    split: str | None = None
    group: str | None = None
    features: dict[str, FeatureValue] | None = None
    row: int | None = None
    size: int = -1
    byte_range: tuple[int, int] | None = None
    pixels: str | None = None
    problem: Problem | None = None
    digest: bytes | None = None


class PreparedImage(NamedTuple):
    """A checked, upright image in the requested encoding.

    Attributes:
      data: stored bytes: an encoded file, or for raw the uint8 pixels [H, W, C].
      format: what `data` is: "jpeg", "png" or "raw".
      height, width: in pixels, upright, as TensorFlow decodes `data`.
      channels: 1 or 3, as TensorFlow decodes `data` with channels=0.
      source_format: what the input was: "jpeg", "png", "webp", "gif", …
      notes: what was done or seen, from a small fixed vocabulary, sorted
        ("reencoded", "rotated", "first_frame", "alpha_composited", …).
    """

    data: bytes
    format: str
    height: int
    width: int
    channels: int
    source_format: str
    notes: tuple[str, ...] = ()


class ImageRecord(NamedTuple):
    """A checked image and everything that goes into its Example."""

    key: str
    image: PreparedImage
    sha256: str  # hex, of image.data
    label: int | None = None
    label_name: str | None = None
    features: dict[str, FeatureValue] | None = None


class RejectedImage(NamedTuple):
    """A refused input: one line of rejected.jsonl."""

    key: str
    uri: str
    stage: str
    reason: str
    detail: str
    row: int | None = None
