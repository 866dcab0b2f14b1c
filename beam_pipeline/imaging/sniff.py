"""What bytes are, judged by their content and never by a name. Pure, no Pillow."""

from __future__ import annotations

import re

from beam_pipeline.errors import ImageRejectedError
from beam_pipeline.types import RejectReason

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
JPEG_START = b"\xff\xd8\xff"

# Image formats that are decoded here, by the bytes they start with. Formats whose
# decoder runs another program (EPS, WMF) are left out on purpose.
_IMAGES: tuple[tuple[bytes, str], ...] = (
    (JPEG_START, "jpeg"),
    (PNG_SIGNATURE, "png"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
    (b"BM", "bmp"),
    (b"II*\0", "tiff"),
    (b"MM\0*", "tiff"),
    (b"II+\0", "tiff"),  # BigTIFF
    (b"MM\0+", "tiff"),
    (b"\0\0\0\x0cjP  \r\n\x87\n", "jp2"),
    (b"\xff\x4f\xff\x51", "jp2"),  # codestream without its container
    (b"\0\0\1\0", "ico"),
    (b"\0\0\2\0", "cur"),
    (b"8BPS", "psd"),
    (b"qoif", "qoi"),
    (b"DDS ", "dds"),
    (b"\x01\xda", "sgi"),
)
# Every source format; what --formats may name. "jpeg" includes MPO.
SOURCE_FORMATS = tuple(
    sorted({name for _, name in _IMAGES} | {"webp", "avif", "heic", "ppm", "pcx", "tga", "xbm"})
)
_NETPBM = re.compile(rb"P[1-7]\s|P0CMYK|PyP|PyRGBA|PyCMYK|P[fF]\s")
_XBM = re.compile(rb"\s*#define[ \t]+.*_width[ \t]+[0-9]")
_AVIF_BRANDS = frozenset((b"avif", b"avis"))
_HEIF_BRANDS = frozenset(
    (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1", b"mif2")
)

# Things that people have among their images and that are none, or that nothing here reads.
_OTHERS: tuple[tuple[bytes, RejectReason, str], ...] = (
    (b"\x00\x05\x16\x07", RejectReason.NOT_AN_IMAGE, "an AppleDouble file (macOS metadata, ._*)"),
    (b"\x00\x05\x16\x00", RejectReason.NOT_AN_IMAGE, "an AppleSingle file (macOS metadata)"),
    (
        b"version https://git-lfs",
        RejectReason.NOT_AN_IMAGE,
        "a Git LFS pointer; run `git lfs pull`",
    ),
    (b"%PDF", RejectReason.NOT_AN_IMAGE, "a PDF document"),
    (b"%!PS", RejectReason.UNSUPPORTED_FORMAT, "a PostScript drawing"),
    (b"\xc5\xd0\xd3\xc6", RejectReason.UNSUPPORTED_FORMAT, "an EPS drawing"),
    (b"\xd7\xcd\xc6\x9a", RejectReason.UNSUPPORTED_FORMAT, "a WMF drawing"),
    (b"PK\x03\x04", RejectReason.NOT_AN_IMAGE, "a ZIP archive or office document"),
    (b"PK\x05\x06", RejectReason.NOT_AN_IMAGE, "an empty ZIP archive"),
    (b"\x1f\x8b", RejectReason.NOT_AN_IMAGE, "gzip data"),
    (b"BZh", RejectReason.NOT_AN_IMAGE, "bzip2 data"),
    (b"\xfd7zXZ\0", RejectReason.NOT_AN_IMAGE, "xz data"),
    (b"\x28\xb5\x2f\xfd", RejectReason.NOT_AN_IMAGE, "zstd data"),
    (b"7z\xbc\xaf\x27\x1c", RejectReason.NOT_AN_IMAGE, "a 7z archive"),
    (b"Rar!", RejectReason.NOT_AN_IMAGE, "a RAR archive"),
    (b"\xd0\xcf\x11\xe0", RejectReason.NOT_AN_IMAGE, "an office document (OLE) or Thumbs.db"),
    (b"\x1a\x45\xdf\xa3", RejectReason.NOT_AN_IMAGE, "a Matroska or WebM video"),
    (b"\x00\x00\x01\xba", RejectReason.NOT_AN_IMAGE, "an MPEG video"),
    (b"\x00\x00\x01\xb3", RejectReason.NOT_AN_IMAGE, "an MPEG video"),
    (b"FLV\x01", RejectReason.NOT_AN_IMAGE, "a Flash video"),
    (b"OggS", RejectReason.NOT_AN_IMAGE, "an Ogg sound or video"),
    (b"ID3", RejectReason.NOT_AN_IMAGE, "an MP3 sound"),
    (b"\x7fELF", RejectReason.NOT_AN_IMAGE, "a program"),
    (b"MZ", RejectReason.NOT_AN_IMAGE, "a Windows program"),
    (b"SQLite format 3", RejectReason.NOT_AN_IMAGE, "an SQLite database"),
    (b"\x89HDF", RejectReason.NOT_AN_IMAGE, "an HDF5 file"),
    (b"\x93NUMPY", RejectReason.NOT_AN_IMAGE, "a NumPy array"),
    (b"\xff\x0a", RejectReason.UNSUPPORTED_FORMAT, "a JPEG XL image"),
    (b"\0\0\0\x0cJXL ", RejectReason.UNSUPPORTED_FORMAT, "a JPEG XL image"),
    (b"SIMPLE  =", RejectReason.UNSUPPORTED_FORMAT, "a FITS image"),
    (b"\x76\x2f\x31\x01", RejectReason.UNSUPPORTED_PIXELS, "an OpenEXR image (float pixels)"),
    (b"#?RADIANCE", RejectReason.UNSUPPORTED_PIXELS, "a Radiance HDR image (float pixels)"),
    (b"\x8aMNG", RejectReason.NOT_AN_IMAGE, "an MNG animation"),
    (b"FUJIFILMCCD-RAW", RejectReason.UNSUPPORTED_FORMAT, "a camera raw file"),
)


def sniff(data: bytes) -> str:
    """The source format of `data`: "jpeg", "png", "gif", "webp", "tiff", …

    Raises:
      ImageRejectedError: the bytes are no image, or of a format that is not
        decoded here; the detail says what they are.
    """
    if data.startswith(JPEG_START):
        return "jpeg"
    if data.startswith(PNG_SIGNATURE):
        return "png"
    if not data:
        raise ImageRejectedError(RejectReason.EMPTY, "the file has no bytes")
    for magic, name in _IMAGES:
        # A cursor file begins like an uncompressed TGA, but never without cursors.
        if data.startswith(magic) and not (name == "cur" and data[4:6] == b"\0\0"):
            return name
    head = data[:512]
    if head[:4] == b"RIFF":
        return _riff(head)
    if head[4:8] == b"ftyp":
        return _iso_media(head)
    for magic, reason, what in _OTHERS:
        if data.startswith(magic):
            raise ImageRejectedError(reason, f"this is {what}")
    if head[:1] == b"\n" and len(head) > 3 and head[1] <= 5 and head[2] <= 1:
        return "pcx"
    if _NETPBM.match(head):
        return "ppm"
    if _XBM.match(head):
        return "xbm"
    _refuse_known_damage(data)
    _refuse_text(head)
    if _looks_like_tga(data):
        return "tga"
    raise ImageRejectedError(
        RejectReason.NOT_AN_IMAGE,
        f"no image format is known that starts with the bytes {head[:8].hex(' ')}",
    )


def _riff(head: bytes) -> str:
    kind = head[8:12]
    if kind == b"WEBP":
        return "webp"
    what = {b"AVI ": "an AVI video", b"WAVE": "a WAV sound"}.get(kind, "a RIFF file")
    raise ImageRejectedError(RejectReason.NOT_AN_IMAGE, f"this is {what}")


def _iso_media(head: bytes) -> str:
    """AVIF, HEIC and MP4 share a container; their brands tell them apart."""
    size = min(int.from_bytes(head[:4], "big"), len(head))
    brands = [head[8:12]] + [head[i : i + 4] for i in range(16, size - 3, 4)]
    if brands[0] in _AVIF_BRANDS or (
        brands[0] in _HEIF_BRANDS and not _AVIF_BRANDS.isdisjoint(brands)
    ):
        return "avif"
    if brands[0] in _HEIF_BRANDS:
        return "heic"
    if brands[0] == b"crx ":
        raise ImageRejectedError(RejectReason.UNSUPPORTED_FORMAT, "this is a camera raw file")
    raise ImageRejectedError(RejectReason.NOT_AN_IMAGE, "this is an MP4 or QuickTime video")


def _refuse_known_damage(data: bytes) -> None:
    """Names the damage where an image is still to be seen in the bytes."""
    if not data.rstrip(b"\0"):
        raise ImageRejectedError(
            RejectReason.CORRUPT, f"all {len(data)} bytes are zero, as after a broken download"
        )
    for start, name in ((JPEG_START, "JPEG"), (PNG_SIGNATURE, "PNG")):
        position = data.find(start, 1, 4096)
        if position > 0:
            raise ImageRejectedError(
                RejectReason.CORRUPT,
                f"a {name} starts only at byte {position}; the bytes before it do not belong there",
            )
    if len(data) < 8 and PNG_SIGNATURE.startswith(data):
        raise ImageRejectedError(RejectReason.TRUNCATED, "a PNG that ends in its signature")
    if data[1:4] == b"PNG" or data[:4] == b"\x89PNG":
        raise ImageRejectedError(
            RejectReason.CORRUPT,
            "the PNG signature is damaged, as by a transfer in text mode",
        )
    if data[:2] == b"\xff\xd8" and len(data) < 3:
        raise ImageRejectedError(RejectReason.TRUNCATED, "a JPEG that ends after its first bytes")
    if data[:2] == b"\xff\xd8":
        raise ImageRejectedError(
            RejectReason.CORRUPT, "a JPEG start marker that no other marker follows"
        )


def _refuse_text(head: bytes) -> None:
    text = head.removeprefix(b"\xef\xbb\xbf")
    if text[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise ImageRejectedError(RejectReason.NOT_AN_IMAGE, "this is a UTF-16 text")
    lower = text.lstrip()[:256].lower()
    if lower.startswith((b"<!doctype html", b"<html", b"<head", b"<body")):
        raise ImageRejectedError(
            RejectReason.NOT_AN_IMAGE, "this is an HTML page, as of a failed download"
        )
    if lower.startswith((b"<svg", b"<?xml", b"<!--", b"<!doctype svg")) and b"<svg" in head.lower():
        raise ImageRejectedError(RejectReason.NOT_AN_IMAGE, "this is an SVG drawing")
    if _is_text(text):
        start = ascii(text[:40].decode("utf-8", "replace"))
        raise ImageRejectedError(
            RejectReason.NOT_AN_IMAGE, f"this is text that starts with {start}"
        )


def _is_text(head: bytes) -> bool:
    """Whether `head` (not all of a file) is UTF-8 or mostly ASCII, without control characters."""
    if not head or head.translate(None, _TEXT_BYTES):
        return False
    for cut in range(4):  # its last character may be cut
        try:
            head[: len(head) - cut].decode("utf-8")
        except UnicodeDecodeError:
            continue
        return True
    return sum(code < 0x80 for code in head) * 2 > len(head)


_TEXT_BYTES = bytes(code for code in range(256) if code in b"\t\n\r\f\x1b" or code >= 0x20)


def _looks_like_tga(data: bytes) -> bool:
    """TGA has no magic number: all fields of its header must make sense."""
    if len(data) < 18:
        return False
    color_map, kind, depth = data[1], data[2], data[16]
    width = int.from_bytes(data[12:14], "little")
    height = int.from_bytes(data[14:16], "little")
    if not width or not height or color_map > 1 or data[17] & 0xC0:
        return False
    if kind in (1, 9):
        return color_map == 1 and depth == 8 and data[7] in (15, 16, 24, 32)
    if kind in (2, 10):
        return depth in (15, 16, 24, 32)
    return kind in (3, 11) and depth in (1, 8, 16)
