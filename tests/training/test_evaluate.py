import csv
import json
import shutil

import numpy as np
import pytest
from PIL import Image

from beam_pipeline.errors import DatasetError, OutputError
from tests.training import runs
from tests.training.datasets import write_dataset
from training import report
from training.evaluate import Mistake, _Worst, evaluate
from training.scores import Scores


def test_scores_of_a_known_matrix():
    scores = Scores(0.5, np.array([[3, 1, 0], [1, 1, 0], [0, 0, 0]]))
    assert scores.examples == 6
    assert scores.accuracy == pytest.approx(4 / 6)
    np.testing.assert_allclose(scores.precision, [3 / 4, 1 / 2, 0])
    np.testing.assert_allclose(scores.recall, [3 / 4, 1 / 2, 0])
    np.testing.assert_allclose(scores.f1, [3 / 4, 1 / 2, 0])
    assert scores.macro_f1 == pytest.approx(5 / 8)  # the empty class does not count
    about = scores.to_json(["a", "b", "c"])
    assert about["classes"]["b"] == {"precision": 0.5, "recall": 0.5, "f1": 0.5, "examples": 2}
    assert about["confusion"] == [[3, 1, 0], [1, 1, 0], [0, 0, 0]]


def test_the_report_agrees_with_the_predictions_and_with_training(trained, tmp_path):
    data, workdir = trained
    result = evaluate(str(workdir), str(data), "validation", str(tmp_path), batch_size=5)
    about = json.loads((tmp_path / "report.json").read_text())
    rows = list(csv.DictReader((tmp_path / "predictions.csv").open()))
    assert sorted(row["key"] for row in rows) == sorted(f"validation/{n}" for n in range(12))
    right = [row["label"] == row["answer"] for row in rows]
    assert about["accuracy"] == pytest.approx(np.mean(right))
    best = json.loads((workdir / "best.json").read_text())
    # What training saw on this split with these weights, with another batch size.
    assert about["accuracy"] == pytest.approx(best["scores"]["accuracy"])
    assert about["loss"] == pytest.approx(best["scores"]["loss"], rel=1e-3)
    assert about["macro_f1"] == pytest.approx(best["scores"]["macro_f1"])
    for row in rows:
        chances = {label: float(row[label]) for label in about["labels"]}
        assert sum(chances.values()) == pytest.approx(1, abs=1e-5)
        assert max(chances, key=chances.get) == row["answer"]
    assert result.scores.examples == 12
    assert Image.open(tmp_path / "report.png").size[0] > 1000


def test_the_surest_mistakes_come_first(trained, tmp_path):
    data, workdir = trained
    poor = tmp_path / "poor"
    shutil.copytree(workdir, poor)
    best = json.loads((poor / "best.json").read_text())["file"]
    with np.load(poor / best) as stored:
        arrays = {name: stored[name] for name in stored.files}
    arrays[max(arrays)] = np.array([0, 50, 0], np.float32)  # the last bias: always "happy"
    with open(poor / best, "wb") as stream:
        np.savez(stream, **arrays)
    result = evaluate(str(poor), str(data), "test", str(tmp_path / "out"), mistakes=9)
    assert result.scores.confusion.tolist() == [[0, 10, 0], [0, 10, 0], [0, 10, 0]]
    assert len(result.mistakes) == 9
    sure = [mistake.confidence for mistake in result.mistakes]
    assert sure == sorted(sure, reverse=True)
    assert all(mistake.answer == 1 != mistake.label for mistake in result.mistakes)
    assert (tmp_path / "out" / "mistakes.png").stat().st_size > 5000
    about = json.loads((tmp_path / "out" / "report.json").read_text())
    assert [m["key"] for m in about["worst_mistakes"]] == [m.key for m in result.mistakes]


def test_only_the_worst_are_kept():
    worst = _Worst(2)
    for confidence in (0.3, 0.9, 0.5, 0.7):
        worst.add(Mistake(confidence, "", 0, 1, np.zeros(1)))
    assert [mistake.confidence for mistake in worst.sorted()] == [0.9, 0.7]
    none = _Worst(0)
    none.add(Mistake(0.3, "", 0, 1, np.zeros(1)))
    assert none.sorted() == []


def test_odd_labels_can_be_drawn(tmp_path):
    labels = ["$x^", "a\\b", "line\nbreak", "<b>&", "é" * 60]
    mistakes = [Mistake(0.9, "$" * 40, 0, 4, np.zeros((8, 8, 3), np.uint8))]
    paths = report.draw(str(tmp_path), Scores(1.0, np.eye(5, dtype=int)), mistakes, labels, "t")
    assert len(paths) == 2
    # The sheet of an earlier evaluation does not outlive its mistakes.
    assert (
        report.draw(str(tmp_path), Scores(1.0, np.eye(5, dtype=int)), [], labels, "t") == paths[:1]
    )
    assert not (tmp_path / "mistakes.png").exists()


def test_without_matplotlib_the_numbers_are_still_written(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "can_draw", lambda: False)
    data, workdir = trained
    result = evaluate(str(workdir), str(data), "test", str(tmp_path))
    assert [path.rpartition("/")[2] for path in result.files] == ["report.json", "predictions.csv"]


def test_other_labels_and_missing_runs_are_refused(trained, tmp_path):
    data, workdir = trained
    other = write_dataset(tmp_path / "other", size=(24, 24))
    text = (other / "conversion.json").read_text()
    (other / "conversion.json").write_text(text.replace('"sad"', '"bored"'))
    with pytest.raises(DatasetError, match=r"labels of .*bored.* are not those"):
        evaluate(str(workdir), str(other), "train", str(tmp_path / "out"))
    unlabelled = write_dataset(tmp_path / "unlabelled", size=(24, 24), labelled=False)
    with pytest.raises(DatasetError, match="has no labels"):
        evaluate(str(workdir), str(unlabelled), "train", str(tmp_path / "out"))
    with pytest.raises(OutputError, match="holds no trained model"):
        evaluate(str(tmp_path), str(data), "test", str(tmp_path / "out"))
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write the report"):
        evaluate(str(workdir), str(data), "test", str(tmp_path / "file"))


def test_a_run_without_a_finished_epoch_is_refused(trained, tmp_path):
    _, workdir = trained
    (tmp_path / "model.json").write_text((workdir / "model.json").read_text())
    with pytest.raises(OutputError, match="has not finished an epoch yet"):
        evaluate(str(tmp_path), "unused", "test", str(tmp_path / "out"))
    assert runs.best_weights(workdir)
