"""imagebeam predict: classifies image files after the same checks as convert."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from beam_pipeline.errors import ImageRejectedError, OutputError
from beam_pipeline.images import prepare_image
from beam_pipeline.options import ImageOptions
from training.export import SAVED_MODEL, ServedModel
from training.trained import ModelCard, load_best

_BATCH = 32


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What a model says of a file.

    Attributes:
      path: of the file.
      probabilities: class name → probability, the largest first; empty when refused.
      refused: why the file is no usable image, or None.
    """

    path: str
    probabilities: dict[str, float]
    refused: str | None = None

    @property
    def label(self) -> str | None:
        """The most probable class, or None when the file was refused."""
        return next(iter(self.probabilities), None)


class Predictor:
    """A model that classifies image files.

    Args:
      model: a directory that imagebeam export or imagebeam train wrote, or a SavedModel.

    Raises:
      OutputError: `model` is none of these.
    """

    def __init__(self, model: str):
        self._classify, self._keep = _load(model)

    def predict(
        self, paths: Sequence[str], options: ImageOptions | None = None
    ) -> list[Prediction]:
        """Classifies files, in their order; bad files are refused, not raised."""
        options = options or ImageOptions()
        predictions: list[Prediction] = []
        for start in range(0, len(paths), _BATCH):
            predictions += self._predict_batch(paths[start : start + _BATCH], options)
        return predictions

    def _predict_batch(self, paths: Sequence[str], options: ImageOptions) -> list[Prediction]:
        refused: dict[str, str] = {}
        data: dict[str, bytes] = {}
        for path in paths:
            try:
                with open(path, "rb") as stream:
                    # The same checks as convert: upright, real colours, or a clear refusal.
                    data[path] = prepare_image(stream.read(), options).data
            except OSError as error:
                refused[path] = error.strerror or str(error)
            except ImageRejectedError as error:
                refused[path] = str(error)
        answers = {}
        if data:
            result = self._classify(tf.constant(list(data.values())))
            labels = [label.decode() for label in result["labels"].numpy()]
            for path, row in zip(data, result["probabilities"].numpy(), strict=True):
                order = np.argsort(-row, kind="stable")
                answers[path] = {labels[i]: float(row[i]) for i in order}
        return [Prediction(path, answers.get(path, {}), refused.get(path)) for path in paths]


def _call(signature: Any, data: tf.Tensor) -> dict[str, tf.Tensor]:
    return signature(image_bytes=data)


def _load(model: str) -> tuple[Any, Any]:
    """The signature's function, and what must stay alive for it."""
    for folder in (os.path.join(model, SAVED_MODEL), model):
        if os.path.isfile(os.path.join(folder, "saved_model.pb")):
            loaded = tf.saved_model.load(folder)
            signature = loaded.signatures.get("serving_default")
            if signature is None or "labels" not in signature.structured_outputs:
                raise OutputError(f"{folder} is a SavedModel, but not of imagebeam export")
            return functools.partial(_call, signature), loaded
    if os.path.isfile(os.path.join(model, ModelCard.FILE)):
        served = ServedModel(*load_best(model))
        return served.classify, served
    raise OutputError(
        f"{model} holds no model: give a directory that imagebeam export or imagebeam train wrote"
    )
