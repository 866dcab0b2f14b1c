"""The public corpus of odd images: every row of its expected.csv and quadrants.csv."""

from __future__ import annotations

import csv
import functools
import os
import pathlib

import numpy as np
import pytest

from beam_pipeline.errors import ImageRejectedError
from beam_pipeline.images import prepare_image
from beam_pipeline.options import Encoding, ImageOptions
from beam_pipeline.types import PreparedImage
from tests.beam_pipeline.image_samples import check_stored

ROOT = pathlib.Path(__file__).parents[2]
WEIRD = (
    pathlib.Path(os.environ.get("IMAGEBEAM_CORPUS", ROOT.parent / "shared" / "corpus")) / "weird"
)
MARGIN = 3  # levels; TensorFlow's JPEG method alone differs by up to 2 from other decoders

pytestmark = [
    pytest.mark.corpus,
    pytest.mark.skipif(not WEIRD.is_dir(), reason="needs the image corpus beside the checkout"),
]

# Rows where expected.csv is not right, and why: none is known.
DISPUTED: dict[str, str] = {}

# Rows of verdict "either" that are refused here; all others of that verdict come out.
REFUSED = {
    "imageio_chelsea.jxl": "JPEG XL is not read by Pillow",
    "pillow_00r0_gray_l.jp2": "damaged",
    "pillow_10ct_32bit_128.tiff": "float",
    "pillow_16_bit_binary_pgm.tiff": "32-bit integers",
    "pillow_16bit.s.tif": "signed samples come as 32-bit integers",
    "pillow_badheadersize.bmp": "bad header",
    "pillow_badpalettesize.bmp": "bad header",
    "pillow_decompression_bomb.ico": "too many pixels",
    "pillow_hopper.fits": "FITS: its range is open",
    "pillow_hopper_be.pfm": "float",
    "pillow_hopper_webp.tif": "Pillow's libtiff has no WebP",
    "pillow_pal2.bmp": "2 bits a pixel",
    "pillow_pal4rle.bmp": "RLE4, which Pillow shows wrong",
    "pillow_pal8oversizepal.bmp": "bad palette",
    "pillow_rgb24jpeg.bmp": "JPEG in BMP",
    "pillow_truncated_end_chunk.png": "TensorFlow refuses it too",
    "pillow_unknown_compression_method.png": "wrong checksum",
}
NEEDS_HEIF = {"pillow_hopper.heif"}


@functools.cache
def _rows(name: str) -> list[dict[str, str]]:
    if not WEIRD.is_dir():
        return []
    lines = (WEIRD / name).read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


@functools.cache
def _quadrants() -> dict[str, list[float]]:
    names = ("top_left", "top_right", "bottom_left", "bottom_right")
    return {row["file"]: [float(row[n]) for n in names] for row in _rows("quadrants.csv")}


def _check_picture(row: dict[str, str], pixels: np.ndarray) -> None:
    height, width, channels = pixels.shape
    if row["width"]:
        assert (width, height) == (int(row["width"]), int(row["height"]))
    if row["mean_r"]:
        means = np.broadcast_to(pixels.reshape(-1, channels).mean(axis=0), 3)
        expected = [float(row[f"mean_{color}"]) for color in "rgb"]
        assert np.abs(means - expected).max() <= MARGIN, (means, expected, row["note"])
    quadrants = _quadrants().get(row["file"])
    if quadrants and height > 1 and width > 1:
        h, w = height // 2, width // 2
        corners = (pixels[:h, :w], pixels[:h, -w:], pixels[-h:, :w], pixels[-h:, -w:])
        means = np.array([corner.mean() for corner in corners])
        assert np.abs(means - quadrants).max() <= MARGIN, (means, quadrants)


def _run(data: bytes, encoding: Encoding) -> tuple[PreparedImage | None, ImageRejectedError | None]:
    try:
        return prepare_image(data, ImageOptions(encoding=encoding)), None
    except ImageRejectedError as error:
        return None, error


@pytest.mark.parametrize("encoding", [Encoding.PASSTHROUGH, Encoding.JPEG, Encoding.RAW])
@pytest.mark.parametrize("row", _rows("expected.csv"), ids=lambda row: row["file"])
def test_row(row: dict[str, str], encoding: Encoding) -> None:
    file = row["file"]
    data = (WEIRD / file).read_bytes()
    image, error = _run(data, encoding)
    if error is not None:
        assert row["verdict"] != "accept" or file in DISPUTED, error
        assert row["verdict"] == "reject" or file in REFUSED or file in NEEDS_HEIF, error
        assert error.detail.isprintable()
        return
    assert image is not None
    assert row["verdict"] != "reject" or file in DISPUTED, image[1:]
    assert file not in REFUSED
    pixels = check_stored(image)
    if file not in DISPUTED:
        _check_picture(row, pixels)


def test_the_corpus_is_the_one_that_was_meant() -> None:
    verdicts = [row["verdict"] for row in _rows("expected.csv")]
    assert len(verdicts) == 274
    assert verdicts.count("accept") == 163
    names = {row["file"] for row in _rows("expected.csv")}
    assert set(REFUSED) | set(DISPUTED) | NEEDS_HEIF <= names
