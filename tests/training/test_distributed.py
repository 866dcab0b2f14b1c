"""Several devices, and several processes, compute what one device computes."""

import csv
import json
import socket

import numpy as np
import pytest

from tests.training import runs
from tests.training.datasets import write_dataset

# A model without batch statistics and noise: every way of dealing examples must agree.
SAME = {
    "model": "test_linear",
    "augment": "none",
    "dropout": 0.0,
    "batch_size": 16,
    "epochs": 2,
    "optimizer": "sgd",
    "learning_rate": 0.01,
    "clip_norm": 0.05,
    "class_weights": "balanced",
}
# 35 examples: the last batch holds 3, one device of two gets only repeated examples.
SPLITS = {"train": 35, "validation": 13}


def rows(workdir):
    with open(workdir / "log.csv") as stream:
        return list(csv.DictReader(stream))


def assert_same_run(one, other):
    for a, b in zip(runs.best_weights(one), runs.best_weights(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    for a, b in zip(rows(one), rows(other), strict=True):
        for name in ("loss", "accuracy", "validation_loss", "validation_accuracy"):
            assert float(a[name]) == pytest.approx(float(b[name]), rel=1e-4), name


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("data"), splits=SPLITS, shards=1)


@pytest.fixture(scope="module")
def single(data, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("single")
    runs.train(data, workdir, **SAME)
    return workdir


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def start_cluster(data, workdir, workers=2, **options):
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(workers)]}
    return [
        runs.start(
            data,
            workdir,
            environment={
                "TF_CONFIG": json.dumps(
                    {"cluster": cluster, "task": {"type": "worker", "index": index}}
                )
            },
            **options,
        )
        for index in range(workers)
    ]


def test_two_devices_train_like_one(data, single, tmp_path):
    devices = ["CPU:0", "CPU:1"]
    runs.finish(runs.start(data, tmp_path, cpus=2, devices=devices, **SAME))
    assert_same_run(single, tmp_path)


def test_the_small_cnn_trains_on_two_devices_and_resumes(data, tmp_path):
    # Dropout, batch statistics and averaged weights on mirrored variables.
    options = {"devices": ["CPU:0", "CPU:1"], "batch_size": 16, "epochs": 15, "cpus": 2}
    log = tmp_path / "log.csv"
    process = runs.start(data, tmp_path, **options)
    runs.kill_when(process, lambda: log.exists() and len(log.read_text().splitlines()) > 2)
    done = len(log.read_text().splitlines()) - 1
    assert done < 15
    runs.finish(runs.start(data, tmp_path, **options))
    assert [int(row["epoch"]) for row in rows(tmp_path)] == list(range(1, 16))
    assert float(rows(tmp_path)[-1]["loss"]) < float(rows(tmp_path)[0]["loss"])


def test_two_workers_train_like_one(data, single, tmp_path):
    # One shard, two workers: they share its records.
    for process in start_cluster(data, tmp_path, **SAME):
        runs.finish(process)
    assert_same_validation(single, tmp_path)


def assert_same_validation(single, workdir):
    """Workers deal examples to batches in their own way; every example still counts once."""
    for a, b in zip(rows(single), rows(workdir), strict=True):
        assert a["step"] == b["step"]
        assert float(a["loss"]) == pytest.approx(float(b["loss"]), rel=0.2)
        shown = float(b["validation_accuracy"]) * SPLITS["validation"]
        assert shown == pytest.approx(round(shown), abs=1e-3)


def test_two_workers_resume_after_both_are_killed(data, tmp_path):
    options = {**SAME, "epochs": 40, "checkpoint_steps": 2}
    log = tmp_path / "log.csv"
    first, second = start_cluster(data, tmp_path, **options)
    runs.kill_when(first, lambda: log.exists() and len(log.read_text().splitlines()) > 2)
    runs.kill_when(second, lambda: True)
    assert len(log.read_text().splitlines()) < 41
    for process in start_cluster(data, tmp_path, **options):
        runs.finish(process)
    assert [int(row["epoch"]) for row in rows(tmp_path)] == list(range(1, 41))


def test_workers_without_a_common_directory_are_stopped(data, tmp_path):
    for process in start_cluster(data, tmp_path / "common", **SAME):
        runs.finish(process)
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(2)]}
    processes = [
        runs.start(
            data,
            tmp_path / name,
            environment={
                "TF_CONFIG": json.dumps(
                    {"cluster": cluster, "task": {"type": "worker", "index": index}}
                )
            },
            **SAME,
        )
        for index, name in enumerate(("common", "elsewhere"))
    ]
    errors = [process.communicate(timeout=300)[1] for process in processes]
    assert all(process.returncode for process in processes)
    assert any("the workers found different checkpoints" in error for error in errors)
