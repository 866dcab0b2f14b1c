"""PNG: chunks, checksums, rows and transparency."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from beam_pipeline.errors import ImageRejectedError
from beam_pipeline.images import prepare_image
from beam_pipeline.options import Encoding, ImageOptions
from beam_pipeline.types import RejectReason
from tests.beam_pipeline.image_samples import (
    adam7_rows,
    check_stored,
    chunk,
    exif,
    png_file,
    png_rows,
    save,
    seeds,
)
from tests.fakes import encode, picture

PIXELS = picture(seed=1)
ROWS = png_rows(PIXELS)
GOOD = png_file(32, 24, 8, 2, ROWS)
SEEDS = {name: data for name, data in seeds().items() if data.startswith(b"\x89PNG")}


def _with_idat(*bodies: bytes, before: bytes = b"", after: bytes = b"") -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 32, 24, 8, 2, 0, 0, 0))
    pixels = b"".join(chunk(b"IDAT", body) for body in bodies)
    return GOOD[:8] + header + before + pixels + after + chunk(b"IEND", b"")


def _reject(data: bytes) -> ImageRejectedError:
    with pytest.raises(ImageRejectedError) as caught:
        prepare_image(data, ImageOptions())
    return caught.value


@pytest.mark.parametrize("name", SEEDS)
def test_cut_at_any_byte_is_refused(name: str) -> None:
    data = SEEDS[name]
    for length in range(1, len(data)):
        reason = _reject(data[:length]).reason
        assert reason is RejectReason.TRUNCATED or length < 8, (length, reason)


@pytest.mark.parametrize("name", SEEDS)
def test_any_flipped_byte_is_refused(name: str) -> None:
    data = SEEDS[name]
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x10
        _reject(bytes(damaged))


def test_bytes_behind_the_end_are_kept() -> None:
    image = prepare_image(GOOD + b"junk" * 100, ImageOptions())
    assert image.data == GOOD + b"junk" * 100
    assert image.notes == ("trailing_bytes",)
    assert np.array_equal(check_stored(image), PIXELS)


def test_damaged_compressed_data_is_refused_whatever_the_checksum_says() -> None:
    packed = zlib.compress(ROWS)
    cases = {
        "checksum of the stream": _with_idat(packed[:-1] + bytes([packed[-1] ^ 1])),
        "no stream": _with_idat(b"no zlib data"),
        "empty": _with_idat(b""),
        "cut stream": _with_idat(packed[:-200]),
        "too few rows": _with_idat(zlib.compress(ROWS[:-97])),
        "half a row less": _with_idat(zlib.compress(ROWS[:-50])),
        "unknown filter": _with_idat(zlib.compress(b"\5" + ROWS[1:])),
        "unknown filter in the last row": _with_idat(
            zlib.compress(ROWS[: -len(ROWS) // 24] + b"\7" + ROWS[-len(ROWS) // 24 + 1 :])
        ),
    }
    for what, data in cases.items():
        assert _reject(data).reason in (RejectReason.CORRUPT, RejectReason.TRUNCATED), what


def test_harmless_oddities_come_through_with_their_pixels() -> None:
    packed = zlib.compress(ROWS)
    text = chunk(b"tEXt", b"key\0value")
    cases = {
        "many IDAT chunks": (_with_idat(*(packed[i : i + 1] for i in range(len(packed)))), True),
        "an empty IDAT between": (_with_idat(packed[:9], b"", packed[9:]), True),
        "text": (_with_idat(packed, before=text, after=text), True),
        "unknown ancillary chunk": (_with_idat(packed, before=chunk(b"abCd", b"x")), True),
        "suggested palette": (_with_idat(packed, before=chunk(b"PLTE", b"abc")), True),
        "odd profile": (_with_idat(packed, before=chunk(b"iCCP", b"x\0\7garbage")), True),
        "text bomb": (
            _with_idat(packed, before=chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(50 << 20)))),
            True,
        ),
        "bytes behind the stream": (_with_idat(packed + b"abc"), False),
        "one more IDAT": (_with_idat(packed, b"xx"), False),
        "more rows than declared": (_with_idat(zlib.compress(ROWS + ROWS)), False),
        "IDAT in two places": (
            _with_idat(packed[:50], after=text + chunk(b"IDAT", packed[50:])),
            False,
        ),
        "a large text": (
            _with_idat(packed, before=chunk(b"tEXt", b"k\0" + b"a" * (2 << 20))),
            False,
        ),
    }
    for what, (data, kept) in cases.items():
        image = prepare_image(data, ImageOptions())
        assert (image.data == data) == kept, what
        assert np.array_equal(check_stored(image), PIXELS), what


def test_structure_that_no_decoder_accepts_is_refused() -> None:
    packed = zlib.compress(ROWS)
    idat = chunk(b"IDAT", packed)
    end = chunk(b"IEND", b"")
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 32, 24, 8, 2, 0, 0, 0))
    sign = GOOD[:8]
    cases = {
        "no IHDR first": sign + idat + header + end,
        "two IHDR": sign + header + header + idat + end,
        "no IDAT": sign + header + end,
        "unknown critical chunk": _with_idat(packed, before=chunk(b"CgBI", b"\0\0\0\0")),
        "palette without PLTE": png_file(4, 4, 8, 3, bytes(20)),
    }
    for depth, color in ((0, 2), (3, 0), (16, 3), (4, 2), (2, 4), (8, 1), (8, 5), (99, 6)):
        cases[f"depth {depth}, colour {color}"] = png_file(4, 4, depth, color, bytes(500))
    for size in ((0, 4), (4, 0)):
        cases[f"size {size}"] = png_file(*size, 8, 2, bytes(500))
    for what, data in cases.items():
        error = _reject(data)
        assert error.detail.startswith("PNG: "), what


@pytest.mark.parametrize("side", [1 << 15, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 32) - 1])
def test_declared_sizes_are_refused_before_decoding(side: int) -> None:
    error = _reject(png_file(side, side, 8, 2, bytes(100)))
    expected = RejectReason.TOO_MANY_PIXELS if side < 1 << 31 else RejectReason.CORRUPT
    assert error.reason is expected


def test_one_transparent_colour_is_composited() -> None:
    gray = np.tile(np.arange(16, dtype=np.uint8), (4, 2))
    cases = []
    for depth in (1, 2, 4, 8):
        top = (1 << depth) - 1
        values = gray & top
        packed = b"".join(
            b"\0" + np.packbits(np.unpackbits(row[:, None], axis=1)[:, -depth:].ravel()).tobytes()
            for row in values
        )
        data = png_file(32, 4, depth, 0, packed, before=chunk(b"tRNS", struct.pack(">H", 1)))
        scaled = (values.astype(int) * 255 // top)[..., None]
        cases.append((data, np.where(values[..., None] == 1, 200, scaled)))
    deep = gray.astype(np.uint16) * 4000
    data = png_file(32, 4, 16, 0, png_rows(deep), before=chunk(b"tRNS", struct.pack(">H", 4000)))
    scaled = np.round(deep / 257)[..., None]
    cases.append((data, np.where(deep[..., None] == 4000, 200, scaled)))
    color = np.dstack([gray, gray + 1, gray + 2]).astype(np.uint8)
    data = png_file(
        32, 4, 8, 2, png_rows(color), before=chunk(b"tRNS", struct.pack(">3H", 1, 2, 3))
    )
    cases.append((data, np.where(gray[..., None] == 1, 200, color)))
    deep_color = color.astype(np.uint16) * 256
    data = png_file(
        32, 4, 16, 2, png_rows(deep_color), before=chunk(b"tRNS", struct.pack(">3H", 256, 512, 768))
    )
    cases.append((data, np.where(gray[..., None] == 1, 200, color)))
    for data, expected in cases:
        image = prepare_image(data, ImageOptions(background=(200, 200, 200)))
        stored = check_stored(image)
        assert np.abs(stored.astype(int) - expected).max() <= 1
        assert image.notes[0] == "alpha_composited"


def test_a_transparent_colour_that_is_not_there_changes_nothing() -> None:
    data = png_file(32, 24, 8, 2, ROWS, before=chunk(b"tRNS", struct.pack(">3H", 999, 999, 999)))
    image = prepare_image(data, ImageOptions())
    assert image.notes == ("reencoded",)  # but a decoder would see an alpha channel
    assert np.array_equal(check_stored(image), PIXELS)
    for odd in (b"", b"\0", b"\0\1"):
        data = png_file(32, 24, 8, 2, ROWS, before=chunk(b"tRNS", odd))
        assert np.array_equal(check_stored(prepare_image(data, ImageOptions())), PIXELS)


def test_palettes_become_rgb() -> None:
    image = Image.fromarray(PIXELS).quantize(7)
    data = save(image, "PNG")
    stored = prepare_image(data, ImageOptions())
    assert stored.channels == 3
    assert np.array_equal(check_stored(stored), np.asarray(image.convert("RGB")))


def test_gray_with_alpha_stays_gray_on_a_gray_background() -> None:
    pixels = np.dstack([picture(channels=1), picture(channels=1, seed=3)])
    data = encode(pixels, "PNG")
    assert check_stored(prepare_image(data, ImageOptions())).shape[2] == 1
    colored = prepare_image(data, ImageOptions(background=(255, 0, 0)))
    assert check_stored(colored).shape[2] == 3


def test_orientation_in_a_png() -> None:
    data = png_file(32, 24, 8, 2, ROWS, before=chunk(b"eXIf", exif(6)[6:]))
    image = prepare_image(data, ImageOptions())
    assert image.notes == ("reencoded", "rotated")
    assert np.array_equal(check_stored(image), np.rot90(PIXELS, -1))
    upright = png_file(32, 24, 8, 2, ROWS, before=chunk(b"eXIf", exif(1)[6:]))
    assert prepare_image(upright, ImageOptions()).data == upright


def test_rows_of_large_files_are_checked_piece_by_piece() -> None:
    # 4 × 6 MB of rows: more than one piece of 16 MB, and the damage is in the last row.
    width, height = 6000, 1200
    row = b"\0" + bytes(3 * width)
    good = png_file(width, height, 8, 2, row * height)
    assert prepare_image(good, ImageOptions()).data == good
    bad = png_file(width, height, 8, 2, row * (height - 1) + b"\x09" + row[1:])
    assert _reject(bad).reason is RejectReason.CORRUPT
    short = png_file(width, height, 8, 2, row * (height - 1))
    assert _reject(short).reason is RejectReason.TRUNCATED


def test_filters_of_interlaced_rows_are_checked() -> None:
    rows = bytearray(adam7_rows(PIXELS))
    assert (
        prepare_image(png_file(32, 24, 8, 2, bytes(rows), interlace=1), ImageOptions()).width == 32
    )
    rows[1 + 3 * 4] = 9  # the filter of the second row of the first pass
    assert _reject(png_file(32, 24, 8, 2, bytes(rows), interlace=1)).reason is RejectReason.CORRUPT


def test_encoding_png_makes_other_pngs_plain() -> None:
    for name, data in SEEDS.items():
        image = prepare_image(data, ImageOptions(encoding=Encoding.PNG))
        check_stored(image)
        assert image.data[24] == 8, name
        assert image.data[25] in (0, 2), name
