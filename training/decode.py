"""Serialized Examples → uint8 image batches: parse, decode, crop and resize, in TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import tensorflow as tf

from beam_pipeline.dataset_info import DatasetInfo
from beam_pipeline.errors import DatasetError
from beam_pipeline.examples import Role
from training.resample import (
    cut_and_resize,
    fixed_part,
    random_places,
    resize,
    smallest_parts,
    window,
)
from training.target import ImageTarget

# A JPEG decoder can shrink by these factors while it decodes, which costs less than
# decoding every pixel, and averages where plain bilinear sampling would skip pixels.
_JPEG_RATIOS = (1, 2, 4, 8)

# Batches are decoded in parallel, the images of one batch one after the other: an image
# is then resized while its pixels are still in the core's cache.
_PARALLEL_IMAGES = 1


def example_parser(
    info: DatasetInfo, with_keys: bool = True
) -> Callable[[tf.Tensor], dict[str, tf.Tensor]]:
    """A function from serialized Examples, string [B], to their features by role name.

    The result has `image` (string [B]), `label` (int64 [B], -1 without labels), with
    keys `key` (string [B]) and, for raw pixels, `height`, `width`, `channels` (int64 [B]).
    """
    roles = [Role.IMAGE, Role.KEY] if with_keys else [Role.IMAGE]
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


# From an image's features and a seed, int64 [2], to uint8 [height, width, channels].
ImageDecoder = Callable[[dict[str, tf.Tensor], "tf.Tensor | None"], tf.Tensor]


class BatchDecoder(Protocol):
    """What batch_decoder returns."""

    def __call__(
        self, features: dict[str, tf.Tensor], seeds: tf.Tensor, index: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Decodes the features' entries, or those that `index`, int64 [B], names."""


def batch_decoder(info: DatasetInfo, target: ImageTarget) -> BatchDecoder:
    """A function from parsed features and seeds to images, uint8 [B, height, width, channels].

    The seeds, int64 [B, 2], decide the random crops, and nothing else; without random
    crops they are not looked at.
    """
    unchanged = info.size == target.size and not target.random_crop
    if info.encoding == "raw" and unchanged and info.channels is not None:
        return _whole_batch_raw(target.size, info.channels, target.channels)
    if info.encoding == "raw":
        one = _raw_decoder(target, info.size, info.channels)
    else:
        one = encoded_decoder(target, frozenset(info.formats), info.size)
    inputs = ("image", "height", "width", "channels")

    def decode(
        features: dict[str, tf.Tensor], seeds: tf.Tensor, index: tf.Tensor | None = None
    ) -> tf.Tensor:
        used = {name: features[name] for name in inputs if name in features}
        elements = {"chosen": used if index is None else index}
        if target.random_crop:
            cuts = target.resize_mode == "cut"
            elements["seed"] = random_places(seeds) if cuts else seeds

        def decode_one(element: dict) -> tf.Tensor:
            chosen = element["chosen"]
            if index is not None:
                # Here, and not of the whole batch before: the bytes are then still in the
                # core's cache when they are decoded.
                chosen = {name: tf.gather(values, chosen) for name, values in used.items()}
            return one(chosen, element.get("seed"))

        return tf.map_fn(
            decode_one,
            elements,
            fn_output_signature=tf.TensorSpec(target.shape, tf.uint8),
            parallel_iterations=_PARALLEL_IMAGES,
        )

    return decode


def encoded_decoder(
    target: ImageTarget,
    formats: frozenset[str] = frozenset({"jpeg", "png"}),
    size: tuple[int, int] | None = None,
) -> ImageDecoder:
    """A function from {"image": encoded bytes, string []} and a seed, int64 [2], to pixels.

    The seed can be None where nothing is random, and is a place for a random cut: see
    training.resample.window.

    Args:
      target: what the image becomes.
      formats: what the bytes can be; any other than "jpeg" alone is found from the bytes.
      size: (height, width) when every image has that size.

    Returns:
      The function; its result is uint8 [height, width, channels].
    """

    # The smallest parts of both sides that are kept: they must not become too small either.
    kept = smallest_parts(target)

    def jpeg(data: tf.Tensor, seed: tf.Tensor | None) -> tf.Tensor:
        shape = tf.io.extract_jpeg_shape(data)[:2] if size is None else tf.constant(size)

        def shrunk_by(ratio: int, smooth: bool = False) -> tf.Tensor:
            # Smooth colour upsampling costs 5%, and a picture that is resampled does not show it.
            how = {"channels": target.channels, "ratio": ratio, "fancy_upscaling": smooth}
            if not target.takes_part:
                return tf.io.decode_jpeg(data, **how)
            part = window((shape + ratio - 1) // ratio, target, seed)
            return tf.io.decode_and_crop_jpeg(data, part, **how)

        if size is not None:
            if fixed_part(size, target) == target.size:  # nothing is resampled
                return shrunk_by(1, smooth=not target.random_crop)
            factor = min(int(kept[i] * size[i]) // target.size[i] for i in (0, 1))
            ratio = max(r for r in _JPEG_RATIOS if r <= max(factor, 1))
            pixels = shrunk_by(ratio)
            if not target.takes_part:
                shrunk = (-(-side // ratio) for side in size)
                pixels = tf.ensure_shape(pixels, (*shrunk, target.channels))
            return resize(pixels, target)
        sides = tf.cast(kept * tf.cast(shape, tf.float32), tf.int32)
        factor = tf.maximum(tf.reduce_min(sides // tf.constant(target.size)), 1)
        index = tf.searchsorted(tf.constant(_JPEG_RATIOS), factor[None], side="right")[0] - 1
        branches = [lambda r=r: shrunk_by(r) for r in _JPEG_RATIOS]  # type: ignore[misc]
        if target.resize_mode == "cut" or not target.takes_part:
            kept_sides = window(shape, target, seed)[2:] if target.takes_part else shape
            fits = tf.reduce_all(kept_sides == tf.constant(target.size))
            index = tf.where(fits, len(branches), index)
            branches.append(lambda r=1: shrunk_by(r, smooth=True))  # type: ignore[misc]
        return resize(tf.switch_case(index, branches), target)

    def other(data: tf.Tensor, seed: tf.Tensor | None) -> tf.Tensor:
        # The PNG operation decodes whatever TensorFlow can, judged by the bytes.
        pixels = tf.io.decode_png(data, channels=target.channels)
        return cut_and_resize(pixels, target, seed)

    def decode(element: dict[str, tf.Tensor], seed: tf.Tensor | None) -> tf.Tensor:
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
    target: ImageTarget, size: tuple[int, int] | None, channels: int | None
) -> ImageDecoder:
    def decode(element: dict[str, tf.Tensor], seed: tf.Tensor | None) -> tf.Tensor:
        if size is not None and channels is not None:
            stored, shape = tf.constant(channels, tf.int64), (*size, channels)
        else:
            stored = element["channels"]
            shape = tf.stack([element["height"], element["width"], stored])
        pixels = tf.reshape(tf.io.decode_raw(element["image"], tf.uint8), shape)
        pixels = _convert_channels(pixels, stored, target.channels)
        return tf.ensure_shape(cut_and_resize(pixels, target, seed), target.shape)

    return decode


def _whole_batch_raw(size: tuple[int, int], stored: int, wanted: int) -> BatchDecoder:
    """Pixels that need no change: one operation for the whole batch."""

    def decode(
        features: dict[str, tf.Tensor], seeds: tf.Tensor, index: tf.Tensor | None = None
    ) -> tf.Tensor:
        images = features["image"] if index is None else tf.gather(features["image"], index)
        length = size[0] * size[1] * stored
        pixels = tf.ensure_shape(tf.io.decode_raw(images, tf.uint8), (None, length))
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
