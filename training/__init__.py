"""Training on what imagebeam convert wrote: tf.data reading, Keras models, evaluation, export.

The public names are below (and training.evaluate.evaluate, training.export.export, which
share their modules' names); each is imported when it is first used, so that `import
training` costs nothing (TensorFlow takes seconds).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from training.config import TrainConfig
    from training.faults import explain_reading_error
    from training.input_pipeline import read_split
    from training.models import ModelSpec, register
    from training.predict import Predictor
    from training.read_options import ReadOptions
    from training.shards import open_dataset
    from training.train import TrainResult, train_and_evaluate

__all__ = [
    "ModelSpec",
    "Predictor",
    "ReadOptions",
    "TrainConfig",
    "TrainResult",
    "explain_reading_error",
    "open_dataset",
    "read_split",
    "register",
    "train_and_evaluate",
]

_PLACES = {
    "ModelSpec": "models",
    "Predictor": "predict",
    "ReadOptions": "read_options",
    "TrainConfig": "config",
    "TrainResult": "train",
    "explain_reading_error": "faults",
    "open_dataset": "shards",
    "read_split": "input_pipeline",
    "register": "models",
    "train_and_evaluate": "train",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
