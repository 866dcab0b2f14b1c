"""Where a run is, and what it keeps in its working directory: checkpoints, best weights, lock."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
from collections.abc import Iterator

from beam_pipeline.errors import DatasetError, OutputError
from training import checkpoints
from training.checkpoints import Checkpoints
from training.config import CONFIG_FILE, TrainConfig
from training.steps import Learner
from training.train_log import write_json
from training.trained import BEST_FILE, ModelCard, best_path


@dataclasses.dataclass
class RunState:
    """Where a run is: what a checkpoint holds beside the variables.

    Attributes:
      step: steps taken in all.
      epoch: finished epochs.
      step_in_epoch: steps taken in the epoch that is not finished.
      sums: summed loss, right answers and examples of that epoch.
      best: `epoch` (1-based) and `value` of the best epoch; empty before the first.
      bad_epochs: finished epochs since the best one.
      stopped: whether patience ended the run.
      rows: the log so far.
    """

    step: int = 0
    epoch: int = 0
    step_in_epoch: int = 0
    sums: list[float] = dataclasses.field(default_factory=lambda: [0.0] * 3)
    best: dict = dataclasses.field(default_factory=dict)
    bad_epochs: int = 0
    stopped: bool = False
    rows: list[dict[str, float]] = dataclasses.field(default_factory=list)

    @property
    def best_epoch(self) -> int:
        """1-based; 0 before the first epoch has finished."""
        return int(self.best.get("epoch", 0))

    def best_scores(self) -> dict[str, float] | None:
        """Validation scores of the best epoch, or None without validation."""
        row = self.rows[self.best_epoch - 1]
        prefix = "validation_"
        scores = {k.removeprefix(prefix): v for k, v in row.items() if k.startswith(prefix)}
        return scores or None

    def judge(self, value: list[float], patience: int) -> bool:
        """Takes note of an epoch's value (larger is better); whether it is the best so far."""
        if not self.best or value > self.best["value"]:
            self.best = {"epoch": int(self.rows[-1]["epoch"]), "value": value}
            self.bad_epochs = 0
            return True
        self.bad_epochs += 1
        self.stopped = 0 < patience <= self.bad_epochs
        return False


class RunFiles:
    """Saves and restores a run in its working directory.

    Args:
      workdir: the directory.
      card: what is trained, on what.
      writes: whether this process is the one that writes.
    """

    def __init__(self, workdir: str, card: ModelCard, writes: bool):
        self._workdir = workdir
        self._card = card
        self._writes = writes
        self._checkpoints = Checkpoints(workdir)
        path = os.path.join(workdir, ModelCard.FILE)
        if os.path.exists(path):
            self._check_same_data(ModelCard.read(workdir).fingerprint)

    def begin(self, config: TrainConfig) -> None:
        """Marks the directory as this run's; only once nothing is wrong with its options."""
        if self._writes:
            write_json(os.path.join(self._workdir, ModelCard.FILE), self._card.to_json())
            write_json(os.path.join(self._workdir, CONFIG_FILE), config.to_json())

    def restore(self, learner: Learner) -> RunState:
        """Puts the newest checkpoint into `learner`; a fresh state when there is none."""
        loaded = self._checkpoints.load()
        if loaded is None:
            return RunState()
        arrays, stored = loaded
        self._check_same_data(stored.pop("fingerprint"))
        state = RunState(**stored)
        learner.load(arrays, self._workdir)
        if state.best:
            self._write_best(state)
        return state

    def save(self, learner: Learner, state: RunState) -> None:
        """Writes a checkpoint, and points best.json at the best weights."""
        if not self._writes:
            return
        values = checkpoints.values_of(learner.variables)
        about = {**dataclasses.asdict(state), "fingerprint": self._card.fingerprint}
        self._checkpoints.save(state.step, values, about)
        if state.best:
            self._write_best(state)

    def save_best(self, learner: Learner, state: RunState) -> None:
        """Writes the weights of the epoch that has just become the best."""
        if self._writes:
            checkpoints.save_weights(best_path(self._workdir, state.best_epoch), learner.evaluated)

    def _write_best(self, state: RunState) -> None:
        """Points best.json at the best weights, and drops those that were best before."""
        if not self._writes:
            return
        path = best_path(self._workdir, state.best_epoch)
        about = {
            "epoch": state.best_epoch,
            "file": os.path.relpath(path, self._workdir),
            "scores": state.best_scores(),
        }
        write_json(os.path.join(self._workdir, BEST_FILE), about)
        folder = os.path.dirname(path)
        for name in os.listdir(folder):
            if name != os.path.basename(path):
                os.unlink(os.path.join(folder, name))

    def _check_same_data(self, fingerprint: str) -> None:
        if fingerprint != self._card.fingerprint:
            raise DatasetError(
                f"dataset {self._card.dataset!r} changed since the run in {self._workdir} began "
                f"(fingerprint {self._card.fingerprint[:12]}…, then {fingerprint[:12]}…): use "
                "another --workdir"
            )


@contextlib.contextmanager
def locked(workdir: str) -> Iterator[None]:
    """Makes `workdir` and holds it; OutputError when it cannot be made or is in use."""
    with contextlib.ExitStack() as stack:
        try:
            os.makedirs(workdir, exist_ok=True)
            stream = stack.enter_context(open(os.path.join(workdir, ".lock"), "w"))
        except OSError as error:
            raise OutputError(f"cannot use {workdir}: {error}") from error
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise OutputError(f"another training run is using {workdir}") from None
        yield
