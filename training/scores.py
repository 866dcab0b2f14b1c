"""Scores out of a confusion matrix: accuracy, precision, recall, F1."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class Scores:
    """How well a split was classified.

    Attributes:
      loss: mean cross-entropy, without label smoothing.
      confusion: int64 [classes, classes]: true class (row), answer (column).
    """

    loss: float
    confusion: np.ndarray

    @property
    def examples(self) -> int:
        """Examples scored."""
        return int(self.confusion.sum())

    @property
    def accuracy(self) -> float:
        """Share of right answers."""
        return float(np.trace(self.confusion) / max(self.examples, 1))

    @property
    def precision(self) -> np.ndarray:
        """Per class: right answers among its answers; 0 where it was never answered."""
        return _ratio(np.diag(self.confusion), self.confusion.sum(axis=0))

    @property
    def recall(self) -> np.ndarray:
        """Per class: right answers among its examples; 0 where it has none."""
        return _ratio(np.diag(self.confusion), self.confusion.sum(axis=1))

    @property
    def f1(self) -> np.ndarray:
        """Per class: harmonic mean of precision and recall."""
        return _ratio(2 * self.precision * self.recall, self.precision + self.recall)

    @property
    def macro_f1(self) -> float:
        """Mean F1 over the classes that have examples."""
        present = self.confusion.sum(axis=1) > 0
        return float(self.f1[present].mean()) if present.any() else 0.0

    def to_json(self, labels: Sequence[str]) -> dict[str, object]:
        """All numbers by class name."""
        support = self.confusion.sum(axis=1)
        return {
            "examples": self.examples,
            "loss": self.loss,
            "accuracy": self.accuracy,
            "macro_f1": self.macro_f1,
            "classes": {
                label: {
                    "precision": float(self.precision[i]),
                    "recall": float(self.recall[i]),
                    "f1": float(self.f1[i]),
                    "examples": int(support[i]),
                }
                for i, label in enumerate(labels)
            },
            "labels": list(labels),
            "confusion": self.confusion.tolist(),
        }


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.divide(part, whole, out=np.zeros(len(part)), where=whole > 0)
