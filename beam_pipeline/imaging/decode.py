"""Decoding with Pillow: one plugin by name, every failure of it turned into a reject."""

from __future__ import annotations

import importlib
import io
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from PIL import Image

from beam_pipeline.errors import ImageRejectedError
from beam_pipeline.imaging.containers import check_container
from beam_pipeline.imaging.exif import exif_orientation
from beam_pipeline.options import ImageOptions
from beam_pipeline.types import RejectReason

_T = TypeVar("_T")

# Source format → Pillow's plugin. Called directly, so that only the decoder that
# fits the bytes ever sees them, and none that runs another program.
_PLUGINS = {
    "avif": ("AvifImagePlugin", "AvifImageFile"),
    "bmp": ("BmpImagePlugin", "BmpImageFile"),
    "cur": ("CurImagePlugin", "CurImageFile"),
    "dds": ("DdsImagePlugin", "DdsImageFile"),
    "gif": ("GifImagePlugin", "GifImageFile"),
    "ico": ("IcoImagePlugin", "IcoImageFile"),
    "jp2": ("Jpeg2KImagePlugin", "Jpeg2KImageFile"),
    "pcx": ("PcxImagePlugin", "PcxImageFile"),
    "png": ("PngImagePlugin", "PngImageFile"),
    "ppm": ("PpmImagePlugin", "PpmImageFile"),
    "psd": ("PsdImagePlugin", "PsdImageFile"),
    "qoi": ("QoiImagePlugin", "QoiImageFile"),
    "sgi": ("SgiImagePlugin", "SgiImageFile"),
    "tga": ("TgaImagePlugin", "TgaImageFile"),
    "tiff": ("TiffImagePlugin", "TiffImageFile"),
    "webp": ("WebPImagePlugin", "WebPImageFile"),
    "xbm": ("XbmImagePlugin", "XbmImageFile"),
}


# A decoder reads a file once or a few times. A TIFF may name one part of itself in
# 65,535 tags, and is then read (and held) as often.
_READS = 8
_FREE_READS = 1 << 20  # 1 MiB


class _BoundedReader(io.BytesIO):
    """Bytes that stop a decoder which takes too long: decoders read while they work."""

    def __init__(self, data: bytes, timeout: float):
        super().__init__(data)
        self.stopped: ImageRejectedError | None = None
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout if timeout else float("inf")
        self._left = _READS * len(data) + _FREE_READS

    def read(self, size: int | None = -1, /) -> bytes:
        if time.monotonic() > self._deadline:
            self.stopped = ImageRejectedError(
                RejectReason.TIMEOUT,
                f"decoding takes longer than --image_timeout {self._timeout:g}",
            )
            raise OSError("out of time")
        data = super().read(size)
        self._left -= len(data)
        if self._left < 0:
            self.stopped = ImageRejectedError(
                RejectReason.CORRUPT,
                f"its parts overlap: decoding reads more than {_READS} times its size",
            )
            raise OSError("too much to read")
        return data


def check_size(width: int, height: int, options: ImageOptions) -> None:
    """Refuses a declared size before anything of that size is made.

    Raises:
      ImageRejectedError: width × height is over options.max_pixels.
    """
    if width * height > options.max_pixels:
        raise ImageRejectedError(
            RejectReason.TOO_MANY_PIXELS,
            f"declares {width}×{height} = {width * height} pixels; --max_pixels allows "
            f"{options.max_pixels}",
        )


def contain(name: str, function: Callable[[], _T]) -> _T:
    """function(), with every exception of a decoder turned into a reject.

    Raises:
      ImageRejectedError: whatever went wrong, named after the format `name`.
    """
    try:
        return function()
    except ImageRejectedError:
        raise
    except MemoryError as error:
        raise ImageRejectedError(
            RejectReason.TOO_MANY_PIXELS, f"{name.upper()}: not enough memory to decode it"
        ) from error
    except Image.DecompressionBombError as error:
        raise ImageRejectedError(
            RejectReason.TOO_MANY_PIXELS, f"{name.upper()}: {one_line(error)}"
        ) from error
    except Exception as error:
        message = one_line(error)
        lower = message.lower()
        if isinstance(error, EOFError) or "truncated" in lower or "not enough" in lower:
            reason = RejectReason.TRUNCATED
        else:
            reason = RejectReason.CORRUPT
        if lower.startswith("decoder error"):
            message = f"the compressed data is damaged or cut short ({message})"
        raise ImageRejectedError(reason, f"{name.upper()}: {message}") from error


def one_line(error: BaseException) -> str:
    """The message of an exception as one short printable line."""
    text = " ".join(str(error).split())
    printable = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return printable[:200] or type(error).__name__


class Decoded(NamedTuple):
    """What Pillow made of a file.

    Attributes:
      image: the loaded image.
      more: the file holds further pictures.
      maximum: of its samples, where they have more than 8 bits; else None.
      orientation: EXIF orientation that is still to be applied, 1 to 8.
      rotated: Pillow has applied one already.
    """

    image: Image.Image
    more: bool
    maximum: int | None
    orientation: int
    rotated: bool


def decode_with_pillow(name: str, data: bytes, options: ImageOptions) -> Decoded:
    """Decodes the first picture of `data`.

    Args:
      name: a source format as sniff gives it.
      data: the file.
      options: max_pixels and image_timeout bound the decoding.

    Raises:
      ImageRejectedError: the file is damaged, cut short, too large or too slow.
    """
    more = check_container(name, data, lambda width, height: check_size(width, height, options))
    reader = _BoundedReader(data, options.image_timeout)
    plugin = _heif_plugin() if name == "heic" else _plugin(name)

    def load() -> Decoded:
        image = plugin(reader)
        check_size(image.width, image.height, options)
        _check_work(name, image, data, options)
        tiles = list(image.tile)
        bits, orientation = (16,), 1
        if name == "tiff":
            bits = image.tag_v2.get(_TIFF_BITS) or bits
            orientation = image.tag_v2.get(_TIFF_ORIENTATION)
        image.load()
        if name == "gif" and tiles:
            image = _on_canvas(image, tiles[0][1])
        return Decoded(
            image,
            more or _has_more(name, image),
            _maximum(name, image, bits[0]),
            1 if name == "tiff" else exif_orientation(image.info.get("exif") or b""),
            orientation in range(2, 9),
        )

    try:
        return contain(name, load)
    except ImageRejectedError as error:
        if reader.stopped is not None:  # a decoder may have swallowed the reason
            raise reader.stopped from error
        raise


_TIFF_BITS, _TIFF_COMPRESSION, _TIFF_ORIENTATION = 258, 259, 274
_TIFF_STRIPS, _TIFF_TILES = 273, 324
_TIFF_JPEG = (6, 7)
# Work that is safe to assume in a second, where a decoder reads all of its data at once
# and then works for as long as it likes: measured, and halved or less.
_JP2_BYTES_PER_SECOND = 1_000_000
_JP2_PIXELS_PER_SECOND = 10_000_000
_JPEG_PIXEL_SCANS_PER_SECOND = 100_000_000


def _check_work(name: str, image: Image.Image, data: bytes, options: ImageOptions) -> None:
    """Refuses what would decode for longer than options.image_timeout, where it cannot be stopped."""
    pixels = image.width * image.height
    seconds = 0.0
    if name == "jp2":
        seconds = len(data) / _JP2_BYTES_PER_SECOND + pixels / _JP2_PIXELS_PER_SECOND
    elif name == "tiff":
        tags = image.tag_v2  # type: ignore[attr-defined]
        if tags.get(_TIFF_COMPRESSION) in _TIFF_JPEG:
            parts = tags.get(_TIFF_STRIPS) or tags.get(_TIFF_TILES) or (0,)
            scans = data.count(b"\xff\xda") / len(parts)
            seconds = scans * pixels / _JPEG_PIXEL_SCANS_PER_SECOND
    if options.image_timeout and seconds > options.image_timeout:
        raise ImageRejectedError(
            RejectReason.TIMEOUT,
            f"{name.upper()}: {image.width}×{image.height} pixels in {len(data)} bytes may decode "
            f"for {seconds:.0f} s; --image_timeout allows {options.image_timeout:g}",
        )


def _maximum(name: str, image: Image.Image, bits: int) -> int | None:
    """The largest value that a sample of more than 8 bits may have; None for all others."""
    if image.mode.startswith("I;16"):
        return (1 << bits) - 1 if 8 < bits < 16 else 65_535
    if name == "ppm" and image.mode == "I":
        return 65_535  # Pillow has scaled the samples
    return None


def _on_canvas(image: Image.Image, box: tuple[int, int, int, int]) -> Image.Image:
    """A GIF whose first frame covers only `box`: the rest of its canvas is transparent."""
    if box[0] <= 0 and box[1] <= 0 and box[2] >= image.width and box[3] >= image.height:
        return image
    canvas = Image.new("RGBA", image.size)
    canvas.paste(image.convert("RGBA").crop(box), box[:2])
    return canvas


def _plugin(name: str) -> Callable[[io.BytesIO], Any]:
    module, cls = _PLUGINS[name]
    return getattr(importlib.import_module(f"PIL.{module}"), cls)


def _heif_plugin() -> Callable[[io.BytesIO], Any]:
    try:
        from pillow_heif import HeifImageFile
    except ImportError as error:
        raise ImageRejectedError(
            RejectReason.UNSUPPORTED_FORMAT,
            "this is a HEIC image; to read it, run `pip install imagebeam[heif]`",
        ) from error
    return HeifImageFile


def _has_more(name: str, image: Image.Image) -> bool:
    if name == "tiff":
        return bool(image.tag_v2.next)  # type: ignore[attr-defined]
    if name in ("webp", "avif", "heic"):
        return int(getattr(image, "n_frames", 1)) > 1
    return False
