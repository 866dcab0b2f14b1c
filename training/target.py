"""ImageTarget: what every image becomes on its way into a model."""

from __future__ import annotations

import dataclasses

from beam_pipeline.dataset_info import DatasetInfo
from beam_pipeline.errors import UsageError

RESIZE_MODES = ("stretch", "crop", "cut")


@dataclasses.dataclass(frozen=True)
class ImageTarget:
    """What every image becomes.

    Attributes:
      size: (height, width) in pixels.
      channels: 1 or 3.
      resize_mode: "stretch" ignores the aspect ratio; "crop" takes the largest
        central part with the target's aspect ratio; "cut" takes the central part
        that `kept` says, which has the target's size in images of the stored size.
      random_crop: a random part of each image instead (training only): of random area
        and aspect, or with "cut" the same part at a random place.
      crop_area: smallest and largest part of the area that a random crop takes.
      crop_aspect: smallest and largest width ÷ height of a random crop, relative
        to the target's.
      kept: parts of height and width that "cut" keeps, each over 0 and at most 1.
    """

    size: tuple[int, int]
    channels: int
    resize_mode: str = "stretch"
    random_crop: bool = False
    crop_area: tuple[float, float] = (0.25, 1.0)
    crop_aspect: tuple[float, float] = (3 / 4, 4 / 3)
    kept: tuple[float, float] = (1.0, 1.0)

    def __post_init__(self) -> None:
        if len(self.size) != 2 or not all(1 <= side <= 65_500 for side in self.size):
            raise UsageError(f"image size must be (height, width), each over 0, got {self.size}")
        if self.channels not in (1, 3):
            raise UsageError(f"channels must be 1 or 3, got {self.channels!r}")
        if self.resize_mode not in RESIZE_MODES:
            raise UsageError(
                f"resize mode must be one of {', '.join(RESIZE_MODES)}, got {self.resize_mode!r}"
            )
        for name, (low, high) in (("area", self.crop_area), ("aspect", self.crop_aspect)):
            if not 0 < low <= high or (name == "area" and high > 1):
                raise UsageError(f"crop {name} must be 0 < smallest <= largest, got {low}, {high}")
        if not all(0 < part <= 1 for part in self.kept):
            raise UsageError(f"kept parts must be over 0 and at most 1, got {self.kept}")

    @property
    def shape(self) -> tuple[int, int, int]:
        """(height, width, channels)."""
        return (*self.size, self.channels)

    @property
    def takes_part(self) -> bool:
        """Whether only a part of an image is looked at."""
        return self.random_crop or self.resize_mode != "stretch"


def target_for(
    info: DatasetInfo,
    *,
    image_size: tuple[int, int] | None = None,
    channels: int | None = None,
    resize_mode: str = "stretch",
    random_crop: bool = False,
) -> ImageTarget:
    """An ImageTarget with what is not given taken from the dataset.

    Raises:
      UsageError: the dataset's images differ in size, and no size was given or "cut" needs
        one; or they are too small to cut the target out of them.
    """
    size = image_size or info.size
    if size is None:
        raise UsageError(
            f"the images of {info.directory} differ in size: give the size to train at, "
            "for example --image_size 224x224"
        )
    kept = (1.0, 1.0)
    if resize_mode == "cut":
        if info.size is None:
            raise UsageError(
                f"resize mode 'cut' needs images of one size, but those of {info.directory} "
                "differ: convert them with --resize, or take 'crop'"
            )
        if any(stored < side for stored, side in zip(info.size, size, strict=True)):
            raise UsageError(
                f"cannot cut {size[0]}x{size[1]} out of the images of {info.directory}, which "
                f"are {info.size[0]}x{info.size[1]}: take a smaller --image_size, or 'stretch'"
            )
        kept = (size[0] / info.size[0], size[1] / info.size[1])
    return ImageTarget(
        (size[0], size[1]),
        channels or info.channels or 3,
        resize_mode,
        random_crop=random_crop,
        kept=kept,
    )
