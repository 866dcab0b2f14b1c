"""What a run settles before its first step: validation split, class weights, its workers."""

from __future__ import annotations

import tensorflow as tf

from beam_pipeline.dataset_info import DatasetInfo
from beam_pipeline.errors import OutputError
from training.config import TrainConfig


def validation_split(config: TrainConfig, info: DatasetInfo) -> str | None:
    """The split to validate on, or None; DatasetError when the one asked for is missing."""
    if config.validation_split == "none":
        return None
    if config.validation_split != "auto":
        return info.split(config.validation_split).name
    for name in ("validation", "test"):
        if name in info.splits and name != config.train_split:
            return name
    return None


def class_weights(config: TrainConfig, info: DatasetInfo) -> list[float] | None:
    """Balanced: each class's factor is inverse to its images; the mean over images is 1."""
    if config.class_weights == "none":
        return None
    counts = [info.split(config.train_split).classes.get(label, 0) for label in info.labels or ()]
    present = sum(count > 0 for count in counts)
    total = sum(counts)
    return [total / (present * count) if count else 0.0 for count in counts]


def check_workers_agree(step: int, workdir: str, strategy: tf.distribute.Strategy) -> None:
    """Raises OutputError when the workers of a cluster restored different checkpoints."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return

    def total() -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.constant(float(step)))

    found = tf.function(lambda: strategy.run(total))()
    for value in strategy.experimental_local_results(found):
        if float(value) != step * strategy.num_replicas_in_sync:
            raise OutputError(
                f"the workers found different checkpoints in {workdir}: it must be one "
                "directory that all of them see"
            )
