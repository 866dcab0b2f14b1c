"""imagebeam bench-input: how fast a split is read, beside the floor and a naive reader.

All readers get the same records, size and channels, and take turns in short rounds, so
that a busy moment of the machine does not count against one of them only.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from beam_pipeline.dataset_info import DatasetInfo
from beam_pipeline.examples import Role
from training.decode import batch_decoder, example_parser
from training.read_options import ReadOptions
from training.shards import is_gzip, open_dataset
from training.split_reader import SplitReader
from training.target import ImageTarget, target_for

_FLOOR_BYTES = 256 << 20  # 256 MiB: encoded images that the floor keeps in memory
_SHUFFLE = 1000  # images in the naive reader's shuffle buffer


@dataclasses.dataclass(frozen=True)
class InputRates:
    """Images per second of each reader: the median over rounds.

    Attributes:
      reading: imagebeam's pipeline, without a cache.
      cached: the same with decoded images in memory; None where it does not apply.
      floor: decode and resize only, of bytes in memory, on all cores.
      naive: map parse and decode, shuffle, batch, prefetch(1).
      batch_size, rounds: as measured.
      target: what images became.
    """

    reading: float
    cached: float | None
    floor: float
    naive: float
    batch_size: int
    rounds: int
    target: ImageTarget

    def to_json(self) -> dict[str, object]:
        """All numbers."""
        return dataclasses.asdict(self)


def benchmark_input(
    dataset: str | DatasetInfo,
    split: str,
    *,
    batch_size: int = 64,
    image_size: tuple[int, int] | None = None,
    channels: int | None = None,
    random_crop: bool = False,
    resize_mode: str = "stretch",
    options: ReadOptions | None = None,
    seconds: float = 3.0,
    rounds: int = 5,
) -> InputRates:
    """Measures how fast training could read `split`.

    Args:
      dataset, split, batch_size, image_size, channels, random_crop, resize_mode: as of
        read_split.
      options: of reading; its cache is left aside.
      seconds: length of a round of each reader.
      rounds: how often each has its turn.
    """
    info = dataset if isinstance(dataset, DatasetInfo) else open_dataset(dataset, splits=[split])
    target = target_for(
        info,
        image_size=image_size,
        channels=channels,
        random_crop=random_crop,
        resize_mode=resize_mode,
    )
    base = options or ReadOptions(deterministic=False)

    def reader(cache: str) -> SplitReader:
        chosen = dataclasses.replace(base, cache=cache)
        return SplitReader(
            info, split, target, batch_size=batch_size, options=chosen, with_keys=False
        )

    readers: dict[str, Iterator] = {
        "reading": iter(reader("none").training_batches(0, 1 << 20)),
        "floor": iter(floor_batches(info, split, target, batch_size)),
        "naive": iter(naive_batches(info, split, target, batch_size)),
    }
    decoded = info.split(split).records * int(np.prod(target.shape))
    if not random_crop and decoded <= (base.ram_budget or 4 * _FLOOR_BYTES) // 2:
        readers["cached"] = iter(reader("memory").training_batches(0, 1 << 20))
    rates = take_turns(readers, seconds, rounds)
    return InputRates(
        reading=rates["reading"].wall,
        cached=rates["cached"].wall if "cached" in rates else None,
        floor=rates["floor"].wall,
        naive=rates["naive"].wall,
        batch_size=batch_size,
        rounds=rounds,
        target=target,
    )


class Rate(NamedTuple):
    """Images per second of wall time, and per second of CPU time of the whole process.

    The second is steady on a busy machine, where the first is not; it says what an image
    costs, but not whether all cores are used.
    """

    wall: float
    cpu: float


def take_turns(readers: dict[str, Iterator], seconds: float, rounds: int) -> dict[str, Rate]:
    """Rates of endless iterators of batches; medians over `rounds` turns of each."""
    for iterator in readers.values():
        next(iterator)
    rates: dict[str, list[Rate]] = {name: [] for name in readers}
    for number in range(rounds):
        for name in _rotated(list(readers), number):
            # A pipeline works ahead while another has its turn: drop what it has ready.
            _run(readers[name], seconds / 4)
            rates[name].append(_run(readers[name], seconds))
    return {
        name: Rate(*(float(np.median(column)) for column in zip(*values, strict=True)))
        for name, values in rates.items()
    }


def _rotated(names: list[str], by: int) -> list[str]:
    by %= len(names)
    return names[by:] + names[:by]


def _run(iterator: Iterator, seconds: float) -> Rate:
    """Reads for about `seconds`."""
    images = 0
    start = now = time.perf_counter()
    cpu = time.process_time()
    while now - start < seconds:
        batch = next(iterator)
        images += int((batch["image"] if isinstance(batch, dict) else batch[0]).shape[0])
        now = time.perf_counter()
    return Rate(images / (now - start), images / max(time.process_time() - cpu, 1e-9))


def floor_batches(
    info: DatasetInfo, split: str, target: ImageTarget, batch_size: int
) -> tf.data.Dataset:
    """Decode and resize of bytes in memory: no files, no records, no shuffling."""
    parse, decode = example_parser(info, with_keys=False), batch_decoder(info, target)
    size = max(info.split(split).bytes // max(info.split(split).records, 1), 1)
    paths = [os.path.join(info.directory, shard.file) for shard in info.split(split).shards]
    records = tf.data.TFRecordDataset(paths, "GZIP" if is_gzip(paths[0]) else "")
    kept = next(iter(records.batch(max(1, _FLOOR_BYTES // size)).map(parse)))

    def load(index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        seeds = tf.stack([tf.zeros_like(index), index], 1)
        return decode(kept, seeds, index), tf.gather(kept["label"], index)

    return (
        tf.data.Dataset.range(len(kept["label"]))
        .repeat()
        .batch(batch_size)
        .map(load, num_parallel_calls=os.cpu_count() or 1, deterministic=False)
        .prefetch(2)
    )


def naive_batches(
    info: DatasetInfo,
    split: str,
    target: ImageTarget,
    batch_size: int,
    parallel: int | None = None,
) -> tf.data.Dataset:
    """What is written first: map (with `parallel` calls), shuffle images, batch, prefetch(1)."""
    paths = [os.path.join(info.directory, shard.file) for shard in info.split(split).shards]
    one = example_decoder(info, target)
    return (
        tf.data.TFRecordDataset(paths, "GZIP" if is_gzip(paths[0]) else "")
        .map(one, num_parallel_calls=parallel)
        .shuffle(_SHUFFLE)
        .repeat()
        .batch(batch_size)
        .prefetch(1)
    )


def example_decoder(
    info: DatasetInfo, target: ImageTarget
) -> Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]:
    """A function from one serialized Example to (image, label), as tutorials write it."""
    spec = {
        info.feature(Role.IMAGE): tf.io.FixedLenFeature([], tf.string),
        info.feature(Role.LABEL) or "label": tf.io.FixedLenFeature([], tf.int64, -1),
    }
    for role in (Role.HEIGHT, Role.WIDTH, Role.CHANNELS):
        spec[info.feature(role)] = tf.io.FixedLenFeature([], tf.int64)

    def decode(serialized: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        features = tf.io.parse_single_example(serialized, spec)
        if info.encoding == "raw":
            shape = [features[info.feature(r)] for r in (Role.HEIGHT, Role.WIDTH, Role.CHANNELS)]
            image = tf.reshape(
                tf.io.decode_raw(features[info.feature(Role.IMAGE)], tf.uint8), shape
            )
        else:
            image = tf.io.decode_image(
                features[info.feature(Role.IMAGE)], target.channels, expand_animations=False
            )
        image = tf.image.resize(image, target.size)
        return tf.cast(image, tf.uint8), features[info.feature(Role.LABEL) or "label"]

    return decode
