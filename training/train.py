"""train_and_evaluate: the training loop, resumable after any step that was saved.

The loop is written out instead of using keras.Model.fit: a run must be able to go on
from the middle of an epoch with the same order, schedule and early-stopping state, the
wait for input must be measured at each step, and the last partial batch must count right
on any number of devices. In one plain loop all three are a few lines.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import logging
import math
import os
import time
from collections.abc import Iterator

import keras
import numpy as np
import tensorflow as tf

from beam_pipeline.dataset_info import DatasetInfo
from beam_pipeline.errors import DatasetError, OutputError, TrainingError, UsageError
from training import checkpoints, devices
from training.augment import parse_augment
from training.checkpoints import Checkpoints
from training.config import CONFIG_FILE, TrainConfig, check_same_run
from training.decode import ImageTarget, target_for
from training.faults import explain_reading_error
from training.input_pipeline import ReadOptions, SplitReader
from training.models import ModelSpec, resolve_name
from training.optimizers import WarmupCosine, usual_rate
from training.scores import Scores
from training.shards import open_dataset
from training.steps import Learner
from training.train_log import EpochLog, Events, ProgressLine, StepClock, write_json
from training.trained import BEST_FILE, ModelCard, best_path

logger = logging.getLogger(__name__)

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
    validation = _validation_split(config, info)
    splits += [validation] if validation else []
    info = open_dataset(
        config.dataset, splits=splits, check=config.check, cache_dir=config.cache_dir
    )
    if info.labels is None:
        raise DatasetError(f"{config.dataset} has no labels: there is nothing to learn")
    previous = keras.config.dtype_policy()
    with _locked_workdir(workdir) if chief else contextlib.nullcontext():
        resumed = check_same_run(config, workdir)
        if chief and not resumed:
            write_json(os.path.join(workdir, CONFIG_FILE), config.to_json())
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
        self._validation = validation
        self._hardware = hardware
        self._strategy = strategy
        self._chief = devices.is_chief(strategy)
        self._line = ProgressLine(quiet=quiet or not self._chief)
        self._checkpoints = Checkpoints(workdir)
        labels = info.labels or ()
        target = target_for(
            info,
            image_size=config.image_size,
            channels=config.channels,
            resize_mode=config.resize_mode,
        )
        self._train_target = dataclasses.replace(target, random_crop=config.random_crop)
        self._target = target
        name = resolve_name(config.model, target.size)
        spec = ModelSpec(target.shape, len(labels), config.dropout, config.width, config.weights)
        xla = devices.choose_xla(config.xla, hardware)
        self._card = ModelCard(
            model=name,
            input_shape=target.shape,
            labels=tuple(labels),
            resize_mode=config.resize_mode,
            dropout=config.dropout,
            width=config.width,
            dataset=info.name,
            fingerprint=info.fingerprint,
        )
        self._check_dataset()
        self._learner = Learner(config, name, spec, _class_weights(config, info), strategy, xla)
        self._reader, self._batches = self._prepare(config.train_split, self._train_target)
        self._steps = self._reader.steps
        self._scored = self._prepare(validation, target) if validation else None
        self._schedule = WarmupCosine(
            config.learning_rate or usual_rate(config.optimizer),
            round(config.warmup_epochs * self._steps),
            config.epochs * self._steps,
        )
        self._state = self._restore()
        policy = keras.config.dtype_policy().name
        count = self._learner.model.count_params()
        self._line.say(
            f"{name}, {count:,} weights, images of {'×'.join(map(str, target.shape))}; "
            f"{info.split(config.train_split).records:,} to train on"
            + (f", {info.split(validation).records:,} to validate" if validation else "")
            + f"; {', '.join(hardware.devices)}"
            + (f" × {hardware.workers} workers" if hardware.workers > 1 else "")
            + f", {policy}{', XLA' if xla else ''}, cache {self._reader.cache}"
        )

    def finish(self) -> TrainResult:
        """Trains what is left to train."""
        config, state = self._config, self._state
        log = EpochLog(self._workdir, state.rows) if self._chief else None
        events = None
        if config.tensorboard and self._chief and not state.stopped:
            events = Events(os.path.join(self._workdir, "tensorboard"), state.step)
        if state.epoch or state.step_in_epoch:
            self._line.say(
                f"going on after epoch {state.epoch}"
                + (f" and {state.step_in_epoch} steps" if state.step_in_epoch else "")
                + (": this run is finished" if self._is_over() else "")
            )
        if not self._is_over():
            iterator = iter(self._batches(state.epoch, config.epochs, state.step_in_epoch))
            while not self._is_over():
                row = self._epoch(iterator, events)
                state.rows.append(row)
                self._judge(row)
                state.epoch, state.step_in_epoch, state.sums = state.epoch + 1, 0, [0.0] * 3
                self._save()
                if log:
                    log.add(row)
                if events:
                    events.scalars(state.step, {k: v for k, v in row.items() if k != "epoch"})
                self._line.say(self._describe(row))
        if events:
            events.close()
        if not state.best:
            raise TrainingError(f"{self._workdir}: no epoch was finished")
        return TrainResult(
            workdir=self._workdir,
            epochs=state.epoch,
            stopped_early=state.stopped,
            best_epoch=int(state.best["epoch"]),
            validation=self._best_scores(),
            log=state.rows,
        )

    def _epoch(self, iterator: Iterator, events: Events | None) -> dict[str, float]:
        """Trains to the end of the epoch and validates; returns the log's row."""
        state, config = self._state, self._config
        clock = StepClock()
        pending = None
        began = state.step_in_epoch
        total = state.sums
        for step in range(began, self._steps):
            asked = time.perf_counter()
            batch = self._next(iterator)
            arrived = time.perf_counter()
            # One step is in flight at most: the device works while the next batch comes.
            if pending is not None:
                self._count(pending, total)
            if time.perf_counter() - arrived < _READY_SECONDS:
                clock.waited += arrived - asked
            rate = self._schedule.rate(state.step)
            pending = self._learner.train_step(
                batch, tf.constant(state.step, tf.int64), tf.constant(rate, tf.float32)
            )
            state.step += 1
            state.step_in_epoch = step + 1
            if step == began:  # the first step may compile: not a part of the speed
                self._count(pending, total)
                pending = None
                clock = StepClock()
            else:
                clock.images += config.batch_size
            last = step + 1 == self._steps
            if config.checkpoint_steps and not last and not state.step % config.checkpoint_steps:
                if pending is not None:
                    self._count(pending, total)
                    pending = None
                self._save()
            self._line.show(
                f"epoch {state.epoch + 1}/{config.epochs}, step {step + 1}/{self._steps}, "
                f"loss {total[0] / max(total[2], 1):.4f}, {clock.rate:,.0f} images/s, "
                f"waiting for input {clock.input_share:.0%}"
            )
        if pending is not None:
            self._count(pending, total)
        row: dict[str, float] = {
            "epoch": state.epoch + 1,
            "step": state.step,
            "learning_rate": self._schedule.rate(state.step - 1),
            "loss": total[0] / total[2],
            "accuracy": total[1] / total[2],
        }
        seconds, rate, share = clock.seconds, clock.rate, clock.input_share
        if self._scored is not None:
            scores = self._score()
            row["validation_loss"] = scores.loss
            row["validation_accuracy"] = scores.accuracy
            row["validation_macro_f1"] = scores.macro_f1
        return {**row, "seconds": seconds, "images_per_s": rate, "input_wait": share}

    def _next(self, iterator: Iterator) -> dict[str, tf.Tensor]:
        try:
            return next(iterator)
        except StopIteration:
            raise DatasetError(
                f"{self._info.directory}: split {self._config.train_split!r} ended after "
                f"{self._state.step_in_epoch} of {self._steps} steps: the shards hold fewer "
                "records than conversion.json says"
            ) from None
        except tf.errors.OpError as error:
            raise explain_reading_error(error, self._info, self._config.train_split) from error

    def _count(self, sums: tf.Tensor, total: list[float]) -> None:
        values = [float(value) for value in sums.numpy()]
        if not math.isfinite(values[0]):
            raise TrainingError(
                f"the loss became {values[0]} in epoch {self._state.epoch + 1}, step "
                f"{self._state.step_in_epoch}; checkpoints of earlier epochs are kept. Try a lower "
                "--learning_rate, or --clip_norm"
            )
        for index, value in enumerate(values):
            total[index] += value

    def _score(self) -> Scores:
        """Scores the validation split with the evaluated weights."""
        assert self._scored is not None
        _, batches = self._scored
        loss, confusion = 0.0, 0.0
        try:
            for batch in batches(0, 1, 0):
                batch_loss, batch_confusion = self._learner.evaluation_step(batch)
                loss += float(batch_loss)
                confusion += batch_confusion.numpy().astype(np.float64)
        except tf.errors.OpError as error:
            raise explain_reading_error(error, self._info, self._validation or "") from error
        counts = np.rint(confusion).astype(np.int64)
        return Scores(loss / max(int(counts.sum()), 1), counts)

    def _judge(self, row: dict[str, float]) -> None:
        """Keeps the weights when the epoch is the best so far, and counts bad epochs."""
        state = self._state
        if self._scored is None:
            value = [float(row["epoch"])]  # without validation the last epoch is the best
        elif self._config.monitor == "loss":
            value = [-row["validation_loss"]]
        else:  # of two epochs with equal accuracy, the one with the smaller loss
            value = [row["validation_accuracy"], -row["validation_loss"]]
        if not state.best or value > state.best["value"]:
            state.best = {"epoch": row["epoch"], "value": value}
            state.bad_epochs = 0
            if self._chief:
                path = best_path(self._workdir, int(row["epoch"]))
                checkpoints.save_weights(path, self._learner.evaluated)
        else:
            state.bad_epochs += 1
            state.stopped = 0 < self._config.patience <= state.bad_epochs

    def _save(self) -> None:
        if not self._chief:
            return
        state = self._state
        values = checkpoints.values_of(self._learner.variables)
        self._checkpoints.save(state.step, values, state.to_json(self._info.fingerprint))
        if state.best:
            self._write_best()

    def _write_best(self) -> None:
        """Points best.json at the best weights, and drops those that were best before."""
        epoch = int(self._state.best["epoch"])
        path = best_path(self._workdir, epoch)
        about = {"epoch": epoch, "file": os.path.relpath(path, self._workdir)}
        write_json(os.path.join(self._workdir, BEST_FILE), {**about, "scores": self._best_scores()})
        folder = os.path.dirname(path)
        for name in os.listdir(folder):
            if name != os.path.basename(path):
                os.unlink(os.path.join(folder, name))

    def _best_scores(self) -> dict[str, float] | None:
        row = self._state.rows[int(self._state.best["epoch"]) - 1]
        prefix = "validation_"
        scores = {k.removeprefix(prefix): v for k, v in row.items() if k.startswith(prefix)}
        return scores or None

    def _check_dataset(self) -> None:
        """Refuses to go on with another dataset; writes the model card of a new run."""
        path = os.path.join(self._workdir, ModelCard.FILE)
        if os.path.exists(path):
            stored = ModelCard.read(self._workdir)
            if stored.fingerprint != self._card.fingerprint:
                raise DatasetError(
                    f"{self._config.dataset} changed since the run in {self._workdir} began "
                    f"(fingerprint {self._card.fingerprint[:12]}…, then "
                    f"{stored.fingerprint[:12]}…): use another --workdir"
                )
        elif self._chief:
            write_json(path, self._card.to_json())

    def _restore(self) -> _State:
        loaded = self._checkpoints.load()
        state = _State()
        if loaded is not None:
            arrays, stored = loaded
            if stored["fingerprint"] != self._info.fingerprint:
                raise DatasetError(
                    f"{self._config.dataset} is not the dataset that the run in "
                    f"{self._workdir} was trained on: use another --workdir"
                )
            state = _State.from_json(stored)
            self._learner.load(arrays, self._workdir)
        self._check_workers_agree(state.step)
        if state.best and self._chief:
            self._write_best()
        return state

    def _check_workers_agree(self, step: int) -> None:
        replicas = self._strategy.num_replicas_in_sync
        if self._hardware.workers == 1:
            return

        def total() -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.constant(float(step)))

        found = self._strategy.experimental_local_results(
            tf.function(lambda: self._strategy.run(total))()
        )
        if any(float(value) != step * replicas for value in found):
            raise OutputError(
                f"the workers found different checkpoints in {self._workdir}: it must be one "
                "directory that all of them see"
            )

    def _is_over(self) -> bool:
        return self._state.stopped or self._state.epoch >= self._config.epochs

    def _describe(self, row: dict[str, float]) -> str:
        text = (
            f"epoch {int(row['epoch'])}/{self._config.epochs}: loss {row['loss']:.4f}, "
            f"accuracy {row['accuracy']:.1%}"
        )
        if "validation_loss" in row:
            text += (
                f"; validation loss {row['validation_loss']:.4f}, "
                f"accuracy {row['validation_accuracy']:.1%}"
            )
        text += f"; {row['images_per_s']:,.0f} images/s, waiting for input {row['input_wait']:.1%}"
        if self._state.best["epoch"] == row["epoch"] and self._scored is not None:
            text += "; best so far"
        if self._state.stopped:
            text += f"; no better for {self._state.bad_epochs} epochs: stopping"
        return text

    def _prepare(self, split: str, target: ImageTarget):  # type: ignore[no-untyped-def]
        """A reader of `split`, and a function from (first epoch, last, first step) to batches."""
        strategy, config = self._strategy, self._config
        distributed = strategy.num_replicas_in_sync > 1 or bool(config.devices)
        context = tf.distribute.InputContext(1, 0, 1)
        if distributed:
            seen = []
            probe = strategy.distribute_datasets_from_function(
                lambda context: seen.append(context) or tf.data.Dataset.range(1)  # type: ignore[func-returns-value]
            )
            del probe
            context = seen[0]
        workers = context.num_input_pipelines
        if config.batch_size % workers:
            raise UsageError(
                f"the batch of {config.batch_size} cannot be divided evenly among {workers} "
                f"workers: take a multiple of {workers}"
            )
        training = split == config.train_split
        reader = SplitReader(
            self._info,
            split,
            target,
            batch_size=config.batch_size // workers,
            seed=config.seed,
            options=ReadOptions(
                cache=config.cache if training else "auto",
                cache_dir=config.cache_dir,
                threads=config.threads,
                ram_budget=config.ram_budget,
            ),
            worker=context.input_pipeline_id,
            workers=workers,
            replicas=context.num_replicas_in_sync // workers,
            with_keys=False,
        )

        def batches(first_epoch: int, last_epoch: int, first_step: int):  # type: ignore[no-untyped-def]
            if training:
                dataset = reader.training_batches(first_epoch, last_epoch, first_step)
            else:
                dataset = reader.stored_batches()
            if distributed:
                return strategy.distribute_datasets_from_function(lambda context: dataset)
            if self._hardware.has_gpu:
                return dataset.apply(tf.data.experimental.prefetch_to_device("/GPU:0", 2))
            return dataset

        return reader, batches


@dataclasses.dataclass
class _State:
    """Where a run is: what a checkpoint holds beside the variables."""

    step: int = 0  # steps taken in all
    epoch: int = 0  # finished epochs
    step_in_epoch: int = 0
    sums: list[float] = dataclasses.field(default_factory=lambda: [0.0] * 3)  # of this epoch
    best: dict = dataclasses.field(default_factory=dict)
    bad_epochs: int = 0
    stopped: bool = False
    rows: list[dict[str, float]] = dataclasses.field(default_factory=list)

    def to_json(self, fingerprint: str) -> dict[str, object]:
        return {**dataclasses.asdict(self), "fingerprint": fingerprint}

    @classmethod
    def from_json(cls, data: dict) -> _State:
        return cls(**{field.name: data[field.name] for field in dataclasses.fields(cls)})


def _validation_split(config: TrainConfig, info: DatasetInfo) -> str | None:
    if config.validation_split == "none":
        return None
    if config.validation_split != "auto":
        return info.split(config.validation_split).name
    for name in ("validation", "test"):
        if name in info.splits and name != config.train_split:
            return name
    return None


def _class_weights(config: TrainConfig, info: DatasetInfo) -> list[float] | None:
    """Balanced: each class's factor is inverse to its images; the mean over images is 1."""
    if config.class_weights == "none":
        return None
    counts = [info.split(config.train_split).classes.get(label, 0) for label in info.labels or ()]
    present = sum(count > 0 for count in counts)
    total = sum(counts)
    return [total / (present * count) if count else 0.0 for count in counts]


@contextlib.contextmanager
def _locked_workdir(workdir: str) -> Iterator[None]:
    """Makes `workdir` and holds it; OutputError when it cannot be made or is in use."""
    try:
        os.makedirs(workdir, exist_ok=True)
        stream = open(os.path.join(workdir, ".lock"), "w")  # noqa: SIM115 (used below)
    except OSError as error:
        raise OutputError(f"cannot use {workdir}: {error}") from error
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise OutputError(f"another training run is using {workdir}") from None
        yield
