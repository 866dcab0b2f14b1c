"""How fast training reads, against the floor, Keras reading folders, and a naive reader.

    python benchmarks/input_pipeline.py photos|crops|small|faces|memory|check [--seconds S]

photos   500×375 JPEGs → batches of 224×224: a split that the shuffle buffer holds, and
         one of ten times as many, which is read from its shards again in every epoch
crops    random-resized-crop: fused decode-and-crop against decoding whole images
small    the same photos converted with --resize 256x256 against Keras on the folder
faces    48×48 gray PNGs, decoded anew, cached in memory, cached in a file
memory   peak memory of reading under several --ram_budget, a process each
check    the check of all shards before the first step, in GB/s

Makes its own data under build/benchmarks. Readers take turns within one run, so that a
noisy machine disturbs all of them alike; quote the ratios.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
import resource
import subprocess
import sys
import time
from collections.abc import Iterator

import convert

from training import quiet

quiet.import_tensorflow()

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

from training.benchmark_input import (  # noqa: E402
    Rate,
    floor_batches,
    naive_batches,
    take_turns,
)
from training.read_options import ReadOptions  # noqa: E402
from training.shards import open_dataset  # noqa: E402
from training.split_reader import SplitReader  # noqa: E402
from training.target import target_for  # noqa: E402

BATCH = 64
# Quality 95, the default, would make files as large as the photos: decoding follows bytes.
SMALL = ("--encoding", "jpeg", "--resize", "256x256", "--jpeg_quality", "80")
FASTEST = ReadOptions(cache="none", deterministic=False)


def converted(source: pathlib.Path, name: str, *options: str) -> str:
    """The dataset of `source`, converted once, and again when `source` was made anew."""
    out = convert.DATA / f"read-{name}"
    done = out / "_SUCCESS"
    if not done.exists() or done.stat().st_mtime < source.stat().st_ctime:
        subprocess.run(convert.convert_command(source, out, *options), cwd=convert.ROOT, check=True)
    return str(out)


def ours(dataset: str, size: tuple[int, int], options: ReadOptions = FASTEST, **target) -> Iterator:
    """Endless shuffled batches of imagebeam's reader."""
    info = open_dataset(dataset, check="size")
    reader = SplitReader(
        info,
        "train",
        target_for(info, image_size=size, **target),
        batch_size=BATCH,
        options=options,
        with_keys=False,
    )
    return iter(reader.training_batches(0, 1 << 20))


def keras_folder(source: pathlib.Path, size: tuple[int, int], color: str = "rgb") -> Iterator:
    """keras.utils.image_dataset_from_directory on the image files, with a prefetch."""
    dataset = keras.utils.image_dataset_from_directory(
        str(source), image_size=size, batch_size=BATCH, color_mode=color, verbose=False
    )
    return iter(dataset.repeat().prefetch(2))


def show(title: str, rates: dict[str, Rate], first: str, against: bool = False) -> None:
    """Prints the rates, and `first` divided by each; `against`: each divided by `first`."""
    print(f"\n{title}")
    print(f"  {'':44} {'images/s':>10} {'ratio':>7} {'images/CPU-s':>13} {'ratio':>7}")
    for name, rate in rates.items():
        wall, cpu = rates[first].wall / rate.wall, rates[first].cpu / rate.cpu
        if against:
            wall, cpu = 1 / wall, 1 / cpu
        print(f"  {name:44} {rate.wall:10,.0f} {wall:7.2f} {rate.cpu:13,.0f} {cpu:7.2f}")
    how = f"that row divided by {first}" if against else f"{first} divided by that row"
    print(f"  ratio: {how}", flush=True)


def bench_photos(seconds: float, rounds: int) -> None:
    source = convert.make_photos()
    dataset = converted(source, "photos")
    info = open_dataset(dataset, check="size")
    target = target_for(info, image_size=(224, 224))
    more = converted(convert.make_photos10x(), "photos10x")
    readers = {
        "imagebeam": ours(dataset, (224, 224)),
        "imagebeam, deterministic": ours(dataset, (224, 224), ReadOptions(cache="none")),
        "imagebeam, 40,000 images": ours(more, (224, 224)),
        "floor: decode and resize only, from memory": iter(
            floor_batches(info, "train", target, BATCH)
        ),
        "keras.utils.image_dataset_from_directory": keras_folder(source, (224, 224)),
        "naive: map, shuffle, batch": iter(naive_batches(info, "train", target, BATCH)),
        "naive with AUTOTUNE": iter(
            naive_batches(info, "train", target, BATCH, parallel=tf.data.AUTOTUNE)
        ),
    }
    rates = take_turns(readers, seconds, rounds)
    show("500×375 JPEGs → 224×224", rates, "imagebeam")


def bench_crops(seconds: float, rounds: int) -> None:
    source = convert.make_photos()
    dataset = converted(source, "photos")
    info = open_dataset(dataset, check="size")
    target = target_for(info, image_size=(224, 224), random_crop=True)
    # The PNG operation decodes JPEGs too, but only whole ones.
    whole = dataclasses.replace(info, formats={"png": info.records})
    unfused = SplitReader(
        whole, "train", target, batch_size=BATCH, options=FASTEST, with_keys=False
    )
    readers = {
        "imagebeam, random crop": ours(dataset, (224, 224), random_crop=True),
        "the same, decoding whole images": iter(unfused.training_batches(0, 1 << 20)),
        "imagebeam, resize only": ours(dataset, (224, 224)),
    }
    rates = take_turns(readers, seconds, rounds)
    show("random-resized-crop (25 to 100% of the area)", rates, "imagebeam, random crop")


def bench_small(seconds: float, rounds: int) -> None:
    source = convert.make_photos()
    dataset = converted(source, "photos256-q80", *SMALL)
    raw = converted(source, "photos256-raw", "--encoding", "raw", "--resize", "256x256")
    readers = {
        "imagebeam, converted to 256×256": ours(dataset, (224, 224)),
        "the same with random crops": ours(dataset, (224, 224), random_crop=True),
        "the same, cut from the middle": ours(dataset, (224, 224), resize_mode="cut"),
        "the same, cut at random": ours(dataset, (224, 224), resize_mode="cut", random_crop=True),
        "the same in 256×256": ours(dataset, (256, 256)),
        "imagebeam, converted to raw 256×256": ours(raw, (224, 224)),
        "the same, cut at random ": ours(raw, (224, 224), resize_mode="cut", random_crop=True),
        "imagebeam, original size": ours(converted(source, "photos"), (224, 224)),
        "keras.utils.image_dataset_from_directory": keras_folder(source, (224, 224)),
    }
    rates = take_turns(readers, seconds, rounds)
    show(
        "256×256 at conversion → 224×224",
        rates,
        "keras.utils.image_dataset_from_directory",
        against=True,
    )


def bench_faces(seconds: float, rounds: int) -> None:
    source = convert.make_faces()
    dataset = converted(source, "faces")
    raw = converted(source, "faces-raw", "--encoding", "raw")
    info = open_dataset(dataset, check="size")
    target = target_for(info)
    in_file = ReadOptions(cache="file", cache_dir=str(convert.DATA / "cache"))
    readers = {
        "imagebeam": ours(dataset, (48, 48)),
        "imagebeam, converted to raw pixels": ours(raw, (48, 48)),
        "imagebeam, cached in memory": ours(dataset, (48, 48), ReadOptions(cache="memory")),
        "imagebeam, cached in a file": ours(dataset, (48, 48), in_file),
        "floor: decode only, from memory": iter(floor_batches(info, "train", target, BATCH)),
        "keras.utils.image_dataset_from_directory": keras_folder(source, (48, 48), "grayscale"),
        "naive: map, shuffle, batch": iter(naive_batches(info, "train", target, BATCH)),
    }
    rates = take_turns(readers, seconds, rounds)
    show("28,000 gray 48×48 PNGs", rates, "imagebeam")


def bench_memory(seconds: float, rounds: int) -> None:
    dataset = converted(convert.make_photos(), "photos")
    print("\npeak memory of a process that reads two epochs of 224×224 batches")
    base = None
    for budget in ("none", "128", "256", "512"):
        command = [sys.executable, __file__, "read", "--dataset", dataset, "--budget", budget]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=convert.ROOT)
        before, peak, rate = map(float, done.stdout.split())
        base = base or before
        print(
            f"  --ram_budget {budget + ('MiB' if budget != 'none' else ''):8} "
            f"{peak - before:6.0f} MiB over the {before:.0f} MiB of TensorFlow, "
            f"{rate:,.0f} images/s",
            flush=True,
        )


def read_two_epochs(dataset: str, budget: str) -> None:
    """In a process of its own: prints MiB before, peak MiB, images per second."""
    budget_bytes = None if budget == "none" else int(budget) << 20
    options = dataclasses.replace(FASTEST, ram_budget=budget_bytes)
    info = open_dataset(dataset, check="size")
    reader = SplitReader(
        info, "train", target_for(info, image_size=(224, 224)), batch_size=BATCH, options=options
    )
    next(iter(tf.data.Dataset.range(1)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    start = time.perf_counter()
    for _ in reader.training_batches(0, 2):
        pass
    rate = 2 * reader.part.records / (time.perf_counter() - start)
    print(before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, rate)


def bench_check(seconds: float, rounds: int) -> None:
    dataset = converted(convert.make_photos(), "photos")
    size = open_dataset(dataset, check="size").split("train").bytes
    speeds = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        open_dataset(dataset)
        speeds.append(size / (time.perf_counter() - start) / 1e9)
    median = sorted(speeds[1:])[rounds // 2]
    print(f"\ncheck of every shard: {median:.2f} GB/s on {os.cpu_count()} cores ({size >> 20} MiB)")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    benches = {
        "photos": bench_photos,
        "crops": bench_crops,
        "small": bench_small,
        "faces": bench_faces,
        "memory": bench_memory,
        "check": bench_check,
    }
    parser.add_argument("which", choices=[*benches, "read"])
    parser.add_argument("--seconds", type=float, default=3.0, help="of a turn")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each reader")
    parser.add_argument("--dataset", help=argparse.SUPPRESS)
    parser.add_argument("--budget", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.which == "read":
        read_two_epochs(args.dataset, args.budget)
    else:
        benches[args.which](args.seconds, args.rounds)


if __name__ == "__main__":
    main()
