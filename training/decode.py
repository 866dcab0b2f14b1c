"""Serialized Examples → uint8 image batches: parse, decode, crop and resize, in TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from beam_pipeline.dataset_info import DatasetInfo
from beam_pipeline.errors import DatasetError, UsageError
from beam_pipeline.examples import Role

RESIZE_MODES = ("stretch", "crop")

# A JPEG decoder can shrink by these factors while it decodes, which costs less than
# decoding every pixel, and averages where plain bilinear sampling would skip pixels.
_JPEG_RATIOS = (1, 2, 4, 8)

# Images of one batch that are decoded at the same time inside one call.
_PARALLEL_IMAGES = 16


@dataclasses.dataclass(frozen=True)
class ImageTarget:
    """What every image becomes.

    Attributes:
      size: (height, width) in pixels.
      channels: 1 or 3.
      resize_mode: "stretch" ignores the aspect ratio; "crop" takes the largest
        central part with the target's aspect ratio.
      random_crop: cut a random part of each image instead (training only).
      crop_area: smallest and largest part of the area that a random crop takes.
      crop_aspect: smallest and largest width ÷ height of a random crop, relative
        to the target's.
    """

    size: tuple[int, int]
    channels: int
    resize_mode: str = "stretch"
    random_crop: bool = False
    crop_area: tuple[float, float] = (0.25, 1.0)
    crop_aspect: tuple[float, float] = (3 / 4, 4 / 3)

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

    @property
    def shape(self) -> tuple[int, int, int]:
        """(height, width, channels)."""
        return (*self.size, self.channels)


def target_for(
    info: DatasetInfo,
    *,
    image_size: tuple[int, int] | None = None,
    channels: int | None = None,
    **options: object,
) -> ImageTarget:
    """An ImageTarget with what is not given taken from the dataset.

    Raises:
      UsageError: the dataset's images differ in size, and no size was given.
    """
    size = image_size or info.size
    if size is None:
        raise UsageError(
            f"the images of {info.directory} differ in size: give the size to train at, "
            "for example --image_size 224x224"
        )
    return ImageTarget(tuple(size), channels or info.channels or 3, **options)  # type: ignore[arg-type]


def example_parser(info: DatasetInfo) -> Callable[[tf.Tensor], dict[str, tf.Tensor]]:
    """A function from serialized Examples, string [B], to their features by role name.

    The result has `image` (string [B]), `key` (string [B]), `label` (int64 [B], -1
    without labels) and, for raw pixels, `height`, `width`, `channels` (int64 [B]).
    """
    roles = [Role.IMAGE, Role.KEY]
    if info.labels is not None:
        roles.append(Role.LABEL)
    if info.encoding == "raw":
        roles += [Role.HEIGHT, Role.WIDTH, Role.CHANNELS]
    names = {}
    for role in roles:
        name = info.feature(role)
        if name is None:
            raise DatasetError(
                f"{info.directory} lists no feature for the {role.value}; it has "
                f"{', '.join(spec.name for spec in info.features)}"
            )
        names[role.value] = name
    texts = (Role.IMAGE.value, Role.KEY.value)
    spec = {
        name: tf.io.FixedLenFeature([], tf.string if role in texts else tf.int64)
        for role, name in names.items()
    }

    def parse(serialized: tf.Tensor) -> dict[str, tf.Tensor]:
        parsed = tf.io.parse_example(serialized, spec)
        features = {role: parsed[name] for role, name in names.items()}
        if "label" not in features:
            features["label"] = tf.fill(tf.shape(serialized), tf.constant(-1, tf.int64))
        return features

    return parse


def batch_decoder(
    info: DatasetInfo, target: ImageTarget
) -> Callable[[dict[str, tf.Tensor], tf.Tensor], tf.Tensor]:
    """A function from parsed features and seeds to images, uint8 [B, height, width, channels].

    The seeds, int64 [B, 2], decide the random crops, and nothing else; without random
    crops they are not looked at.
    """
    unchanged = info.size == target.size and not target.random_crop
    if info.encoding == "raw" and unchanged and info.channels is not None:
        return _whole_batch_raw(target.size, info.channels, target.channels)
    if info.encoding == "raw":
        one = _raw_decoder(target)
    else:
        one = encoded_decoder(target, frozenset(info.formats), info.size)
    inputs = ("image", "height", "width", "channels")

    def decode(features: dict[str, tf.Tensor], seeds: tf.Tensor) -> tf.Tensor:
        elements = {name: features[name] for name in inputs if name in features}
        return tf.map_fn(
            lambda element: one(element[0], element[1]),
            (elements, seeds),
            fn_output_signature=tf.TensorSpec(target.shape, tf.uint8),
            parallel_iterations=_PARALLEL_IMAGES,
        )

    return decode


def encoded_decoder(
    target: ImageTarget,
    formats: frozenset[str] = frozenset({"jpeg", "png"}),
    size: tuple[int, int] | None = None,
) -> Callable[[dict[str, tf.Tensor], tf.Tensor], tf.Tensor]:
    """A function from {"image": encoded bytes, string []} and a seed, int64 [2], to pixels.

    Args:
      target: what the image becomes.
      formats: what the bytes can be; any other than "jpeg" alone is found from the bytes.
      size: (height, width) when every image has that size.

    Returns:
      The function; its result is uint8 [height, width, channels].
    """

    cuts = target.random_crop or target.resize_mode == "crop"
    # The smallest part of a side that a crop keeps: it must not become too small either.
    kept = target.crop_area[0] ** 0.5 if target.random_crop else 1.0

    def jpeg(data: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        shape = tf.io.extract_jpeg_shape(data)[:2] if size is None else tf.constant(size)

        # Smooth colour upsampling costs 5%, and a picture that is resampled does not show it.
        def shrunk_by(ratio: int) -> tf.Tensor:
            if not cuts:
                return tf.io.decode_jpeg(data, target.channels, ratio, fancy_upscaling=False)
            window = _window((shape + ratio - 1) // ratio, target, seed)
            return tf.io.decode_and_crop_jpeg(
                data, window, target.channels, ratio, fancy_upscaling=False
            )

        def as_it_is() -> tf.Tensor:
            return tf.io.decode_jpeg(data, target.channels)

        if size is not None:
            if size == target.size and not cuts:
                return as_it_is()
            factor = min(int(kept * size[i]) // target.size[i] for i in (0, 1))
            return _resize(shrunk_by(max(r for r in _JPEG_RATIOS if r <= max(factor, 1))), target)
        sides = tf.cast(kept * tf.cast(shape, tf.float32), tf.int32)
        factor = tf.maximum(tf.reduce_min(sides // tf.constant(target.size)), 1)
        index = tf.searchsorted(tf.constant(_JPEG_RATIOS), factor[None], side="right")[0] - 1
        branches = [lambda r=r: shrunk_by(r) for r in _JPEG_RATIOS]  # type: ignore[misc]
        if not cuts:
            fits = tf.reduce_all(shape == tf.constant(target.size))
            index = tf.where(fits, len(branches), index)
            branches.append(lambda r=0: as_it_is())  # type: ignore[misc]
        return _resize(tf.switch_case(index, branches), target)

    def other(data: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        # The PNG operation decodes whatever TensorFlow can, judged by the bytes.
        pixels = tf.io.decode_png(data, channels=target.channels)
        return _cut_and_resize(pixels, target, seed)

    def decode(element: dict[str, tf.Tensor], seed: tf.Tensor) -> tf.Tensor:
        data = element["image"]
        if formats == {"jpeg"}:
            pixels = jpeg(data, seed)
        elif "jpeg" not in formats:
            pixels = other(data, seed)
        else:
            is_jpeg = tf.strings.substr(data, 0, 2) == b"\xff\xd8"
            pixels = tf.cond(is_jpeg, lambda: jpeg(data, seed), lambda: other(data, seed))
        return tf.ensure_shape(pixels, target.shape)

    return decode


def _raw_decoder(
    target: ImageTarget,
) -> Callable[[dict[str, tf.Tensor], tf.Tensor], tf.Tensor]:
    def decode(element: dict[str, tf.Tensor], seed: tf.Tensor) -> tf.Tensor:
        shape = tf.stack([element["height"], element["width"], element["channels"]])
        pixels = tf.reshape(tf.io.decode_raw(element["image"], tf.uint8), shape)
        pixels = _convert_channels(pixels, element["channels"], target.channels)
        return tf.ensure_shape(_cut_and_resize(pixels, target, seed), target.shape)

    return decode


def _whole_batch_raw(
    size: tuple[int, int], stored: int, wanted: int
) -> Callable[[dict[str, tf.Tensor], tf.Tensor], tf.Tensor]:
    """Pixels that need no change: one operation for the whole batch."""

    def decode(features: dict[str, tf.Tensor], seeds: tf.Tensor) -> tf.Tensor:
        length = size[0] * size[1] * stored
        pixels = tf.ensure_shape(tf.io.decode_raw(features["image"], tf.uint8), (None, length))
        pixels = tf.reshape(pixels, (-1, *size, stored))
        return _convert_channels(pixels, tf.constant(stored, tf.int64), wanted)

    return decode


def _convert_channels(pixels: tf.Tensor, stored: tf.Tensor, wanted: int) -> tf.Tensor:
    """uint8 [..., stored] → uint8 [..., wanted]; colour becomes gray as in JPEG (BT.601)."""

    def to_gray() -> tf.Tensor:
        weights = tf.constant([0.299, 0.587, 0.114])
        gray = tf.reduce_sum(tf.cast(pixels[..., :3], tf.float32) * weights, -1, keepdims=True)
        return tf.cast(tf.round(gray), tf.uint8)

    def repeat() -> tf.Tensor:
        return tf.repeat(pixels[..., :1], wanted, axis=-1)

    static = tf.get_static_value(stored)
    if static is not None:
        same = static == wanted
        return pixels if same else to_gray() if wanted == 1 else repeat()
    change = to_gray if wanted == 1 else repeat
    return tf.cond(stored == wanted, lambda: pixels, change)


def _cut_and_resize(pixels: tf.Tensor, target: ImageTarget, seed: tf.Tensor) -> tf.Tensor:
    if target.random_crop or target.resize_mode == "crop":
        top, left, height, width = tf.unstack(_window(tf.shape(pixels)[:2], target, seed))
        pixels = tf.image.crop_to_bounding_box(pixels, top, left, height, width)
    return _resize(pixels, target)


def _window(shape: tf.Tensor, target: ImageTarget, seed: tf.Tensor) -> tf.Tensor:
    """The part of an image of `shape` (int32 [2]) to keep: int32 [top, left, height, width]."""
    aspect = target.size[1] / target.size[0]
    if not target.random_crop:
        height, width = tf.unstack(tf.cast(shape, tf.float32))
        tall = tf.minimum(height, width / aspect)
        sides = tf.cast(tf.round(tf.stack([tall, tall * aspect])), tf.int32)
        sides = tf.clip_by_value(sides, 1, shape)
        return tf.concat([(shape - sides) // 2, sides], axis=0)
    begin, sides, _ = tf.image.stateless_sample_distorted_bounding_box(
        tf.concat([shape, [3]], axis=0),
        bounding_boxes=tf.zeros((1, 0, 4)),
        seed=seed,
        min_object_covered=0.0,
        aspect_ratio_range=[bound * aspect for bound in target.crop_aspect],
        area_range=target.crop_area,
        max_attempts=10,
        use_image_if_no_bounding_boxes=True,
    )
    return tf.concat([begin[:2], sides[:2]], axis=0)


def _resize(pixels: tf.Tensor, target: ImageTarget) -> tf.Tensor:
    """Bilinear to the target's size; averaging where more than half of both sides goes."""
    if pixels.shape[:2] == target.size:
        return pixels
    shape = tf.shape(pixels)[:2]
    wanted = tf.constant(target.size)

    def scale(antialias: bool) -> tf.Tensor:
        resized = tf.image.resize(pixels, target.size, antialias=antialias)
        return tf.cast(tf.round(resized), tf.uint8)

    return tf.case(
        [
            (tf.reduce_all(shape == wanted), lambda: pixels),
            (tf.reduce_min(shape // wanted) >= 2, lambda: scale(antialias=True)),
        ],
        default=lambda: scale(antialias=False),
    )
