"""Models by name: one registry, from a small CNN for faces to Keras applications."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import keras
from keras import layers

from beam_pipeline.errors import UsageError


@dataclasses.dataclass(frozen=True)
class ModelSpec:
    """What a model must fit.

    Attributes:
      input_shape: (height, width, channels); pixels are floats, 0 to 255.
      classes: number of labels.
      dropout: before the classifier.
      width: multiplies the channels of small_cnn.
      weights: a local weights file to start from, or None.
    """

    input_shape: tuple[int, int, int]
    classes: int
    dropout: float = 0.0
    width: float = 1.0
    weights: str | None = None


Builder = Callable[[ModelSpec], keras.Model]
MODELS: dict[str, Builder] = {}

_SMALL_SIDE = 96  # pixels; images up to this size get the small CNN


def register(name: str) -> Callable[[Builder], Builder]:
    """Adds a model to the registry: a function from a ModelSpec to a model of logits.

    The model takes float images [B, height, width, channels], 0 to 255, and gives
    float32 logits [B, classes]; preprocessing is its own matter.
    """

    def add(builder: Builder) -> Builder:
        MODELS[name] = builder
        return builder

    return add


def build_model(name: str, spec: ModelSpec) -> keras.Model:
    """The model called `name`; "auto" chooses by the image size.

    Raises:
      UsageError: an unknown name (the choices are listed), an image size that the model
        does not take, or a weights file that does not fit.
    """
    name = resolve_name(name, spec.input_shape[:2])
    try:
        return MODELS[name](spec)
    except (ValueError, OSError) as error:
        raise UsageError(f"model {name!r} for images of {spec.input_shape}: {error}") from error


def resolve_name(name: str, size: tuple[int, int]) -> str:
    """`name` itself, or what "auto" means for images of `size`."""
    if name == "auto":
        return "small_cnn" if max(size) <= _SMALL_SIDE else "mobilenet_v3_small"
    if name not in MODELS:
        raise UsageError(f"model must be auto or one of {', '.join(sorted(MODELS))}, got {name!r}")
    return name


@register("small_cnn")
def small_cnn(spec: ModelSpec) -> keras.Model:
    """Convolutions for small pictures: cheap on a CPU, about 0.6 million weights.

    Each image is normalized by its own mean and deviation (expressions do not depend on
    the light). Four stages of two 3×3 convolutions with batch normalization; resolution
    is halved early, where a pixel costs most.
    """
    inputs = keras.Input(spec.input_shape)
    x = layers.Rescaling(1 / 255)(inputs)
    x = layers.LayerNormalization(axis=(1, 2, 3), center=False, scale=False, epsilon=1e-3)(x)
    x = _convolution(x, spec, 32)
    for channels in (48, 96, 160):
        if min(x.shape[1], x.shape[2]) >= 2:
            x = layers.MaxPooling2D(2)(x)
        x = _convolution(x, spec, channels)
        x = _convolution(x, spec, channels)
    x = layers.GlobalAveragePooling2D()(x)
    model = keras.Model(inputs, _classifier(x, spec), name="small_cnn")
    if spec.weights:
        model.load_weights(spec.weights)
    return model


def _convolution(x, spec: ModelSpec, channels: int):  # type: ignore[no-untyped-def]
    channels = max(1, round(channels * spec.width))
    x = layers.Conv2D(channels, 3, padding="same", use_bias=False, kernel_initializer="he_normal")(
        x
    )
    x = layers.BatchNormalization(momentum=0.9)(x)
    return layers.ReLU()(x)


def _classifier(x, spec: ModelSpec):  # type: ignore[no-untyped-def]
    if spec.dropout:
        x = layers.Dropout(spec.dropout)(x)
    # float32 whatever the precision policy is: the loss needs it.
    return layers.Dense(spec.classes, dtype="float32")(x)


def _as_stored(x):  # type: ignore[no-untyped-def]
    return x


def _to_unit_range(x):  # type: ignore[no-untyped-def]
    return layers.Rescaling(1 / 127.5, offset=-1)(x)


def _to_caffe(x):  # type: ignore[no-untyped-def]
    """BGR minus the ImageNet means: what the original ResNet weights expect."""
    x = keras.ops.flip(x, axis=-1)
    return layers.Rescaling(1.0, offset=[-103.939, -116.779, -123.68])(x)


# name → (class in keras.applications, what its pixels must be)
_APPLICATIONS = {
    "convnext_tiny": ("ConvNeXtTiny", _as_stored),
    "convnext_small": ("ConvNeXtSmall", _as_stored),
    "efficientnet_v2_b0": ("EfficientNetV2B0", _as_stored),
    "efficientnet_v2_b1": ("EfficientNetV2B1", _as_stored),
    "efficientnet_v2_b2": ("EfficientNetV2B2", _as_stored),
    "efficientnet_v2_b3": ("EfficientNetV2B3", _as_stored),
    "efficientnet_v2_s": ("EfficientNetV2S", _as_stored),
    "efficientnet_v2_m": ("EfficientNetV2M", _as_stored),
    "mobilenet_v2": ("MobileNetV2", _to_unit_range),
    "mobilenet_v3_large": ("MobileNetV3Large", _as_stored),
    "mobilenet_v3_small": ("MobileNetV3Small", _as_stored),
    "resnet50": ("ResNet50", _to_caffe),
    "resnet101": ("ResNet101", _to_caffe),
    "resnet50_v2": ("ResNet50V2", _to_unit_range),
    "resnet101_v2": ("ResNet101V2", _to_unit_range),
}


def _application(spec: ModelSpec, name: str) -> keras.Model:
    class_name, preprocess = _APPLICATIONS[name]
    height, width, channels = spec.input_shape
    inputs = keras.Input(spec.input_shape)
    x = layers.Concatenate()([inputs] * 3) if channels == 1 else inputs
    backbone = getattr(keras.applications, class_name)(
        include_top=False,
        weights=spec.weights,
        input_shape=(height, width, 3),
        pooling="avg",
    )
    x = backbone(preprocess(x))
    return keras.Model(inputs, _classifier(x, spec), name=name)


for _name in _APPLICATIONS:
    register(_name)(lambda spec, name=_name: _application(spec, name))  # type: ignore[misc]
