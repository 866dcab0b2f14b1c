"""read_split: a dataset directory as a tf.data.Dataset, for a training loop of your own."""

from __future__ import annotations

import tensorflow as tf

from beam_pipeline.dataset_info import DatasetInfo
from training.read_options import ReadOptions
from training.shards import open_dataset
from training.split_reader import SplitReader
from training.target import target_for


def read_split(
    dataset: str | DatasetInfo,
    split: str,
    *,
    batch_size: int,
    image_size: tuple[int, int] | None = None,
    channels: int | None = None,
    training: bool = False,
    random_crop: bool = False,
    resize_mode: str = "stretch",
    seed: int = 0,
    epoch: int = 0,
    options: ReadOptions | None = None,
    context: tf.distribute.InputContext | None = None,
) -> tf.data.Dataset:
    """One epoch of a split as batches of images and labels, for a training loop of your own.

        for epoch in range(10):
            for images, labels in read_split("faces_tfrecord", "train", batch_size=64,
                                             training=True, seed=1, epoch=epoch):
                ...

    Args:
      dataset: a dataset directory that `imagebeam convert` wrote (every shard of the
        split is then checked first), or what open_dataset returned.
      split: name of the split.
      batch_size: images of a batch; the last one holds what is left.
      image_size: (height, width); None: as stored, where all images agree.
      channels: 1 or 3; None: as stored, or 3 where images differ.
      training: shuffle. The order follows from seed and epoch alone. Otherwise the
        order is the stored one.
      random_crop: random-resized-crop instead of a resize (JPEGs decode only the crop).
      resize_mode: "stretch"; "crop" to keep the aspect ratio; "cut" to take a part of
        image_size out of images of one size, unscaled: the central one, or with
        random_crop one at a random place.
      seed, epoch: decide the order and the crops.
      options: caching, threads and memory.
      context: of tf.distribute: this worker reads its part only.

    Returns:
      A dataset of (uint8 [B, height, width, channels], int64 [B]); labels are -1 in a
      dataset without labels. Its cardinality is known.

    Raises:
      DatasetError: the dataset is unfinished or damaged; see open_dataset.
      UsageError: an argument is wrong, or images differ in size and no size is given.
    """
    info = dataset if isinstance(dataset, DatasetInfo) else open_dataset(dataset, splits=[split])
    target = target_for(
        info,
        image_size=image_size,
        channels=channels,
        random_crop=random_crop and training,
        resize_mode=resize_mode,
    )
    reader = SplitReader(
        info,
        split,
        target,
        batch_size=batch_size,
        seed=seed,
        options=options or ReadOptions(),
        worker=context.input_pipeline_id if context else 0,
        workers=context.num_input_pipelines if context else 1,
        padded=False,
    )
    batches = reader.training_batches(epoch, epoch + 1) if training else reader.stored_batches()
    return batches.map(lambda batch: (batch["image"], batch["label"]))
