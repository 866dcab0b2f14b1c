"""The pictures of an evaluation: confusion matrix, scores per class, contact sheet."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from training.scores import Scores

if TYPE_CHECKING:
    from training.evaluate import Mistake

REPORT_PICTURE = "report.png"
MISTAKES_PICTURE = "mistakes.png"

_COLUMNS = 8  # of the contact sheet
_MOST_NUMBERS = 20  # classes; beyond that numbers in the matrix are too small to read


def can_draw() -> bool:
    """Whether matplotlib is installed (the extra `report`)."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(
    output: str,
    scores: Scores,
    mistakes: Sequence[Mistake],
    labels: Sequence[str],
    title: str,
) -> list[str]:
    """Draws the report, and the contact sheet if there are mistakes; returns their paths."""
    paths = [os.path.join(output, REPORT_PICTURE)]
    figure = _figure(13, 6)
    figure.suptitle(
        f"{title}: {scores.accuracy:.1%} of {scores.examples:,} right, "
        f"macro-F1 {scores.macro_f1:.3f}, loss {scores.loss:.3f}"
    )
    left, right = figure.subplots(1, 2)
    _confusion(left, scores, labels)
    _bars(right, scores, labels)
    figure.savefig(paths[0], dpi=110)
    path = os.path.join(output, MISTAKES_PICTURE)
    if mistakes:
        _contact_sheet(mistakes, labels).savefig(path, dpi=110)
        paths.append(path)
    elif os.path.exists(path):
        os.unlink(path)  # of an earlier, worse evaluation
    return paths


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _plain(text: str, longest: int = 24) -> str:
    """A label or key as matplotlib shows it literally (no formulas), and not too long."""
    text = text if len(text) <= longest else text[: longest - 1] + "…"
    return text.replace("\\", "\\\\").replace("$", r"\$").replace("\n", " ")


def _end(key: str, longest: int) -> str:
    """The end of a key, where file names differ."""
    return _plain(key if len(key) <= longest else "…" + key[1 - longest :], longest)


def _confusion(axes: Any, scores: Scores, labels: Sequence[str]) -> None:
    counts = scores.confusion
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    ticks = range(len(labels))
    names = [_plain(label) for label in labels]
    axes.set_xticks(ticks, names, rotation=45, ha="right")
    axes.set_yticks(ticks, names)
    axes.set_xlabel("answer")
    axes.set_ylabel("true class")
    axes.set_title("images (colour: share of the true class)")
    if len(labels) > _MOST_NUMBERS:
        return
    for row in ticks:
        for column in ticks:
            shade = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, f"{counts[row, column]}", ha="center", va="center", color=shade)


def _bars(axes: Any, scores: Scores, labels: Sequence[str]) -> None:
    places = np.arange(len(labels))
    for shift, (name, values) in enumerate(
        (("precision", scores.precision), ("recall", scores.recall), ("F1", scores.f1))
    ):
        axes.barh(places + (shift - 1) * 0.27, values, height=0.27, label=name)
    axes.set_yticks(places, [_plain(label) for label in labels])
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.set_title("scores per class")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.06), ncols=3, frameon=False)


def _contact_sheet(mistakes: Sequence[Mistake], labels: Sequence[str]) -> Any:
    rows = -(-len(mistakes) // _COLUMNS)
    figure = _figure(1.7 * _COLUMNS, 2.2 * rows + 0.5)
    figure.suptitle("wrong answers, the surest first")
    grid = figure.subplots(rows, _COLUMNS, squeeze=False)
    for axes in grid.flat:
        axes.axis("off")
    for axes, mistake in zip(grid.flat, mistakes, strict=False):
        image = mistake.image
        axes.imshow(image[..., 0] if image.shape[-1] == 1 else image, cmap="gray", vmin=0, vmax=255)
        axes.set_title(
            f"{_plain(labels[mistake.label], 16)}\n→ {_plain(labels[mistake.answer], 16)} "
            f"{mistake.confidence:.0%}",
            fontsize=8,
        )
        axes.text(
            0.5, -0.04, _end(mistake.key, 28), transform=axes.transAxes,
            ha="center", va="top", fontsize=5,
        )  # fmt: skip
    return figure
