"""Threads, processes or neither: the same images made into records by each, in turns.

    python benchmarks/workers.py [--workers 2] [--runs 5]

Times only the making of records (read, check, hash, serialize), with workers started
before the clock: what the local engine's choice of processes rests on.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from convert import CORES, make_faces, make_photos

from beam_pipeline.examples import feature_specs
from beam_pipeline.inputs import declared_labels, list_images, resolve_inputs
from beam_pipeline.options import Encoding, FeatureNames, ImageOptions, InputOptions
from beam_pipeline.records import RecordMaker, chunks
from beam_pipeline.worker_pool import WorkerPool

IMAGES = 4000


def seconds(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def compare(name: str, folder: pathlib.Path, workers: int, runs: int) -> None:
    plan = resolve_inputs(InputOptions(inputs=(str(folder),)))
    specs = feature_specs(FeatureNames.DEFAULT, labelled=True, encoding=Encoding.PASSTHROUGH)
    maker = RecordMaker(ImageOptions(), specs, tuple(declared_labels(plan) or ()))
    work = list(chunks(list(list_images(plan))[:IMAGES], maker.image))
    with WorkerPool(workers) as pool, ThreadPoolExecutor(workers) as threads:
        ways = {
            "one after the other": lambda: [maker.make_chunk(refs) for refs in work],
            f"{workers} threads": lambda: list(threads.map(maker.make_chunk, work)),
            f"{workers} processes": lambda: list(pool.map_ordered(maker, work)),
        }
        times: dict[str, list[float]] = {way: [] for way in ways}
        for run in range(runs + 1):  # the first one warms up
            for way, make in ways.items():
                spent = seconds(make)
                if run:
                    times[way].append(spent)
    first = statistics.median(times["one after the other"])
    for way, values in times.items():
        median = statistics.median(values)
        print(f"{name}, {way:20} {median / IMAGES * 1e6:6.0f} µs/image   {first / median:.2f}×")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=CORES)
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    compare("500×375 JPEG", make_photos(), args.workers, args.runs)
    compare("48×48 PNG", make_faces(), args.workers, args.runs)


if __name__ == "__main__":
    main()
