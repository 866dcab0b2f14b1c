"""Decoded images of a split, kept in memory or in a file that later runs use again."""

from __future__ import annotations

import hashlib
import logging
import os

import numpy as np
import tensorflow as tf

from beam_pipeline.dataset_info import DatasetInfo
from beam_pipeline.errors import StorageError
from training.shards import WorkerPart
from training.target import ImageTarget

logger = logging.getLogger(__name__)


class CachedImages:
    """Images, labels and keys by their position in a worker's part of a split.

    Args:
      images: uint8 [N, height, width, channels]; an array, or one mapped from a file.
      labels: int64 [N].
      keys: bytes, N of them.
    """

    def __init__(self, images: np.ndarray, labels: np.ndarray, keys: list[bytes]):
        self._images = images
        with tf.device("CPU:0"):
            self._labels = tf.constant(labels, tf.int64)
            self._keys = tf.constant(keys, tf.string)

    def gather(self, index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """(images, labels, keys) at `index`, int64 [B]."""
        images = tf.numpy_function(lambda index: self._images[index], [index], tf.uint8)
        images = tf.ensure_shape(images, (index.shape[0], *self._images.shape[1:]))
        return images, tf.gather(self._labels, index), tf.gather(self._keys, index)


def load(
    batches: tf.data.Dataset,
    info: DatasetInfo,
    split: str,
    part: WorkerPart,
    target: ImageTarget,
    folder: str | None,
) -> CachedImages:
    """Reads `batches` (the part in stored order) into memory, or into a file below `folder`.

    A file is named by what is in it (the dataset's fingerprint, the part, the target), so
    a changed dataset never meets an old cache.

    Raises:
      StorageError: the file cannot be written (disk full, not allowed).
    """
    shape = (part.records, *target.shape)
    labels = np.empty(part.records, np.int64)
    keys: list[bytes] = []

    def fill(images: np.ndarray) -> None:
        position = 0
        for batch in batches:
            count = int(batch["label"].shape[0])
            images[position : position + count] = batch["image"].numpy()
            labels[position : position + count] = batch["label"].numpy()
            keys.extend(batch["key"].numpy())
            position += count

    if folder is None:
        images = np.empty(shape, np.uint8)
        fill(images)
        return CachedImages(images, labels, keys)
    files = [os.path.basename(file) for file in part.files]
    identity = repr((info.fingerprint, files, part.every, part.first, target))
    name = f"{info.name}-{split}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"
    path = os.path.join(folder, f"{name}.npy")
    about = os.path.join(folder, f"{name}.npz")  # written last: marks the cache as complete
    if not os.path.exists(about):
        try:
            _write(path, about, shape, fill, labels, keys)
        except OSError as error:
            raise StorageError(f"cannot write the image cache {path}: {error}") from error
    with np.load(about) as stored:
        labels, keys = stored["labels"], [bytes(key) for key in stored["keys"]]
    logger.info("using the image cache %s", path)
    return CachedImages(np.load(path, mmap_mode="r"), labels, keys)


def _write(path, about, shape, fill, labels, keys) -> None:  # type: ignore[no-untyped-def]
    os.makedirs(os.path.dirname(path), exist_ok=True)
    mine = f".{os.getpid()}.part"
    # Reserve the space first: a full disk under a memory map is a signal, not an error.
    images = np.lib.format.open_memmap(path + mine, "w+", np.uint8, shape)
    with open(path + mine, "rb+") as stream:
        os.posix_fallocate(stream.fileno(), 0, os.path.getsize(path + mine))
    fill(images)
    images.flush()
    os.replace(path + mine, path)
    with open(about + mine, "wb") as stream:
        np.savez(stream, labels=labels, keys=np.array(keys, dtype=np.bytes_))
    os.replace(about + mine, about)
