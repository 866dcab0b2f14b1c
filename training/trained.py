"""What a training run left: the model card, the best weights, and how to load them."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import ClassVar

import keras

from beam_pipeline.errors import OutputError
from training import checkpoints
from training.models import ModelSpec, build_model
from training.target import ImageTarget

BEST_FILE = "best.json"


@dataclasses.dataclass(frozen=True)
class ModelCard:
    """What a model is and what it expects; model.json of a working directory.

    Attributes:
      model: name in the registry.
      input_shape: (height, width, channels).
      labels: class names by id.
      resize_mode: how images are brought to the input's size.
      kept: parts of height and width that the model looks at, with resize_mode "cut".
      dropout, width: as the model was built.
      dataset: name of the dataset it was trained on.
      fingerprint: of that dataset.
    """

    FILE: ClassVar[str] = "model.json"

    model: str
    input_shape: tuple[int, int, int]
    labels: tuple[str, ...]
    resize_mode: str
    dropout: float
    width: float
    dataset: str
    fingerprint: str
    kept: tuple[float, float] = (1.0, 1.0)

    @property
    def target(self) -> ImageTarget:
        """What images become for this model."""
        height, width, channels = self.input_shape
        return ImageTarget((height, width), channels, self.resize_mode, kept=self.kept)

    @property
    def spec(self) -> ModelSpec:
        """What the model must fit."""
        return ModelSpec(self.input_shape, len(self.labels), self.dropout, self.width)

    def build(self) -> keras.Model:
        """The model, with fresh weights."""
        return build_model(self.model, self.spec)

    def to_json(self) -> dict[str, object]:
        """The fields as JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def read(cls, directory: str) -> ModelCard:
        """Reads model.json; OutputError when there is none or it is damaged."""
        path = os.path.join(directory, cls.FILE)
        try:
            with open(path, encoding="utf-8") as stream:
                data = json.load(stream)
            data["input_shape"] = tuple(data["input_shape"])
            data["labels"] = tuple(data["labels"])
            data["kept"] = tuple(data.get("kept", (1.0, 1.0)))
            return cls(**data)
        except FileNotFoundError:
            raise OutputError(
                f"{directory} holds no trained model (no {cls.FILE}); give the --workdir of "
                "imagebeam train"
            ) from None
        except (ValueError, TypeError, KeyError) as error:
            raise OutputError(f"{path} is damaged: {error}") from error


def best_path(workdir: str, epoch: int) -> str:
    """The weights file of a best epoch (1-based)."""
    return os.path.join(workdir, "best", f"epoch-{epoch:05d}.npz")


def load_best(workdir: str) -> tuple[ModelCard, keras.Model]:
    """The model of a run (float images to logits) with the weights of its best epoch.

    Raises:
      OutputError: `workdir` holds no finished epoch.
      TrainingError: the weights cannot be read or do not fit.
    """
    card = ModelCard.read(workdir)
    path = os.path.join(workdir, BEST_FILE)
    try:
        with open(path, encoding="utf-8") as stream:
            best = json.load(stream)
    except FileNotFoundError:
        raise OutputError(f"the run in {workdir} has not finished an epoch yet") from None
    except ValueError as error:
        raise OutputError(f"{path} is damaged: {error}") from error
    model = card.build()
    checkpoints.load_weights(os.path.join(workdir, best["file"]), model)
    return card, model
