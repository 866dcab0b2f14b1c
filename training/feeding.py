"""Batches of a split on the devices of a strategy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import tensorflow as tf

from beam_pipeline.dataset_info import DatasetInfo
from beam_pipeline.errors import UsageError
from training.devices import Hardware
from training.faults import explain_reading_error
from training.read_options import ReadOptions
from training.split_reader import SplitReader
from training.target import ImageTarget


class Feed:
    """Reads this process's part of a split and hands it to the devices.

    Args:
      info: the dataset.
      split: name of the split.
      target: what images become.
      batch_size: images per step, over all devices of all workers.
      seed: of order and crops.
      options: of reading.
      hardware, strategy: of the run.

    Attributes:
      steps: batches per epoch, the same on every worker.
      cache: what the reader chose to cache.
    """

    def __init__(
        self,
        info: DatasetInfo,
        split: str,
        target: ImageTarget,
        *,
        batch_size: int,
        seed: int,
        options: ReadOptions,
        hardware: Hardware,
        strategy: tf.distribute.Strategy,
    ):
        self._info = info
        self._split = split
        self._strategy = strategy
        self._hardware = hardware
        # The default strategy needs no distribution: batches go straight to the step.
        self._direct = not _is_distributed(strategy)
        context = self._input_context()
        workers = context.num_input_pipelines
        if batch_size % workers:
            raise UsageError(
                f"the batch of {batch_size} cannot be divided evenly among {workers} workers: "
                f"take a multiple of {workers}"
            )
        self._reader = SplitReader(
            info,
            split,
            target,
            batch_size=batch_size // workers,
            seed=seed,
            options=options,
            worker=context.input_pipeline_id,
            workers=workers,
            replicas=context.num_replicas_in_sync // workers,
            with_keys=False,
        )
        self.steps = self._reader.steps
        self.cache = self._reader.cache

    def training(self, first_epoch: int, last_epoch: int, first_step: int) -> Iterator:
        """Batches of these epochs; see SplitReader.training_batches.

        Raises (while iterating):
          DatasetError: a record cannot be read; it is named.
        """
        batches = self._reader.training_batches(first_epoch, last_epoch, first_step)
        return self._explained(self._on_devices(batches))

    def stored(self) -> Iterator:
        """The split once, in its stored order."""
        return self._explained(self._on_devices(self._reader.stored_batches()))

    def _on_devices(self, batches: tf.data.Dataset) -> Iterable:
        if not self._direct:
            return self._strategy.distribute_datasets_from_function(lambda context: batches)
        if self._hardware.has_gpu:
            return batches.apply(tf.data.experimental.prefetch_to_device("/GPU:0", 2))
        return batches

    def _explained(self, batches: Iterable) -> Iterator:
        try:
            yield from batches
        except tf.errors.OpError as error:
            raise explain_reading_error(error, self._info, self._split) from error

    def _input_context(self) -> tf.distribute.InputContext:
        if self._direct:
            return tf.distribute.InputContext(1, 0, 1)
        contexts: list[tf.distribute.InputContext] = []

        def ask(context: tf.distribute.InputContext) -> tf.data.Dataset:
            contexts.append(context)
            return tf.data.Dataset.range(1)

        self._strategy.distribute_datasets_from_function(ask)
        return contexts[0]


def _is_distributed(strategy: tf.distribute.Strategy) -> bool:
    kinds = (
        tf.distribute.OneDeviceStrategy,
        tf.distribute.MirroredStrategy,
        tf.distribute.MultiWorkerMirroredStrategy,
    )
    return isinstance(strategy, kinds)
