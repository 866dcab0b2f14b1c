"""Bytes of any image → a checked, upright image in the requested encoding. Pure.

The rules, each of them proven in tests/beam_pipeline/test_images*.py:

- The format is judged by content. JPEG (gray, colour) and 8-bit PNG (gray, RGB)
  that TensorFlow shows as they are keep their bytes after all of their data was
  decoded; everything else is re-encoded: PNG for lossless sources, else JPEG.
- What is stored has the height, width and channels that TensorFlow decodes.
- Anything wrong with the bytes is an ImageRejectedError, never another exception.

Needs neither Beam nor TensorFlow; safe to call from several threads.
"""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageFile

from beam_pipeline.errors import ImageRejectedError
from beam_pipeline.imaging.color import apply_profile, needs_conversion
from beam_pipeline.imaging.containers import is_lossless
from beam_pipeline.imaging.decode import Decoded, check_size, contain, decode_with_pillow
from beam_pipeline.imaging.jpeg import decode_jpeg, find_end, parse_jpeg
from beam_pipeline.imaging.pixels import (
    composite,
    decoding_scale,
    encode_jpeg,
    encode_png,
    fit_size,
    fits,
    flatten,
    key_alpha,
    resize,
    to_channels,
    to_eight_bits,
    upright,
)
from beam_pipeline.imaging.png import (
    GRAY,
    RGB,
    PngHeader,
    check_rows,
    minimal_png,
    parse_png,
    png_profile,
)
from beam_pipeline.imaging.sniff import sniff
from beam_pipeline.options import Encoding, ImageOptions, ResizeMode
from beam_pipeline.types import PreparedImage, RejectReason

# Every word that the notes of a PreparedImage may hold, and what it says.
NOTES = {
    "alpha_composited": "transparent pixels were put on the background",
    "channels_converted": "gray became colour or colour gray, as --channels asked",
    "cmyk_converted": "CMYK or YCCK became RGB, without a profile",
    "depth_reduced": "samples of more than 8 bits were scaled to 8 bits",
    "first_frame": "the file holds further pictures; the first one was taken",
    "profile_converted": "the embedded colour profile was applied",
    "reencoded": "the stored bytes are not those of the file",
    "resized": "--resize changed the size",
    "rotated": "an orientation tag was applied",
    "trailing_bytes": "bytes follow the end of the image; no decoder needs them",
}

# Sources whose pixels are an approximation already: a PNG of them would be large for nothing.
_LOSSY = frozenset(("jpeg", "mpo", "webp", "avif", "heic", "jp2"))


def prepare_image(data: bytes, options: ImageOptions) -> PreparedImage:
    """Checks an image file and brings it into the form that is stored.

    Args:
      data: the bytes of the file.
      options: what is accepted and how it is stored.

    Returns:
      the image, upright, with its real size and channels.

    Raises:
      ImageRejectedError: the bytes are refused; nothing else is raised for them.
    """
    if len(data) > options.max_bytes:
        raise ImageRejectedError(
            RejectReason.TOO_MANY_BYTES,
            f"the file has {len(data)} bytes; --max_bytes allows {options.max_bytes}",
        )
    # Other libraries switch this on for the whole process (TFDS does, to show images);
    # half a picture would then pass for a whole one.
    ImageFile.LOAD_TRUNCATED_IMAGES = False
    source = sniff(data)
    if options.formats is not None and source not in options.formats:
        raise ImageRejectedError(
            RejectReason.FORMAT_NOT_ALLOWED,
            f"this is {source}; --formats allows {', '.join(sorted(options.formats))}",
        )
    try:
        if source == "jpeg":
            return _prepare_jpeg(data, options)
        if source == "png":
            return _prepare_png(data, options)
        return _prepare_other(source, data, options)
    except MemoryError as error:
        raise ImageRejectedError(
            RejectReason.TOO_MANY_PIXELS, f"{source}: not enough memory to decode it"
        ) from error


def prepare_pixels(pixels: np.ndarray, options: ImageOptions) -> PreparedImage:
    """Brings pixels that were no image file into the form that is stored.

    Args:
      pixels: uint8 [H, W] or [H, W, C] with C = 1 gray, 2 gray and alpha, 3 RGB
        or 4 RGB and alpha.
      options: how they are stored; passthrough stores them as PNG.

    Raises:
      ImageRejectedError: the array is none of these, or too large.
    """
    if pixels.dtype != np.uint8:
        raise ImageRejectedError(
            RejectReason.UNSUPPORTED_PIXELS, f"the pixels are {pixels.dtype}, not uint8"
        )
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    mode = "L" if pixels.ndim == 2 else {2: "LA", 3: "RGB", 4: "RGBA"}.get(pixels.shape[-1])
    if pixels.ndim not in (2, 3) or mode is None or 0 in pixels.shape:
        raise ImageRejectedError(
            RejectReason.UNSUPPORTED_PIXELS,
            f"the pixels have the shape {pixels.shape}; [H, W] or [H, W, 1 to 4] is expected",
        )
    height, width = pixels.shape[:2]
    check_size(width, height, options)
    image = Image.frombytes(mode, (width, height), np.ascontiguousarray(pixels).tobytes())
    return _finish(image, "pixels", options, set())


def _prepare_jpeg(data: bytes, options: ImageOptions) -> PreparedImage:
    header = parse_jpeg(data)
    check_size(header.width, header.height, options)
    end = find_end(data, header, options.image_timeout)
    profile = needs_conversion(header.profile, options)
    source = "mpo" if header.multi_picture else "jpeg"
    notes: set[str] = set()
    if end < len(data):
        notes.add("first_frame" if header.multi_picture else "trailing_bytes")
    if (
        header.components != 4
        and not header.lossless
        and header.orientation == 1
        and not profile
        and _keeps(header.width, header.height, header.components, Encoding.JPEG, options)
    ):
        # The smallest picture that still makes libjpeg read every coefficient.
        decode_jpeg(data, header, end, gray=True, scale=8)
        return PreparedImage(
            data[:end] if header.multi_picture else data,
            "jpeg",
            header.height,
            header.width,
            header.components,
            source,
            tuple(sorted(notes)),
        )
    width, height = header.width, header.height
    if header.orientation >= 5:  # a quarter turn
        width, height = height, width
    image = decode_jpeg(
        data,
        header,
        end,
        gray=options.channels == 1 and not profile,
        scale=decoding_scale(width, height, options),
    )
    if profile:
        image = apply_profile(image, profile, notes)
    if header.components == 3 and image.mode == "L":
        notes.add("channels_converted")
    if header.orientation != 1:
        notes.add("rotated")
    image = upright(flatten(image, options, notes), header.orientation)
    return _finish(image, source, options, notes, lossless=header.lossless)


def _prepare_png(data: bytes, options: ImageOptions) -> PreparedImage:
    header = parse_png(data)
    check_size(header.width, header.height, options)
    exact = check_rows(header)
    profile = needs_conversion(png_profile(header), options) if header.profile else None
    notes = {"first_frame"} if header.animated else set()
    if header.end < len(data):
        notes.add("trailing_bytes")
    channels = 1 if header.color == GRAY else 3
    if (
        exact
        and header.same_in_tensorflow
        and header.orientation == 1
        and not profile
        and _keeps(header.width, header.height, channels, Encoding.PNG, options)
    ):
        return PreparedImage(
            data, "png", header.height, header.width, channels, "png", tuple(sorted(notes))
        )
    image = contain("png", lambda: _decode_png(header, profile, options, notes))
    if header.orientation != 1:
        notes.add("rotated")
        image = upright(image, header.orientation)
    return _finish(image, "png", options, notes)


def _decode_png(
    header: PngHeader, profile: bytes | None, options: ImageOptions, notes: set[str]
) -> Image.Image:
    """The picture of a checked PNG, L or RGB, composited on the background."""
    decoded = decode_with_pillow("png", minimal_png(header), options)
    alpha = None
    if header.transparency is not None and header.color in (GRAY, RGB):
        alpha = key_alpha(decoded.image, header.transparency, header.depth)
    if header.depth == 16:
        notes.add("depth_reduced")
    image = _eight_bits(decoded, notes)
    if profile:
        image = apply_profile(image, profile, notes)
    image = flatten(image, options, notes)
    if alpha is None:
        return image
    notes.add("alpha_composited")
    return composite(image, alpha, options.background)


def _prepare_other(source: str, data: bytes, options: ImageOptions) -> PreparedImage:
    decoded = decode_with_pillow(source, data, options)
    notes: set[str] = set()
    if decoded.more:
        notes.add("first_frame")
    if decoded.rotated or decoded.orientation != 1:
        notes.add("rotated")
    profile = needs_conversion(decoded.image.info.get("icc_profile"), options)

    def convert() -> Image.Image:
        image = _eight_bits(decoded, notes)
        if profile:
            image = apply_profile(image, profile, notes)
        return upright(flatten(image, options, notes), decoded.orientation)

    image = contain(source, convert)
    return _finish(image, source, options, notes, lossless=is_lossless(source, data))


def _eight_bits(decoded: Decoded, notes: set[str]) -> Image.Image:
    if decoded.maximum is None:
        return decoded.image
    notes.add("depth_reduced")
    return to_eight_bits(decoded.image, decoded.maximum)


def _keeps(width: int, height: int, channels: int, same: Encoding, options: ImageOptions) -> bool:
    """Whether the options leave an image of this shape as it is.

    Args:
      width, height, channels: of the image.
      same: what the bytes are, JPEG or PNG.
      options: what is asked for.
    """
    # A PNG is the same picture whoever wrote it; a JPEG is asked for in a quality.
    kept_as_png = options.encoding is Encoding.PNG and same is Encoding.PNG
    if options.encoding is not Encoding.PASSTHROUGH and not kept_as_png:
        return False
    if options.channels not in (None, channels) or not fits(same, width, height, channels):
        return False
    if options.resize is None:
        return True
    if options.resize_mode is ResizeMode.FIT:
        return fit_size(width, height, options.resize[1], options.resize[0]) == (width, height)
    return options.resize == (height, width)


def _finish(
    image: Image.Image,
    source: str,
    options: ImageOptions,
    notes: set[str],
    *,
    lossless: bool = False,
) -> PreparedImage:
    """Applies channels and size, and encodes."""
    image = flatten(image, options, notes)
    image = to_channels(image, options.channels, notes)
    image = resize(image, options, notes)
    width, height = image.size
    channels = 1 if image.mode == "L" else 3
    size = (width, height, channels)
    encoding = options.encoding
    if encoding is Encoding.PASSTHROUGH:
        lossy = source in _LOSSY and not lossless
        # What is too large for a JPEG may still fit into a PNG.
        encoding = Encoding.JPEG if lossy and fits(Encoding.JPEG, *size) else Encoding.PNG
    if not fits(encoding, *size):
        raise ImageRejectedError(
            RejectReason.TOO_MANY_PIXELS,
            f"{width}×{height} pixels with {channels} channels are more than TensorFlow decodes "
            f"from {encoding.value}; use --resize",
        )
    notes.add("reencoded")
    image.info = {}  # comments, profiles and keys of the source are no part of what is stored
    if encoding is Encoding.RAW:
        data = image.tobytes()
    elif encoding is Encoding.JPEG:
        data = encode_jpeg(image, options.jpeg_quality)
    else:
        data = encode_png(image)
    return PreparedImage(
        data, encoding.value, height, width, channels, source, tuple(sorted(notes))
    )
