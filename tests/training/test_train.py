import csv
import errno
import json
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from beam_pipeline.errors import DatasetError, OutputError, TrainingError, UsageError
from tests.training import runs
from tests.training.datasets import write_dataset
from training import checkpoints, steps
from training.config import TrainConfig, check_same_run, read_config
from training.run_setup import class_weights
from training.shards import open_dataset

DATA = {"train": 36, "validation": 12}


@pytest.fixture
def data(tmp_path):
    return write_dataset(tmp_path / "data", splits=DATA)


class Killed(BaseException):
    """Stands for SIGKILL: nothing in the code under test catches it."""


@pytest.fixture
def kill_after(monkeypatch):
    """kill_after(n): the n-th training step from now on does not happen."""

    def arm(count):
        original, taken = steps.Learner.train_step, []

        def dying(self, *arguments):
            if len(taken) == count:
                raise Killed
            taken.append(1)
            return original.__get__(self, type(self))(*arguments)

        monkeypatch.setattr(steps.Learner, "train_step", dying)
        return lambda: monkeypatch.setattr(steps.Learner, "train_step", original)

    return arm


def test_one_step(data, tmp_path):
    result = runs.train(data, tmp_path / "run", batch_size=100, epochs=1)
    assert (result.epochs, result.best_epoch, result.stopped_early) == (1, 1, False)
    assert math.isfinite(result.log[0]["loss"])
    assert result.log[0]["step"] == 1


def test_learns_and_writes_what_it_says(data, tmp_path):
    workdir = tmp_path / "run"
    result = runs.train(
        data, workdir, epochs=25, width=0.3, augment="none", dropout=0.0, tensorboard=True
    )
    assert result.validation["accuracy"] >= 0.9
    assert result.log[-1]["loss"] < result.log[0]["loss"] / 1.5
    rows = list(csv.DictReader((workdir / "log.csv").open()))
    assert [int(row["epoch"]) for row in rows] == list(range(1, 26))
    lines = [json.loads(line) for line in (workdir / "log.jsonl").read_text().splitlines()]
    assert lines == result.log
    assert {"images_per_s", "input_wait", "validation_macro_f1"} <= lines[0].keys()
    assert all(0 <= line["input_wait"] <= 1 for line in lines)
    (events,) = (workdir / "tensorboard").iterdir()
    parsed = [
        tf.compat.v1.Event.FromString(record.numpy())
        for record in tf.data.TFRecordDataset(str(events))
    ]
    losses = {e.step: v.simple_value for e in parsed for v in e.summary.value if v.tag == "loss"}
    assert losses == pytest.approx({row["step"]: row["loss"] for row in result.log})
    assert read_config(str(workdir)).epochs == 25


@pytest.mark.parametrize("cache", ["none", "memory"])
@pytest.mark.parametrize(
    ("killed_after", "options"),
    [
        (5, {}),  # inside the second of three epochs: goes on from its start
        (7, {"checkpoint_steps": 1}),  # goes on from the middle of the second epoch
        (8, {"checkpoint_steps": 3, "ema": 0.0, "augment": "mixup,flip", "optimizer": "sgd"}),
    ],
)
def test_a_killed_run_ends_bit_equal(data, tmp_path, kill_after, cache, killed_after, options):
    options = {**options, "deterministic": True, "cache": cache}
    whole = runs.train(data, tmp_path / "whole", **options)
    revive = kill_after(killed_after)
    with pytest.raises(Killed):
        runs.train(data, tmp_path / "killed", **options)
    revive()
    resumed = runs.train(data, tmp_path / "killed", **options)
    for one, other in zip(
        runs.last_variables(tmp_path / "whole"),
        runs.last_variables(tmp_path / "killed"),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)
    measured = ("seconds", "images_per_s", "input_wait")
    for one, other in zip(whole.log, resumed.log, strict=True):
        assert {k: v for k, v in one.items() if k not in measured} == {
            k: v for k, v in other.items() if k not in measured
        }
    assert whole.best_epoch == resumed.best_epoch
    for one, other in zip(
        runs.best_weights(tmp_path / "whole"), runs.best_weights(tmp_path / "killed"), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_sigkill_between_processes_is_survived(data, tmp_path):
    options = {"deterministic": True, "checkpoint_steps": 2, "epochs": 20}
    runs.finish(runs.start(data, tmp_path / "whole", **options))
    workdir = tmp_path / "killed"
    log = workdir / "log.csv"
    process = runs.start(data, workdir, **options)
    runs.kill_when(process, lambda: log.exists() and len(log.read_text().splitlines()) > 5)
    assert len(log.read_text().splitlines()) < 21
    runs.finish(runs.start(data, workdir, **options))
    for one, other in zip(
        runs.last_variables(tmp_path / "whole"), runs.last_variables(workdir), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    assert len(log.read_text().splitlines()) == 21


def test_a_finished_run_is_not_run_again(data, tmp_path, monkeypatch):
    first = runs.train(data, tmp_path / "run")
    monkeypatch.setattr(steps.Learner, "train_step", None)
    assert runs.train(data, tmp_path / "run") == first


def test_early_stopping_counts_across_a_restart(data, tmp_path, kill_after):
    # The rate is so small that nothing improves after the first epoch.
    options = {"learning_rate": 1e-12, "patience": 3, "epochs": 50, "ema": 0.0, "monitor": "loss"}
    options |= {"dropout": 0.0, "augment": "none", "width": 0.05}
    whole = runs.train(data, tmp_path / "whole", **options, deterministic=True)
    assert whole.stopped_early
    revive = kill_after(4 * (whole.epochs - 1) + 1)
    with pytest.raises(Killed):
        runs.train(data, tmp_path / "killed", **options, deterministic=True)
    revive()
    resumed = runs.train(data, tmp_path / "killed", **options, deterministic=True)
    assert (resumed.epochs, resumed.best_epoch) == (whole.epochs, whole.best_epoch)
    assert whole.epochs == whole.best_epoch + 3


def test_without_validation_the_last_epoch_counts(tmp_path):
    data = write_dataset(tmp_path / "data", splits={"train": 20})
    result = runs.train(data, tmp_path / "run", epochs=2)
    assert (result.best_epoch, result.validation) == (2, None)
    with pytest.raises(DatasetError, match="no split 'val'"):
        runs.train(data, tmp_path / "other", validation_split="val")


def test_other_options_are_refused(data, tmp_path):
    runs.train(data, tmp_path / "run", epochs=1)
    with pytest.raises(UsageError, match=r"epochs was 1, is 2\n  seed was 0, is 5"):
        runs.train(data, tmp_path / "run", epochs=2, seed=5)
    config = read_config(str(tmp_path / "run"))
    check_same_run(config, str(tmp_path / "run"))
    (tmp_path / "run" / "config.json").write_text("{")
    with pytest.raises(OutputError, match=r"config.json is damaged"):
        check_same_run(config, str(tmp_path / "run"))


def test_wrong_options_do_not_occupy_the_workdir(tmp_path):
    data = write_dataset(tmp_path / "data", splits=DATA, size=None)
    with pytest.raises(UsageError, match="differ in size"):
        runs.train(data, tmp_path / "run")
    with pytest.raises(UsageError, match="nowhere"):
        runs.train(data, tmp_path / "run", image_size=(12, 12), weights="/nowhere.h5")
    assert runs.train(data, tmp_path / "run", image_size=(12, 12)).epochs == 3


def test_a_changed_dataset_is_refused(data, tmp_path):
    runs.train(data, tmp_path / "run", epochs=2)
    for file in data.iterdir():
        file.unlink()
    write_dataset(data, splits=DATA, channels=3)
    with pytest.raises(DatasetError, match=r"changed since the run in .* use another --workdir"):
        runs.train(data, tmp_path / "run", epochs=2)


def test_a_loss_that_is_not_a_number_stops(data, tmp_path):
    with pytest.raises(TrainingError, match=r"the loss became nan in epoch \d, step \d.*--clip"):
        runs.train(data, tmp_path / "run", learning_rate=1e30, clip_norm=0.0, warmup_epochs=0)


def test_labels_outside_the_map_stop(tmp_path):
    data = write_dataset(tmp_path / "data", splits=DATA, label_offset=1)
    with pytest.raises(DatasetError, match=r"faces-train.tfrecord-0000\d-of-00002, record \d+: "):
        runs.train(data, tmp_path / "run", cache="none")


def test_a_dataset_without_labels_is_refused(tmp_path):
    data = write_dataset(tmp_path / "data", labelled=False)
    with pytest.raises(DatasetError, match="has no labels"):
        runs.train(data, tmp_path / "run")


def test_a_full_disk_stops_and_the_run_goes_on_later(data, tmp_path, monkeypatch):
    whole = runs.train(data, tmp_path / "whole", deterministic=True)
    original, calls = np.savez, []

    def full(*arguments, **arrays):
        calls.append(1)
        if len(calls) == 4:  # the checkpoint of the second epoch
            raise OSError(errno.ENOSPC, "No space left on device")
        original(*arguments, **arrays)

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OutputError, match=r"No space left on device; make room.*goes on"):
        runs.train(data, tmp_path / "run", deterministic=True)
    monkeypatch.undo()
    assert runs.train(data, tmp_path / "run", deterministic=True).validation == whole.validation


def test_a_damaged_checkpoint_gives_way_to_the_one_before(data, tmp_path):
    runs.train(data, tmp_path / "run", deterministic=True)
    want = runs.last_variables(tmp_path / "run")
    path = runs.last_checkpoint(tmp_path / "run") / "variables.npz"
    path.write_bytes(path.read_bytes()[:-500])
    assert runs.train(data, tmp_path / "run", deterministic=True).epochs == 3
    for one, other in zip(want, runs.last_variables(tmp_path / "run"), strict=True):
        np.testing.assert_array_equal(one, other)
    for folder in (tmp_path / "run" / "checkpoints").iterdir():
        (folder / "state.json").write_text("{")
    with pytest.raises(TrainingError, match="no checkpoint can be read; delete them"):
        runs.train(data, tmp_path / "run", deterministic=True)


def test_one_run_per_workdir(data, tmp_path):
    from training.run_state import locked

    with (
        locked(str(tmp_path / "run")),
        pytest.raises(OutputError, match="another training run is using"),
    ):
        runs.train(data, tmp_path / "run")
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot use"):
        runs.train(data, tmp_path / "file" / "run")


def test_checkpoints_refuse_another_models_arrays(data, tmp_path):
    runs.train(data, tmp_path / "run", epochs=1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    best = json.loads((tmp_path / "run" / "best.json").read_text())["file"]
    with pytest.raises(TrainingError, match="variables, the model has 2"):
        checkpoints.load_weights(str(tmp_path / "run" / best), model)


@pytest.mark.parametrize("precision", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_and_xla_train_on_a_cpu_too(data, tmp_path, precision):
    # In a process of its own: determinism, which other tests switch on, forbids XLA.
    options = {"precision": precision, "xla": "on", "epochs": 1, "batch_size": 18}
    runs.finish(runs.start(data, tmp_path / "run", **options))
    (row,) = csv.DictReader((tmp_path / "run" / "log.csv").open())
    assert math.isfinite(float(row["validation_loss"]))
    assert float(row["loss"]) < 3


def test_class_weights_balance_the_classes(data):
    config = TrainConfig(str(data), class_weights="balanced")
    info = open_dataset(str(data))
    assert class_weights(config, info) == [1.0, 1.0, 1.0]
    info.split("train").classes.update(angry=18, happy=6, sad=0)
    assert class_weights(config, info) == pytest.approx([24 / 36, 2.0, 0.0])


def test_every_epoch_sees_every_example_once(data, tmp_path, monkeypatch):
    counted = []
    original = steps.Learner.train_step

    def counting(self, batch, *rest):
        counted.append(int(tf.reduce_sum(batch["weight"])))
        return original.__get__(self, type(self))(batch, *rest)

    monkeypatch.setattr(steps.Learner, "train_step", counting)
    runs.train(data, tmp_path / "run", epochs=2)
    assert counted == [10, 10, 10, 6] * 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"dropout": 1.0}, "dropout must be 0 to under 1"),
        ({"precision": "half"}, "precision must be one of auto"),
        ({"monitor": "f1"}, "monitor must be one of"),
        ({"learning_rate": 0.0}, "learning_rate must be over 0"),
        ({"optimizer": "magic"}, "optimizer must be one of adam"),
        ({"augment": "fly"}, "augment must be auto, none, or names of flip"),
        ({"model": "alexnet"}, "model must be auto or one of convnext_small, conv"),
        ({"model": "convnext_tiny"}, "model 'convnext_tiny' for images of .12, 16, 1"),
        ({"devices": ("GPU:7",)}, "device 'GPU:7' is not here; there are .*CPU:0"),
        ({"weights": "/nowhere.h5"}, "model 'small_cnn'.*nowhere"),
    ],
)
def test_wrong_options_are_explained(data, tmp_path, options, message):
    with pytest.raises(UsageError, match=message):
        runs.train(data, tmp_path / "run", **options)


def test_a_log_that_cannot_be_written_is_named(data, tmp_path):
    workdir = tmp_path / "run"
    workdir.mkdir()
    (workdir / "log.csv.part").mkdir()  # something is in the way
    with pytest.raises(OutputError, match=r"cannot write .*log.csv"):
        runs.train(data, workdir)
    (workdir / "tensorboard").write_text("")
    (workdir / "log.csv.part").rmdir()
    with pytest.raises(OutputError, match=r"cannot write .*tensorboard"):
        runs.train(data, workdir, tensorboard=True)
