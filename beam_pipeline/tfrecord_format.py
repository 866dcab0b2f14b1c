"""The TFRecord framing: length, its checksum, the record, its checksum.

As TensorFlow defines it: little-endian, CRC-32C, each checksum masked so that a record
which holds TFRecords does not look like a checksum of itself.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence

from google_crc32c import value as crc32c

FRAMING_BYTES = 16  # length 8, its checksum 4, checksum of the record 4
_MASK_DELTA = 0xA282EAD8


def masked_crc(data: bytes) -> int:
    """The masked CRC-32C of `data`."""
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def frame(records: Iterable[bytes]) -> bytes:
    """`records` one after the other, each framed, as they stand in an uncompressed file."""
    return b"".join(_framed_parts(records))


def frame_into(buffer: memoryview, records: Sequence[bytes]) -> memoryview | None:
    """The same, written into `buffer`: the part that was filled, or None if it is too small."""
    size = sum(map(len, records)) + FRAMING_BYTES * len(records)
    if size > len(buffer):
        return None
    position = 0
    for part in _framed_parts(records):
        end = position + len(part)
        buffer[position:end] = part
        position = end
    return buffer[:size]


def _framed_parts(records: Iterable[bytes]) -> Iterator[bytes]:
    for record in records:
        length = struct.pack("<Q", len(record))
        yield length + struct.pack("<I", masked_crc(length))
        yield record
        yield struct.pack("<I", masked_crc(record))
