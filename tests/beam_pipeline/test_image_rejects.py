"""What is no image, what is damaged, and what would take too much: each a reject that says so."""

from __future__ import annotations

import importlib.util
import io
import pickle
import struct
import sys
import time
import types

import numpy as np
import pytest
from PIL import Image, ImageFile

from beam_pipeline.errors import ImageRejectedError
from beam_pipeline.images import prepare_image
from beam_pipeline.imaging import decode as image_decode
from beam_pipeline.imaging.sniff import SOURCE_FORMATS, sniff
from beam_pipeline.options import Encoding, ImageOptions
from beam_pipeline.types import RejectReason
from tests.beam_pipeline.image_samples import check_stored, save, seeds
from tests.fakes import encode, jpeg, picture, png

SEEDS = seeds()
NOT, UNSUPPORTED = RejectReason.NOT_AN_IMAGE, RejectReason.UNSUPPORTED_FORMAT


@pytest.mark.parametrize(
    ("data", "reason", "words"),
    [
        (b"", RejectReason.EMPTY, "no bytes"),
        (b"\0" * 5000, RejectReason.CORRUPT, "all 5000 bytes are zero"),
        (b"<!DOCTYPE html><html>", NOT, "HTML page"),
        (b"\n  <HTML><body>404", NOT, "HTML page"),
        (b"<?xml version='1.0'?>\n<svg xmlns='x'/>", NOT, "SVG drawing"),
        (b"<svg></svg>", NOT, "SVG drawing"),
        (b"\xef\xbb\xbf<svg></svg>", NOT, "SVG drawing"),
        (b"<?xml version='1.0'?><data/>", NOT, "text that starts with"),
        (b'{"error": "no such file"}', NOT, 'text that starts with \'{"error"'),
        ("Bild fehlt: Größe".encode(), NOT, "text that starts with 'Bild fehlt"),
        ("Die Größe".encode("latin-1"), NOT, "text that starts with"),
        ("text".encode("utf-16"), NOT, "UTF-16"),
        (b"version https://git-lfs.github.com/spec/v1\noid", NOT, "git lfs pull"),
        (b"\x00\x05\x16\x07\x00\x02\x00\x00Mac OS X", NOT, "AppleDouble"),
        (b"%PDF-1.7\n", NOT, "PDF"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", UNSUPPORTED, "PostScript"),
        (b"\xc5\xd0\xd3\xc6" + bytes(40), UNSUPPORTED, "EPS"),
        (b"\xd7\xcd\xc6\x9a" + bytes(40), UNSUPPORTED, "WMF"),
        (b"PK\x03\x04" + bytes(40), NOT, "ZIP archive"),
        (b"\x1f\x8b\x08" + bytes(40), NOT, "gzip"),
        (b"\xd0\xcf\x11\xe0" + bytes(40), NOT, "Thumbs.db"),
        (b"\0\0\0\x20ftypisom\0\0\0\0isommp42", NOT, "MP4 or QuickTime video"),
        (b"\0\0\0\x14ftypqt  ", NOT, "QuickTime"),
        (b"\x1a\x45\xdf\xa3" + bytes(40), NOT, "WebM"),
        (b"RIFF\x24\0\0\0AVI LIST", NOT, "AVI video"),
        (b"RIFF\x24\0\0\0WAVEfmt ", NOT, "WAV"),
        (b"\xff\x0a" + bytes(40), UNSUPPORTED, "JPEG XL"),
        (b"SIMPLE  =                    T", UNSUPPORTED, "FITS"),
        (b"\x93NUMPY\1\0", NOT, "NumPy"),
        (b"\0\0\2\0\0\0", NOT, "no image format is known"),
        (bytes(range(200, 256)), NOT, "starts with the bytes c8 c9 ca cb"),
        (b"\x89PNX\r\n\x1a\n" + png()[8:], NOT, "no image format is known"),
        (png().replace(b"\r\n", b"\n"), RejectReason.CORRUPT, "signature is damaged"),
        (b"\x09" + png()[1:], RejectReason.CORRUPT, "signature is damaged"),
        (b"x" + png(), RejectReason.CORRUPT, "a PNG starts only at byte 1"),
        (png()[:5], RejectReason.TRUNCATED, "ends in its signature"),
    ],
)
def test_what_is_no_image_is_named(data: bytes, reason: RejectReason, words: str) -> None:
    with pytest.raises(ImageRejectedError) as caught:
        prepare_image(data, ImageOptions())
    assert caught.value.reason is reason
    assert words in caught.value.detail


def test_hostile_text_comes_through_as_harmless_ascii() -> None:
    with pytest.raises(ImageRejectedError) as caught:
        prepare_image("<script>alert('ö\r\n\x1b[31m')</script>".encode(), ImageOptions())
    assert caught.value.detail.isascii()
    assert caught.value.detail.isprintable()


def test_the_name_is_judged_by_the_bytes() -> None:
    for name, data in SEEDS.items():
        family = name.split("_")[0]
        expected = {"apng": "png", "mpo": "jpeg", "pgm": "ppm", "pbm": "ppm", "j2k": "jp2"}
        assert sniff(data) == expected.get(family, family)
        assert sniff(data) in SOURCE_FORMATS


@pytest.mark.parametrize(
    "name", [name for name in SEEDS if not name.startswith(("jpeg", "png", "apng"))]
)
def test_cut_at_any_byte_is_refused_or_changes_no_pixel(name: str) -> None:
    data = SEEDS[name]
    options = ImageOptions(encoding=Encoding.RAW)
    whole = prepare_image(data, options)
    accepted = []
    for length in range(len(data)):
        try:
            image = prepare_image(data[:length], options)
        except ImageRejectedError:
            continue
        accepted.append(length)
        # Only the last digit of a text may be missed.
        assert image.data == whole.data or (name, length) == ("ppm_text", len(data) - 2)
    if name in ("mpo", "tiff_pages"):
        # The first picture is whole there, and only the others are cut.
        assert min(accepted) > len(data) / 4
    else:
        # What may be missing is a footer (TGA), the last code of a fax, or white space.
        assert all(length >= len(data) - 26 for length in accepted)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("a\nb"),
        SyntaxError("not a file"),
        TypeError(),
        struct.error("unpack requires a buffer"),
        KeyError("mode"),
        IndexError("index"),
        OverflowError("big"),
        ZeroDivisionError("zero"),
        AssertionError("assert"),
        RecursionError("deep"),
        AttributeError("none"),
        NotImplementedError("todo"),
        UnicodeDecodeError("ascii", b"\xff", 0, 1, "ordinal"),
        Image.DecompressionBombError("too large"),
        MemoryError(),
        EOFError("no more"),
        OSError("image file is truncated (3 bytes not processed)"),
    ],
)
def test_every_exception_of_a_decoder_is_a_reject(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(stream: object) -> Image.Image:
        raise error

    monkeypatch.setattr(image_decode, "_plugin", lambda name: broken)
    for name in ("gif", "tiff", "png_palette"):
        with pytest.raises(ImageRejectedError) as caught:
            prepare_image(SEEDS[name], ImageOptions())
        assert caught.value.__cause__ is error
        assert caught.value.detail.isprintable()
        expected = {
            MemoryError: RejectReason.TOO_MANY_PIXELS,
            Image.DecompressionBombError: RejectReason.TOO_MANY_PIXELS,
            EOFError: RejectReason.TRUNCATED,
            OSError: RejectReason.TRUNCATED,
        }
        assert caught.value.reason is expected.get(type(error), RejectReason.CORRUPT)


def test_memory_that_runs_out_while_encoding_is_a_reject(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(image: object) -> bytes:
        raise MemoryError

    monkeypatch.setattr("beam_pipeline.images.encode_png", full)
    with pytest.raises(ImageRejectedError, match="not enough memory") as caught:
        prepare_image(SEEDS["bmp"], ImageOptions())
    assert caught.value.reason is RejectReason.TOO_MANY_PIXELS


def test_interrupts_are_not_contained(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(stream: object) -> Image.Image:
        raise KeyboardInterrupt

    monkeypatch.setattr(image_decode, "_plugin", lambda name: interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepare_image(SEEDS["gif"], ImageOptions())


def test_a_reject_survives_pickling() -> None:
    error = ImageRejectedError(RejectReason.TRUNCATED, "cut")
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.reason, copy.detail, str(copy)) == (error.reason, error.detail, str(error))


def _huge(name: str, side: int) -> bytes:
    """The seed `name` with both sides declared as `side`."""
    data = bytearray(SEEDS[name])
    if name == "gif":
        data[6:10] = b"\xff" * 4
    elif name == "tiff":
        for tag in (256, 257):
            at = _tag(data, tag)
            data[at : at + 12] = struct.pack("<HHII", tag, 4, 1, side)
    elif name == "bmp":
        data[18:26] = struct.pack("<ii", side, side)
    elif name == "webp_alpha":
        bits = 0x3FFF | 0x3FFF << 14
        data[21:25] = struct.pack("<I", int.from_bytes(data[21:25], "little") | bits)
    elif name == "webp_animated":
        data[24:30] = b"\xff" * 6
    elif name == "tga":
        data[12:16] = b"\xff" * 4
    elif name == "ppm":
        data = bytearray(b"P6 %d %d 255\n" % (side, side)) + data[20:]
    elif name == "jp2":
        at = data.index(b"\xff\x4f\xff\x51")
        data[at + 8 : at + 16] = struct.pack(">II", side, side)
    elif name in ("ico", "ico_bmp"):
        start = int.from_bytes(data[18:22], "little")
        if name == "ico":
            data[start + 16 : start + 24] = struct.pack(">II", side, side)
        else:
            data[start + 4 : start + 12] = struct.pack("<ii", side, side)
    elif name == "qoi":
        data[4:12] = struct.pack(">II", side, side)
    elif name == "dds":
        data[12:20] = struct.pack("<II", side, side)
    elif name == "pcx":
        data[4:12] = b"\0\0\0\0\xff\xff\xff\xff"
    elif name == "sgi":
        data[6:10] = b"\xff" * 4
    return bytes(data)


def _tag(data: bytearray, tag: int) -> int:
    """Position of a tag in the first directory of a little-endian TIFF."""
    start = int.from_bytes(data[4:8], "little")
    for entry in range(int.from_bytes(data[start : start + 2], "little")):
        at = start + 2 + 12 * entry
        if int.from_bytes(data[at : at + 2], "little") == tag:
            return at
    raise KeyError(tag)


@pytest.mark.parametrize("side", [1 << 16, (1 << 31) - 1])
@pytest.mark.parametrize(
    "name",
    [
        "gif",
        "tiff",
        "bmp",
        "webp_alpha",
        "webp_animated",
        "tga",
        "ppm",
        "jp2",
        "ico",
        "ico_bmp",
        "qoi",
        "dds",
        "pcx",
        "sgi",
    ],
)
def test_declared_sizes_are_refused_before_decoding(name: str, side: int) -> None:
    start = time.perf_counter()
    with pytest.raises(ImageRejectedError) as caught:
        prepare_image(_huge(name, side), ImageOptions())
    assert time.perf_counter() - start < 1
    assert caught.value.reason is RejectReason.TOO_MANY_PIXELS
    assert "--max_pixels allows 178956970" in caught.value.detail


def test_a_tiff_that_names_its_bytes_many_times_is_not_read_as_often() -> None:
    # 3,000 tags, each of which is all of the file: 3 GB, were they all held.
    size, tags = 1 << 20, 3000
    entries = b"".join(
        struct.pack("<HHII", 256 + number, 7, size - 100, 8) for number in range(1000, 1000 + tags)
    )
    picture_tags = b"".join(
        struct.pack("<HHII", tag, 4, 1, value)
        for tag, value in ((256, 4), (257, 4), (258, 8), (259, 1), (262, 1), (273, 8), (279, 16))
    )
    data = b"II*\0" + struct.pack("<I", size) + bytes(size - 8)
    data += struct.pack("<H", tags + 7) + picture_tags + entries + bytes(4)
    start = time.perf_counter()
    with pytest.raises(ImageRejectedError, match="its parts overlap"):
        prepare_image(data, ImageOptions())
    assert time.perf_counter() - start < 5


def test_a_loop_of_tiff_pages_ends() -> None:
    data = bytearray(SEEDS["tiff"])
    start = int.from_bytes(data[4:8], "little")
    count = int.from_bytes(data[start : start + 2], "little")
    data[start + 2 + 12 * count : start + 6 + 12 * count] = data[4:8]  # the next page is this one
    image = prepare_image(bytes(data), ImageOptions())
    assert np.array_equal(check_stored(image), picture(seed=1))


def test_heic_without_its_plugin_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    heic = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(40)
    with pytest.raises(ImageRejectedError, match=r"pip install imagebeam\[heif\]") as caught:
        prepare_image(heic, ImageOptions())
    assert caught.value.reason is UNSUPPORTED


def test_heic_with_a_plugin_is_decoded_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = types.ModuleType("pillow_heif")
    plugin.HeifImageFile = lambda stream: Image.fromarray(picture(seed=1))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pillow_heif", plugin)
    monkeypatch.setattr(Image.Image, "tile", [], raising=False)
    heic = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic"
    image = prepare_image(heic, ImageOptions(encoding=Encoding.PNG))
    assert image.source_format == "heic"
    assert np.array_equal(check_stored(image), picture(seed=1))


@pytest.mark.skipif(importlib.util.find_spec("pillow_heif") is None, reason="needs the extra heif")
def test_heic_with_the_real_plugin() -> None:
    import pillow_heif

    stream = io.BytesIO()
    file = pillow_heif.from_pillow(Image.fromarray(picture(seed=1, height=64, width=64)))
    file.save(stream, quality=95)
    image = prepare_image(stream.getvalue(), ImageOptions())
    assert (image.source_format, image.format) == ("heic", "jpeg")
    difference = check_stored(image).astype(int) - picture(seed=1, height=64, width=64)
    assert np.abs(difference).mean() < 12


def test_rle4_bitmaps_are_refused_rather_than_shown_wrong() -> None:
    data = bytearray(save(Image.fromarray(picture(seed=1)).quantize(16), "BMP"))
    data[30:34] = struct.pack("<I", 2)
    with pytest.raises(ImageRejectedError, match="RLE4") as caught:
        prepare_image(bytes(data), ImageOptions())
    assert caught.value.reason is UNSUPPORTED


def test_icons_whose_pictures_are_missing() -> None:
    assert prepare_image(SEEDS["ico"], ImageOptions()).width == 24  # the largest one
    cursor = b"\0\0\2\0" + SEEDS["ico_bmp"][4:]
    assert prepare_image(cursor, ImageOptions()).source_format == "cur"
    with pytest.raises(ImageRejectedError, match="icon file without pictures"):
        prepare_image(b"\0\0\1\0\0\0" + bytes(100), ImageOptions())
    with pytest.raises(ImageRejectedError, match="over the end of the file"):
        prepare_image(SEEDS["ico"][:-1], ImageOptions())


def test_a_jpeg_named_anything_is_a_jpeg() -> None:
    image = prepare_image(jpeg(1), ImageOptions())
    assert (image.source_format, image.format) == ("jpeg", "jpeg")


def test_a_process_that_loads_truncated_images_does_not_pass_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = encode(picture(), "BMP")
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)  # as TFDS leaves it
    with pytest.raises(ImageRejectedError) as refused:
        prepare_image(whole[: len(whole) // 2], ImageOptions())
    assert refused.value.reason is RejectReason.TRUNCATED
