"""imagebeam evaluate: scores a trained model on a split, and shows its mistakes."""

from __future__ import annotations

import csv
import dataclasses
import heapq
import os
from collections.abc import Iterator

import keras
import numpy as np
import tensorflow as tf

from beam_pipeline.dataset_info import DatasetInfo
from beam_pipeline.errors import DatasetError, OutputError
from training import report
from training.faults import explain_reading_error
from training.read_options import ReadOptions
from training.scores import Scores
from training.shards import open_dataset
from training.split_reader import SplitReader
from training.train_log import write_json
from training.trained import ModelCard, load_best

REPORT_FILE = "report.json"
PREDICTIONS_FILE = "predictions.csv"


@dataclasses.dataclass(frozen=True)
class Mistake:
    """A wrong answer: the image (uint8 [H, W, C]) and how sure the model was."""

    confidence: float
    key: str
    label: int
    answer: int
    image: np.ndarray


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Scores of a split, the surest wrong answers, and the files that were written."""

    scores: Scores
    mistakes: list[Mistake]
    files: list[str]


def evaluate(
    workdir: str,
    dataset: str,
    split: str,
    output: str,
    *,
    batch_size: int = 64,
    mistakes: int = 32,
    pictures: bool = True,
    check: str = "full",
    cache_dir: str | None = None,
) -> Evaluation:
    """Scores the best weights of a run on a split; every example counts once.

    Writes into `output`: report.json (all numbers), predictions.csv (a row per image) and,
    with matplotlib, report.png (confusion matrix and per-class scores) and mistakes.png.

    Args:
      workdir: of imagebeam train.
      dataset: a dataset directory with the same labels.
      split: name of the split.
      output: directory of the report.
      batch_size: images at a time.
      mistakes: wrong answers on the contact sheet, the surest first.
      pictures: whether to draw.
      check, cache_dir: see training.shards.open_dataset.

    Raises:
      DatasetError: the dataset is damaged, or its labels are not those of the model.
      OutputError: `workdir` holds no trained model, or `output` cannot be written.
    """
    card, model = load_best(workdir)
    info = open_dataset(dataset, splits=[split], check=check, cache_dir=cache_dir)
    _check_labels(card, info)
    classes = len(card.labels)
    confusion = np.zeros((classes, classes), np.int64)
    loss, rows, worst = 0.0, [], _Worst(mistakes)
    for key, label, logits, image in _answers(model, card, info, split, batch_size):
        probabilities = _softmax(logits)
        answer = int(probabilities.argmax())
        loss -= float(np.log(max(probabilities[label], 1e-30)))
        confusion[label, answer] += 1
        rows.append((key, card.labels[label], card.labels[answer], probabilities))
        if answer != label:
            worst.add(Mistake(float(probabilities[answer]), key, label, answer, image))
    scores = Scores(loss / max(int(confusion.sum()), 1), confusion)
    files = _write(output, scores, worst.sorted(), rows, card, info, split, pictures)
    return Evaluation(scores, worst.sorted(), files)


def _answers(
    model: keras.Model, card: ModelCard, info: DatasetInfo, split: str, batch_size: int
) -> Iterator[tuple[str, int, np.ndarray, np.ndarray]]:
    """(key, label, logits, image) of every example, in stored order."""
    reader = SplitReader(
        info, split, card.target, batch_size=batch_size, options=ReadOptions(cache="none")
    )
    forward = tf.function(lambda images: model(images, training=False), autograph=False)
    try:
        for batch in reader.stored_batches():
            logits = forward(tf.cast(batch["image"], tf.float32)).numpy()
            real = batch["weight"].numpy() > 0
            for key, label, row, image in zip(
                batch["key"].numpy()[real],
                batch["label"].numpy()[real],
                logits[real],
                batch["image"].numpy()[real],
                strict=True,
            ):
                yield key.decode("utf-8", "replace"), int(label), row, image
    except tf.errors.OpError as error:
        raise explain_reading_error(error, info, split) from error


def _check_labels(card: ModelCard, info: DatasetInfo) -> None:
    if info.labels is None:
        raise DatasetError(f"{info.directory} has no labels: there is nothing to compare with")
    if tuple(info.labels) != card.labels:
        raise DatasetError(
            f"the labels of {info.directory} ({', '.join(info.labels)}) are not those that the "
            f"model was trained on ({', '.join(card.labels)}); convert with --labels_file and "
            "the model's label.labels.txt"
        )


class _Worst:
    """Keeps the surest mistakes only, so that memory does not grow with the split."""

    def __init__(self, count: int):
        self._count = count
        self._heap: list[tuple[float, int, Mistake]] = []
        self._added = 0

    def add(self, mistake: Mistake) -> None:
        self._added += 1
        item = (mistake.confidence, -self._added, mistake)
        if len(self._heap) < self._count:
            heapq.heappush(self._heap, item)
        elif self._count:
            heapq.heappushpop(self._heap, item)

    def sorted(self) -> list[Mistake]:
        return [mistake for _, _, mistake in sorted(self._heap, reverse=True)]


def _softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits.astype(np.float64) - logits.max())
    return powers / powers.sum()


def _write(  # type: ignore[no-untyped-def]
    output, scores, mistakes, rows, card, info, split, pictures
) -> list[str]:
    paths = [os.path.join(output, name) for name in (REPORT_FILE, PREDICTIONS_FILE)]
    try:
        os.makedirs(output, exist_ok=True)
        with open(paths[1], "w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            writer.writerow(["key", "label", "answer", *card.labels])
            for key, label, answer, probabilities in rows:
                numbers = [f"{value:.6f}" for value in probabilities]
                writer.writerow([key, label, answer, *numbers])
        about = {
            "dataset": info.name,
            "fingerprint": info.fingerprint,
            "split": split,
            "model": card.model,
            **scores.to_json(card.labels),
            "worst_mistakes": [
                {
                    "key": mistake.key,
                    "label": card.labels[mistake.label],
                    "answer": card.labels[mistake.answer],
                    "confidence": mistake.confidence,
                }
                for mistake in mistakes
            ],
        }
        write_json(paths[0], about)
        if pictures and report.can_draw():
            title = f"{card.model} on {info.name}, split {split}"
            paths += report.draw(output, scores, mistakes, card.labels, title)
    except OSError as error:
        raise OutputError(f"cannot write the report in {output}: {error}") from error
    return paths
