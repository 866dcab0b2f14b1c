"""Warnings of Pillow and libtiff: counted per kind instead of written to stderr.

quiet_decoders() is called once in each process that decodes. What it reaches:

- Python warnings and log records of Pillow and pillow-heif;
- libtiff, which writes to the stderr of the process from C: its two message handlers
  are replaced through ctypes, in the very library that Pillow has loaded. No file
  descriptor is redirected, so it is safe in a launcher with threads. Where the
  library does not show these functions (Windows, libtiff linked in statically and
  hidden), libtiff keeps writing.
"""

from __future__ import annotations

import atexit
import collections
import ctypes
import logging
import os
import re
import threading
import warnings
from collections.abc import Mapping
from typing import Any

_PACKAGES = ("PIL", "pillow_heif")
_MODULES = r"(PIL|pillow_heif)(\.|$)"
_FILES = re.compile(r"[\\/](PIL|pillow_heif)[\\/]")
_MOST_KINDS = 100
_KIND_LENGTH = 120

_lock = threading.Lock()
_counts: collections.Counter[str] = collections.Counter()
_installed = False
_tiff_handler: Any = None  # held here: libtiff keeps only its address


def quiet_decoders() -> None:
    """From now on, counts the warnings of image decoders in this process. Idempotent."""
    global _installed
    with _lock:
        if _installed:
            return
        _installed = True
    _count_python_warnings()
    for package in _PACKAGES:
        logger = logging.getLogger(package)
        logger.addHandler(_CountingHandler(logging.WARNING))
        logger.propagate = False
    _count_libtiff_messages()


def take_decoder_warnings() -> dict[str, int]:
    """kind → how often it was met in this process since the last call."""
    with _lock:
        counts = dict(_counts)
        _counts.clear()
    return counts


def describe_warnings(counts: Mapping[str, int]) -> list[str]:
    """One line per kind, the most frequent first."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [f"{kind} ({count}×)" for kind, count in ordered]


def _count(source: str, message: str) -> None:
    text = " ".join(message.split())
    # Numbers differ from file to file and make no new kind.
    text = re.sub(r"0x[0-9a-fA-F]+|\d+", "N", text)
    kind = f"{source}: {text.encode('ascii', 'replace').decode()[:_KIND_LENGTH]}"
    with _lock:
        if kind not in _counts and len(_counts) >= _MOST_KINDS:
            kind = "other warnings"
        _counts[kind] += 1


class _CountingHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        _count("Pillow", record.getMessage())


def _count_python_warnings() -> None:
    # Python itself remembers each text and line, and would show every new text.
    warnings.filterwarnings("always", module=_MODULES)
    show = warnings.showwarning

    def count_or_show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: Any = None,
        line: str | None = None,
    ) -> None:
        if _FILES.search(filename):
            _count("Pillow", str(message))
        else:
            show(message, category, filename, lineno, file, line)

    warnings.showwarning = count_or_show


def _count_libtiff_messages() -> None:
    global _tiff_handler
    if os.name == "nt":
        return
    try:
        from PIL import _imaging

        library = ctypes.CDLL(_imaging.__file__)
        setters = (library.TIFFSetWarningHandler, library.TIFFSetErrorHandler)
    except (ImportError, OSError, AttributeError):
        return
    # void handler(const char *module, const char *format, va_list): the format alone is
    # the kind of the message.
    prototype = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p)

    def handler(module: bytes | None, text: bytes | None, arguments: int | None) -> None:
        words = re.sub(
            r"%[-+ #0-9.*]*(?:hh|h|ll|l|z|j|t)?[a-zA-Z]", "...", (text or b"").decode("latin-1")
        )
        _count("libtiff", words)

    _tiff_handler = prototype(handler)
    for setter in setters:
        setter.restype = ctypes.c_void_p
        setter.argtypes = [ctypes.c_void_p]
        setter(ctypes.cast(_tiff_handler, ctypes.c_void_p))

    def silence() -> None:
        # A decoder thread may outlive the interpreter, and must not call into it then.
        for setter in setters:
            setter(None)

    atexit.register(silence)
