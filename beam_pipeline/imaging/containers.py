"""Structure checks for formats whose decoders accept files that are cut short. No Pillow."""

from __future__ import annotations

import struct
from collections.abc import Callable

from beam_pipeline.errors import ImageRejectedError
from beam_pipeline.types import RejectReason

CheckSize = Callable[[int, int], None]  # (width, height) → None, or raises


def check_container(name: str, data: bytes, check_size: CheckSize) -> bool:
    """Checks what a decoder of the format `name` does not.

    Args:
      name: a source format as sniff gives it.
      data: the file.
      check_size: refuses a declared (width, height) that is too large.

    Returns:
      whether the file holds further pictures, as far as is seen here.

    Raises:
      ImageRejectedError: the file ends early, or a part declares too large a size.
    """
    check = _CHECKS.get(name)
    return check(data, check_size) if check else False


def is_lossless(name: str, data: bytes) -> bool:
    """Whether a checked WebP or JPEG 2000 stores its pixels without loss."""
    if name == "webp":
        position = 12
        while position + 8 <= len(data):
            kind = data[position : position + 4]
            if kind in (b"VP8 ", b"VP8L"):
                return kind == b"VP8L"
            if kind == b"ANMF":
                position += 8 + 16  # its chunks stand behind the frame's position
                continue
            size = int.from_bytes(data[position + 4 : position + 8], "little")
            position += 8 + size + (size & 1)
    elif name == "jp2":
        style = data.find(b"\xff\x52\0", data.find(_JP2_CODESTREAM))
        # COD: 2 bytes length, 1 style, 4 layers, 4 code block, then 1 is the reversible wavelet.
        return style >= 0 and data[style + 13 : style + 14] == b"\1"
    return False


def _truncated(detail: str) -> ImageRejectedError:
    return ImageRejectedError(RejectReason.TRUNCATED, detail)


_MOST_BLOCKS = 1 << 20


def _gif(data: bytes, check_size: CheckSize) -> bool:
    """Walks over all blocks up to the trailer; more than one image is an animation."""
    frames = 0
    end = len(data)
    if end < 13:
        raise _truncated("GIF: the file ends in its header")
    check_size(*struct.unpack_from("<HH", data, 6))
    position = 13 + (3 << (data[10] & 7) + 1 if data[10] & 0x80 else 0)
    for _ in range(_MOST_BLOCKS):
        if position >= end:
            break
        block = data[position]
        if block == 0x3B:  # trailer
            break
        if block == 0x21:  # extension
            position = _skip_gif_blocks(data, position + 2)
        elif block == 0x2C and position + 10 <= end:
            flags = data[position + 9]
            position += 11 + (3 << (flags & 7) + 1 if flags & 0x80 else 0)
            position = _skip_gif_blocks(data, position)
            frames += 1
        elif block == 0x2C:
            position = end
        else:
            position += 1  # decoders skip what they do not know
    else:
        raise ImageRejectedError(RejectReason.CORRUPT, f"GIF: more than {_MOST_BLOCKS} blocks")
    if position >= end:
        raise _truncated(f"GIF: the file ends before its trailer, after {frames} whole frames")
    return frames > 1


def _bmp(data: bytes, check_size: CheckSize) -> bool:
    header, compression = data[14:18], data[30:34]
    if int.from_bytes(header, "little") >= 40 and int.from_bytes(compression, "little") == 2:
        raise ImageRejectedError(
            RejectReason.UNSUPPORTED_FORMAT,
            "BMP: RLE4 compression is not decoded here (Pillow shows a wrong picture)",
        )
    return False


def _skip_gif_blocks(data: bytes, position: int) -> int:
    end = len(data)
    while position < end:
        size = data[position]
        position += size + 1
        if not size:
            return position
    return end


def _webp(data: bytes, check_size: CheckSize) -> bool:
    declared = int.from_bytes(data[4:8], "little") + 8
    if declared > len(data):
        raise _truncated(f"WEBP: the file has {len(data)} of {declared} bytes")
    if len(data) < 30:
        raise _truncated("WEBP: the file ends in its header")
    # libwebp makes two canvases of the declared size as soon as it sees the header.
    kind = data[12:16]
    if kind == b"VP8X":
        width = 1 + int.from_bytes(data[24:27], "little")
        height = 1 + int.from_bytes(data[27:30], "little")
    elif kind == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        width, height = 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    else:
        width = int.from_bytes(data[26:28], "little") & 0x3FFF
        height = int.from_bytes(data[28:30], "little") & 0x3FFF
    check_size(width, height)
    return False


def _iso_media(data: bytes, check_size: CheckSize) -> bool:
    """Walks over the outer boxes of an AVIF or HEIC file."""
    position = 0
    end = len(data)
    while position + 8 <= end:
        size = int.from_bytes(data[position : position + 4], "big")
        if size == 1:
            size = int.from_bytes(data[position + 8 : position + 16], "big")
        if size == 0:  # up to the end of the file
            return False
        if size < 8 or position + size > end:
            raise _truncated(
                f"a box of {size} bytes at byte {position} does not fit into the {end} bytes"
            )
        position += size
    return False


_JP2_CODESTREAM = b"\xff\x4f\xff\x51"


def _jp2(data: bytes, check_size: CheckSize) -> bool:
    """The codestream declares the real size, and its decoder takes a part for the whole."""
    start = data.find(_JP2_CODESTREAM)
    if start < 0 or start + 24 > len(data):
        raise _truncated("JP2: there is no codestream")
    right, bottom, left, top = struct.unpack_from(">IIII", data, start + 8)
    if right <= left or bottom <= top:
        raise ImageRejectedError(
            RejectReason.CORRUPT, f"JP2: declares {right - left}×{bottom - top} pixels"
        )
    check_size(right - left, bottom - top)
    if not data.rstrip(b"\0\r\n").endswith(b"\xff\xd9") and b"\xff\xd9" not in data[-4096:]:
        raise _truncated("JP2: the end marker of the codestream is missing")
    return False


def _icon(data: bytes, check_size: CheckSize) -> bool:
    """Each picture of an icon has a header of its own, which the directory does not bound."""
    count = int.from_bytes(data[4:6], "little")
    if not count:
        raise ImageRejectedError(RejectReason.CORRUPT, "an icon file without pictures")
    if 6 + 16 * count > len(data):
        raise _truncated("the file ends in its directory of pictures")
    for entry in range(6, 6 + 16 * count, 16):
        size, start = struct.unpack_from("<II", data, entry + 8)
        if start + size > len(data) or start + 24 > len(data):
            raise _truncated("a picture of the icon reaches over the end of the file")
        if data.startswith(b"\x89PNG", start):
            check_size(*struct.unpack_from(">II", data, start + 16))
        else:
            width, height = struct.unpack_from("<ii", data, start + 4)
            check_size(abs(width), abs(height))
    return count > 1


_QOI_END = b"\0\0\0\0\0\0\0\1"


def _qoi(data: bytes, check_size: CheckSize) -> bool:
    if _QOI_END not in data[14:]:
        raise _truncated("QOI: the end marker is missing")
    return False


_CHECKS: dict[str, Callable[[bytes, CheckSize], bool]] = {
    "avif": _iso_media,
    "bmp": _bmp,
    "cur": _icon,
    "gif": _gif,
    "heic": _iso_media,
    "ico": _icon,
    "jp2": _jp2,
    "qoi": _qoi,
    "webp": _webp,
}
