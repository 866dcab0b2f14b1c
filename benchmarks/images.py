"""Time of one image's check against Pillow's own decoding of it, in this process.

python benchmarks/images.py
"""

from __future__ import annotations

import io
import statistics
import time
from collections.abc import Callable

from convert import make_faces, make_photos
from PIL import Image

from beam_pipeline.images import prepare_image
from beam_pipeline.options import ImageOptions

IMAGES = 500
ROUNDS = 7


def microseconds(work: Callable[[bytes], object], images: list[bytes]) -> float:
    """Median over rounds of the mean time per image."""
    rounds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for data in images:
            work(data)
        rounds.append((time.perf_counter() - start) / len(images) * 1e6)
    return statistics.median(rounds)


def main() -> None:
    for name, folder in (("500×375 JPEG", make_photos()), ("48×48 PNG", make_faces())):
        paths = sorted(path for path in folder.rglob("*.*"))[:IMAGES]
        images = [path.read_bytes() for path in paths]
        ours = microseconds(lambda data: prepare_image(data, ImageOptions()), images)
        pillow = microseconds(lambda data: Image.open(io.BytesIO(data)).load(), images)
        print(f"{name}: passthrough check {ours:.0f} µs, Pillow decodes it in {pillow:.0f} µs")


if __name__ == "__main__":
    main()
