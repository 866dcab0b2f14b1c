"""imagebeam convert against what people write by hand: whole processes, ratios, medians.

    python benchmarks/convert.py photos|photos10x|faces|startup|memory|plan [--runs N]

Makes its own data under build/benchmarks. Every comparison alternates its commands within
one run, so that a noisy machine disturbs all of them alike; quote the ratios.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import threading
import time

import numpy as np
from PIL import Image

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "build" / "benchmarks"
BASELINES = str(pathlib.Path(__file__).with_name("baselines.py"))
CORES = len(os.sched_getaffinity(0))


def make_photos(count: int = 4000) -> pathlib.Path:
    """JPEGs of 500×375, quality 80, with the power spectrum of photos, in 7 folders.

    The amplitude of a frequency f falls as 1 / f**1.4 in luminance and colour, as it does
    in photos (exponents of 1 to 1.5 are reported); about 45 kB each. White noise instead
    would give every block many small coefficients, which no photo has.
    """
    folder = DATA / "photos"
    if not folder.exists():
        generator = np.random.default_rng(0)
        vertical, horizontal = np.fft.fftfreq(375)[:, None], np.fft.rfftfreq(500)[None, :]
        amplitude = 1 / np.maximum(np.hypot(vertical, horizontal), 1 / 500) ** 1.4
        for number in range(count):
            planes = []
            for deviation in (50, 12, 12):  # of Y, Cb and Cr
                phase = generator.uniform(0, 2 * np.pi, amplitude.shape)
                plane = np.fft.irfft2(amplitude * np.exp(1j * phase), (375, 500))
                planes.append(128 + deviation * plane / plane.std())
            pixels = np.stack(planes, axis=-1).clip(0, 255).astype(np.uint8)
            path = folder.with_suffix(".new") / f"class{number % 7}/{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels, "YCbCr").save(path, quality=80)
        folder.with_suffix(".new").rename(folder)
    return folder


def make_faces(count: int = 28_000) -> pathlib.Path:
    """Gray PNGs of 48×48 (about 1.6 kB), in 7 folders."""
    folder = DATA / "faces"
    if not folder.exists():
        generator = np.random.default_rng(0)
        for number in range(count):
            base = generator.integers(0, 256, (6, 6), dtype=np.uint8)
            smooth = np.asarray(Image.fromarray(base).resize((48, 48), Image.Resampling.BICUBIC))
            noise = generator.normal(0, 4, (48, 48))
            _save(smooth + noise, folder.with_suffix(".new") / f"class{number % 7}/{number}.png")
        folder.with_suffix(".new").rename(folder)
    return folder


def _save(pixels: np.ndarray, path: pathlib.Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path, quality=85)


def make_photos10x() -> pathlib.Path:
    """Ten hard links to every photo."""
    source, folder = make_photos(), DATA / "photos10x"
    if not folder.exists():
        for image in source.rglob("*.jpg"):
            for copy in range(10):
                target = folder.with_suffix(".new") / image.parent.name / f"{copy}-{image.name}"
                target.parent.mkdir(parents=True, exist_ok=True)
                os.link(image, target)
        folder.with_suffix(".new").rename(folder)
    return folder


def convert_command(source: pathlib.Path, out: pathlib.Path, *more: str) -> list[str]:
    return [
        *(sys.executable, "-m", "beam_pipeline", "convert", "--quiet", "--overwrite"),
        *("--input", str(source), "--output", str(out), *more),
    ]


def baseline(*arguments: object) -> list[str]:
    return [sys.executable, BASELINES, *map(str, arguments)]


def timed(commands: list[list[str]]) -> float:
    """Wall seconds of commands that run side by side, as whole processes."""
    start = time.perf_counter()
    processes = [
        subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL) for command in commands
    ]
    for process in processes:
        if process.wait():
            raise SystemExit(f"failed: {' '.join(process.args)}")
    return time.perf_counter() - start


def compare(variants: dict[str, list[list[str]]], runs: int, out: pathlib.Path) -> None:
    """Runs all variants in turn and prints medians and the ratio of each to the first.

    Each run finds an empty `out` and an idle disk: otherwise the memory of files that an
    earlier run left or replaces would decide how fast a variant writes.
    """
    times: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(runs + 1):
        for name, commands in variants.items():
            shutil.rmtree(out, ignore_errors=True)
            out.mkdir(parents=True)
            os.sync()
            seconds = timed(commands)
            if number:  # the first round warms the file cache
                times[name].append(seconds)
    first = next(iter(variants))
    for name, values in times.items():
        ratios = [a / b for a, b in zip(values, times[first], strict=True)]
        print(
            f"{name:32} median {statistics.median(values):7.2f} s   "
            f"{statistics.median(ratios):5.2f} × {first}   (min {min(values):.2f}, max {max(values):.2f})"
        )


def bench_conversion(source: pathlib.Path, runs: int, *, slow: bool = True) -> None:
    out = DATA / "out"
    variants = {"imagebeam": [convert_command(source, out / "dataset")]}
    if slow:
        variants["script, one process"] = [baseline("script", source, out / "script")]
    variants[f"script, {CORES} processes"] = [
        baseline("script", source, out / "script", part, CORES) for part in range(CORES)
    ]
    variants[f"tfrecord package, {CORES} processes"] = [
        baseline("tfrecord", source, out / "tfrecord", CORES)
    ]
    variants[f"only decoding, {CORES} processes"] = [baseline("decode", source, CORES)]
    compare(variants, runs, out)


def bench_startup(runs: int) -> None:
    """Seconds from process start until the first shard file holds a byte."""
    source, out = make_photos(), DATA / "out" / "startup"
    seconds = []
    for _ in range(runs + 1):
        shutil.rmtree(out, ignore_errors=True)
        start = time.perf_counter()
        process = subprocess.Popen(convert_command(source, out), cwd=ROOT)
        while not any(path.stat().st_size for path in out.glob(".imagebeam-*/shards/*/*")):
            time.sleep(0.005)
            if process.poll() is not None:
                raise SystemExit("the conversion ended before it was seen to write")
        seconds.append(time.perf_counter() - start)
        process.wait()
    print(f"first record on disk after {statistics.median(seconds[1:]):.2f} s (median)")


def peak_memory(command: list[str]) -> float:
    """Largest sum, in MB, of the proportional memory of a process and all its children."""
    process = subprocess.Popen(command, cwd=ROOT)
    peak = 0.0
    stop = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not stop.wait(0.02):
            peak = max(peak, sum(map(_proportional, _family(process.pid))))

    watcher = threading.Thread(target=watch)
    watcher.start()
    code = process.wait()
    stop.set()
    watcher.join()
    if code:
        raise SystemExit(f"failed: {' '.join(command)}")
    return peak


def _family(pid: int) -> list[int]:
    try:
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    # Children may be started by any thread of their parent.
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children += [child for child in task.read_text().split() if child not in children]
        except OSError:
            continue
    return [pid, *(member for child in children for member in _family(int(child)))]


def _proportional(pid: int) -> float:
    try:
        text = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")) / 1e3


def bench_memory(runs: int) -> None:
    for source in (make_photos(), make_photos10x()):
        command = convert_command(source, DATA / "out" / "dataset")
        peaks = [peak_memory(command) for _ in range(runs)]
        print(f"{source.name:10} peak memory of all processes {statistics.median(peaks):.0f} MB")


def bench_plan(runs: int) -> None:
    """Planning a manifest of ever more rows: time and peak memory."""
    for rows in (100_000, 300_000, 1_000_000):
        manifest = DATA / f"manifest-{rows}.csv"
        if not manifest.exists():
            DATA.mkdir(parents=True, exist_ok=True)
            with open(manifest, "w") as stream:
                stream.write("path,label\n")
                stream.writelines(f"images/{n % 997}/{n}.jpg,class{n % 7}\n" for n in range(rows))
        command = convert_command(manifest, DATA / "out" / "never", "--dry_run")
        seconds = statistics.median(timed([command]) for _ in range(runs))
        print(f"{rows:>9,} rows: {seconds:6.2f} s, {peak_memory(command):5.0f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "what", choices=("photos", "photos10x", "faces", "startup", "memory", "plan")
    )
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    DATA.mkdir(parents=True, exist_ok=True)
    if args.what == "photos":
        bench_conversion(make_photos(), args.runs)
    elif args.what == "photos10x":
        bench_conversion(make_photos10x(), args.runs, slow=False)
    elif args.what == "faces":
        bench_conversion(make_faces(), args.runs)
    elif args.what == "startup":
        bench_startup(args.runs)
    elif args.what == "memory":
        bench_memory(args.runs)
    else:
        bench_plan(args.runs)


if __name__ == "__main__":
    main()
