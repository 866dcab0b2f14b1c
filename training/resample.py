"""Cutting and resizing of one image's pixels, as an ImageTarget says, in TensorFlow."""

from __future__ import annotations

import tensorflow as tf

from training.target import ImageTarget


def cut_and_resize(pixels: tf.Tensor, target: ImageTarget, seed: tf.Tensor | None) -> tf.Tensor:
    """uint8 [any height, any width, C] → uint8 [height, width, C] of the target."""
    if target.takes_part:
        whole = pixels.shape[:2]
        shape = tf.constant(whole.as_list()) if whole.is_fully_defined() else tf.shape(pixels)[:2]
        top, left, height, width = tf.unstack(window(shape, target, seed))
        pixels = pixels[top : top + height, left : left + width]
        if whole.is_fully_defined() and target.resize_mode == "cut":
            sides = _part_sides(tuple(whole), target)
            pixels = tf.ensure_shape(pixels, (*sides, pixels.shape[2]))
    return resize(pixels, target)


def smallest_parts(target: ImageTarget) -> tuple[float, float]:
    """The smallest parts of height and width that the target can keep of an image."""
    if target.resize_mode == "cut":
        return target.kept
    part = target.crop_area[0] ** 0.5 if target.random_crop else 1.0
    return part, part


def fixed_part(size: tuple[int, int], target: ImageTarget) -> tuple[int, int] | None:
    """(height, width) of the part that is used of any image of `size`; None if it varies."""
    if target.resize_mode == "cut":
        return _part_sides(size, target)
    if target.resize_mode == "crop" or target.random_crop:
        return None
    return size


def _part_sides(size: tuple[int, int], target: ImageTarget) -> tuple[int, int]:
    """(height, width) that "cut" keeps of an image of `size`."""
    height, width = (
        max(1, round(part * side)) for part, side in zip(target.kept, size, strict=True)
    )
    return height, width


def window(shape: tf.Tensor, target: ImageTarget, seed: tf.Tensor | None) -> tf.Tensor:
    """The part of an image of `shape` (int32 [2]) to keep: int32 [top, left, height, width].

    `seed` is int64 [2] for a crop of random size; for "cut" it is a place, see random_places.
    """
    aspect = target.size[1] / target.size[0]
    if target.resize_mode == "cut":
        known = tf.get_static_value(shape)
        if known is not None:
            sides = tf.constant(_part_sides((int(known[0]), int(known[1])), target))
        else:
            sides = tf.cast(tf.round(target.kept * tf.cast(shape, tf.float32)), tf.int32)
            sides = tf.maximum(sides, 1)
        room = shape - sides
        begin = room // 2
        if target.random_crop:
            begin = tf.cast(seed * tf.cast(room + 1, tf.float32), tf.int32)
            begin = tf.minimum(begin, room)  # a place of almost 1 may round up
        return tf.concat([begin, sides], axis=0)
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


def resize(pixels: tf.Tensor, target: ImageTarget) -> tf.Tensor:
    """Bilinear to the target's size; averaging where more than half of both sides goes."""
    wanted = tf.constant(target.size)

    def bilinear() -> tf.Tensor:
        # What tf.image.resize does for a float result, without its checks of every image.
        resized = tf.raw_ops.ResizeBilinear(
            images=pixels[tf.newaxis], size=wanted, half_pixel_centers=True
        )
        return tf.cast(tf.round(resized[0]), tf.uint8)

    def averaging() -> tf.Tensor:
        resized = tf.image.resize(pixels, target.size, antialias=True)
        return tf.cast(tf.round(resized), tf.uint8)

    if pixels.shape[:2].is_fully_defined():
        height, width = pixels.shape[:2]
        if (height, width) == target.size:
            return pixels
        halved = height >= 2 * target.size[0] and width >= 2 * target.size[1]
        return averaging() if halved else bilinear()
    shape = tf.shape(pixels)[:2]
    return tf.case(
        [
            (tf.reduce_all(shape == wanted), lambda: pixels),
            (tf.reduce_min(shape // wanted) >= 2, averaging),
        ],
        default=bilinear,
    )


def random_places(seeds: tf.Tensor) -> tf.Tensor:
    """Seeds, int64 [B, 2], to uniform numbers, float32 [B, 2], 0 to under 1.

    Each row depends on its own seed alone. TensorFlow's stateless generators take one seed
    a call, which costs as much as a tenth of decoding a small image; this mixes the bits of
    all seeds of a batch at once, twice as splitmix64 does (Steele et al., 2014).
    """
    odd = tf.constant([[0x9E3779B97F4A7C15, 0xD1342543DE82EF95]], tf.uint64)
    stream, number = tf.split(tf.cast(seeds, tf.uint64), 2, axis=1)
    mixed = _mix(tf.bitwise.bitwise_xor(_mix(stream + odd), number * odd))
    top = tf.bitwise.right_shift(mixed, tf.constant(40, tf.uint64))  # 24 bits fit into a float
    return tf.cast(tf.cast(top, tf.int32), tf.float32) / 2.0**24


def _mix(values: tf.Tensor) -> tf.Tensor:
    """The finalizer of splitmix64: every bit of the input changes half of the output's."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        shifted = tf.bitwise.right_shift(values, tf.constant(shift, tf.uint64))
        values = tf.bitwise.bitwise_xor(values, shifted) * tf.constant(factor, tf.uint64)
    return tf.bitwise.bitwise_xor(
        values, tf.bitwise.right_shift(values, tf.constant(31, tf.uint64))
    )
