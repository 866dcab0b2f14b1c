"""Optimizers by name, and the learning rate over a run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import keras

from beam_pipeline.errors import UsageError

# name → (constructor, usual peak learning rate)
OPTIMIZERS: dict[str, tuple[Callable[..., keras.optimizers.Optimizer], float]] = {
    "adam": (lambda rate, decay: keras.optimizers.Adam(rate, weight_decay=decay), 1e-3),
    "adamw": (lambda rate, decay: keras.optimizers.AdamW(rate, weight_decay=decay or 0.0), 2e-3),
    "lion": (lambda rate, decay: keras.optimizers.Lion(rate, weight_decay=decay), 3e-4),
    "rmsprop": (lambda rate, decay: keras.optimizers.RMSprop(rate, weight_decay=decay), 1e-3),
    "sgd": (
        lambda rate, decay: keras.optimizers.SGD(
            rate, momentum=0.9, nesterov=True, weight_decay=decay
        ),
        0.05,
    ),
}


@dataclasses.dataclass(frozen=True)
class WarmupCosine:
    """Learning rate: a line from 0 to `peak`, then half a cosine to 0.

    Attributes:
      peak: the largest rate.
      warmup: steps of the line.
      total: steps of the run.
    """

    peak: float
    warmup: int
    total: int

    def rate(self, step: int) -> float:
        """The rate of step number `step`, 0-based."""
        if step < self.warmup:
            return self.peak * (step + 1) / self.warmup
        progress = (step - self.warmup) / max(self.total - self.warmup, 1)
        return self.peak * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))


def build_optimizer(name: str, weight_decay: float) -> keras.optimizers.Optimizer:
    """The optimizer `name`; biases and normalization are not decayed.

    The loop sets the rate of every step. UsageError lists the names there are.
    """
    constructor, _ = _find(name)
    optimizer = constructor(0.0, weight_decay or None)
    if weight_decay:
        optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    if keras.config.dtype_policy().name == "mixed_float16":
        return keras.optimizers.LossScaleOptimizer(optimizer)
    return optimizer


def usual_rate(name: str) -> float:
    """The peak learning rate that suits the optimizer `name`."""
    return _find(name)[1]


def _find(name: str) -> tuple[Callable[..., keras.optimizers.Optimizer], float]:
    try:
        return OPTIMIZERS[name]
    except KeyError:
        raise UsageError(
            f"optimizer must be one of {', '.join(OPTIMIZERS)}, got {name!r}"
        ) from None
