"""Checkpoints: all variables and the state of a run, written whole or not at all."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import shutil
import zipfile
from collections.abc import Sequence

import keras
import numpy as np

from beam_pipeline.errors import OutputError, TrainingError

logger = logging.getLogger(__name__)

_DIRECTORY = "checkpoints"
_NAME = re.compile(r"step-(\d{9})")
_KEEP = 2  # the newest, and one more should the newest be unreadable


class Checkpoints:
    """The checkpoints of a working directory.

    A checkpoint is a folder `checkpoints/step-000000120` with `variables.npz` (every
    array bit by bit) and `state.json`. It is written beside its place and renamed, so
    that a killed process leaves either all of it or nothing.
    """

    def __init__(self, workdir: str):
        self._directory = os.path.join(workdir, _DIRECTORY)

    def save(self, step: int, variables: Sequence[np.ndarray], state: dict[str, object]) -> None:
        """Writes a checkpoint and drops the oldest; OutputError when the disk is full."""
        path = os.path.join(self._directory, f"step-{step:09d}")
        mine = f"{path}.part"
        try:
            shutil.rmtree(mine, ignore_errors=True)
            os.makedirs(mine)
            write_arrays(os.path.join(mine, "variables.npz"), variables)
            with open(os.path.join(mine, "state.json"), "w", encoding="utf-8") as stream:
                json.dump(state, stream, indent=1)
                stream.flush()
                os.fsync(stream.fileno())
            shutil.rmtree(path, ignore_errors=True)
            os.rename(mine, path)
            _sync_directory(self._directory)
        except OSError as error:
            shutil.rmtree(mine, ignore_errors=True)
            raise cannot_write(path, error) from error
        for old in self._steps()[:-_KEEP]:
            shutil.rmtree(os.path.join(self._directory, f"step-{old:09d}"), ignore_errors=True)

    def load(self) -> tuple[list[np.ndarray], dict] | None:
        """The newest readable checkpoint as (arrays, state), or None when there is none.

        Raises:
          TrainingError: there are checkpoints, and none can be read.
        """
        steps = self._steps()
        problems = []
        for step in reversed(steps):
            path = os.path.join(self._directory, f"step-{step:09d}")
            try:
                with open(os.path.join(path, "state.json"), encoding="utf-8") as stream:
                    state = json.load(stream)
                return read_arrays(os.path.join(path, "variables.npz")), state
            except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
                problems.append(f"{path}: {type(error).__name__}: {error}")
                logger.warning("unreadable checkpoint %s", problems[-1])
        if problems:
            raise TrainingError(
                "no checkpoint can be read; delete them to start anew:\n  " + "\n  ".join(problems)
            )
        return None

    def _steps(self) -> list[int]:
        if not os.path.isdir(self._directory):
            return []
        matches = (_NAME.fullmatch(name) for name in os.listdir(self._directory))
        return sorted(int(match[1]) for match in matches if match)


def write_arrays(path: str, arrays: Sequence[np.ndarray]) -> None:
    """Writes arrays in their order, and waits until they are on disk."""
    with open(path, "wb") as stream:
        named = {f"{number:05d}": array for number, array in enumerate(arrays)}
        np.savez(stream, **named)  # type: ignore[arg-type]
        stream.flush()
        os.fsync(stream.fileno())


def read_arrays(path: str) -> list[np.ndarray]:
    """The arrays of write_arrays."""
    with np.load(path) as stored:
        return [stored[f"{number:05d}"] for number in range(len(stored.files))]


def save_weights(path: str, model: keras.Model) -> None:
    """Writes the weights of `model`, whole or not at all; OutputError when that fails."""
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        write_arrays(f"{path}.part", values_of(model.weights))
        os.replace(f"{path}.part", path)
    except OSError as error:
        raise cannot_write(path, error) from error


def load_weights(path: str, model: keras.Model) -> None:
    """Puts the weights that save_weights wrote into `model`."""
    try:
        arrays = read_arrays(path)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise TrainingError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
    assign(model.weights, arrays, path)


def values_of(variables: Sequence[keras.Variable]) -> list[np.ndarray]:
    """The values of `variables`; of mirrored ones the first device's."""
    return [np.asarray(variable) for variable in variables]


def assign(variables: Sequence[keras.Variable], arrays: Sequence[np.ndarray], path: str) -> None:
    """Sets `variables`; TrainingError when number or shapes do not agree."""
    if len(variables) != len(arrays):
        raise TrainingError(
            f"{path} holds {len(arrays)} variables, the model has {len(variables)}: "
            "it was written by another version or another model"
        )
    for variable, array in zip(variables, arrays, strict=True):
        if tuple(variable.shape) != array.shape:
            raise TrainingError(
                f"{path}: {variable.path} has shape {tuple(variable.shape)}, stored is "
                f"{array.shape}: it was written by another version or another model"
            )
        variable.assign(array)


def cannot_write(path: str, error: OSError) -> OutputError:
    """An OutputError for a failed write below the working directory."""
    remedy = ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = "; make room, then run the same command: it goes on from the last checkpoint"
    return OutputError(f"cannot write {path}: {error.strerror or error}{remedy}")


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
