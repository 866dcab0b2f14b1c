"""The options of a conversion: frozen dataclasses that check themselves."""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Mapping

from beam_pipeline.errors import UsageError


class Encoding(str, enum.Enum):
    """How image bytes are stored."""

    PASSTHROUGH = "passthrough"  # original bytes where they are safe, else re-encoded
    JPEG = "jpeg"
    PNG = "png"
    RAW = "raw"  # uint8 pixels [H, W, C]


class ResizeMode(str, enum.Enum):
    """How an image is brought to the size asked for with --resize."""

    STRETCH = "stretch"  # ignore the aspect ratio
    FIT = "fit"  # scale to fit inside, keep the aspect ratio (sizes may differ)
    CROP = "crop"  # scale to cover, cut the centre
    PAD = "pad"  # scale to fit inside, fill with the background


class ColorProfile(str, enum.Enum):
    """What is done with an embedded ICC profile."""

    IGNORE = "ignore"  # as TensorFlow and every training reader do
    SRGB = "srgb"  # convert the pixels to sRGB


class InputLayout(str, enum.Enum):
    """How a folder of images is laid out."""

    AUTO = "auto"
    LABEL = "label"  # root/label/image
    SPLIT_LABEL = "split_label"  # root/split/label/image
    SPLIT = "split"  # root/split/image, no labels
    FLAT = "flat"  # root/image, no labels


class EqualImages(str, enum.Enum):
    """What becomes of inputs with the same bytes under different names."""

    KEEP = "keep"  # each is a record; the summary counts them
    DROP = "drop"  # one is a record, the others are duplicates, or all are refused


class Compression(str, enum.Enum):
    """Compression of the shard files."""

    NONE = "none"
    GZIP = "gzip"


class FeatureNames(str, enum.Enum):
    """Which names the features of an Example get."""

    DEFAULT = "default"
    SLIM = "slim"


class Writer(str, enum.Enum):
    """Which transform writes the shards."""

    SHARD = "shard"  # ours: driven by shard, deterministic
    BEAM = "beam"  # Beam's WriteToTFRecord exactly as it is


class FeatureType(str, enum.Enum):
    """The type of a further manifest column that is kept as a feature."""

    INT64 = "int64"
    FLOAT = "float"
    BYTES = "bytes"  # base64 in JSON lines and CSV
    TEXT = "text"  # stored as UTF-8


def _require(condition: bool, what: str, value: object) -> None:
    if not condition:
        raise UsageError(f"{what}, got {value!r}")


@dataclasses.dataclass(frozen=True)
class ImageOptions:
    """What is accepted as an image and how it is stored.

    Attributes:
      encoding: how the bytes are stored.
      resize: (height, width) in pixels, or None to keep the size.
      resize_mode: how the size is reached.
      channels: 1 or 3, or None to keep gray as 1 and colour as 3.
      jpeg_quality: 1 to 100, for JPEGs that are written here (4:4:4).
      background: RGB, 0 to 255 each, under transparent pixels and in padding.
      max_pixels: largest declared height × width that is decoded.
      max_bytes: largest input file in bytes.
      color_profile: what is done with embedded profiles.
      formats: lower-case source formats that are accepted, or None for all.
      image_timeout: seconds that one image may take to decode; 0 for no bound.
    """

    encoding: Encoding = Encoding.PASSTHROUGH
    resize: tuple[int, int] | None = None
    resize_mode: ResizeMode = ResizeMode.STRETCH
    channels: int | None = None
    jpeg_quality: int = 95
    background: tuple[int, int, int] = (0, 0, 0)
    max_pixels: int = 178_956_970
    max_bytes: int = 1 << 30  # 1 GiB
    color_profile: ColorProfile = ColorProfile.IGNORE
    formats: frozenset[str] | None = None
    image_timeout: float = 60.0

    def __post_init__(self) -> None:
        if self.resize is not None:
            _require(
                len(self.resize) == 2 and all(1 <= side <= 65_500 for side in self.resize),
                "resize must be (height, width), each 1 to 65500",
                self.resize,
            )
        _require(
            self.channels in (None, 1, 3), "channels must be keep (None), 1 or 3", self.channels
        )
        _require(1 <= self.jpeg_quality <= 100, "jpeg_quality must be 1 to 100", self.jpeg_quality)
        _require(
            len(self.background) == 3 and all(0 <= v <= 255 for v in self.background),
            "background must be three values 0 to 255",
            self.background,
        )
        _require(self.max_pixels >= 1, "max_pixels must be at least 1", self.max_pixels)
        _require(1 <= self.max_bytes < 1 << 31, "max_bytes must be 1 to 2 GiB", self.max_bytes)
        _require(
            self.image_timeout >= 0, "image_timeout must be 0 or more seconds", self.image_timeout
        )


@dataclasses.dataclass(frozen=True)
class InputOptions:
    """Where images, labels, splits and groups come from.

    Attributes:
      inputs: folders, globs, manifests or FER2013 CSV files; all of one kind.
      kind: "auto", "folder", "glob", "manifest" or "fer2013".
      layout: of folders.
      label_from: "parent", "none" or "regex:…" with a named group `label`, and
        if wanted `split` and `group`; None: parent for globs, the layout's rule
        for folders, the label column for manifests.
      path_column, label_column, split_column, group_column: manifest columns;
        None finds sensible names.
      delimiter: of a CSV manifest; None detects it.
      image_root: folder that relative manifest paths start from; None: the
        manifest's own.
      features: manifest column → type, kept as features.
      labels_file: a file with one class name per line that fixes the ids.
    """

    inputs: tuple[str, ...]
    kind: str = "auto"
    layout: InputLayout = InputLayout.AUTO
    label_from: str | None = None
    path_column: str | None = None
    label_column: str | None = None
    split_column: str | None = None
    group_column: str | None = None
    delimiter: str | None = None
    image_root: str | None = None
    features: Mapping[str, FeatureType] = dataclasses.field(default_factory=dict)
    labels_file: str | None = None

    def __post_init__(self) -> None:
        _require(len(self.inputs) >= 1, "at least one input must be given", self.inputs)
        _require(
            self.kind in ("auto", "folder", "glob", "manifest", "fer2013"),
            "kind must be auto, folder, glob, manifest or fer2013",
            self.kind,
        )
        rule = self.label_from
        if rule is not None and rule not in ("parent", "none"):
            _require(rule.startswith("regex:"), "label_from must be parent, none or regex:…", rule)
            try:
                pattern = re.compile(rule.removeprefix("regex:"))
            except re.error as error:
                raise UsageError(
                    f"label_from: {rule!r} is not a regular expression: {error}"
                ) from error
            _require(
                "label" in pattern.groupindex,
                "label_from regex must have a named group (?P<label>…)",
                rule,
            )


@dataclasses.dataclass(frozen=True)
class OutputOptions:
    """What is written and how it is cut.

    Attributes:
      output: the dataset directory.
      name: dataset name, the first part of every shard name; None: the last part
        of `output`, made safe.
      split: split name → fraction for images that the input gives no split; the
        fractions add up to 1. Empty: one split, "train".
      shard_size: bytes of one shard at most (estimated before encoding).
      num_shards: exact number of shards, for all splits or per split; None: from
        shard_size.
      compression: of the shard files.
      feature_names: default or slim.
      writer: ours or Beam's.
      seed: of the global shuffle and of the splits.
      overwrite: replace a finished dataset once the new one is complete.
      max_reject_fraction: the run fails when more inputs than this are refused.
      max_rejects: the same as a number; None: no bound.
      license: of the images, as the dataset card states it; None: not stated.
      equal_images: keep or drop copies; dropping reads every input twice.
    """

    output: str
    name: str | None = None
    split: Mapping[str, float] = dataclasses.field(default_factory=dict)
    shard_size: int = 256 << 20  # 256 MiB
    num_shards: int | Mapping[str, int] | None = None
    compression: Compression = Compression.NONE
    feature_names: FeatureNames = FeatureNames.DEFAULT
    writer: Writer = Writer.SHARD
    seed: int = 0
    overwrite: bool = False
    max_reject_fraction: float = 0.01
    max_rejects: int | None = None
    license: str | None = None
    equal_images: EqualImages = EqualImages.KEEP

    def __post_init__(self) -> None:
        _require(bool(self.output), "output must name a directory", self.output)
        if self.name is not None:
            _require(
                re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", self.name) is not None,
                "name must be letters, digits and _, starting with a letter",
                self.name,
            )
            _require(
                len(self.name) <= NAME_LENGTH,
                f"name must have at most {NAME_LENGTH} characters",
                self.name,
            )
        _require(abs(self.seed) < 1 << 63, "seed must be a 64-bit integer", self.seed)
        for split, fraction in self.split.items():
            check_split_name(split)
            _require(
                0 < fraction <= 1, f"fraction of split {split!r} must be over 0 to 1", fraction
            )
        if self.split:
            total = sum(self.split.values())
            _require(abs(total - 1) < 1e-6, "the fractions of --split must add up to 1", total)
        _require(self.shard_size >= 1, "shard_size must be at least 1 byte", self.shard_size)
        if self.num_shards is not None:
            counts = (
                self.num_shards.values()
                if isinstance(self.num_shards, Mapping)
                else (self.num_shards,)
            )
            for count in counts:
                _require(1 <= count <= 99_999, "num_shards must be 1 to 99999", count)
        _require(
            0 <= self.max_reject_fraction <= 1,
            "max_reject_fraction must be 0 to 1",
            self.max_reject_fraction,
        )
        _require(
            self.max_rejects is None or self.max_rejects >= 0,
            "max_rejects must be 0 or more",
            self.max_rejects,
        )


@dataclasses.dataclass(frozen=True)
class ConvertOptions:
    """Everything that decides the bytes of a dataset."""

    input: InputOptions
    output: OutputOptions
    image: ImageOptions = ImageOptions()


# Name and split stand in the names of files, which have 255 bytes at most.
NAME_LENGTH = 80
SPLIT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.]{0,79}")


def check_split_name(split: str) -> None:
    """Raises UsageError unless `split` can stand in a file name (TFDS allows no dash)."""
    _require(
        SPLIT_NAME.fullmatch(split) is not None,
        "a split name must be at most 80 letters, digits, _ and ., starting with a letter or digit",
        split,
    )
