"""JPEG: what its markers declare, and a decode that judges all of its data."""

from __future__ import annotations

import re
from typing import NamedTuple

from PIL import Image

from beam_pipeline.errors import ImageRejectedError
from beam_pipeline.imaging.exif import exif_orientation
from beam_pipeline.types import RejectReason

# The start-of-frame markers, by what a decoder needs to know about them.
_HUFFMAN_SEQUENTIAL = frozenset((0xC0, 0xC1))
_PROGRESSIVE = frozenset((0xC2, 0xCA))
_LOSSLESS = frozenset((0xC3,))
_ARITHMETIC = frozenset((0xC9, 0xCA))
_DECODABLE = _HUFFMAN_SEQUENTIAL | _PROGRESSIVE | _LOSSLESS | _ARITHMETIC
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_WITHOUT_LENGTH = frozenset((0x01, *range(0xD0, 0xD8)))

# The next marker in entropy-coded data: FF00 is data, FFD0 to FFD7 are restarts in it.
_next_marker = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]", re.DOTALL).search

# The next marker between segments: what is no marker is skipped, and fill bytes are.
_next_header = re.compile(rb"\xff+[^\xff]", re.DOTALL).search
_MOST_MARKERS = 1 << 16

# A decoder looks at most 8 bytes ahead, so pixel data that is whole is decoded with
# this in place of the end marker, and pixel data that ends early is not.
_LOOKAHEAD = bytes(8)

# Decoding work per second that is safe to assume, in pixels × scans. A scan of a
# progressive file may take a few bytes for any number of pixels.
_PIXEL_SCANS_PER_SECOND = 100_000_000


class JpegHeader(NamedTuple):
    """What a JPEG declares before its pixel data.

    Attributes:
      width, height: in pixels, as stored (orientation not applied).
      components: 1 gray, 3 colour, 4 CMYK or YCCK.
      frame: second byte of the start-of-frame marker, 0xC0 to 0xCF.
      scan: position of the first byte of entropy-coded data.
      scan_components: components in the first scan.
      orientation: EXIF orientation, 1 to 8.
      adobe: an Adobe marker is there (its CMYK samples are inverted).
      multi_picture: an MPO index is there.
      profile: the ICC profile, or None.
    """

    width: int
    height: int
    components: int
    frame: int
    scan: int
    scan_components: int
    orientation: int
    adobe: bool
    multi_picture: bool
    profile: bytes | None

    @property
    def lossless(self) -> bool:
        """Whether the pixels are stored without loss (predictive coding)."""
        return self.frame in _LOSSLESS


def _truncated(detail: str) -> ImageRejectedError:
    return ImageRejectedError(RejectReason.TRUNCATED, f"JPEG: {detail}")


def _corrupt(detail: str) -> ImageRejectedError:
    return ImageRejectedError(RejectReason.CORRUPT, f"JPEG: {detail}")


def parse_jpeg(data: bytes) -> JpegHeader:
    """Reads the markers up to the pixel data, in the way that libjpeg does.

    Both must find the same frame: libjpeg writes rows of the width that it found
    into a buffer of the width that is found here.

    Raises:
      ImageRejectedError: the markers end early or cannot be decoded.
    """
    frame = width = height = components = precision = 0
    orientation = 0
    adobe = multi_picture = False
    profiles: list[bytes] = []
    position = 2  # behind the start marker
    end = len(data)
    for _ in range(_MOST_MARKERS):
        match = _next_header(data, position)
        if match is None or match.end() + 2 > end:
            raise _truncated("the file ends before the pixel data")
        position = match.end()
        marker = data[position - 1]
        if marker == 0 or marker in _WITHOUT_LENGTH:
            continue
        if marker == 0xD9:
            raise _truncated("the end marker comes before any pixel data")
        if marker == 0xD8:
            raise _corrupt(f"a second start marker at byte {position - 2}")
        length = data[position] << 8 | data[position + 1]
        if marker == 0xDA:
            break
        body = position + 2
        if marker in _FRAMES:
            if frame:
                raise _corrupt("more than one frame header")
            if length < 8 or body + 6 > end:
                raise _truncated("the frame header is cut short")
            frame = marker
            precision = data[body]
            height = data[body + 1] << 8 | data[body + 2]
            width = data[body + 3] << 8 | data[body + 4]
            components = data[body + 5]
        elif marker == 0xE1:
            if not orientation and data.startswith(b"Exif\0", body):
                orientation = exif_orientation(data[body : position + length])
        elif marker == 0xE2:
            if data.startswith(b"ICC_PROFILE\0", body):
                profiles.append(data[body + 12 : position + length])
            elif data.startswith(b"MPF\0", body):
                multi_picture = True
        elif marker == 0xEE:
            # libjpeg wants all 12 bytes of it.
            adobe = adobe or (length >= 14 and data.startswith(b"Adobe", body))
        position += max(length, 2)
    else:
        raise _corrupt(f"more than {_MOST_MARKERS} markers before the pixel data")
    if not frame:
        raise _corrupt("pixel data without a frame header")
    if frame not in _DECODABLE:
        raise ImageRejectedError(
            RejectReason.UNSUPPORTED_FORMAT,
            f"JPEG: coding process SOF{frame - 0xC0} (hierarchical or lossless arithmetic) "
            "is not decoded here",
        )
    if precision != 8:
        raise ImageRejectedError(
            RejectReason.UNSUPPORTED_PIXELS,
            f"JPEG: {precision} bits a sample; 8 are expected",
        )
    if components not in (1, 3, 4):
        raise ImageRejectedError(
            RejectReason.UNSUPPORTED_PIXELS,
            f"JPEG: {components} components; 1, 3 or 4 are expected",
        )
    if not width or not height:
        raise _corrupt(f"declares {width}×{height} pixels")
    if position + length > end or length < 3:
        raise _truncated("the file ends before the pixel data")
    return JpegHeader(
        width=width,
        height=height,
        components=components,
        frame=frame,
        scan=position + length,
        scan_components=data[position + 2],
        orientation=orientation or 1,
        adobe=adobe,
        multi_picture=multi_picture,
        profile=_join_profile(profiles) if profiles else None,
    )


def _join_profile(parts: list[bytes]) -> bytes | None:
    """An ICC profile from its numbered parts; None when one is missing."""
    parts = sorted(parts, key=lambda part: part[:1])
    if any(len(part) < 3 or part[1] != len(parts) for part in parts):
        return None
    return b"".join(part[2:] for part in parts)


def find_end(data: bytes, header: JpegHeader, timeout: float) -> int:
    """Position behind the end marker that belongs to the first picture.

    Args:
      data: the file.
      header: what parse_jpeg found in it.
      timeout: seconds that decoding may take; 0 for no bound.

    Raises:
      ImageRejectedError: there is no end marker, a marker stands where pixel data
        is due, or the scans need more work than fits in `timeout`.
    """
    position = header.scan
    scans = 1
    one_scan = header.frame not in _PROGRESSIVE and header.scan_components == header.components
    for _ in range(_MOST_MARKERS):
        match = _next_marker(data, position)
        if match is None:
            raise _truncated(f"no end marker; the data stops after {len(data)} bytes")
        position = match.end()
        marker = data[position - 1]
        if marker == 0xD9:
            pixels = header.width * header.height
            if timeout and scans > 1 and scans * pixels > timeout * _PIXEL_SCANS_PER_SECOND:
                raise ImageRejectedError(
                    RejectReason.TIMEOUT,
                    f"JPEG: {scans} scans over {header.width}×{header.height} pixels are more work "
                    f"than fits into --image_timeout {timeout:g}",
                )
            return position
        if one_scan or marker == 0xD8 or marker < 0xC0:
            raise _corrupt(f"marker FF{marker:02X} inside the pixel data at byte {position - 2}")
        scans += marker == 0xDA
        position += max(int.from_bytes(data[position : position + 2], "big"), 2)
    raise _corrupt(f"more than {_MOST_MARKERS} markers behind the pixel data")


def decode_jpeg(
    data: bytes, header: JpegHeader, end: int, *, gray: bool = False, scale: int = 1
) -> Image.Image:
    """Decodes all entropy-coded data of a JPEG.

    Calls Pillow's decoder for libjpeg directly: the markers are parsed already, and
    parsing them again in Python would take as long as decoding a small image.

    Args:
      data: the file.
      header: what parse_jpeg found in it.
      end: what find_end found in it.
      gray: decode the luminance only; still reads all data of all components.
      scale: 1, 2, 4 or 8: the picture comes out that many times smaller, rounded
        up; still reads all coefficients.

    Returns:
      an image of mode L, RGB or CMYK.

    Raises:
      ImageRejectedError: libjpeg refuses the data, or it ends before the last row.
    """
    if header.lossless:
        # libjpeg converts no colours there, and ignores the scale: its rows would
        # overrun a buffer of the smaller size.
        gray, scale = False, 1
    if header.components == 4:
        mode = "CMYK"
        raw_mode = "CMYK;I" if header.adobe else "CMYK"
    else:
        mode = raw_mode = "L" if gray or header.components == 1 else "RGB"
    size = (-(-header.width // scale), -(-header.height // scale))
    if header.frame in _HUFFMAN_SEQUENTIAL and header.scan_components == header.components:
        data = b"".join((memoryview(data)[: end - 2], _LOOKAHEAD))
    image = Image.new(mode, size, None)
    decoder = Image.core.jpeg_decoder(mode, raw_mode, "", scale, 0)
    decoder.setimage(image.im, (0, 0, *size))
    try:
        consumed, error = decoder.decode(data)
    finally:
        decoder.cleanup()
    if consumed >= 0:
        raise _truncated("the pixel data ends before the last row")
    if error < 0:
        raise _corrupt("libjpeg cannot decode the data")
    return image
