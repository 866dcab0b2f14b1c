"""Starts training runs for tests: in this process, in another, or in several."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import keras
import numpy as np

from training.config import TrainConfig
from training.models import ModelSpec, register
from training.train import TrainResult, train_and_evaluate

TINY = {
    "model": "small_cnn",
    "width": 0.1,
    "batch_size": 10,
    "epochs": 3,
    "tensorboard": False,
    "warmup_epochs": 0.5,
}


@register("test_linear")
def linear(spec: ModelSpec) -> keras.Model:
    """No batch statistics: one device and several must then compute the same."""
    inputs = keras.Input(spec.input_shape)
    x = keras.layers.Rescaling(1 / 127.5, offset=-1)(inputs)
    x = keras.layers.Flatten()(x)
    return keras.Model(inputs, keras.layers.Dense(spec.classes)(x))


def train(dataset, workdir, **options) -> TrainResult:
    return train_and_evaluate(
        TrainConfig(str(dataset), **{**TINY, **options}), str(workdir), quiet=True
    )


def best_weights(workdir) -> list[np.ndarray]:
    best = json.loads((pathlib.Path(workdir) / "best.json").read_text())
    with np.load(pathlib.Path(workdir) / best["file"]) as stored:
        return [stored[name] for name in stored.files]


def last_checkpoint(workdir) -> pathlib.Path:
    return max((pathlib.Path(workdir) / "checkpoints").iterdir())


def last_variables(workdir) -> list[np.ndarray]:
    with np.load(last_checkpoint(workdir) / "variables.npz") as stored:
        return [stored[name] for name in stored.files]


def start(dataset, workdir, *, cpus: int = 1, environment=None, **options) -> subprocess.Popen:
    """Starts a run in a process of its own, with `cpus` logical devices."""
    program = (
        "import json, sys, tensorflow as tf\n"
        "arguments = json.loads(sys.argv[1])\n"
        "cpu = tf.config.list_physical_devices('CPU')[0]\n"
        "parts = [tf.config.LogicalDeviceConfiguration()] * arguments['cpus']\n"
        "if len(parts) > 1: tf.config.set_logical_device_configuration(cpu, parts)\n"
        "from tests.training import runs\n"
        "options = arguments['options']\n"
        "options['devices'] = tuple(options.get('devices', ()))\n"
        "runs.train(arguments['dataset'], arguments['workdir'], **options)\n"
    )
    arguments = {
        "dataset": str(dataset),
        "workdir": str(workdir),
        "cpus": cpus,
        "options": options,
    }
    root = pathlib.Path(__file__).parents[2]
    return subprocess.Popen(
        [sys.executable, "-c", program, json.dumps(arguments)],
        cwd=root,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **(environment or {})},
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen) -> None:
    """Waits for a run; its errors become an assertion."""
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors[-3000:]


def kill_when(process: subprocess.Popen, condition) -> None:
    """Sends SIGKILL once `condition()` holds."""
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, process.stderr.read()[-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stderr.close()
