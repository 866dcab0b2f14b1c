"""TFRecord framing: files → records with their offsets, and everything that is wrong on the way.

A record is its length (8 bytes), the masked CRC32C of the length (4), the data, and the
masked CRC32C of the data (4). Reading does not end at damage: the next intact length is
searched for and reading goes on there.
"""

from __future__ import annotations

import functools
import struct
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import google_crc32c
import numpy as np

from beam_pipeline.tfrecord_format import FRAMING_BYTES

GZIP_MAGIC = b"\x1f\x8b"
_HEADER = 12  # bytes: length and its CRC
# Bytes at a time: enough that the cost of a step does not show, few enough that buffers come
# back from the allocator's free lists; from 1 MiB on every page is faulted in anew.
_WINDOW = 512 << 10
_LENGTH = struct.Struct("<Q")


class Damage(NamedTuple):
    """Something wrong with the framing.

    Attributes:
      kind: "length_crc", "data_crc", "truncated" or "gzip".
      record: number of the damaged record, counting from 0.
      offset: where the record starts, in uncompressed bytes.
      detail: a readable sentence.
      data: of the damaged record where its bounds are known, else None.
    """

    kind: str
    record: int
    offset: int
    detail: str
    data: bytes | None = None


class Window(NamedTuple):
    """Records that stand together.

    Attributes:
      records: their data, in order.
      numbers: record numbers, from 0; a damaged stretch counts as one record.
      offsets: where each starts (its length field), in uncompressed bytes.
      damage: what is wrong before, between and behind them.
    """

    records: list[bytes]
    numbers: list[int]
    offsets: list[int]
    damage: list[Damage]


class Reader(Protocol):
    """Anything with read(n); fewer bytes than asked for do not mean the end, none do."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; none at the end."""


class GzipReader:
    """Decompresses as far as it goes; `error` says why not further, None at a clean end."""

    def __init__(self, stream: Reader):
        self._stream = stream
        self._inflate = zlib.decompressobj(31)
        self._rest = b""
        self._started = False
        self.error: str | None = None

    def read(self, size: int) -> bytes:
        """At most `size` uncompressed bytes; none at the end or at an error."""
        while self.error is None:
            data = self._rest or self._stream.read(1 << 18)
            if not data:
                if self._started and not self._inflate.eof:
                    self.error = "the compressed stream ends too early: the file was cut"
                return b""
            if self._inflate.eof:
                self._inflate = zlib.decompressobj(31)  # the next member of the file
            self._started = True
            try:
                out = self._inflate.decompress(data, size)
            except zlib.error as error:
                self.error = f"the compressed stream is damaged ({error})"
                return b""
            self._rest = (
                self._inflate.unused_data if self._inflate.eof else self._inflate.unconsumed_tail
            )
            if out:
                return out
        return b""


class HashedReader:
    """Passes a stream on, and knows the first bytes, size and digest of what went through."""

    def __init__(self, stream: Any, digest: Any = None):
        self._stream = stream
        self._digest = digest
        self.bytes = 0

    def read(self, size: int) -> bytes:
        """At most `size` bytes."""
        data = self._stream.read(size)
        if self._digest is not None:
            self._digest.update(data)
        self.bytes += len(data)
        return data

    def drain(self) -> None:
        """Reads what nobody wanted, so that size and digest are those of the whole."""
        while self.read(_WINDOW):
            pass


def scan(stream: Reader, *, check: bool = True) -> Iterator[Window]:
    """Yields all records of a TFRecord stream.

    Args:
      stream: uncompressed.
      check: compare the CRCs of the data; those of lengths always are, since nothing
        can be read without a right length.
    """
    return _Scanner(stream, check).windows()


class _Scanner:
    def __init__(self, stream: Reader, check: bool):
        self._stream = stream
        self._check = check
        self._buffer = b""
        self._base = 0  # offset of the buffer's first byte
        self._number = 0  # of the next record
        self._ended = False

    def windows(self) -> Iterator[Window]:
        self._fill(_WINDOW)
        while self._buffer:
            window = self._step()
            if window.records or window.damage:
                yield window

    def _fill(self, size: int) -> None:
        """Makes the buffer at least `size` bytes long, if the stream has them."""
        parts = [self._buffer]
        have = len(self._buffer)
        while have < size and not self._ended:
            data = self._stream.read(size - have)
            self._ended = not data
            parts.append(data)
            have += len(data)
        self._buffer = b"".join(parts)

    def _drop(self, size: int) -> None:
        self._buffer = self._buffer[size:]
        self._base += size

    def _step(self) -> Window:
        """Takes whole records from the start of the buffer, or one piece of damage."""
        starts, lengths, end = self._walk()
        damage: list[Damage] = []
        bad_header = False
        if starts:
            intact = _headers_intact(self._buffer, np.array(starts))
            if not intact.all():
                first = int(np.argmin(intact))
                end = starts[first]
                starts, lengths, bad_header = starts[:first], lengths[:first], True
        window = self._take(starts, lengths, damage)
        self._drop(end)
        if bad_header:
            damage.append(self._skip_damaged())
        elif not starts or self._ended:
            self._extend(damage)
        self._fill(_WINDOW)
        return window

    def _walk(self) -> tuple[list[int], list[int], int]:
        """Starts and lengths of the records that lie in the buffer, and where they end."""
        buffer, size = self._buffer, len(self._buffer)
        starts, lengths = [], []
        position = 0
        unpack = _LENGTH.unpack_from
        while position + FRAMING_BYTES <= size:
            (length,) = unpack(buffer, position)
            end = position + FRAMING_BYTES + length
            if end > size:
                break
            starts.append(position)
            lengths.append(length)
            position = end
        return starts, lengths, position

    def _take(self, starts: list[int], lengths: list[int], damage: list[Damage]) -> Window:
        buffer = self._buffer
        records = [
            buffer[start + _HEADER : start + _HEADER + length]
            for start, length in zip(starts, lengths, strict=True)
        ]
        numbers = list(range(self._number, self._number + len(records)))
        offsets = [self._base + start for start in starts]
        self._number += len(records)
        if self._check and records:
            value = google_crc32c.value
            found = _masked(np.array([value(record) for record in records], np.uint32))
            ends = np.array(starts) + _HEADER + np.array(lengths)
            wrong = np.flatnonzero(found != _read_u32(buffer, ends))
            for i in reversed(wrong.tolist()):
                detail = f"the checksum of its data ({lengths[i]:,} bytes) is wrong: bytes changed"
                damage.insert(0, Damage("data_crc", numbers[i], offsets[i], detail, records[i]))
                del records[i], numbers[i], offsets[i]
        return Window(records, numbers, offsets, damage)

    def _extend(self, damage: list[Damage]) -> None:
        """Deals with a record that the buffer does not hold whole."""
        if len(self._buffer) < FRAMING_BYTES:
            self._fill(FRAMING_BYTES)
        if not self._buffer:
            return
        if len(self._buffer) < _HEADER:
            self._cut(damage, "inside the length of a record")
            return
        if not _headers_intact(self._buffer, np.array([0]))[0]:
            damage.append(self._skip_damaged())
            return
        (length,) = _LENGTH.unpack_from(self._buffer)
        self._fill(length + FRAMING_BYTES)
        if len(self._buffer) < length + FRAMING_BYTES:
            left = len(self._buffer) - _HEADER
            self._cut(damage, f"{left:,} bytes into a record of {length:,}")

    def _cut(self, damage: list[Damage], where: str) -> None:
        damage.append(
            Damage(
                "truncated",
                self._number,
                self._base,
                f"the file ends {where}: it was cut",
                self._buffer[_HEADER:] or None,
            )
        )
        self._number += 1
        self._drop(len(self._buffer))

    def _skip_damaged(self) -> Damage:
        """Drops the bytes up to the next intact length, or to the end."""
        start, number = self._base, self._number
        self._number += 1
        self._drop(1)
        while True:
            self._fill(_WINDOW)
            found = _next_header(self._buffer)
            if found is not None:
                self._drop(found)
                what = f"reading goes on at byte {self._base:,}"
                break
            if self._ended:
                self._drop(len(self._buffer))
                what = "no intact record follows"
                break
            self._drop(len(self._buffer) - _HEADER + 1)
        return Damage(
            "length_crc",
            number,
            start,
            f"the checksum of its length is wrong: bytes changed; {what} "
            f"({self._base - start:,} bytes skipped)",
        )


# ---------------------------------------------------------------- checksums


def _masked(crc: np.ndarray) -> np.ndarray:
    """TFRecord's masking of uint32 CRCs."""
    return ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + np.uint32(0xA282EAD8)


@functools.cache
def _length_tables() -> tuple[int, np.ndarray]:
    """CRC32C of eight zero bytes, and what each byte value at each place adds: uint32 [8, 256].

    CRCs of messages of one length differ by the XOR of what their bytes add, so the CRCs
    of many lengths are looked up at once.
    """
    zero = google_crc32c.value(bytes(8))
    tables = np.empty((8, 256), np.uint32)
    for place in range(8):
        for byte in range(256):
            message = bytes(place) + bytes([byte]) + bytes(7 - place)
            tables[place, byte] = google_crc32c.value(message) ^ zero
    return zero, tables


def _read_u32(buffer: bytes, positions: np.ndarray) -> np.ndarray:
    """Little-endian uint32s at `positions` of `buffer`."""
    data = np.frombuffer(buffer, np.uint8)
    parts = [
        data[positions + place].astype(np.uint32) << np.uint32(8 * place) for place in range(4)
    ]
    return parts[0] | parts[1] | parts[2] | parts[3]


def _headers_intact(buffer: bytes, starts: np.ndarray) -> np.ndarray:
    """Whether the CRC of the length at each of `starts` is right: bool, shape of `starts`."""
    zero, tables = _length_tables()
    data = np.frombuffer(buffer, np.uint8)
    crc = np.full(starts.shape, zero, np.uint32)
    for place in range(8):
        crc ^= tables[place][data[starts + place]]
    return _masked(crc) == _read_u32(buffer, starts + 8)


def _next_header(buffer: bytes) -> int | None:
    """The first position in `buffer` of an intact length."""
    for first in range(0, len(buffer) - _HEADER + 1, 1 << 16):
        starts = np.arange(first, min(first + (1 << 16), len(buffer) - _HEADER + 1))
        intact = _headers_intact(buffer, starts)
        if intact.any():
            return first + int(np.argmax(intact))
    return None
