"""Every format in every encoding, and what the options do to an image."""

from __future__ import annotations

import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image, ImageCms

from beam_pipeline.errors import ImageRejectedError
from beam_pipeline.images import NOTES, prepare_image, prepare_pixels
from beam_pipeline.options import ColorProfile, Encoding, ImageOptions, ResizeMode
from beam_pipeline.types import RejectReason
from tests.beam_pipeline.image_samples import (
    adam7_rows,
    check_stored,
    chunk,
    png_file,
    png_rows,
    profile,
    save,
    seeds,
)
from tests.fakes import encode, jpeg, picture, png

SEEDS = seeds()
KEPT = {
    "jpeg",
    "jpeg_gray",
    "jpeg_progressive",
    "jpeg_restarts",
    "jpeg_arithmetic",
    "jpeg_arithmetic_progressive",
    "png",
    "png_gray",
    "png_interlaced",
    "apng",
}
LOSSY = ("jpeg", "mpo", "webp", "avif", "jp2", "j2k")
FURTHER_PICTURES = {"mpo", "apng", "gif_animated", "webp_animated", "tiff_pages", "ico"}


@pytest.mark.parametrize("name", SEEDS)
@pytest.mark.parametrize("encoding", Encoding)
def test_what_is_stored_is_what_tensorflow_decodes(name: str, encoding: Encoding) -> None:
    image = prepare_image(SEEDS[name], ImageOptions(encoding=encoding))
    pixels = check_stored(image)
    assert image.source_format == name.split("_")[0].replace("j2k", "jp2").replace(
        "pgm", "ppm"
    ).replace("pbm", "ppm").replace("apng", "png")
    if encoding is not Encoding.PASSTHROUGH:
        assert image.format == encoding.value
    if name in ("jpeg", "png", "webp", "bmp", "tiff", "tga", "ppm", "sgi", "pcx", "qoi"):
        # All of them hold the same picture; JPEG and WebP halve its colours.
        bound = 9 if name in LOSSY or encoding is Encoding.JPEG else 0.01
        difference = np.abs(pixels.astype(int) - picture(seed=1))
        assert difference.mean() < bound, difference.mean()


@pytest.mark.parametrize("name", SEEDS)
def test_passthrough_keeps_bytes_or_stores_png_for_lossless_and_jpeg_for_lossy(name: str) -> None:
    data = SEEDS[name]
    image = prepare_image(data, ImageOptions())
    assert ("reencoded" in image.notes) == (name not in KEPT | {"mpo"})
    assert ("first_frame" in image.notes) == (name in FURTHER_PICTURES)
    if name in KEPT:
        assert image.data == data
    elif name == "mpo":
        assert data.startswith(image.data)  # its first picture, byte for byte
        assert len(image.data) < len(data)
    lossless = name in ("jpeg_lossless", "webp_alpha", "jp2", "j2k")
    expected = "jpeg" if name.startswith(LOSSY) and not lossless else "png"
    # Pillow writes JPEG 2000 with the reversible wavelet.
    assert image.format == expected


@pytest.mark.parametrize(
    "name", ["bmp", "tiff", "tiff_lzw", "tga", "ppm", "sgi", "pcx", "qoi", "jp2", "jpeg_lossless"]
)
def test_lossless_sources_stay_exact(name: str) -> None:
    image = prepare_image(SEEDS[name], ImageOptions())
    assert np.array_equal(check_stored(image), picture(seed=1))


def test_lossless_webp_stays_exact() -> None:
    for options in ({}, {"exif": b"Exif\0\0"}):
        data = save(Image.fromarray(picture(seed=1)), "WEBP", lossless=True, **options)
        image = prepare_image(data, ImageOptions())
        assert image.format == "png"
        assert np.array_equal(check_stored(image), picture(seed=1))


def test_first_picture_is_taken() -> None:
    for name in ("apng", "gif_animated", "webp_animated", "tiff_pages", "mpo"):
        pixels = check_stored(prepare_image(SEEDS[name], ImageOptions()))
        difference = np.abs(pixels.astype(int) - picture(seed=60)).mean()
        assert difference < 12, (name, difference)  # GIF has 256 colours


def test_first_gif_frame_is_put_on_its_canvas() -> None:
    data = bytearray(save(Image.fromarray(picture(10, 12, seed=3)).quantize(16), "GIF"))
    data[6:10] = (20).to_bytes(2, "little") + (30).to_bytes(2, "little")  # the canvas
    start = data.index(b",\0\0\0\0\x0c\0\x0a\0")  # the descriptor of the frame
    data[start + 1 : start + 5] = (5).to_bytes(2, "little") + (7).to_bytes(2, "little")
    image = prepare_image(bytes(data), ImageOptions(background=(1, 2, 250)))
    pixels = check_stored(image)
    assert pixels.shape == (30, 20, 3)
    outside = np.ones((30, 20), bool)
    outside[7:17, 5:17] = False
    assert (pixels[outside] == (1, 2, 250)).all()
    assert np.abs(pixels[7:17, 5:17].astype(int) - picture(10, 12, seed=3)).mean() < 25


def test_alpha_is_composited_on_the_background_not_on_the_hidden_colour() -> None:
    pixels = np.zeros((4, 6, 4), np.uint8)
    pixels[..., :3] = (200, 100, 50)
    pixels[:, 2:4, 3] = 128
    pixels[:, 4:, 3] = 255
    for format in ("PNG", "WEBP", "TIFF", "TGA", "ICO", "DDS"):
        options = {"lossless": True} if format == "WEBP" else {}
        if format == "ICO":
            options = {"sizes": [(6, 4)]}
        data = save(Image.fromarray(pixels), format, **options)
        image = prepare_image(data, ImageOptions(background=(0, 255, 0)))
        stored = check_stored(image)
        assert (stored[:, :2] == (0, 255, 0)).all(), format
        assert np.abs(stored[:, 2:4].astype(int) - (100, 177, 25)).max() <= 1, format
        assert (stored[:, 4:] == (200, 100, 50)).all(), format
        assert "alpha_composited" in image.notes
        black = check_stored(prepare_image(data, ImageOptions()))
        assert (black[:, :2] == 0).all(), format


def test_opaque_alpha_is_dropped_without_a_note() -> None:
    pixels = np.dstack([picture(seed=4), np.full((24, 32), 255, np.uint8)])
    image = prepare_image(encode(pixels, "PNG"), ImageOptions())
    assert np.array_equal(check_stored(image), picture(seed=4))
    assert image.notes == ("reencoded",)


def test_sixteen_bits_keep_256_levels() -> None:
    ramp = np.arange(65_536, dtype=np.uint16).reshape(256, 256)
    expected = np.round(ramp / 257).astype(np.uint8)
    for data in (encode(ramp, "PNG"), encode(ramp, "TIFF"), encode(ramp, "PPM")):
        image = prepare_image(data, ImageOptions())
        stored = check_stored(image)[..., 0]
        assert len(np.unique(stored)) == 256
        assert np.array_equal(stored, expected), image.source_format
        assert "depth_reduced" in image.notes
    color = png_file(256, 256, 16, 2, png_rows(np.dstack([ramp, ramp[::-1], ramp.T])))
    stored = check_stored(prepare_image(color, ImageOptions()))
    assert [len(np.unique(stored[..., plane])) for plane in range(3)] == [256] * 3
    assert np.abs(stored[..., 0].astype(int) - expected).max() <= 1


def test_one_bit_black_stays_black() -> None:
    bits = Image.fromarray(np.tile(np.uint8([0, 255]), (6, 4))).convert("1")
    expected = np.tile(np.uint8([0, 255]), (6, 4))
    files = [save(bits, "PNG"), save(bits, "TIFF"), save(bits, "BMP"), save(bits, "PPM")]
    files += [save(bits, "TIFF", compression="group4"), save(bits, "GIF")]
    files.append(save(bits, "TIFF", tiffinfo={262: 0}))  # white is zero
    for data in files:
        stored = check_stored(prepare_image(data, ImageOptions(channels=1)))
        assert np.array_equal(stored[..., 0], expected), data[:8]


def test_integers_of_32_bits_and_floats_are_refused() -> None:
    for samples in (np.ones((4, 4), np.int32), np.ones((4, 4), np.float32)):
        with pytest.raises(ImageRejectedError, match="8 or 16 bits are expected") as caught:
            prepare_image(save(Image.fromarray(samples), "TIFF"), ImageOptions())
        assert caught.value.reason is RejectReason.UNSUPPORTED_PIXELS


@pytest.mark.parametrize("mode", ResizeMode)
@pytest.mark.parametrize("encoding", Encoding)
@pytest.mark.parametrize("size", [(10, 10), (50, 20), (24, 32), (1, 200)])
def test_resize(mode: ResizeMode, encoding: Encoding, size: tuple[int, int]) -> None:
    options = ImageOptions(encoding=encoding, resize=size, resize_mode=mode)
    for data in (jpeg(1), png(1), SEEDS["png_gray"], SEEDS["webp"]):
        image = prepare_image(data, options)
        check_stored(image)
        shape = (image.height, image.width)
        if mode is ResizeMode.FIT:
            scale = min(size[0] / 24, size[1] / 32)
            assert shape == (max(1, round(24 * scale)), max(1, round(32 * scale)))
        else:
            assert shape == size
        assert ("resized" in image.notes) == (shape != (24, 32))


def test_resize_to_the_same_size_keeps_the_bytes() -> None:
    for mode in ResizeMode:
        options = ImageOptions(resize=(24, 32), resize_mode=mode)
        assert prepare_image(jpeg(1), options).data == jpeg(1)
        assert prepare_image(png(1), options).data == png(1)


def test_crop_takes_the_centre_and_pad_fills_with_the_background() -> None:
    pixels = np.zeros((20, 60, 3), np.uint8)
    pixels[:, 16:44] = (0, 200, 0)  # wider than the cut: resizing looks past its edges
    data = encode(pixels, "PNG")
    crop = ImageOptions(resize=(10, 10), resize_mode=ResizeMode.CROP)
    assert (check_stored(prepare_image(data, crop)) == (0, 200, 0)).all()
    pad = ImageOptions(
        resize=(60, 60), resize_mode=ResizeMode.PAD, background=(9, 8, 7), encoding=Encoding.RAW
    )
    padded = check_stored(prepare_image(data, pad))
    assert (padded[:20] == (9, 8, 7)).all()
    assert np.array_equal(padded[20:40], pixels)
    assert (padded[40:] == (9, 8, 7)).all()


def test_large_jpegs_are_resized_from_a_smaller_decode_that_looks_the_same() -> None:
    large = Image.fromarray(picture(800, 1200, seed=2))
    data = save(large, "JPEG", quality=95)
    for mode in ResizeMode:
        options = ImageOptions(resize=(90, 90), resize_mode=mode, encoding=Encoding.RAW)
        fast = check_stored(prepare_image(data, options)).astype(int)
        # A PNG of the same pixels is always resized from its full size.
        full = check_stored(prepare_image(save(large, "PNG"), options)).astype(int)
        assert fast.shape == full.shape
        assert np.abs(fast - full).mean() < 2, mode


@pytest.mark.parametrize("encoding", Encoding)
@pytest.mark.parametrize("channels", [1, 3])
def test_channels(encoding: Encoding, channels: int) -> None:
    options = ImageOptions(encoding=encoding, channels=channels)
    for name in ("jpeg", "jpeg_gray", "png", "png_gray", "png_palette", "webp", "jpeg_cmyk"):
        image = prepare_image(SEEDS[name], options)
        assert check_stored(image).shape[2] == channels == image.channels
    gray = encode(picture(channels=1), "PNG")
    stored = check_stored(prepare_image(gray, ImageOptions(channels=3)))
    assert np.array_equal(stored, np.dstack([picture(channels=1)] * 3))
    kept = prepare_image(jpeg(1), ImageOptions(channels=3))
    assert kept.data == jpeg(1)
    assert kept.notes == ()


def test_jpeg_quality_and_full_chroma() -> None:
    data = png(7, height=64, width=64)
    sizes = []
    for quality in (20, 95):
        image = prepare_image(data, ImageOptions(encoding=Encoding.JPEG, jpeg_quality=quality))
        check_stored(image)
        sizes.append(len(image.data))
        frame = image.data.index(b"\xff\xc0")
        # Sampling factors of the three components: 1×1 each is 4:4:4.
        assert [image.data[frame + 11 + 3 * plane] for plane in range(3)] == [0x11] * 3
    assert sizes[0] < sizes[1]


def test_png_encoding_keeps_a_png_and_jpeg_encoding_writes_every_jpeg_anew() -> None:
    assert prepare_image(png(1), ImageOptions(encoding=Encoding.PNG)).data == png(1)
    image = prepare_image(jpeg(1), ImageOptions(encoding=Encoding.JPEG))
    assert image.notes == ("reencoded",)


ADOBE = ((0.64, 0.33), (0.21, 0.71), (0.15, 0.06))  # about Adobe RGB, as CIE xy


def _to_srgb(primaries: tuple[tuple[float, float], ...], color: tuple[int, int, int]) -> np.ndarray:
    """`color` of a gamma 2.2 display with these primaries, in sRGB, computed by hand."""
    xyz = np.array([[x / y, 1, (1 - x - y) / y] for x, y in primaries]).T
    xyz = xyz * np.linalg.solve(xyz, [0.9642, 1, 0.8249]) @ (np.array(color) / 255) ** 2.2
    srgb = [  # adapted to D50, as in every sRGB profile
        [0.4360747, 0.3850649, 0.1430804],
        [0.2225045, 0.7168786, 0.0606169],
        [0.0139322, 0.0971045, 0.7141733],
    ]
    linear = np.clip(np.linalg.solve(srgb, xyz), 0, 1)
    curved = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return 255 * curved


@pytest.mark.parametrize("format", ["JPEG", "PNG", "TIFF", "WEBP"])
def test_color_profile(format: str) -> None:
    wide = profile(*ADOBE)
    pixels = np.zeros((16, 16, 3), np.uint8)
    pixels[:, :8] = (100, 150, 120)
    pixels[:, 8:] = (100, 200, 50)  # out of sRGB: red is clipped to 0
    options = {"JPEG": {"quality": 100, "subsampling": 0}, "WEBP": {"lossless": True}}
    data = save(Image.fromarray(pixels), format, icc_profile=wide, **options.get(format, {}))
    ignored = check_stored(prepare_image(data, ImageOptions(encoding=Encoding.RAW)))
    assert np.abs(ignored.astype(int) - pixels).max() <= 2
    image = prepare_image(
        data, ImageOptions(encoding=Encoding.RAW, color_profile=ColorProfile.SRGB)
    )
    converted = check_stored(image)
    assert "profile_converted" in image.notes
    assert np.abs(converted[:, :7] - _to_srgb(ADOBE, (100, 150, 120))).max() <= 3
    assert np.abs(converted[:, 9:] - _to_srgb(ADOBE, (100, 200, 50))).max() <= 4
    if format in ("JPEG", "PNG"):
        assert prepare_image(data, ImageOptions()).data == data


def test_the_background_is_not_part_of_the_profile() -> None:
    pixels = np.zeros((8, 8, 4), np.uint8)
    pixels[:4] = (100, 150, 120, 255)
    options = ImageOptions(color_profile=ColorProfile.SRGB, background=(10, 200, 30))
    key = png_file(
        8,
        8,
        8,
        2,
        png_rows(pixels[..., :3]),
        before=chunk(b"iCCP", b"x\0\0" + zlib.compress(profile(*ADOBE))) + chunk(b"tRNS", bytes(6)),
    )
    files = [
        save(Image.fromarray(pixels), format, icc_profile=profile(*ADOBE), **more)
        for format, more in (("PNG", {}), ("TIFF", {}), ("WEBP", {"lossless": True}))
    ]
    for data in [*files, key]:
        stored = check_stored(prepare_image(data, options))
        assert (stored[4:] == (10, 200, 30)).all()
        assert np.abs(stored[:4] - _to_srgb(ADOBE, (100, 150, 120))).max() <= 2


def test_profiles_of_gray_and_deep_images() -> None:
    gray = Image.fromarray(picture(channels=1))
    deep = Image.fromarray(picture(channels=1).astype(np.uint16) * 257)
    for image in (gray, deep):
        for format in ("PNG", "TIFF"):
            data = save(image, format, icc_profile=profile(*ADOBE))  # made for RGB
            for color_profile in ColorProfile:
                stored = check_stored(
                    prepare_image(data, ImageOptions(color_profile=color_profile))
                )
                assert np.array_equal(stored[..., 0], picture(channels=1))


def test_resize_beyond_what_can_be_stored_is_refused_before_it_is_made() -> None:
    with pytest.raises(ImageRejectedError, match="65500×65500") as caught:
        prepare_image(png(1), ImageOptions(resize=(65_500, 65_500)))
    assert caught.value.reason is RejectReason.TOO_MANY_PIXELS


def test_srgb_profiles_and_damaged_profiles_change_nothing() -> None:
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    options = ImageOptions(color_profile=ColorProfile.SRGB)
    for icc in (srgb, b"no profile at all", srgb[:100]):
        for format in ("JPEG", "PNG", "TIFF", "WEBP"):
            data = save(Image.fromarray(picture(seed=1)), format, icc_profile=icc)
            image = prepare_image(data, options)
            assert "profile_converted" not in image.notes
            assert np.abs(check_stored(image).astype(int) - picture(seed=1)).mean() < 6
    data = save(Image.fromarray(picture(seed=1)), "JPEG", icc_profile=srgb)
    assert prepare_image(data, options).data == data


def test_gamma_is_not_applied() -> None:
    data = png_file(32, 24, 8, 2, png_rows(picture(seed=1)), before=chunk(b"gAMA", b"\0\1\x86\xa0"))
    image = prepare_image(data, ImageOptions())
    assert image.data == data
    assert np.array_equal(check_stored(image), picture(seed=1))


def test_nothing_of_the_source_but_its_pixels_is_stored_anew() -> None:
    comment = b"c" * 70_000  # more than fits into a JPEG comment
    wide = profile(*ADOBE)
    files = [
        save(Image.fromarray(picture(seed=1)), "GIF", comment=comment),
        save(Image.fromarray(picture(seed=1)), "TIFF", icc_profile=wide, dpi=(17, 17)),
        save(Image.fromarray(picture(seed=1)), "WEBP", icc_profile=wide, exif=b"Exif\0\0secret"),
    ]
    for data in files:
        for encoding in Encoding:
            image = prepare_image(data, ImageOptions(encoding=encoding, resize=(20, 20)))
            check_stored(image)
            for part in (b"cccccccc", b"made for a test", b"secret", b"iCCP", b"tRNS", b"pHYs"):
                assert part not in image.data


def test_notes_are_of_the_documented_words() -> None:
    seen = set()
    for data in SEEDS.values():
        for options in (ImageOptions(), ImageOptions(resize=(9, 9), channels=1)):
            notes = prepare_image(data, options).notes
            assert list(notes) == sorted(set(notes))
            seen |= set(notes)
    assert seen <= set(NOTES)
    assert set(NOTES) - seen == {"profile_converted", "trailing_bytes"}


def test_formats_limit_what_is_accepted() -> None:
    options = ImageOptions(formats=frozenset(("jpeg", "png")))
    assert prepare_image(jpeg(1), options).format == "jpeg"
    assert prepare_image(SEEDS["mpo"], options).source_format == "mpo"  # a kind of JPEG
    with pytest.raises(
        ImageRejectedError, match="this is gif; --formats allows jpeg, png"
    ) as caught:
        prepare_image(SEEDS["gif"], options)
    assert caught.value.reason is RejectReason.FORMAT_NOT_ALLOWED


def test_bounds_on_bytes_and_pixels() -> None:
    with pytest.raises(ImageRejectedError, match="--max_bytes allows 10") as caught:
        prepare_image(jpeg(1), ImageOptions(max_bytes=10))
    assert caught.value.reason is RejectReason.TOO_MANY_BYTES
    for name, data in SEEDS.items():
        options = ImageOptions(max_pixels=3)
        with pytest.raises(ImageRejectedError) as caught:
            prepare_image(data, options)
        assert caught.value.reason is RejectReason.TOO_MANY_PIXELS, name
        assert "--max_pixels allows 3" in caught.value.detail
    exact = ImageOptions(max_pixels=24 * 32)
    assert prepare_image(SEEDS["jpeg"], exact).width == 32


def test_a_slow_decoder_is_stopped() -> None:
    data = save(Image.fromarray(picture(400, 400, seed=1)), "QOI")  # decoded in Python
    assert prepare_image(data, ImageOptions()).width == 400
    with pytest.raises(ImageRejectedError, match=r"--image_timeout 0\.01") as caught:
        prepare_image(data, ImageOptions(image_timeout=0.01))
    assert caught.value.reason is RejectReason.TIMEOUT
    assert prepare_image(data, ImageOptions(image_timeout=0)).width == 400


def test_work_that_cannot_be_stopped_is_judged_before_it_starts() -> None:
    # openjpeg and libtiff read all of their data first and never ask for the time.
    jp2 = save(Image.fromarray(picture(400, 400, seed=1)), "JPEG2000")
    tiff = save(Image.fromarray(picture(400, 400, seed=1)), "TIFF", compression="jpeg")
    scans = tiff + b"\xff\xda" * 5000  # as if its strips had that many scans
    for data in (jp2, scans):
        assert prepare_image(data, ImageOptions()).width == 400
        with pytest.raises(ImageRejectedError, match=r"--image_timeout allows 0\.02") as caught:
            prepare_image(data, ImageOptions(image_timeout=0.02))
        assert caught.value.reason is RejectReason.TIMEOUT
    assert prepare_image(tiff, ImageOptions(image_timeout=0.02)).width == 400


def test_sides_that_tensorflow_does_not_decode() -> None:
    wide = png_file(1_000_001, 1, 8, 0, png_rows(np.zeros((1, 1_000_001), np.uint8)))
    with pytest.raises(ImageRejectedError, match="more than TensorFlow decodes from png") as caught:
        prepare_image(wide, ImageOptions())
    assert caught.value.reason is RejectReason.TOO_MANY_PIXELS
    assert prepare_image(wide, ImageOptions(encoding=Encoding.RAW)).width == 1_000_001
    with pytest.raises(ImageRejectedError, match="from jpeg"):
        prepare_image(wide, ImageOptions(encoding=Encoding.JPEG))
    narrow = png_file(70_000, 1, 8, 0, png_rows(np.zeros((1, 70_000), np.uint8)))
    assert prepare_image(narrow, ImageOptions()).data == narrow
    check_stored(prepare_image(narrow, ImageOptions()))


@pytest.mark.parametrize("shape", [(48, 48), (5, 7, 1), (5, 7, 2), (5, 7, 3), (5, 7, 4)])
@pytest.mark.parametrize("encoding", Encoding)
def test_pixels(shape: tuple[int, ...], encoding: Encoding) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    if shape[-1] in (2, 4):
        pixels[..., -1] = 255
    image = prepare_pixels(pixels, ImageOptions(encoding=encoding))
    stored = check_stored(image)
    assert image.source_format == "pixels"
    assert image.format == ("png" if encoding is Encoding.PASSTHROUGH else encoding.value)
    if encoding is not Encoding.JPEG:
        opaque = {2: 1, 4: 3}.get(shape[-1], shape[-1])
        expected = pixels if len(shape) == 2 else pixels[..., :opaque]
        assert np.array_equal(stored.squeeze(), expected.squeeze())


def test_pixels_of_another_kind_are_refused() -> None:
    for pixels in (
        np.zeros((4, 4), np.float32),
        np.zeros((4, 4, 5), np.uint8),
        np.zeros(4, np.uint8),
        np.zeros((0, 4), np.uint8),
    ):
        with pytest.raises(ImageRejectedError, match="pixels") as caught:
            prepare_pixels(pixels, ImageOptions())
        assert caught.value.reason is RejectReason.UNSUPPORTED_PIXELS
    with pytest.raises(ImageRejectedError, match="--max_pixels"):
        prepare_pixels(np.zeros((4, 4), np.uint8), ImageOptions(max_pixels=15))


def test_pixels_need_not_be_contiguous() -> None:
    pixels = picture(seed=1)[::-1, ::2]
    stored = check_stored(prepare_pixels(pixels, ImageOptions()))
    assert np.array_equal(stored, pixels)


def test_results_do_not_depend_on_threads() -> None:
    names = sorted(SEEDS)
    alone = [prepare_image(SEEDS[name], ImageOptions()) for name in names]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            jobs = [pool.submit(prepare_image, SEEDS[name], ImageOptions()) for name in names]
            assert [job.result() for job in jobs] == alone


def test_interlaced_png_reads_the_same_in_tensorflow() -> None:
    for height, width in ((1, 1), (2, 3), (5, 4), (8, 8), (9, 17)):
        pixels = picture(height, width, seed=height)
        data = png_file(width, height, 8, 2, adam7_rows(pixels), interlace=1)
        image = prepare_image(data, ImageOptions())
        assert image.data == data
        assert np.array_equal(check_stored(image), pixels)


def test_import_needs_neither_beam_nor_tensorflow() -> None:
    code = (
        "import sys, beam_pipeline.images, beam_pipeline.imaging.decoder_warnings\n"
        "for name in ('apache_beam', 'tensorflow', 'PIL.ImageCms', 'tfx_bsl'):\n"
        "    assert name not in sys.modules, name\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
