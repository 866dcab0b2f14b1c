"""Decoded images of any Pillow mode → upright 8-bit gray or RGB, and → stored bytes."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image, JpegImagePlugin, PngImagePlugin

from beam_pipeline.errors import ImageRejectedError
from beam_pipeline.options import Encoding, ImageOptions, ResizeMode
from beam_pipeline.types import RejectReason

_TRANSPOSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# What TensorFlow's decoders take at most (measured with 2.21).
_JPEG_SIDE = 65_500
_JPEG_SAMPLES = 1 << 29  # height × width × channels stays below
_PNG_SIDE = 1_000_000
_PNG_PIXELS = 1 << 29  # height × width stays below
_RAW_BYTES = 1 << 30  # an Example is one protobuf message, of 2 GiB at most
# Registers Pillow's encoders; without the import, saving would load every plugin.
_ENCODERS = (JpegImagePlugin, PngImagePlugin)


def fits(encoding: Encoding, width: int, height: int, channels: int) -> bool:
    """Whether TensorFlow decodes a picture of this shape from `encoding` (not passthrough)."""
    side = max(width, height)
    if encoding is Encoding.JPEG:
        return side <= _JPEG_SIDE and width * height * channels < _JPEG_SAMPLES
    if encoding is Encoding.PNG:
        return side <= _PNG_SIDE and width * height < _PNG_PIXELS
    return width * height * channels <= _RAW_BYTES


def upright(image: Image.Image, orientation: int) -> Image.Image:
    """`image` with its EXIF orientation (1 to 8) applied."""
    return image.transpose(_TRANSPOSE[orientation]) if orientation != 1 else image


def to_eight_bits(image: Image.Image, maximum: int) -> Image.Image:
    """A 16-bit gray image as mode L: 0 … maximum becomes 0 … 255, rounded."""
    samples = np.asarray(image).astype(np.uint32)
    scaled = (np.minimum(samples, maximum) * 255 + maximum // 2) // maximum
    return Image.fromarray(scaled.astype(np.uint8))


def composite(
    image: Image.Image, alpha: Image.Image, background: tuple[int, int, int]
) -> Image.Image:
    """`image` (L or RGB) over a background where `alpha` (L) is less than 255."""
    red, green, blue = background
    if image.mode == "L" and red == green == blue:
        canvas = Image.new("L", image.size, red)
    else:
        canvas = Image.new("RGB", image.size, background)
        image = image.convert("RGB")
    canvas.paste(image, mask=alpha)
    return canvas


def key_alpha(image: Image.Image, key: bytes, depth: int) -> Image.Image | None:
    """The alpha channel (L) of a gray or RGB PNG in which one colour is transparent.

    Args:
      image: as Pillow decodes it without that colour.
      key: content of the tRNS chunk, big-endian 16-bit samples of `depth` bits.
      depth: bits a sample of the file.

    Returns:
      None where no pixel has the colour.
    """
    count = 3 if image.mode == "RGB" else 1
    if len(key) < 2 * count:
        return None
    samples = np.frombuffer(key, ">u2", count).astype(int)
    if count == 3 and depth == 16:
        samples >>= 8  # Pillow keeps the high bytes of colours only
    elif depth < 8:
        samples = samples * 255 // ((1 << depth) - 1)
    pixels = np.asarray(image.convert("L") if image.mode == "1" else image)
    hidden = (pixels.reshape(image.height, image.width, count) == samples).all(axis=-1)
    return Image.fromarray(np.where(hidden, 0, 255).astype(np.uint8)) if hidden.any() else None


def flatten(image: Image.Image, options: ImageOptions, notes: set[str]) -> Image.Image:
    """Any Pillow mode of 8 bits → L or RGB, with transparency composited on the background.

    Args:
      image: a loaded image.
      options: the background.
      notes: what was done is added here.

    Raises:
      ImageRejectedError: the samples are 32-bit integers or floats.
    """
    mode = image.mode
    if mode in ("L", "RGB") and "transparency" not in image.info:
        return image
    if mode in ("I", "F"):
        kind = "32-bit integer" if mode == "I" else "floating point"
        raise ImageRejectedError(
            RejectReason.UNSUPPORTED_PIXELS,
            f"the samples are {kind}; 8 or 16 bits are expected, as the range of these is not "
            "known. Scale the image to 8 or 16 bits first",
        )
    if mode == "1" and "transparency" not in image.info:
        return image.convert("L")
    if mode == "CMYK":
        notes.add("cmyk_converted")
        return image.convert("RGB")
    if mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        if mode in ("LA", "La"):
            image = image.convert("LA")
        else:
            image = image.convert("RGBA")
        alpha = image.getchannel("A")
        opaque = image.convert("L" if image.mode == "LA" else "RGB")
        if alpha.getextrema()[0] == 255:
            return opaque
        notes.add("alpha_composited")
        return composite(opaque, alpha, options.background)
    return image.convert("RGB")  # P, RGBX, YCbCr, LAB, HSV


def to_channels(image: Image.Image, channels: int | None, notes: set[str]) -> Image.Image:
    """`image` (L or RGB) with 1 or 3 channels; None keeps what it has."""
    wanted = {None: image.mode, 1: "L", 3: "RGB"}[channels]
    if wanted == image.mode:
        return image
    notes.add("channels_converted")
    return image.convert(wanted)


def resize(image: Image.Image, options: ImageOptions, notes: set[str]) -> Image.Image:
    """`image` (L or RGB) brought to options.resize in the way of options.resize_mode."""
    if options.resize is None:
        return image
    height, width = options.resize
    if options.resize_mode is ResizeMode.FIT:
        width, height = fit_size(image.width, image.height, width, height)
    if image.size == (width, height):
        return image
    if width * height > _RAW_BYTES:
        raise ImageRejectedError(
            RejectReason.TOO_MANY_PIXELS,
            f"--resize makes {width}×{height} pixels of it, more than can be stored",
        )
    notes.add("resized")
    if options.resize_mode is ResizeMode.CROP:
        # The centre part with the wanted aspect ratio, as large as possible.
        scale = min(image.width / width, image.height / height)
        left = (image.width - width * scale) / 2
        top = (image.height - height * scale) / 2
        box = (left, top, left + width * scale, top + height * scale)
        return image.resize((width, height), Image.Resampling.BICUBIC, box)
    if options.resize_mode is ResizeMode.PAD:
        inner = fit_size(image.width, image.height, width, height)
        if inner != image.size:
            image = image.resize(inner, Image.Resampling.BICUBIC)
        red, green, blue = options.background
        if image.mode == "L" and not (red == green == blue) and options.channels != 1:
            image = image.convert("RGB")
        if image.mode == "RGB":
            canvas = Image.new("RGB", (width, height), options.background)
        else:
            canvas = Image.new("L", (width, height), _luma(options.background))
        canvas.paste(image, ((width - inner[0]) // 2, (height - inner[1]) // 2))
        return canvas
    return image.resize((width, height), Image.Resampling.BICUBIC)


def decoding_scale(width: int, height: int, options: ImageOptions) -> int:
    """How many times smaller (1, 2, 4, 8) a JPEG may be decoded before it is resized.

    libjpeg then leaves out the finest detail, at a fraction of the time. The picture
    stays at least twice as large as the resized one, where that cannot be seen.

    Args:
      width, height: in pixels, upright.
      options: the size asked for.
    """
    if options.resize is None:
        return 1
    target_height, target_width = options.resize
    ratios = (width / target_width, height / target_height)
    inside = options.resize_mode in (ResizeMode.FIT, ResizeMode.PAD)
    room = max(ratios) if inside else min(ratios)
    return next((scale for scale in (8, 4, 2) if room >= 2 * scale), 1)


def fit_size(width: int, height: int, max_width: int, max_height: int) -> tuple[int, int]:
    """The largest (width, height) of the same aspect ratio inside the bounds."""
    if width * max_height >= height * max_width:
        return max_width, max(1, round(height * max_width / width))
    return max(1, round(width * max_height / height)), max_height


def _luma(color: tuple[int, int, int]) -> int:
    pixel = Image.new("RGB", (1, 1), color).convert("L").getpixel((0, 0))
    assert isinstance(pixel, int)
    return pixel


def encode_jpeg(image: Image.Image, quality: int) -> bytes:
    """`image` (L or RGB) as a baseline JPEG, 4:4:4."""
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=quality, subsampling=0)
    return stream.getvalue()


def encode_png(image: Image.Image) -> bytes:
    """`image` (L or RGB) as an 8-bit PNG."""
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()
