"""PNG: its chunks with their checksums, and its compressed rows. Pure, no Pillow."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from beam_pipeline.errors import ImageRejectedError
from beam_pipeline.imaging.exif import exif_orientation
from beam_pipeline.imaging.sniff import PNG_SIGNATURE
from beam_pipeline.types import RejectReason

_head = struct.Struct(">I4s").unpack_from
_ihdr = struct.Struct(">IIBBBBB").unpack_from
_crc = struct.Struct(">I").unpack_from

GRAY, RGB, PALETTE, GRAY_ALPHA, RGB_ALPHA = 0, 2, 3, 4, 6
_SAMPLES = {GRAY: 1, RGB: 3, PALETTE: 1, GRAY_ALPHA: 2, RGB_ALPHA: 4}
_DEPTHS = {
    GRAY: (1, 2, 4, 8, 16),
    RGB: (8, 16),
    PALETTE: (1, 2, 4, 8),
    GRAY_ALPHA: (8, 16),
    RGB_ALPHA: (8, 16),
}
# Adam7: first column, first row, column step, row step of each pass.
_ADAM7 = (
    (0, 0, 8, 8),
    (4, 0, 8, 8),
    (0, 4, 4, 8),
    (2, 0, 4, 4),
    (0, 2, 2, 4),
    (1, 0, 2, 2),
    (0, 1, 1, 2),
)
# libpng refuses larger ancillary chunks than 8 MB; far smaller ones are odd already.
_ODD_CHUNK = 1 << 20  # 1 MiB
_MOST_CHUNKS = 1 << 20  # a file of 8 GiB, were they of the usual size
_LARGEST_PROFILE = 16 << 20  # 16 MiB, inflated
_INFLATE_STEP = 16 << 20  # 16 MiB of rows at a time


class PngHeader(NamedTuple):
    """What the chunks of a PNG declare.

    Attributes:
      width, height: in pixels, as stored (orientation not applied).
      depth: bits a sample.
      color: colour type (GRAY, RGB, PALETTE, GRAY_ALPHA, RGB_ALPHA).
      interlaced: rows are stored in seven passes.
      palette: content of PLTE, or None.
      transparency: content of tRNS, or None.
      pixels: the contents of all IDAT chunks.
      orientation: EXIF orientation, 1 to 8.
      profile: content of iCCP (name, method, compressed profile), or None.
      animated: an APNG with more than the default image.
      end: position behind the IEND chunk.
      plain: every decoder reads these chunks without complaint.
    """

    width: int
    height: int
    depth: int
    color: int
    interlaced: bool
    palette: bytes | None
    transparency: bytes | None
    pixels: tuple[bytes, ...]
    orientation: int
    profile: bytes | None
    animated: bool
    end: int
    plain: bool

    @property
    def same_in_tensorflow(self) -> bool:
        """Whether TensorFlow's decoder shows these samples as they are."""
        return (
            self.depth == 8
            and self.color in (GRAY, RGB)
            and self.transparency is None
            and self.plain
        )


def _truncated(detail: str) -> ImageRejectedError:
    return ImageRejectedError(RejectReason.TRUNCATED, f"PNG: {detail}")


def _corrupt(detail: str) -> ImageRejectedError:
    return ImageRejectedError(RejectReason.CORRUPT, f"PNG: {detail}")


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes, int]]:
    """(kind, body, position behind it) of each chunk up to IEND, its checksum verified."""
    end = len(data)
    position = 8
    for _ in range(_MOST_CHUNKS):
        if position + 12 > end:
            raise _truncated("the file ends before the IEND chunk")
        length, kind = _head(data, position)
        stop = position + 8 + length
        if stop + 4 > end:
            raise _truncated(f"chunk {kind.decode('latin-1')!a} reaches over the end of the file")
        body = data[position + 8 : stop]
        if zlib.crc32(body, zlib.crc32(kind)) != _crc(data, stop)[0]:
            raise _corrupt(
                f"checksum of chunk {kind.decode('latin-1')!a} at byte {position} is wrong"
            )
        position = stop + 4
        yield kind, body, position
        if kind == b"IEND":
            return
    raise _corrupt(f"more than {_MOST_CHUNKS} chunks")


def parse_png(data: bytes) -> PngHeader:
    """Reads all chunks up to IEND and checks every checksum.

    Raises:
      ImageRejectedError: a chunk is cut, damaged or missing.
    """
    last = b""
    pixels: list[bytes] = []
    palette = transparency = profile = exif = None
    animated = False
    plain = True
    width = height = depth = color = compression = filtering = interlace = end = 0
    for kind, body, position in _chunks(data):
        if not last:
            if kind != b"IHDR" or len(body) != 13:
                raise _corrupt("the first chunk is not a valid IHDR")
            width, height, depth, color, compression, filtering, interlace = _ihdr(body)
        elif kind == b"IDAT":
            # All IDAT chunks must follow each other.
            plain = plain and (not pixels or last == b"IDAT")
            pixels.append(body)
        elif kind == b"PLTE":
            plain = plain and palette is None and not pixels and color != GRAY
            plain = plain and len(body) % 3 == 0 and 0 < len(body) <= 768
            palette = body if palette is None else palette
        elif kind == b"tRNS":
            transparency = body if transparency is None else transparency
        elif kind[0] & 0x20:  # ancillary: a decoder may ignore it
            plain = plain and len(body) < _ODD_CHUNK and kind.isalpha()
            if kind == b"eXIf":
                exif = body if exif is None else exif
            elif kind == b"iCCP":
                profile = body if profile is None else profile
            elif kind == b"fcTL":
                animated = True
        elif kind == b"IHDR":
            raise _corrupt("more than one IHDR chunk")
        elif kind != b"IEND":
            raise ImageRejectedError(
                RejectReason.UNSUPPORTED_FORMAT,
                f"PNG: critical chunk {kind.decode('latin-1')!a} is not part of the standard",
            )
        last = kind
        end = position
    if not 0 < width < 1 << 31 or not 0 < height < 1 << 31:
        raise _corrupt(f"declares {width}×{height} pixels")
    if depth not in _DEPTHS.get(color, ()):
        raise _corrupt(f"colour type {color} with {depth} bits a sample does not exist")
    if compression or filtering or interlace > 1:
        raise _corrupt(
            f"unknown compression {compression}, filter {filtering} or interlace {interlace} method"
        )
    if not pixels:
        raise _truncated("there is no pixel data (IDAT)")
    if color == PALETTE and not palette:
        raise _corrupt("a palette image without a palette")
    return PngHeader(
        width=width,
        height=height,
        depth=depth,
        color=color,
        interlaced=interlace == 1,
        palette=palette,
        transparency=transparency,
        pixels=tuple(pixels),
        orientation=exif_orientation(exif) if exif else 1,
        profile=profile,
        animated=animated,
        end=end,
        plain=plain,
    )


def check_rows(header: PngHeader) -> bool:
    """Inflates all pixel data and checks that it is rows, and all rows.

    That is all of a PNG's decoding that can fail; undoing the filters cannot.

    Returns:
      whether the compressed data ends exactly behind the last row.

    Raises:
      ImageRejectedError: the data is damaged, ends early, or is no rows.
    """
    passes = _passes(header)
    expected = sum(rows * stride for rows, stride in passes)
    source = header.pixels[0] if len(header.pixels) == 1 else b"".join(header.pixels)
    inflater = zlib.decompressobj(0)  # the window that the data declares, as libpng does
    inflated = 0
    offset = 0  # in the current pass
    number = 0  # of the current pass
    while not inflater.eof and inflated < expected:
        try:
            piece = inflater.decompress(source, min(expected - inflated, _INFLATE_STEP))
        except zlib.error as error:
            raise _corrupt(f"the compressed pixel data is damaged ({error})") from error
        source = inflater.unconsumed_tail
        if not piece:
            if source or inflater.eof:
                continue
            break
        inflated += len(piece)
        start = 0
        while start < len(piece):
            rows, stride = passes[number]
            stop = min(len(piece), start + rows * stride - offset)
            if max(piece[start + -offset % stride : stop : stride], default=0) > 4:
                raise _corrupt("the pixel data has an unknown row filter")
            offset += stop - start
            start = stop
            if offset == rows * stride:
                number, offset = number + 1, 0
    if inflated < expected:
        raise _truncated(f"the pixel data has {inflated} of {expected} bytes")
    try:
        rest = inflater.decompress(source, 1)
    except zlib.error as error:
        raise _corrupt(f"the compressed pixel data is damaged ({error})") from error
    return inflater.eof and not rest and not inflater.unused_data


def _passes(header: PngHeader) -> list[tuple[int, int]]:
    """(rows, bytes a row with its filter byte) of each pass that is not empty."""
    bits = header.depth * _SAMPLES[header.color]
    if not header.interlaced:
        return [(header.height, 1 + (header.width * bits + 7) // 8)]
    passes = []
    for left, top, step_x, step_y in _ADAM7:
        columns = -((left - header.width) // step_x)
        rows = -((top - header.height) // step_y)
        if columns > 0 and rows > 0:
            passes.append((rows, 1 + (columns * bits + 7) // 8))
    return passes


def png_profile(header: PngHeader) -> bytes | None:
    """The ICC profile of iCCP, inflated; None where it is missing or no good."""
    if header.profile is None:
        return None
    name, _, rest = header.profile.partition(b"\0")
    if len(name) > 79 or rest[:1] != b"\0":
        return None
    try:
        inflater = zlib.decompressobj()
        profile = inflater.decompress(rest[1:], _LARGEST_PROFILE)
    except zlib.error:
        return None
    return profile if inflater.eof else None


def minimal_png(header: PngHeader) -> bytes:
    """The same picture without ancillary chunks, so that nothing odd reaches a decoder."""
    chunks = [
        (
            b"IHDR",
            struct.pack(
                ">IIBBBBB",
                header.width,
                header.height,
                header.depth,
                header.color,
                0,
                0,
                int(header.interlaced),
            ),
        )
    ]
    if header.color == PALETTE and header.palette is not None:
        chunks.append((b"PLTE", header.palette))
        if header.transparency is not None:
            chunks.append((b"tRNS", header.transparency))
    chunks.append((b"IDAT", b"".join(header.pixels)))
    chunks.append((b"IEND", b""))
    return PNG_SIGNATURE + b"".join(
        struct.pack(">I4s", len(body), kind)
        + body
        + struct.pack(">I", zlib.crc32(body, zlib.crc32(kind)))
        for kind, body in chunks
    )
