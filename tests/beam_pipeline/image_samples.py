"""Image files of every kind that the image rules speak of, made in code, small."""

from __future__ import annotations

import base64
import io
import struct
import zlib

import numpy as np
from PIL import Image, features

from beam_pipeline.types import PreparedImage
from tests.fakes import jpeg, picture

# fakes.picture(40, 56, seed=3) as JPEG (quality 90), made arithmetic-coded without loss by
# `jpegtran -arithmetic`; and its gray brother (channels=1, seed=4), progressive too.
# Pillow reads such files but cannot write them.
JPEG_ARITHMETIC = base64.b64decode(
    """
    /9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAAMCAgMCAgMDAwMEAwMEBQgFBQQEBQoHBwYIDAoMDAsKCwsNDhIQDQ4RDgsL
    EBYQERMUFRUVDA8XGBYUGBIUFRT/2wBDAQMEBAUEBQkFBQkUDQsNFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQU
    FBQUFBQUFBQUFBQUFBQUFBQUFBT/yQARCAAoADgDASIAAhEBAxEB/8wACgAQEAUBEBEF/9oADAMBAAIRAxEAPwD/ANpw
    2XJMx9Hw88Dcgdwq7pDYORhGuRl874NwcJzHcBKrYoMi4l5GufsnpFLvM9M+hU8mWg7poPOJQolxQb42wubn0/8AptfN
    9P6Qh+FarWOFtHQcaIAP1Il3CbBfxkzytmom/up+g4R5x6077aAEY8uHWs5fYNJLQVsRf/mFST30kfOScMOboHi48pEb
    jIDhbG0SHcqfKjlPSrKIY5oOEC210bwxX4A9oZduC7Wx8RlDw9HB0Cq7o+f4tTsjZhyfySVzzISbfEsVIyts02vZOIoj
    9PMmszqbUOhAopqV1QEpaFVLP9AlHoF+TEQc8ZFweZls3rgnYuXmLVI1nwrk1CWMvdoIrNPgkReuE3rmU9FdDNZvMsc+
    eaoesNNpIQPm2uRv30zhOQsn7TAEWkwPg8vKBdxI3MvMvfAW3JNV4Rpo/Dkyqnlr+MOvr4fH8ERZo7u8nVJDCX6YKR6E
    PcrJjDsZTGDWIIJQ2BT9az8tn+v2vEwx95fLGW+/+M4EwM3QpQy4Nf0eY8aYF/4OKWojihl3y9xHEbf5P2LON8wgHDdZ
    V7VO/MtcwlVTIietD5t3qGtukmYaLYUhRZm4eKRXoNvGQHJmXA6b1Dpkjll4KKTqQP/Z
    """
)
JPEG_ARITHMETIC_PROGRESSIVE_GRAY = base64.b64decode(
    """
    /9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAAMCAgMCAgMDAwMEAwMEBQgFBQQEBQoHBwYIDAoMDAsKCwsNDhIQDQ4RDgsL
    EBYQERMUFRUVDA8XGBYUGBIUFRT/ygALCAAoADgBAREA/8wABAAQ/9oACAEBAAAAAdKrCc4vQ9A74aQAqf8A09VcqxIx
    InAPY7lJ3BLaG2nauFWRphiAKaaGNRVDDVZ95oHA/8wABBAF/9oACAEBAAEFAhYxQs8eKZanRH2PXMkDTW7yie99MuYC
    5R6gA984rrv/AAuGpJKbBkGgvL+xvRoZDV/wBNBX2Lb1bEAuM7qqxNGf5Y0xJnb39fDd0C9LlS30GmOTKwlTRvGSsLWK
    G0SaPhdElcl7UByGkZRpk7l8E/aRAPGPVPA2puNF0R6Bn4eY/Eh1GomvgVLAvU7qbr2MR05s/8wABBAF/9oACAEBAAY/
    Anu2mSP4pdnqpoIsK61M0edBsKoyOuOJroG09YrCvMCMyHINobxP7t1a1dQH8PqsnVmTnnbaPkKNVv/MAAQQBf/aAAgB
    AQABPyH6AHY00N+x0gEU6MXhPuo89QS1Oj+pJfgxIaMczwdPpgezz2XzyL3MK5BEWhokBr05rqT3/fvYpgmxVpu6nDvO
    G9/3SPYWqyHl5BkF3F9rL8zzNjAkSNT/2gAIAQEAAAAQToq4poD/zAAEEAX/2gAIAQEAAT8Q+AEapZvrrbfFFzAsBx1h
    6LJ3n2+yShp0idVid+BXA6hQBtGnZfpj5v3Ro/H97Sdzff2yF5YKENuRPQHGT3FC+oSE2vHDicy+PA1Qxz6qHpgrl53/
    AE5HyT3zg+C+4HbDFnexBjP154xv8pW8eJaAxCpxaCZ1jPAd/9k=
    """
)


def chunk(kind: bytes, body: bytes) -> bytes:
    """One PNG chunk with its right checksum."""
    return struct.pack(">I4s", len(body), kind) + body + struct.pack(">I", zlib.crc32(kind + body))


def png_file(
    width: int,
    height: int,
    depth: int,
    color: int,
    rows: bytes,
    *,
    before: bytes = b"",
    after: bytes = b"",
    interlace: int = 0,
    end: bytes = chunk(b"IEND", b""),
) -> bytes:
    """A PNG from its filtered rows; `before` and `after` are chunks around the pixel data."""
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, interlace)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + before
        + chunk(b"IDAT", zlib.compress(rows))
        + after
        + end
    )


def png_rows(samples: np.ndarray) -> bytes:
    """Rows with filter 0 of samples [H, W] or [H, W, C], 8 bits or (big-endian) 16 bits."""
    kind = ">u2" if samples.dtype.itemsize == 2 else "u1"
    return b"".join(b"\0" + row.astype(kind).tobytes() for row in samples)


def adam7_rows(samples: np.ndarray) -> bytes:
    """The same for an interlaced PNG: seven passes over the picture."""
    passes = [
        samples[top::row_step, left::column_step]
        for left, top, column_step, row_step in (
            (0, 0, 8, 8),
            (4, 0, 8, 8),
            (0, 4, 4, 8),
            (2, 0, 4, 4),
            (0, 2, 2, 4),
            (1, 0, 2, 2),
            (0, 1, 1, 2),
        )
    ]
    return b"".join(png_rows(part) for part in passes if part.size)


def exif(orientation: int, *, order: str = "<", kind: int = 3) -> bytes:
    """An EXIF block (with `Exif` in front) that holds only an orientation."""
    mark = b"II*\0" if order == "<" else b"MM\0*"
    value = struct.pack(order + ("HH" if kind == 3 else "I"), *([orientation, 0][: 5 - kind]))
    return (
        b"Exif\0\0"
        + mark
        + struct.pack(order + "IHHHI", 8, 1, 0x0112, kind, 1)
        + value
        + struct.pack(order + "I", 0)
    )


def jpeg_segment(marker: int, body: bytes) -> bytes:
    """One JPEG marker segment."""
    return struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body


def with_segment(data: bytes, marker: int, body: bytes) -> bytes:
    """The JPEG `data` with one more segment right behind its start marker."""
    return data[:2] + jpeg_segment(marker, body) + data[2:]


def lossless_jpeg(pixels: np.ndarray) -> bytes:
    """A lossless JPEG (SOF3, predictor 1) of uint8 pixels [H, W] or [H, W, 3] (RGB)."""
    planes = pixels[..., None] if pixels.ndim == 2 else pixels
    height, width, count = planes.shape
    # One Huffman table: categories 0 to 8, all of 4 bits.
    table = bytes([0]) + bytes([0, 0, 0, 9] + [0] * 12) + bytes(range(9))
    letters = b"RGB" if count == 3 else b"\x01"
    frame = struct.pack(">BHHB", 8, height, width, count)
    frame += b"".join(bytes([letter, 0x11, 0]) for letter in letters)
    scan = bytes([count]) + b"".join(bytes([letter, 0]) for letter in letters) + bytes([1, 0, 0])
    bits = []
    values = planes.astype(int)
    for y in range(height):
        for x in range(width):
            for plane in range(count):
                if x:
                    predicted = values[y, x - 1, plane]
                else:
                    predicted = values[y - 1, 0, plane] if y else 128
                difference = values[y, x, plane] - predicted
                size = int(abs(difference)).bit_length()
                bits.append(f"{size:04b}")
                if size:
                    code = difference if difference > 0 else difference + (1 << size) - 1
                    bits.append(f"{code:0{size}b}")
    text = "".join(bits)
    text += "1" * (-len(text) % 8)
    body = int(text, 2).to_bytes(len(text) // 8, "big").replace(b"\xff", b"\xff\0")
    return (
        b"\xff\xd8"
        + jpeg_segment(0xC3, frame)
        + jpeg_segment(0xC4, table)
        + jpeg_segment(0xDA, scan)
        + body
        + b"\xff\xd9"
    )


def save(image: Image.Image, format: str, **options: object) -> bytes:
    """`image` as the bytes of a file."""
    stream = io.BytesIO()
    image.save(stream, format, **options)
    return stream.getvalue()


def frames(count: int = 3, height: int = 24, width: int = 32) -> list[Image.Image]:
    """Different pictures of one size."""
    return [Image.fromarray(picture(height, width, seed=60 + number)) for number in range(count)]


def animation(format: str, **options: object) -> bytes:
    """A file with several pictures: GIF, PNG (APNG), WEBP, TIFF, MPO or AVIF."""
    first, *rest = frames()
    return save(first, format, save_all=True, append_images=rest, **options)


def seeds() -> dict[str, bytes]:
    """A few healthy files of every format that Pillow writes here, each of 24×32 pixels."""
    color = Image.fromarray(picture(seed=1))
    gray = Image.fromarray(picture(channels=1, seed=2))
    alpha = color.copy()
    alpha.putalpha(gray)
    palette = color.quantize(32)
    bilevel = gray.convert("1")
    deep = Image.fromarray(picture(channels=1, seed=5).astype(np.uint16) * 257)
    made = {
        "jpeg": jpeg(1),
        "jpeg_gray": save(gray, "JPEG"),
        "jpeg_progressive": save(color, "JPEG", progressive=True),
        "jpeg_restarts": save(color, "JPEG", restart_marker_blocks=2),
        "jpeg_exif": save(color, "JPEG", exif=exif(6)),
        "jpeg_cmyk": save(color.convert("CMYK"), "JPEG"),
        "jpeg_arithmetic": JPEG_ARITHMETIC,
        "jpeg_arithmetic_progressive": JPEG_ARITHMETIC_PROGRESSIVE_GRAY,
        "jpeg_lossless": lossless_jpeg(picture(seed=1)),
        "mpo": animation("MPO"),
        "png": save(color, "PNG"),
        "png_gray": save(gray, "PNG"),
        "png_alpha": save(alpha, "PNG"),
        "png_gray_alpha": save(alpha.convert("LA"), "PNG"),
        "png_palette": save(palette, "PNG", transparency=3),
        "png_bilevel": save(bilevel, "PNG"),
        "png_deep": save(deep, "PNG"),
        "png_interlaced": png_file(
            32,
            24,
            8,
            2,
            adam7_rows(picture(seed=1)),
            interlace=1,
            before=chunk(b"gAMA", b"\0\1\2\3"),
        ),
        "png_key": png_file(
            32, 24, 8, 2, png_rows(picture(seed=1)), before=chunk(b"tRNS", b"\0\1\0\2\0\3")
        ),
        "apng": animation("PNG"),
        "gif": save(palette, "GIF"),
        "gif_animated": animation("GIF", duration=50),
        "gif_transparent": save(palette, "GIF", transparency=2, interlace=1),
        "webp": save(color, "WEBP"),
        "webp_alpha": save(alpha, "WEBP", lossless=True),
        "webp_animated": animation("WEBP"),
        "bmp": save(color, "BMP"),
        "bmp_palette": save(palette, "BMP"),
        "bmp_bilevel": save(bilevel, "BMP"),
        "tiff": save(color, "TIFF"),
        "tiff_lzw": save(color, "TIFF", compression="tiff_lzw"),
        "tiff_deflate": save(alpha, "TIFF", compression="tiff_adobe_deflate"),
        "tiff_jpeg": save(color, "TIFF", compression="jpeg"),
        "tiff_packbits": save(palette, "TIFF", compression="packbits"),
        "tiff_fax": save(bilevel, "TIFF", compression="group4"),
        "tiff_deep": save(deep, "TIFF"),
        "tiff_cmyk": save(color.convert("CMYK"), "TIFF"),
        "tiff_pages": animation("TIFF", compression="tiff_lzw"),
        "tga": save(color, "TGA"),
        "tga_rle": save(alpha, "TGA", compression="tga_rle"),
        "ppm": save(color, "PPM"),
        "pgm": save(gray, "PPM"),
        "pbm": save(bilevel, "PPM"),
        "ppm_text": b"P3 2 2 255 " + b" ".join(b"%d" % value for value in range(12)) + b"\n",
        "ico": save(alpha, "ICO", sizes=[(16, 16), (24, 24)]),
        "ico_bmp": save(alpha, "ICO", sizes=[(16, 16)], bitmap_format="bmp"),
        "pcx": save(color, "PCX"),
        "sgi": save(color, "SGI"),
        "dds": save(alpha, "DDS"),
        "qoi": save(color, "QOI"),
        "xbm": save(bilevel, "XBM"),
    }
    if features.check("jpg_2000"):
        made["jp2"] = save(color, "JPEG2000")
        made["j2k"] = save(gray, "JPEG2000", no_jp2=True)
    if features.check("avif"):
        made["avif"] = save(color, "AVIF", speed=10)
    return made


def training_sees(image: PreparedImage) -> np.ndarray:
    """uint8 [H, W, C] that TensorFlow decodes from the stored bytes, with channels=0."""
    import tensorflow as tf

    if image.format == "raw":
        flat = tf.io.decode_raw(image.data, tf.uint8).numpy()
        return flat.reshape(image.height, image.width, image.channels)
    decode = {"jpeg": tf.io.decode_jpeg, "png": tf.io.decode_png}[image.format]
    return decode(image.data).numpy()


def check_stored(image: PreparedImage) -> np.ndarray:
    """training_sees(image), after checking that height, width and channels are the real ones."""
    pixels = training_sees(image)
    assert pixels.shape == (image.height, image.width, image.channels)
    assert image.channels in (1, 3)
    return pixels


def profile(
    red: tuple[float, float], green: tuple[float, float], blue: tuple[float, float]
) -> bytes:
    """An RGB display profile (ICC 2, D50, gamma 2.2) with these primaries as CIE xy."""
    white = np.array([0.9642, 1.0, 0.8249])
    primaries = np.array([[x / y, 1, (1 - x - y) / y] for x, y in (red, green, blue)]).T
    columns = primaries * np.linalg.solve(primaries, white)

    def xyz(values: np.ndarray) -> bytes:
        return b"XYZ \0\0\0\0" + struct.pack(">3i", *(round(v * 65536) for v in values))

    description = b"made for a test\0"
    tags = {
        b"desc": b"desc\0\0\0\0" + struct.pack(">I", len(description)) + description + bytes(78),
        b"wtpt": xyz(white),
        b"rXYZ": xyz(columns[:, 0]),
        b"gXYZ": xyz(columns[:, 1]),
        b"bXYZ": xyz(columns[:, 2]),
        b"cprt": b"text\0\0\0\0none\0",
    }
    for tag in (b"rTRC", b"gTRC", b"bTRC"):
        tags[tag] = b"curv\0\0\0\0" + struct.pack(">IH", 1, round(2.2 * 256))
    table, body = b"", b""
    start = 128 + 4 + 12 * len(tags)
    for tag, content in tags.items():
        content += bytes(-len(content) % 4)
        table += tag + struct.pack(">II", start + len(body), len(content))
        body += content
    head = struct.pack(
        ">I4sI4s4s4s", start + len(body), bytes(4), 0x02400000, b"mntr", b"RGB ", b"XYZ "
    )
    head += struct.pack(">6H", 2024, 1, 1, 0, 0, 0) + b"acsp" + bytes(24)
    head += bytes(4) + struct.pack(">3i", 63190, 65536, 54061)  # intent, D50
    head = head[:128].ljust(128, b"\0")
    return head + struct.pack(">I", len(tags)) + table + body
