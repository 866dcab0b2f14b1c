"""train_and_evaluate: the training loop, resumable after any step that was saved.

The loop is written out instead of using keras.Model.fit: a run must be able to go on
from the middle of an epoch with the same order, schedule and early-stopping state, the
wait for input must be measured at each step, and the last partial batch must count right
on any number of devices. In one plain loop all three are a few lines.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import time
from collections.abc import Iterator

import keras
import numpy as np
import tensorflow as tf

from beam_pipeline.dataset_info import DatasetInfo
from beam_pipeline.errors import DatasetError, TrainingError
from training import devices, run_setup
from training.augment import parse_augment
from training.config import TrainConfig, check_same_run
from training.feeding import Feed
from training.models import resolve_name
from training.optimizers import WarmupCosine, usual_rate
from training.read_options import ReadOptions
from training.run_state import RunFiles, locked
from training.scores import Scores
from training.shards import open_dataset
from training.steps import Learner
from training.target import ImageTarget, target_for
from training.train_log import EpochLog, Events, ProgressLine, StepClock
from training.trained import ModelCard

# A device that answers within this time had finished before it was asked.
_READY_SECONDS = 0.0005


@dataclasses.dataclass(frozen=True)
class TrainResult:
    """How a run ended.

    Attributes:
      workdir: where everything is.
      epochs: finished epochs.
      stopped_early: whether patience ended it.
      best_epoch: 1-based; the epoch whose weights were kept.
      validation: scores of the best epoch, or None without validation.
      log: one row per epoch; see log.csv.
    """

    workdir: str
    epochs: int
    stopped_early: bool
    best_epoch: int
    validation: dict[str, float] | None
    log: list[dict[str, float]]


def train_and_evaluate(config: TrainConfig, workdir: str, *, quiet: bool = False) -> TrainResult:
    """Trains a model on a dataset, or goes on with the run that `workdir` holds.

    Every finished epoch (and every `checkpoint_steps` steps) is saved whole; killed at any
    moment and called again with the same configuration, a run continues from there with
    the same order, schedule, best epoch and patience. With `deterministic` on a CPU the
    final weights are then bit-equal to those of a run that was never interrupted.

    Args:
      config: of the run.
      workdir: a directory for checkpoints, logs and the best weights.
      quiet: no progress on standard error.

    Raises:
      UsageError: an option is wrong, or `workdir` holds a run with other options.
      DatasetError: the dataset is damaged, has no labels, or changed since the run began.
      TrainingError: the loss is not a number any more, or no checkpoint can be read.
      OutputError: `workdir` cannot be written (disk full), or another run uses it.
    """
    parse_augment(config.augment)
    usual_rate(config.optimizer)
    hardware, strategy = devices.set_up(config.devices)
    chief = devices.is_chief(strategy)
    splits = [config.train_split]
    info = open_dataset(config.dataset, splits=splits, check="size", cache_dir=config.cache_dir)
    validation = run_setup.validation_split(config, info)
    splits += [validation] if validation else []
    info = open_dataset(
        config.dataset, splits=splits, check=config.check, cache_dir=config.cache_dir
    )
    if info.labels is None:
        raise DatasetError(f"{config.dataset} has no labels: there is nothing to learn")
    previous = keras.config.dtype_policy()
    with locked(workdir) if chief else contextlib.nullcontext():
        check_same_run(config, workdir)
        try:
            keras.utils.set_random_seed(config.seed)
            if config.deterministic:
                tf.config.experimental.enable_op_determinism()
            keras.config.set_dtype_policy(devices.choose_precision(config.precision, hardware))
            with strategy.scope():
                run = _Run(config, workdir, info, validation, hardware, strategy, quiet)
                return run.finish()
        finally:
            keras.config.set_dtype_policy(previous)


class _Run:
    """One run in one process: everything between opening the dataset and the result."""

    def __init__(
        self,
        config: TrainConfig,
        workdir: str,
        info: DatasetInfo,
        validation: str | None,
        hardware: devices.Hardware,
        strategy: tf.distribute.Strategy,
        quiet: bool,
    ):
        self._config = config
        self._workdir = workdir
        self._info = info
        self._writes = devices.is_chief(strategy)
        self._compiled = False
        self._line = ProgressLine(quiet=quiet or not self._writes)
        target = target_for(
            info,
            image_size=config.image_size,
            channels=config.channels,
            resize_mode=config.resize_mode,
        )
        card = ModelCard(
            model=resolve_name(config.model, target.size),
            input_shape=target.shape,
            labels=tuple(info.labels or ()),
            resize_mode=config.resize_mode,
            kept=target.kept,
            dropout=config.dropout,
            width=config.width,
            dataset=info.name,
            fingerprint=info.fingerprint,
        )
        self._files = RunFiles(workdir, card, self._writes)
        # XLA has no deterministic form of some gradients.
        xla = devices.choose_xla(config.xla, hardware) and not config.deterministic
        self._learner = Learner(
            config,
            card.model,
            dataclasses.replace(card.spec, weights=config.weights),
            run_setup.class_weights(config, info),
            strategy,
            xla,
        )

        def feed(split: str, target: ImageTarget, cache: str) -> Feed:
            options = ReadOptions(
                cache=cache,
                cache_dir=config.cache_dir,
                threads=config.threads,
                ram_budget=config.ram_budget,
            )
            return Feed(
                info,
                split,
                target,
                batch_size=config.batch_size,
                seed=config.seed,
                options=options,
                hardware=hardware,
                strategy=strategy,
            )

        train_target = dataclasses.replace(target, random_crop=config.random_crop)
        self._train = feed(config.train_split, train_target, config.cache)
        self._validation = feed(validation, target, "auto") if validation else None
        self._schedule = WarmupCosine(
            config.learning_rate or usual_rate(config.optimizer),
            round(config.warmup_epochs * self._train.steps),
            config.epochs * self._train.steps,
        )
        self._state = self._files.restore(self._learner)
        run_setup.check_workers_agree(self._state.step, workdir, strategy)
        self._files.begin(config)
        self._line.say(
            f"{card.model}, {self._learner.model.count_params():,} weights, images of "
            f"{'×'.join(map(str, target.shape))}; "
            f"{info.split(config.train_split).records:,} to train on"
            + (f", {info.split(validation).records:,} to validate" if validation else "")
            + f"; {', '.join(hardware.devices)}"
            + (f", {hardware.workers} workers" if hardware.workers > 1 else "")
            + f", {keras.config.dtype_policy().name}{', XLA' if xla else ''}, "
            f"cache {self._train.cache}"
        )

    def finish(self) -> TrainResult:
        """Trains what is left to train."""
        config, state = self._config, self._state
        log = EpochLog(self._workdir, state.rows) if self._writes else None
        if state.step:
            self._line.say(
                f"going on after {state.epoch} epochs"
                + (f" and {state.step_in_epoch} steps" if state.step_in_epoch else "")
                + (": nothing is left to do" if self._is_over() else "")
            )
        if not self._is_over():
            events = None
            if config.tensorboard and self._writes:
                events = Events(os.path.join(self._workdir, "tensorboard"), state.step)
            batches = self._train.training(state.epoch, config.epochs, state.step_in_epoch)
            while not self._is_over():
                row = self._epoch(batches)
                state.rows.append(row)
                if state.judge(self._value(row), config.patience):
                    self._files.save_best(self._learner, state)
                state.epoch, state.step_in_epoch, state.sums = state.epoch + 1, 0, [0.0] * 3
                self._files.save(self._learner, state)
                if log:
                    log.add(row)
                if events:
                    events.scalars(state.step, {k: v for k, v in row.items() if k != "epoch"})
                self._line.say(self._describe(row))
            if events:
                events.close()
        return TrainResult(
            workdir=self._workdir,
            epochs=state.epoch,
            stopped_early=state.stopped,
            best_epoch=state.best_epoch,
            validation=state.best_scores(),
            log=state.rows,
        )

    def _epoch(self, batches: Iterator) -> dict[str, float]:
        """Trains to the end of the epoch and validates; returns the log's row."""
        state = self._state
        clock, pending = StepClock(), None
        for step in range(state.step_in_epoch, self._train.steps):
            asked = time.perf_counter()
            batch = self._next(batches)
            arrived = time.perf_counter()
            # One step is in flight at most: the device works while the next batch comes.
            # Only where it had finished before the batch was there, time was lost.
            if pending is not None:
                self._count(pending)
            if time.perf_counter() - arrived < _READY_SECONDS:
                clock.waited += arrived - asked
            rate = self._schedule.rate(state.step)
            pending = self._learner.train_step(
                batch, tf.constant(state.step, tf.int64), tf.constant(rate, tf.float32)
            )
            state.step += 1
            state.step_in_epoch = step + 1
            clock.images += self._config.batch_size
            saves = self._saves_now()
            if saves or not self._compiled:
                self._count(pending)
                pending = None
            if not self._compiled:  # a process's first step compiles: no part of the speed
                self._compiled = True
                clock = StepClock()
            if saves:
                self._files.save(self._learner, state)
            self._line.show(
                f"epoch {state.epoch + 1}/{self._config.epochs}, step {step + 1}/"
                f"{self._train.steps}, loss {state.sums[0] / max(state.sums[2], 1):.4f}, "
                f"{clock.rate:,.0f} images/s, waiting for input {clock.input_share:.0%}"
            )
        if pending is not None:
            self._count(pending)
        speed = {
            "seconds": clock.seconds,
            "images_per_s": clock.rate,
            "input_wait": clock.input_share,
        }
        row: dict[str, float] = {
            "epoch": state.epoch + 1,
            "step": state.step,
            "learning_rate": self._schedule.rate(state.step - 1),
            "loss": state.sums[0] / state.sums[2],
            "accuracy": state.sums[1] / state.sums[2],
        }
        if self._validation is not None:
            scores = self._score(self._validation)
            row["validation_loss"] = scores.loss
            row["validation_accuracy"] = scores.accuracy
            row["validation_macro_f1"] = scores.macro_f1
        return {**row, **speed}

    def _saves_now(self) -> bool:
        """Whether a checkpoint is due after this step (the epoch's last one has its own)."""
        every, state = self._config.checkpoint_steps, self._state
        return every > 0 and state.step % every == 0 and state.step_in_epoch < self._train.steps

    def _next(self, batches: Iterator) -> dict[str, tf.Tensor]:
        try:
            return next(batches)
        except StopIteration:
            raise DatasetError(
                f"{self._info.directory}: split {self._config.train_split!r} ended after "
                f"{self._state.step_in_epoch} of {self._train.steps} steps: the shards hold fewer "
                "records than conversion.json says"
            ) from None

    def _count(self, sums: tf.Tensor) -> None:
        """Adds a step's sums to the epoch's; waits for the device."""
        values = [float(value) for value in sums.numpy()]
        if not math.isfinite(values[0]):
            raise TrainingError(
                f"the loss became {values[0]} in epoch {self._state.epoch + 1}, step "
                f"{self._state.step_in_epoch}; checkpoints of earlier epochs are kept. Try a lower "
                "--learning_rate, or --clip_norm"
            )
        self._state.sums = [a + b for a, b in zip(self._state.sums, values, strict=True)]

    def _score(self, feed: Feed) -> Scores:
        """Scores a split with the evaluated weights."""
        classes = len(self._info.labels or ())
        loss, confusion = 0.0, np.zeros((classes, classes))
        for batch in feed.stored():
            batch_loss, batch_confusion = self._learner.evaluation_step(batch)
            loss += float(batch_loss)
            confusion += batch_confusion.numpy()
        counts = np.rint(confusion).astype(np.int64)
        return Scores(loss / max(int(counts.sum()), 1), counts)

    def _value(self, row: dict[str, float]) -> list[float]:
        """What epochs are compared by; larger is better."""
        if self._validation is None:
            return [row["epoch"]]  # the last one
        if self._config.monitor == "loss":
            return [-row["validation_loss"]]
        # Of two epochs with equal accuracy, the one with the smaller loss.
        return [row["validation_accuracy"], -row["validation_loss"]]

    def _is_over(self) -> bool:
        return self._state.stopped or self._state.epoch >= self._config.epochs

    def _describe(self, row: dict[str, float]) -> str:
        text = (
            f"epoch {int(row['epoch'])}/{self._config.epochs}: loss {row['loss']:.4f}, "
            f"accuracy {row['accuracy']:.1%}; "
        )
        if self._validation is not None:
            text += (
                f"validation loss {row['validation_loss']:.4f}, "
                f"accuracy {row['validation_accuracy']:.1%}; "
            )
        text += f"{row['images_per_s']:,.0f} images/s, waiting for input {row['input_wait']:.1%}"
        if self._validation is not None and self._state.best_epoch == row["epoch"]:
            text += "; best so far"
        if self._state.stopped:
            text += f"; no better for {self._state.bad_epochs} epochs: stopping"
        return text
