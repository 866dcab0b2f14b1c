"""SplitReader: order, sharding, caching, batching and prefetching of one split."""

from __future__ import annotations

import dataclasses
import os

import numpy as np
import tensorflow as tf

from beam_pipeline.dataset_info import DatasetInfo
from beam_pipeline.errors import DatasetError, UsageError
from training import cache as image_cache
from training.decode import batch_decoder, example_parser
from training.read_options import ReadOptions
from training.shards import WorkerPart, is_gzip, worker_part
from training.target import ImageTarget

_AUTO_CACHE_BYTES = 256 << 20  # 256 MiB: decoded splits up to this size stay in memory
_SHUFFLE_BYTES = 256 << 20  # 256 MiB of encoded records
_READ_BUFFER = 1 << 20  # 1 MiB per open shard
_READ_RECORDS = 16  # handed over at once: threads that wait for single records wake too often
_OPEN_SHARDS = 8


class SplitReader:
    """Reads one split, or one worker's part of it.

    Batches are dicts: `image` uint8 [B, height, width, channels], `label` int64 [B],
    `weight` float32 [B] and, unless with_keys is False, `key` string [B].

    With `padded`, every batch is full: the last one repeats some of its own examples
    with weight 0 (real images, so that batch statistics stay sound), and every worker
    has the same number of batches. Shapes are then constant, and each example counts
    once whatever the batch size and the number of devices.

    Attributes:
      steps: batches per epoch.
      part: the files and records that this worker reads.
    """

    def __init__(
        self,
        info: DatasetInfo,
        split: str,
        target: ImageTarget,
        *,
        batch_size: int,
        seed: int = 0,
        options: ReadOptions | None = None,
        worker: int = 0,
        workers: int = 1,
        replicas: int = 1,
        padded: bool = True,
        with_keys: bool = True,
    ):
        if batch_size < 1:
            raise UsageError(f"batch size must be at least 1, got {batch_size}")
        if batch_size % replicas:
            raise UsageError(
                f"the batch of {batch_size} cannot be divided evenly among {replicas} devices: "
                f"take a multiple of {replicas}"
            )
        self.info = info
        self.split = split
        self.target = target
        self.options = options or ReadOptions()
        self.part: WorkerPart = worker_part(info, split, worker, workers)
        if self.part.records == 0:
            raise DatasetError(
                f"{info.directory}: split {split!r} has {info.split(split).records} images, "
                f"not enough for {workers} workers"
            )
        longest = self.part.longest if padded else self.part.records
        self.steps = -(-longest // batch_size)
        self._batch_size = batch_size
        self._seed = seed
        self._worker = worker
        self._workers = workers
        self._replicas = replicas
        self._padded = padded
        self._with_keys = with_keys
        self._parse = example_parser(info, with_keys)
        self._decode = batch_decoder(info, target)
        self._cached: image_cache.CachedImages | None = None
        self._kept: dict[str, tf.Tensor] | None = None  # the part's features, still encoded
        self._parallel = self._parallel_calls()
        self._gzip = {file: is_gzip(file) for file in self.part.files}
        self.cache = self._choose_cache()

    def training_batches(
        self, first_epoch: int, last_epoch: int, first_step: int = 0
    ) -> tf.data.Dataset:
        """Shuffled batches of epochs first_epoch … last_epoch - 1, one after the other.

        Args:
          first_epoch, last_epoch: 0-based, the last one excluded.
          first_step: batches of the first epoch to leave out, without decoding them.
        """
        return self._batches(first_epoch, last_epoch, first_step, shuffle=True)

    def stored_batches(self) -> tf.data.Dataset:
        """The split once, in its stored order."""
        return self._batches(0, 1, 0, shuffle=False)

    def _batches(
        self, first_epoch: int, last_epoch: int, first_step: int, shuffle: bool
    ) -> tf.data.Dataset:
        if self.cache != "none" and not (self.cache == "memory" and self.target.random_crop):
            self._fill_cache()
        elif shuffle and self._keeps_encoded():
            self._keep_encoded()

        def one_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
            skip = tf.where(epoch == first_epoch, tf.constant(first_step, tf.int64), 0)
            return self._undecoded(epoch, shuffle).skip(skip)

        # One batch ahead: a decoder that becomes free never waits for records to be read.
        batches = tf.data.Dataset.range(first_epoch, last_epoch).flat_map(one_epoch).prefetch(1)
        batches = batches.map(
            self._load, num_parallel_calls=self._parallel, deterministic=self.options.deterministic
        )
        count = (last_epoch - first_epoch) * self.steps - first_step
        if self._replicas > 1:
            batches = batches.map(self._split_for_replicas).unbatch()
            count *= self._replicas
        batches = batches.apply(tf.data.experimental.assert_cardinality(count))
        return batches.prefetch(self.options.prefetch).with_options(self._tf_options())

    def _undecoded(self, epoch: tf.Tensor, shuffle: bool) -> tf.data.Dataset:
        """Batches of one epoch before decoding: `item`, `position`, `weight` [B], `epoch` [].

        An item is a serialized Example, or an index into the cache.
        """
        seeds = tf.stack([tf.cast(self._seed, tf.int64), epoch])
        if self._cached is None and self._kept is None:
            items = self._records(seeds, shuffle)
        else:
            index = tf.range(self.part.records, dtype=tf.int64)
            if shuffle:
                index = tf.random.experimental.stateless_shuffle(index, seeds)
            items = tf.data.Dataset.from_tensor_slices(index)
        size = self._batch_size
        own_steps = -(-self.part.records // size)

        def number(step: tf.Tensor, items: tf.Tensor) -> dict[str, tf.Tensor]:
            count = tf.shape(items)[0]
            weight = tf.ones([count])
            position = step * size + tf.range(tf.cast(count, tf.int64))
            if self._padded:
                # Full batches stay as they are: gathering would copy every image once more.
                items = tf.cond(
                    count < size,
                    lambda: tf.gather(items, tf.range(size) % count),
                    lambda: items,
                )
                items = tf.ensure_shape(items, [size])
                weight = tf.cast(tf.range(size) < count, tf.float32)
                position = step * size + tf.range(size, dtype=tf.int64)
            return {"item": items, "position": position, "weight": weight, "epoch": epoch}

        def without_weight(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            return {**batch, "weight": tf.zeros_like(batch["weight"])}

        batches = items.batch(size).enumerate().map(number)
        if self.steps > own_steps:  # other workers have more to do: keep step with them
            idle = batches.take(1).map(without_weight).repeat(self.steps - own_steps)
            batches = batches.concatenate(idle)
        return batches

    def _records(self, seeds: tf.Tensor, shuffle: bool) -> tf.data.Dataset:
        files = tf.constant(self.part.files)
        types = tf.constant(["GZIP" if self._gzip[file] else "" for file in self.part.files])
        if shuffle:
            order = tf.random.experimental.stateless_shuffle(tf.range(len(self.part.files)), seeds)
            files, types = tf.gather(files, order), tf.gather(types, order)
        # Workers that deal records among themselves must agree on their sequence.
        in_order = self.options.deterministic or self.part.every > 1 or not shuffle
        open_shards = min(_OPEN_SHARDS, len(self.part.files)) if shuffle else 1
        records = tf.data.Dataset.from_tensor_slices((files, types)).interleave(
            lambda file, type: tf.data.TFRecordDataset(file, type, buffer_size=_READ_BUFFER).batch(
                _READ_RECORDS
            ),
            cycle_length=open_shards,
            num_parallel_calls=min(open_shards, self._parallel),
            deterministic=in_order,
        )
        records = records.unbatch()
        if self.part.every > 1:
            records = records.shard(self.part.every, self.part.first)
        if shuffle:
            records = _shuffle(records, self._shuffle_records(), seeds)
        return records

    def _load(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        item = batch["item"]
        key = None
        if self._cached is not None:
            image, label, key = self._cached.gather(item)
        else:
            # Unequal for every image of every epoch, on every worker.
            place = batch["position"] * self.part.every + self.part.first
            stream = ((self._seed & 0xFFFFFF) << 24) + (self._worker << 48) + batch["epoch"]
            seeds = tf.stack([tf.fill(tf.shape(place), stream), place], 1)
            if self._kept is not None:
                image = self._decode(self._kept, seeds, item)
                label = tf.gather(self._kept["label"], item)
                key = tf.gather(self._kept["key"], item) if self._with_keys else None
            else:
                features = self._parse(item)
                image = self._decode(features, seeds)
                label, key = features["label"], features.get("key")
        if self.info.labels is not None:
            tf.debugging.assert_less(
                label, tf.constant(len(self.info.labels), tf.int64), "label id outside the map"
            )
            tf.debugging.assert_non_negative(label, "label id below 0")
        if self._padded:
            image = tf.ensure_shape(image, (self._batch_size, *self.target.shape))
        loaded = {"image": image, "label": label, "weight": batch["weight"]}
        return {**loaded, "key": key} if self._with_keys else loaded

    def _split_for_replicas(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return {
            name: tf.reshape(
                value, (self._replicas, self._batch_size // self._replicas, *value.shape[1:])
            )
            for name, value in batch.items()
        }

    def _choose_cache(self) -> str:
        wanted, budget = self.options.cache, self.options.ram_budget
        decoded = self.part.records * int(np.prod(self.target.shape))
        if wanted == "auto":
            limit = min(_AUTO_CACHE_BYTES, budget // 2 if budget else _AUTO_CACHE_BYTES)
            return "memory" if decoded <= limit and not self.target.random_crop else "none"
        if wanted == "file" and self.target.random_crop:
            raise UsageError(
                "cache 'file' keeps decoded images, but random crops decode anew in every epoch: "
                "use cache 'memory' (keeps the encoded records) or 'none'"
            )
        if wanted == "memory" and budget is not None:
            kept = self._part_bytes() if self.target.random_crop else decoded
            if kept > budget // 2:
                raise UsageError(
                    f"cache 'memory' needs {kept >> 20} MiB for split {self.split!r}, more than "
                    f"half of the RAM budget of {budget >> 20} MiB: use cache 'file' or 'none'"
                )
        return wanted

    def _keeps_encoded(self) -> bool:
        """Whether training keeps all encoded images in memory.

        A shuffle buffer that holds the whole part would be emptied and filled again from
        the shards in every epoch, while the decoders wait: keeping what it held costs the
        same memory.
        """
        wanted = self.cache == "memory" and self.target.random_crop
        return wanted or self._shuffle_records() == self.part.records

    def _keep_encoded(self) -> None:
        if self._kept is not None:
            return
        records = self._records(tf.zeros([2], tf.int64), shuffle=False)
        # In small batches, which are then taken apart and put together by moving the bytes:
        # parsing all at once would hold every image twice.
        features = records.batch(128).map(self._parse).unbatch().batch(self.part.records)
        with tf.device("CPU:0"):
            self._kept = next(iter(features))

    def _fill_cache(self) -> None:
        if self._cached is not None:
            return
        plain = SplitReader(
            self.info,
            self.split,
            self.target,
            batch_size=min(64, self.part.records),
            options=dataclasses.replace(self.options, cache="none"),
            worker=self._worker,
            workers=self._workers,
            padded=False,
        )
        folder = self.options.cache_dir if self.cache == "file" else None
        self._cached = image_cache.load(
            plain.stored_batches(), self.info, self.split, self.part, self.target, folder
        )

    def _part_bytes(self) -> int:
        """Bytes of this worker's serialized records, estimated from the shard sizes."""
        split = self.info.split(self.split)
        return split.bytes * self.part.records // max(split.records, 1)

    def _shuffle_records(self) -> int:
        if self.options.shuffle_records is not None:
            return min(self.options.shuffle_records, self.part.records)
        limit = _SHUFFLE_BYTES
        if self.options.ram_budget is not None:
            limit = min(limit, self.options.ram_budget // 4)
        record = max(self._part_bytes() // self.part.records, 1)
        if any(self._gzip.values()):
            record *= 2  # sizes are those of the compressed files
        return max(1, min(self.part.records, limit // record))

    def _parallel_calls(self) -> int:
        """Batches that are decoded at the same time, as the RAM budget allows."""
        wanted = self.options.threads or os.cpu_count() or 1
        budget = self.options.ram_budget
        if budget is None:
            return wanted
        batch = self._batch_size * int(np.prod(self.target.shape))
        fitting = budget // 2 // batch - self.options.prefetch - 1
        if fitting < 1:
            raise UsageError(
                f"a RAM budget of {budget >> 20} MiB is too small: a batch takes "
                f"{batch / 2**20:.1f} MiB and {self.options.prefetch + 2} of them must fit into "
                "its half; take a smaller batch or a larger budget"
            )
        return min(wanted, fitting)

    def _tf_options(self) -> tf.data.Options:
        options = tf.data.Options()
        options.deterministic = self.options.deterministic
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        if self.options.threads is not None:
            options.threading.private_threadpool_size = self.options.threads
        if self.options.ram_budget is not None:
            options.autotune.ram_budget = self.options.ram_budget // 4
        return options


def _shuffle(records: tf.data.Dataset, size: int, seeds: tf.Tensor) -> tf.data.Dataset:
    """Dataset.shuffle whose order follows from `seeds` alone.

    Dataset.shuffle mixes the process-wide seed (tf.random.set_seed) in, so that the
    order would depend on something that is neither seed nor epoch.
    """
    spec = records.element_spec
    variant = tf.raw_ops.ShuffleDataset(
        input_dataset=tf.data.experimental.to_variant(records),
        buffer_size=tf.constant(size, tf.int64),
        # Two zeros would mean "random"; 1 and its neighbours are as good as any other seed.
        seed=seeds[0] + 1,
        seed2=seeds[1] + 1,
        output_types=[spec.dtype],
        output_shapes=[spec.shape],
        reshuffle_each_iteration=False,
    )
    return tf.data.experimental.from_variant(variant, spec)
