"""TrainConfig: everything that decides a training run, saved as JSON beside its checkpoints."""

from __future__ import annotations

import dataclasses
import json
import os
import typing

from beam_pipeline.errors import OutputError, UsageError

CONFIG_FILE = "config.json"

PRECISIONS = ("auto", "float32", "mixed_float16", "mixed_bfloat16")
XLA = ("auto", "on", "off")
MONITORS = ("accuracy", "loss")
CLASS_WEIGHTS = ("none", "balanced")


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """A training run.

    Attributes:
      dataset: a dataset directory that `imagebeam convert` wrote, local or remote.
      train_split, validation_split: split names; validation "auto" takes "validation",
        else "test", else none; "none" trains without.
      model: a name in training.models.MODELS; "auto" is small_cnn for images of up to
        96 pixels, else mobilenet_v3_small.
      weights: a local weights file for the model to start from; None: from scratch.
      width: multiplies the channels of small_cnn.
      dropout: before the classifier, 0 to under 1.
      image_size: (height, width) to train at; None: as stored.
      channels: 1 or 3; None: as stored.
      resize_mode: "stretch", "crop" or "cut"; see training.target.ImageTarget.
      random_crop: random-resized-crop in training; with "cut", a random place.
      augment: "auto", "none", or names with strengths, as in "flip,rotate=10,mixup=0.2".
      batch_size: images per step, over all devices.
      epochs: at most.
      optimizer: a name in training.optimizers.OPTIMIZERS.
      learning_rate: the peak; None: the optimizer's usual one.
      weight_decay: decoupled; not applied to biases and normalization.
      warmup_epochs: linear warm-up; then a cosine to zero.
      clip_norm: largest global norm of the gradients; 0: no bound.
      label_smoothing: 0 to under 1.
      class_weights: "none", or "balanced" by the stored counts.
      ema: decay of the averaged weights that are evaluated and kept; 0: none.
      precision, xla: "auto" decides by the device.
      devices: device names such as "GPU:0" or "CPU:1"; empty: all GPUs, else the CPU.
      seed: decides initial weights, order, crops, augmentation and dropout.
      deterministic: operations too give equal bits on every run (slower).
      monitor: what the best epoch is judged by, on validation.
      patience: epochs without improvement until training stops; 0: never.
      checkpoint_steps: also save every so many steps; 0: after epochs only.
      cache, cache_dir, threads, ram_budget: see training.read_options.ReadOptions.
      check: "full" or "size"; see training.shards.open_dataset.
      tensorboard: write event files.
    """

    dataset: str
    train_split: str = "train"
    validation_split: str = "auto"
    model: str = "auto"
    weights: str | None = None
    width: float = 1.0
    dropout: float = 0.3
    image_size: tuple[int, int] | None = None
    channels: int | None = None
    resize_mode: str = "stretch"
    random_crop: bool = False
    augment: str = "auto"
    batch_size: int = 64
    epochs: int = 30
    optimizer: str = "adamw"
    learning_rate: float | None = None
    weight_decay: float = 0.02
    warmup_epochs: float = 1.0
    clip_norm: float = 1.0
    label_smoothing: float = 0.1
    class_weights: str = "none"
    ema: float = 0.99
    precision: str = "auto"
    xla: str = "auto"
    devices: tuple[str, ...] = ()
    seed: int = 0
    deterministic: bool = False
    monitor: str = "accuracy"
    patience: int = 0
    checkpoint_steps: int = 0
    cache: str = "auto"
    cache_dir: str | None = None
    threads: int | None = None
    ram_budget: int | None = None
    check: str = "full"
    tensorboard: bool = True

    def __post_init__(self) -> None:
        _require(bool(self.dataset), "dataset must name a directory", self.dataset)
        for name in ("batch_size", "epochs"):
            _require(getattr(self, name) >= 1, f"{name} must be at least 1", getattr(self, name))
        for name in ("weight_decay", "warmup_epochs", "clip_norm", "patience", "checkpoint_steps"):
            _require(getattr(self, name) >= 0, f"{name} must be 0 or more", getattr(self, name))
        for name in ("dropout", "label_smoothing", "ema"):
            value = getattr(self, name)
            _require(0 <= value < 1, f"{name} must be 0 to under 1", value)
        _require(self.width > 0, "width must be over 0", self.width)
        _require(
            self.learning_rate is None or self.learning_rate > 0,
            "learning_rate must be over 0",
            self.learning_rate,
        )
        for name, choices in (
            ("precision", PRECISIONS),
            ("xla", XLA),
            ("monitor", MONITORS),
            ("class_weights", CLASS_WEIGHTS),
        ):
            value = getattr(self, name)
            _require(value in choices, f"{name} must be one of {', '.join(choices)}", value)
        _require(0 <= self.seed < 1 << 31, "seed must be 0 to 2147483647", self.seed)

    def to_json(self) -> dict[str, object]:
        """The fields as JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, typing.Any]) -> TrainConfig:
        """The opposite of to_json."""
        values = dict(data)
        if values.get("image_size") is not None:
            values["image_size"] = tuple(values["image_size"])
        values["devices"] = tuple(values.get("devices", ()))
        return cls(**values)


def _require(condition: bool, what: str, value: object) -> None:
    if not condition:
        raise UsageError(f"{what}, got {value!r}")


# Where a run is read from and how fast, but not what it computes: may change on resume.
_FREE_FIELDS = frozenset(
    {"dataset", "cache_dir", "threads", "ram_budget", "check", "tensorboard", "checkpoint_steps"}
)


def check_same_run(config: TrainConfig, workdir: str) -> None:
    """Makes sure that `workdir` is free, or holds a run of this same configuration.

    Raises:
      UsageError: it holds a run with another configuration; the differences are named.
      OutputError: its config.json is damaged.
    """
    path = os.path.join(workdir, CONFIG_FILE)
    if not os.path.exists(path):
        return
    stored = read_config(workdir)
    differences = [
        f"{field.name} was {getattr(stored, field.name)!r}, is {getattr(config, field.name)!r}"
        for field in dataclasses.fields(TrainConfig)
        if field.name not in _FREE_FIELDS
        and getattr(stored, field.name) != getattr(config, field.name)
    ]
    if differences:
        raise UsageError(
            f"{workdir} holds a run with other options; use another --workdir, or repeat them:\n  "
            + "\n  ".join(differences)
        )


def read_config(workdir: str) -> TrainConfig:
    """The configuration of the run in `workdir`."""
    path = os.path.join(workdir, CONFIG_FILE)
    try:
        with open(path, encoding="utf-8") as stream:
            return TrainConfig.from_json(json.load(stream))
    except FileNotFoundError:
        raise OutputError(
            f"{workdir} holds no training run (no {CONFIG_FILE}); give the --workdir of "
            "imagebeam train"
        ) from None
    except (ValueError, TypeError) as error:
        raise OutputError(f"{path} is damaged: {error}") from error
