"""Hostile bytes: every mutation of every seed becomes an image that TensorFlow reads, or a reject.

The suite runs 5,000 cases. More of them by hand:

    IMAGEBEAM_FUZZ_CASES=200000 python -m pytest tests/beam_pipeline/test_image_fuzz.py --timeout=0

Each case depends on its number alone; `make_case(seeds(), number)` makes one again.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import resource
import struct
import subprocess
import sys
import time
import zlib

import numpy as np
import pytest

from beam_pipeline.errors import ImageRejectedError
from beam_pipeline.images import prepare_image
from beam_pipeline.imaging.decoder_warnings import quiet_decoders
from beam_pipeline.options import ColorProfile, Encoding, ImageOptions
from beam_pipeline.types import PreparedImage
from tests.beam_pipeline.image_samples import seeds, training_sees

ROOT = pathlib.Path(__file__).parents[2]
CASES = int(os.environ.get("IMAGEBEAM_FUZZ_CASES", "5000"))
SEED = 20240229

MAX_PIXELS = 1 << 22
# Over what the process had after the first pictures. A picture of MAX_PIXELS takes 16 MiB in
# Pillow, and a few copies of it live at once; 200,000 cases were seen to need 50 MiB.
MEMORY_BOUND = 128 << 20  # 128 MiB
TIME_BOUND = 20.0  # seconds a case; the slowest ones seen take 0.2 s

OPTIONS = [
    ImageOptions(max_pixels=MAX_PIXELS),
    ImageOptions(max_pixels=MAX_PIXELS, encoding=Encoding.JPEG, resize=(20, 20)),
    ImageOptions(max_pixels=MAX_PIXELS, encoding=Encoding.PNG, color_profile=ColorProfile.SRGB),
    ImageOptions(max_pixels=MAX_PIXELS, encoding=Encoding.RAW, channels=1),
]
# Three of four cases take the first: passthrough is where a decoder might disagree.
CHOICES = [OPTIONS[0]] * 9 + OPTIONS[1:]

_EDGES = (0, 1, 0x7F, 0x80, 0xFE, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFFFF, 0xFFFFFFFF)


def _fix_checksums(data: bytes) -> bytes:
    """A PNG with right checksums again, so that a mutation gets past them."""
    out = bytearray(data)
    position = 8
    while position + 12 <= len(out):
        length = int.from_bytes(out[position : position + 4], "big")
        stop = position + 8 + length
        if stop + 4 > len(out):
            break
        out[stop : stop + 4] = struct.pack(">I", zlib.crc32(bytes(out[position + 4 : stop])))
        position = stop + 4
    return bytes(out)


def _mutate(data: bytearray, chance: random.Random, others: list[bytes]) -> bytearray:
    if not data:
        return data
    # Half of the time near the start, where the headers are.
    reach = len(data) if chance.random() < 0.5 else min(len(data), 200)
    at = chance.randrange(reach)
    kind = chance.randrange(9)
    if kind == 0:
        data[at] ^= 1 << chance.randrange(8)
    elif kind == 1:
        data[at] = chance.randrange(256)
    elif kind == 2:
        return data[:at]
    elif kind == 3:
        del data[at : at + chance.randrange(1, 20)]
    elif kind == 4:
        data[at:at] = chance.randbytes(chance.randrange(1, 20))
    elif kind == 5:
        size = chance.choice((2, 4))
        value = chance.choice(_EDGES) & ((1 << 8 * size) - 1)
        data[at : at + size] = value.to_bytes(size, chance.choice(("little", "big")))
    elif kind == 6:
        other = chance.choice(others)
        start = chance.randrange(len(other))
        data[at : at + 40] = other[start : start + chance.randrange(1, 80)]
    elif kind == 7:
        stop = min(len(data), at + chance.randrange(1, 60))
        data[at:at] = data[at:stop]
    else:
        stop = min(len(data), at + chance.randrange(1, 60))
        data[at:stop] = bytes([chance.choice((0, 0xFF, 0xD9))]) * (stop - at)
    return data


def make_case(samples: dict[str, bytes], number: int) -> tuple[str, bytes, ImageOptions]:
    """(name of the seed, mutated bytes, options) of case `number`."""
    chance = random.Random(f"{SEED}-{number}")
    names = sorted(samples)
    name = names[number % len(names)]
    data = bytearray(samples[name])
    others = [samples[other] for other in names]
    for _ in range(chance.choice((1, 1, 1, 2, 3, 6))):
        data = _mutate(data, chance, others)
    result = bytes(data)
    if result[:4] == b"\x89PNG" and chance.random() < 0.8:
        result = _fix_checksums(result)
    return name, result, chance.choice(CHOICES)


def _run(data: bytes, options: ImageOptions, case: str) -> PreparedImage | ImageRejectedError:
    try:
        return prepare_image(data, options)
    except ImageRejectedError as error:
        return error
    except BaseException as error:
        raise AssertionError(f"{case} raised {error!r}") from error


def _decode(image: PreparedImage, case: str) -> np.ndarray:
    try:
        return training_sees(image)
    except Exception as error:
        raise AssertionError(f"{case}: TensorFlow refuses what is stored: {error}") from error


@pytest.mark.timeout(0 if CASES > 5000 else 300)
def test_mutated_files_become_images_or_rejects() -> None:
    samples = seeds()
    for name, data in samples.items():
        prepare_image(data, OPTIONS[0])  # each seed is healthy
        assert prepare_image(data, OPTIONS[3]).channels == 1, name
    accepted = rejected = 0
    for number in range(CASES):
        name, data, options = make_case(samples, number)
        start = time.perf_counter()
        outcome = _run(data, options, f"case {number} ({name})")
        seconds = time.perf_counter() - start
        assert seconds < TIME_BOUND, f"case {number} ({name}) took {seconds:.1f} s"
        if isinstance(outcome, ImageRejectedError):
            rejected += 1
            assert outcome.detail.isprintable(), (number, name, outcome.detail)
            assert len(outcome.detail) < 400, (number, name, outcome.detail)
        else:
            accepted += 1
            shape = _decode(outcome, f"case {number} ({name})").shape
            assert shape == (outcome.height, outcome.width, outcome.channels), (number, name)
    # Both outcomes are met often, else the mutations have lost their point.
    assert accepted > CASES // 10
    assert rejected > CASES // 4


@pytest.mark.timeout(0 if CASES > 5000 else 300)
def test_memory_stays_bounded() -> None:
    # In a process of its own: TensorFlow takes far more than what is measured here.
    code = "from tests.beam_pipeline import test_image_fuzz; test_image_fuzz.print_memory_growth()"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert int(result.stdout) < MEMORY_BOUND
    assert result.stderr == ""  # no decoder has written anything either


def print_memory_growth() -> None:
    """Prints by how many bytes the peak memory of this process grows over all cases."""
    quiet_decoders()
    samples = seeds()
    for data in samples.values():
        prepare_image(data, OPTIONS[0])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    for number in range(CASES):
        _, data, options = make_case(samples, number)
        with contextlib.suppress(ImageRejectedError):
            prepare_image(data, options)
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10) - before)
