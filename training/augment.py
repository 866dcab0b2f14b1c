"""Augmentation as Keras layers, by name and strength, on the device that trains.

Layers take a seed with every call and keep no state: a step's augmentation follows from
the run's seed and the number of the step, so that a resumed run repeats it exactly.
"""

from __future__ import annotations

from collections.abc import Mapping

import keras
import tensorflow as tf

from beam_pipeline.errors import UsageError

# name → (usual strength, largest strength, what the strength is)
STRENGTHS: dict[str, tuple[float, float, str]] = {
    "flip": (0.5, 1.0, "probability of a left-right flip"),
    "rotate": (10.0, 180.0, "degrees at most, either way"),
    "translate": (0.08, 1.0, "fraction of a side at most, either way"),
    "zoom": (0.1, 0.9, "fraction at most, in or out"),
    "contrast": (0.2, 1.0, "fraction at most, up or down"),
    "brightness": (0.1, 1.0, "fraction of the full range at most, up or down"),
    "erase": (0.25, 1.0, "probability that a rectangle of 2 to 20% is filled with gray"),
    "mixup": (0.2, 10.0, "alpha of the Beta distribution that images are mixed by"),
}

AUTO = "flip,rotate,translate,zoom,contrast"
_GEOMETRIC = ("flip", "rotate", "translate", "zoom")


def parse_augment(text: str) -> dict[str, float]:
    """ "flip,rotate=15" → {"flip": 0.5, "rotate": 15.0}; "auto" and "none" too.

    Raises:
      UsageError: an unknown name, or a strength out of range.
    """
    if text == "none":
        return {}
    strengths: dict[str, float] = {}
    for item in (AUTO if text == "auto" else text).split(","):
        name, equals, value = item.strip().partition("=")
        if name not in STRENGTHS:
            raise UsageError(
                f"augment must be auto, none, or names of {', '.join(STRENGTHS)}, as in "
                f"'flip,rotate=15'; got {name!r}"
            )
        usual, largest, meaning = STRENGTHS[name]
        try:
            strength = float(value) if equals else usual
        except ValueError:
            strength = -1.0
        if not 0 <= strength <= largest:
            raise UsageError(f"augment: {name} must be 0 to {largest:g} ({meaning}), got {value!r}")
        if strength:
            strengths[name] = strength
    return strengths


def build_augmentation(strengths: Mapping[str, float]) -> Augmentation:
    """The layers for `strengths`, in the order in which they are applied."""
    layers: list[keras.layers.Layer] = []
    geometric = {name: strengths[name] for name in _GEOMETRIC if name in strengths}
    if geometric:
        layers.append(RandomAffine(**geometric))
    if "contrast" in strengths or "brightness" in strengths:
        layers.append(RandomLight(strengths.get("contrast", 0.0), strengths.get("brightness", 0.0)))
    if "erase" in strengths:
        layers.append(RandomErasing(strengths["erase"]))
    mixup = MixUp(strengths["mixup"]) if "mixup" in strengths else None
    return Augmentation(layers, mixup)


class Augmentation(keras.layers.Layer):
    """Applies layers in turn; call(images, targets, seed) → (images, targets).

    Images are float32 [B, H, W, C], 0 to 255; targets float32 [B, classes]; the seed is
    int32 [2].
    """

    def __init__(self, layers: list[keras.layers.Layer], mixup: keras.layers.Layer | None):
        super().__init__(dtype="float32")
        self.layers = layers
        self.mixup = mixup

    def call(
        self, images: tf.Tensor, targets: tf.Tensor, seed: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Augments a batch."""
        for number, layer in enumerate(self.layers):
            images = layer(images, _fold(seed, number))
        if self.mixup is not None:
            images, targets = self.mixup(images, targets, _fold(seed, len(self.layers)))
        return images, targets


def _fold(seed: tf.Tensor, number: int) -> tf.Tensor:
    return tf.random.experimental.stateless_fold_in(seed, number)


def _uniform(seed: tf.Tensor, number: int, shape: object, low: float, high: float) -> tf.Tensor:
    return tf.random.stateless_uniform(shape, _fold(seed, number), low, high)


class RandomAffine(keras.layers.Layer):
    """Flip, rotation, translation and zoom as one transform: pixels are sampled once.

    Args:
      flip: probability of a left-right flip.
      rotate: degrees at most.
      translate: fraction of each side at most.
      zoom: fraction at most, each side on its own.
    """

    def __init__(
        self, flip: float = 0.0, rotate: float = 0.0, translate: float = 0.0, zoom: float = 0.0
    ):
        super().__init__(dtype="float32")
        self.flip, self.rotate, self.translate, self.zoom = flip, rotate, translate, zoom

    def call(self, images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """float32 [B, H, W, C] → the same shape."""
        batch = tf.shape(images)[0]
        height, width = images.shape[1], images.shape[2]
        angle = _uniform(seed, 0, [batch], -1, 1) * self.rotate * (3.141592653589793 / 180)
        scale = 1 + _uniform(seed, 1, [batch, 2], -1, 1) * self.zoom
        mirrored = _uniform(seed, 2, [batch], 0, 1) < self.flip
        shift = _uniform(seed, 3, [batch, 2], -1, 1) * self.translate
        scale_x = tf.where(mirrored, -scale[:, 0], scale[:, 0])
        scale_y = scale[:, 1]
        cos, sin = tf.cos(angle), tf.sin(angle)
        # Output pixel (x, y) shows input pixel (a x + b y + c, d x + e y + f), about the centre.
        a, b = cos * scale_x, -sin * scale_y
        d, e = sin * scale_x, cos * scale_y
        centre_x, centre_y = (width - 1) / 2, (height - 1) / 2
        c = centre_x - a * centre_x - b * centre_y + shift[:, 0] * width
        f = centre_y - d * centre_x - e * centre_y + shift[:, 1] * height
        zero = tf.zeros_like(a)
        return tf.raw_ops.ImageProjectiveTransformV3(
            images=images,
            transforms=tf.stack([a, b, c, d, e, f, zero, zero], axis=1),
            output_shape=[height, width],
            fill_value=0.0,
            interpolation="BILINEAR",
            fill_mode="NEAREST",
        )


class RandomLight(keras.layers.Layer):
    """Contrast about each image's mean, and brightness."""

    def __init__(self, contrast: float = 0.0, brightness: float = 0.0):
        super().__init__(dtype="float32")
        self.contrast, self.brightness = contrast, brightness

    def call(self, images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """float32 [B, H, W, C] → the same shape, kept within 0 to 255."""
        shape = [tf.shape(images)[0], 1, 1, 1]
        factor = 1 + _uniform(seed, 0, shape, -1, 1) * self.contrast
        shift = _uniform(seed, 1, shape, -255, 255) * self.brightness
        mean = tf.reduce_mean(images, axis=[1, 2, 3], keepdims=True)
        return tf.clip_by_value((images - mean) * factor + mean + shift, 0, 255)


class RandomErasing(keras.layers.Layer):
    """Fills one rectangle (2 to 20% of the area) with mid-gray, with a probability."""

    def __init__(self, probability: float):
        super().__init__(dtype="float32")
        self.probability = probability

    def call(self, images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """float32 [B, H, W, C] → the same shape."""
        batch = tf.shape(images)[0]
        area = _uniform(seed, 0, [batch], 0.02, 0.2)
        aspect = tf.exp(_uniform(seed, 1, [batch], -1, 1))  # 1/e to e
        tall, wide = tf.sqrt(area * aspect), tf.sqrt(area / aspect)
        centre = _uniform(seed, 2, [batch, 2], 0, 1)
        used = _uniform(seed, 3, [batch], 0, 1) < self.probability
        rows = (tf.range(images.shape[1], dtype=tf.float32) + 0.5) / images.shape[1]
        columns = (tf.range(images.shape[2], dtype=tf.float32) + 0.5) / images.shape[2]
        inside = (
            (tf.abs(rows[None, :, None] - centre[:, :1, None]) < tall[:, None, None] / 2)
            & (tf.abs(columns[None, None, :] - centre[:, 1:, None]) < wide[:, None, None] / 2)
            & used[:, None, None]
        )
        return tf.where(inside[..., None], 127.5, images)


class MixUp(keras.layers.Layer):
    """Mixes each image and its target with another's of the batch (Zhang et al., 2018)."""

    def __init__(self, alpha: float):
        super().__init__(dtype="float32")
        self.alpha = alpha

    def call(
        self, images: tf.Tensor, targets: tf.Tensor, seed: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """(float32 [B, H, W, C], float32 [B, classes]) → the same shapes."""
        batch = tf.shape(images)[0]
        gammas = tf.random.stateless_gamma([batch, 2], _fold(seed, 0), self.alpha)
        share = gammas[:, :1] / tf.maximum(tf.reduce_sum(gammas, axis=1, keepdims=True), 1e-20)
        share = tf.maximum(share, 1 - share)  # the first image stays the larger part
        wide = share[:, :, None, None]
        images = wide * images + (1 - wide) * tf.roll(images, 1, axis=0)
        return images, share * targets + (1 - share) * tf.roll(targets, 1, axis=0)
