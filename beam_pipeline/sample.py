"""Writes a small labelled set of drawn faces to try things on, one folder per expression.

The files are as varied as those of real collections: JPEG and PNG, gray and colour, of
many sizes; four are odd but usable, three are broken.
"""

from __future__ import annotations

import dataclasses
import io
import os

import numpy as np
from PIL import Image

from beam_pipeline.errors import OutputError, UsageError
from beam_pipeline.faces import LABELS, draw_face

_SIZES = (48, 48, 64, 80, 96, 112, 128, 160, 200)  # pixels, height and width before variation


@dataclasses.dataclass(frozen=True)
class SampleReport:
    """What draw_sample wrote.

    Attributes:
      directory: where.
      images: usable images per label.
      odd: file → what is odd about it; these are usable.
      broken: file → what is wrong with it; these are to be refused.
    """

    directory: str
    images: dict[str, int]
    odd: dict[str, str]
    broken: dict[str, str]


def draw_sample(directory: str, images: int = 700, seed: int = 0) -> SampleReport:
    """Draws faces into `directory`/label/file, the same for the same seed.

    Four of the images are odd but usable (turned by EXIF, CMYK, 16 bits, a PNG named
    .jpg); up to three more files are broken (cut off, empty, text), one for every 100
    images, so that they stay below the 1% that a conversion allows by default.

    Args:
      directory: local; made when absent, must be empty.
      images: usable images, at least 7.
      seed: any integer.

    Raises:
      UsageError: fewer than 7 images.
      OutputError: the directory holds something, or cannot be written.
    """
    if images < len(LABELS):
        raise UsageError(f"images must be at least {len(LABELS)}, one per label, got {images}")
    try:
        if os.path.isdir(directory) and os.listdir(directory):
            raise OutputError(f"{directory} is not empty; give a new directory")
        for label in LABELS:
            os.makedirs(os.path.join(directory, label), exist_ok=True)
        counts, odd = _write_faces(directory, images, seed)
        broken = _write_broken(directory, min(3, images // 100), seed)
    except OSError as error:
        raise OutputError(
            f"cannot write {error.filename or directory}: {error.strerror}"
        ) from error
    return SampleReport(directory, counts, odd, broken)


_ODD = (
    ("happy/turned-by-exif.jpg", "upright only after its EXIF orientation is applied"),
    ("sad/cmyk.jpg", "a CMYK JPEG, as printers use"),
    ("surprise/16-bit.png", "16 bits per pixel"),
    ("neutral/really-a-png.jpg", "a PNG that is named .jpg"),
)
_BROKEN = (
    ("fear/cut-off.jpg", "a JPEG that ends in the middle"),
    ("angry/empty.jpg", "no bytes at all"),
    ("disgust/text.jpg", "a text file that is named .jpg"),
)


def _write_faces(directory: str, images: int, seed: int) -> tuple[dict[str, int], dict[str, str]]:
    counts = dict.fromkeys(LABELS, 0)
    odd = dict(_ODD)
    unwritten = {name.split("/")[0]: name for name in odd}
    for number in range(images):
        label = LABELS[number % len(LABELS)]
        rng = np.random.default_rng((abs(seed), int(seed < 0), number))
        counts[label] += 1
        name = unwritten.pop(label, None)
        if name is not None:
            data = _odd_file(name, draw_face(label, (120, 120), rng))
        else:
            name, data = _usual_file(label, counts[label], rng)
        _write(directory, name, data)
    return counts, {name: what for name, what in odd.items() if name not in unwritten.values()}


def _usual_file(label: str, number: int, rng: np.random.Generator) -> tuple[str, bytes]:
    side = int(rng.choice(_SIZES))
    size = (side, side) if rng.random() < 0.6 else (side, int(side * rng.uniform(1.0, 1.3)))
    face = draw_face(label, size, rng)
    if rng.random() < 0.2:
        face = face.convert("L")
    if rng.random() < 0.4:
        return f"{label}/{label}-{number:04d}.png", _encoded(face, "PNG")
    quality = int(rng.integers(75, 96))
    return f"{label}/{label}-{number:04d}.jpg", _encoded(face, "JPEG", quality=quality)


def _odd_file(name: str, face: Image.Image) -> bytes:
    if name.endswith("turned-by-exif.jpg"):
        exif = Image.Exif()
        exif[0x0112] = 6  # shown upright after a quarter turn clockwise
        turned = face.transpose(Image.Transpose.ROTATE_90)
        return _encoded(turned, "JPEG", quality=92, exif=exif)
    if name.endswith("cmyk.jpg"):
        return _encoded(face.convert("CMYK"), "JPEG", quality=92)
    if name.endswith("16-bit.png"):
        gray = np.asarray(face.convert("L"), np.uint16) * 257  # 0 to 65,535
        return _encoded(Image.fromarray(gray), "PNG")
    return _encoded(face, "PNG")


def _write_broken(directory: str, count: int, seed: int) -> dict[str, str]:
    rng = np.random.default_rng((abs(seed), int(seed < 0), 1 << 40))
    whole = _encoded(draw_face("fear", (128, 128), rng), "JPEG", quality=90)
    data = (whole[: len(whole) * 6 // 10], b"", b"This was meant to be a picture.\n")
    broken = dict(_BROKEN[:count])
    for name, content in zip(broken, data, strict=False):
        _write(directory, name, content)
    return broken


def _encoded(image: Image.Image, format: str, **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, format, **options)  # type: ignore[arg-type]
    return stream.getvalue()


def _write(directory: str, name: str, data: bytes) -> None:
    with open(os.path.join(directory, name), "wb") as stream:
        stream.write(data)
