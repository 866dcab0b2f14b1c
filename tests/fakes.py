"""Images made for tests: small, drawn from a seed, healthy or broken on purpose."""

from __future__ import annotations

import io
import os

import numpy as np
from PIL import Image


def picture(height: int = 24, width: int = 32, *, channels: int = 3, seed: int = 0) -> np.ndarray:
    """A smooth random uint8 picture [H, W] or [H, W, 3], different for every seed."""
    generator = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    planes = []
    for _ in range(channels):
        a, b, phase = generator.uniform(0.02, 0.3, 3)
        planes.append(127.5 + 100 * np.sin(a * x + b * y + 20 * phase))
    pixels = np.stack(planes, axis=-1).round().astype(np.uint8)
    return pixels[..., 0] if channels == 1 else pixels


def encode(pixels: np.ndarray, format: str = "JPEG", **options: object) -> bytes:
    """`pixels` as the bytes of an image file."""
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, format, **options)
    return stream.getvalue()


def jpeg(seed: int = 0, **size: int) -> bytes:
    """A small colour JPEG."""
    return encode(picture(seed=seed, **size), "JPEG", quality=90)


def png(seed: int = 0, **size: int) -> bytes:
    """A small colour PNG."""
    return encode(picture(seed=seed, **size), "PNG")


def write_tree(root: str | os.PathLike[str], files: dict[str, bytes]) -> None:
    """Writes `files` (relative path → bytes) below `root`."""
    for name, data in files.items():
        path = os.path.join(root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as stream:
            stream.write(data)


def class_folders(
    root: str | os.PathLike[str],
    labels: tuple[str, ...] = ("angry", "happy", "sad"),
    per_label: int = 5,
) -> dict[str, bytes]:
    """Writes root/label/image files, alternately JPEG and PNG; returns them by relative path."""
    files = {}
    for number, label in enumerate(labels):
        for index in range(per_label):
            seed = 100 * number + index
            if index % 2:
                files[f"{label}/{index}.png"] = png(seed)
            else:
                files[f"{label}/{index}.jpg"] = jpeg(seed)
    write_tree(root, files)
    return files
