"""The orientation that an EXIF block gives. Pure, no Pillow, never raises."""

from __future__ import annotations

from typing import Literal

_ORIENTATION = 0x0112
_SIZES = {1: 1, 3: 2, 4: 4}  # BYTE, SHORT, LONG: bytes of one value


def exif_orientation(exif: bytes) -> int:
    """EXIF orientation, 1 to 8; 1 (upright) where the block or the tag is no good.

    Args:
      exif: the TIFF structure, with or without `Exif\\0\\0` in front.
    """
    if exif[:4] == b"Exif":
        exif = exif[6:]
    order = exif[:2]
    if order not in (b"II", b"MM"):
        return 1
    endian: Literal["little", "big"] = "little" if order == b"II" else "big"
    start = int.from_bytes(exif[4:8], endian)
    count = int.from_bytes(exif[start : start + 2], endian)
    for entry in range(start + 2, min(start + 2 + 12 * count, len(exif) - 11), 12):
        if int.from_bytes(exif[entry : entry + 2], endian) == _ORIENTATION:
            kind = int.from_bytes(exif[entry + 2 : entry + 4], endian)
            size = _SIZES.get(kind, 0)
            value = int.from_bytes(exif[entry + 8 : entry + 8 + size], endian)
            return value if 1 <= value <= 8 else 1
    return 1
