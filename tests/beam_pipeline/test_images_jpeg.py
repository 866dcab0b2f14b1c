"""JPEG: what is passed through, what is re-encoded, and which damage is found."""

from __future__ import annotations

import io
import random
import struct
import time

import numpy as np
import pytest
from PIL import Image

from beam_pipeline.errors import ImageRejectedError
from beam_pipeline.images import prepare_image
from beam_pipeline.imaging.exif import exif_orientation
from beam_pipeline.imaging.jpeg import decode_jpeg, find_end, parse_jpeg
from beam_pipeline.options import Encoding, ImageOptions
from beam_pipeline.types import RejectReason
from tests.beam_pipeline.image_samples import (
    check_stored,
    exif,
    jpeg_segment,
    lossless_jpeg,
    save,
    seeds,
    training_sees,
    with_segment,
)
from tests.fakes import encode, jpeg, picture

SEEDS = {name: data for name, data in seeds().items() if name.startswith("jpeg")}
ORIENTED = {  # upright pixels → pixels as they are stored with this orientation
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: np.rot90(a, 1),
    7: lambda a: a[::-1, ::-1].swapaxes(0, 1),
    8: lambda a: np.rot90(a, -1),
}


def _reason(data: bytes, options: ImageOptions | None = None) -> RejectReason:
    with pytest.raises(ImageRejectedError) as caught:
        prepare_image(data, options or ImageOptions())
    return caught.value.reason


@pytest.mark.parametrize("name", SEEDS)
def test_cut_at_any_byte_is_refused(name: str) -> None:
    data = SEEDS[name]
    for length in range(1, len(data)):
        reason = _reason(data[:length])
        assert reason is RejectReason.TRUNCATED or length < 3, (length, reason)


@pytest.mark.parametrize("name", ["jpeg", "jpeg_gray", "jpeg_restarts", "jpeg_exif"])
def test_cut_pixel_data_with_an_end_marker_is_refused(name: str) -> None:
    # libjpeg fills what is missing with gray and only warns; TensorFlow does the same.
    data = SEEDS[name]
    header = parse_jpeg(data)
    missed = 0
    for length in range(header.scan, len(data) - 3):
        cut = data[:length].rstrip(b"\xff") + b"\xff\xd9"
        try:
            prepare_image(cut, ImageOptions())
        except ImageRejectedError:
            continue
        missed = max(missed, len(data) - length)
    # The very last blocks may hide in the bytes that a decoder looks ahead.
    assert missed <= 30


def test_a_small_decode_finds_the_damage_that_a_full_decode_finds() -> None:
    chance = random.Random(5)
    seen = {"both": 0, "neither": 0, "ours alone": 0}
    samples = [jpeg(3, height=40, width=56), SEEDS["jpeg_progressive"], SEEDS["jpeg_restarts"]]
    for number in range(1500):
        data = bytearray(samples[number % 3])
        start = parse_jpeg(bytes(data)).scan
        for _ in range(chance.choice((1, 2, 5))):
            data[chance.randrange(start, len(data))] = chance.randrange(256)
        damaged = bytes(data)
        try:
            Image.open(io.BytesIO(damaged)).load()
            full = True
        except OSError:
            full = False
        try:
            image = prepare_image(damaged, ImageOptions())
        except ImageRejectedError:
            seen["ours alone" if full else "both"] += 1
            continue
        # Nothing that the full decode refuses gets through, and what does is readable.
        assert full, number
        seen["neither"] += 1
        check_stored(image)
    assert min(seen.values()) > 10, seen


def test_pixels_are_those_of_pillow() -> None:
    for name, data in SEEDS.items():
        stored = training_sees(prepare_image(data, ImageOptions(encoding=Encoding.RAW)))
        image = Image.open(io.BytesIO(data))
        if name == "jpeg_exif":
            image = image.transpose(Image.Transpose.ROTATE_270)
        if name == "jpeg_cmyk":
            image = image.convert("RGB")
        assert np.array_equal(stored.squeeze(), np.asarray(image)), name


def test_bytes_behind_the_end_are_kept_and_noted() -> None:
    for junk in (b"\0", b"\xff", b"junk" * 1000, b"\xff\xd9", jpeg(2)):
        image = prepare_image(jpeg(1) + junk, ImageOptions())
        assert image.data == jpeg(1) + junk
        assert image.notes == ("trailing_bytes",)
        assert np.array_equal(
            check_stored(image), training_sees(prepare_image(jpeg(1), ImageOptions()))
        )


def test_a_start_marker_without_another_marker_is_no_jpeg() -> None:
    assert _reason(b"\xff\xd8") is RejectReason.TRUNCATED
    assert _reason(jpeg(1)[:2] + b"stray bytes" + jpeg(1)[2:]) is RejectReason.CORRUPT


def test_bytes_before_the_start_are_refused() -> None:
    for junk in (b"\0", b"\n", b"\xff", b"HTTP/1.1 200 OK\r\n\r\n"):
        with pytest.raises(ImageRejectedError, match=f"starts only at byte {len(junk)}"):
            prepare_image(junk + jpeg(1), ImageOptions())


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("order", ["<", ">"])
def test_orientation(orientation: int, order: str) -> None:
    pixels = np.zeros((32, 48, 3), np.uint8)
    pixels[:16, :24], pixels[:16, 24:], pixels[16:, :24] = (250, 0, 0), (0, 250, 0), (0, 0, 250)
    stored = np.ascontiguousarray(ORIENTED[orientation](pixels))
    data = save(Image.fromarray(stored), "JPEG", quality=95, exif=exif(orientation, order=order))
    image = prepare_image(data, ImageOptions())
    assert (image.height, image.width) == (32, 48)
    assert np.abs(check_stored(image).astype(int) - pixels).mean() < 6
    assert image.notes == (() if orientation == 1 else ("reencoded", "rotated"))


def test_a_bad_orientation_is_ignored() -> None:
    good = exif(6)
    bad = [exif(0), exif(9), exif(65_535), good[:12], good[:16], b"Exif\0\0", b"Exif\0\0II*\0"]
    bad += [b"Exif\0\0XX" + good[8:], good[:10] + b"\xff\xff\xff\xff" + good[14:]]
    bad.append(good.replace(struct.pack("<HHI", 0x0112, 3, 1), struct.pack("<HHI", 0x0112, 7, 1)))
    for block in bad:
        assert exif_orientation(block) == 1, block
        data = with_segment(jpeg(1), 0xE1, block)
        assert prepare_image(data, ImageOptions()).data == data
    assert exif_orientation(exif(8, kind=4)) == 8  # a LONG is no reason to lie on one side


def test_the_first_exif_block_counts_as_in_every_viewer() -> None:
    data = with_segment(with_segment(jpeg(1), 0xE1, exif(1)), 0xE1, exif(6))
    image = prepare_image(data, ImageOptions())
    assert (image.height, image.width) == (32, 24)


def test_cmyk_follows_the_adobe_marker() -> None:
    ink = np.zeros((16, 16, 4), np.uint8)
    ink[..., 0], ink[..., 3] = 200, 30  # much cyan, some black
    adobe = save(Image.fromarray(ink, "CMYK"), "JPEG", quality=98)
    stored = check_stored(prepare_image(adobe, ImageOptions()))
    expected = (55 * 225 / 255, 225, 225)
    assert np.abs(stored.astype(int) - expected).max() < 6
    assert prepare_image(adobe, ImageOptions()).notes == ("cmyk_converted", "reencoded")
    # Without the marker the samples are not inverted, as libjpeg and TensorFlow hold.
    start = adobe.index(b"\xff\xee")
    size = int.from_bytes(adobe[start + 2 : start + 4], "big")
    plain = adobe[:start] + adobe[start + 2 + size :]
    stored = check_stored(prepare_image(plain, ImageOptions()))
    assert np.abs(stored.astype(int) - (200 * 30 / 255, 0, 0)).max() < 6


def test_rgb_components_without_conversion_pass_through() -> None:
    pixels = picture(seed=1)
    data = save(Image.fromarray(pixels), "JPEG", keep_rgb=True, quality=95)
    image = prepare_image(data, ImageOptions())
    assert image.data == data
    assert np.abs(check_stored(image).astype(int) - pixels).mean() < 4


def test_lossless_jpeg_is_stored_as_png() -> None:
    for pixels in (picture(17, 23, seed=1), picture(17, 23, channels=1, seed=1)):
        for options in (ImageOptions(), ImageOptions(resize=(2, 2)), ImageOptions(channels=1)):
            image = prepare_image(lossless_jpeg(pixels), options)
            assert image.format == "png"
            stored = check_stored(image)
            if options == ImageOptions():
                assert np.array_equal(stored.squeeze(), pixels)


def test_other_processes_and_sample_sizes_are_named() -> None:
    frame = jpeg(1).index(b"\xff\xc0")
    for marker, words in ((0xC5, "SOF5"), (0xC7, "SOF7"), (0xCB, "SOF11"), (0xCF, "SOF15")):
        data = bytearray(jpeg(1))
        data[frame + 1] = marker
        with pytest.raises(ImageRejectedError, match=words):
            prepare_image(bytes(data), ImageOptions())
    data = bytearray(jpeg(1))
    data[frame + 4] = 12
    with pytest.raises(ImageRejectedError, match="12 bits a sample; 8 are expected") as caught:
        prepare_image(bytes(data), ImageOptions())
    assert caught.value.reason is RejectReason.UNSUPPORTED_PIXELS
    data[frame + 4], data[frame + 9] = 8, 2
    with pytest.raises(ImageRejectedError, match="2 components"):
        prepare_image(bytes(data), ImageOptions())


def test_declared_sizes_are_refused_before_decoding() -> None:
    data = bytearray(jpeg(1))
    frame = data.index(b"\xff\xc0")
    data[frame + 5 : frame + 9] = b"\xff\xff\xff\xff"
    start = time.perf_counter()
    with pytest.raises(ImageRejectedError, match="65535×65535 = 4294836225 pixels"):
        prepare_image(bytes(data), ImageOptions())
    assert time.perf_counter() - start < 0.1
    data[frame + 5 : frame + 9] = b"\0\0\0\0"
    assert _reason(bytes(data)) is RejectReason.CORRUPT


def test_markers_in_the_wrong_place_are_refused() -> None:
    data = jpeg(1)
    frame = data.index(b"\xff\xc0")
    size = 2 + int.from_bytes(data[frame + 2 : frame + 4], "big")
    twice = data[:frame] + data[frame : frame + size] + data[frame:]
    assert _reason(twice) is RejectReason.CORRUPT
    without = data[:frame] + data[frame + size :]
    assert _reason(without) is RejectReason.CORRUPT
    assert _reason(data[:2] + data) is RejectReason.CORRUPT  # two start markers
    middle = (parse_jpeg(data).scan + len(data)) // 2
    for marker in (b"\xff\xfe", b"\xff\xd8", b"\xff\xda", b"\xff\x01", b"\xff\xc4"):
        assert _reason(data[:middle] + marker + data[middle:]) is RejectReason.CORRUPT


def test_odd_but_harmless_markers_pass_through() -> None:
    scan_free = [
        with_segment(jpeg(1), 0xE1, b"http://ns.adobe.com/xap/1.0/\0<x/>"),
        with_segment(jpeg(1), 0xED, b"Photoshop 3.0\0" + b"\xff" * 40),
        with_segment(jpeg(1), 0xE2, b"ICC_PROFILE\0\1\2half of a profile"),
        with_segment(jpeg(1), 0xFE, b"a comment with \xff\xd9 and \xff\xc0 in it"),
        with_segment(jpeg(1), 0xEE, b"Adobe"),  # cut short
        jpeg(1)[:2] + b"\xff\xff\xff" + jpeg(1)[3:],  # fill bytes
        jpeg(1)[:20] + b"stray bytes" + jpeg(1)[20:],  # between two segments
        jpeg(1)[:20] + b"\xff\x00" + jpeg(1)[20:],
    ]
    for data in scan_free:
        image = prepare_image(data, ImageOptions())
        assert image.data == data
        assert np.array_equal(
            check_stored(image), training_sees(prepare_image(jpeg(1), ImageOptions()))
        )


def test_progressive_files_with_endless_scans_are_refused_in_time() -> None:
    # One more scan of a few bytes makes a decoder walk over all blocks once more.
    data = save(Image.new("L", (4000, 4000)), "JPEG", progressive=True)
    end = data.rindex(b"\xff\xd9")
    last = data.rindex(b"\xff\xda")
    bomb = data[:end] + data[last:end] * 3000 + b"\xff\xd9"
    start = time.perf_counter()
    with pytest.raises(ImageRejectedError, match="scans over 4000×4000 pixels") as caught:
        prepare_image(bomb, ImageOptions(image_timeout=10))
    assert caught.value.reason is RejectReason.TIMEOUT
    assert time.perf_counter() - start < 2
    assert prepare_image(data, ImageOptions(image_timeout=10)).data == data


def test_mpo_keeps_its_first_picture_only() -> None:
    first, second = Image.fromarray(picture(seed=1)), Image.fromarray(picture(seed=2))
    data = save(first, "MPO", save_all=True, append_images=[second])
    image = prepare_image(data, ImageOptions())
    assert image.source_format == "mpo"
    assert image.notes == ("first_frame",)
    assert data.startswith(image.data)
    assert image.data.endswith(b"\xff\xd9")
    assert len(image.data) < 0.7 * len(data)
    expected = np.asarray(Image.open(io.BytesIO(data)))
    assert (
        np.abs(check_stored(image).astype(int) - expected).mean() < 2
    )  # chroma is smoothed differently


def test_passthrough_judges_a_reduced_decode_of_the_real_picture() -> None:
    y, x = np.mgrid[0:375, 0:500]
    data = encode(((x / 500 + y / 375) * 120).astype(np.uint8), "JPEG", quality=90)
    header = parse_jpeg(data)
    small = decode_jpeg(data, header, find_end(data, header, 60), gray=True, scale=8)
    assert (small.mode, small.size) == ("L", (63, 47))
    full = Image.open(io.BytesIO(data)).resize((63, 47), Image.Resampling.BOX)
    assert np.abs(np.asarray(small).astype(int) - np.asarray(full)).mean() < 3


def test_segment_helper_is_sound() -> None:
    assert jpeg_segment(0xFE, b"ab") == b"\xff\xfe\0\4ab"
