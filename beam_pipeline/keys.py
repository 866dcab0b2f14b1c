r"""Keys: machine-independent names of inputs, always valid UTF-8, always reversible.

A key is a path with `/` as separator, relative to something the user named. Nearly
every name is its own key. Two things are escaped, so that every file name that a
disk can hold has a key that can be stored, shown and turned back:

- a byte that is not UTF-8 (a surrogate in a Python path) becomes `\xNN`;
- a backslash that would be taken for such an escape (`\x` and two hex digits follow
  it) becomes `\x5c`.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence

_ESCAPE = re.compile(rb"\\x([0-9a-fA-F]{2})")
_AMBIGUOUS = re.compile(r"\\(?=x[0-9a-fA-F]{2})")
_SURROGATE = re.compile("[\udc80-\udcff]")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
# Names that normpath would leave as they are; a cheap test that spares a million calls.
_NOT_NORMAL = re.compile(r"^/|//|(?:^|/)\.{1,2}(?:/|$)|/$")


def to_key(path: str) -> str:
    """The key of a path or name: valid UTF-8, reversible with `from_key`.

    Args:
      path: bytes that are not UTF-8 stand in it as surrogates, as os.fsdecode
        gives them.

    Raises:
      UnicodeEncodeError: `path` holds a surrogate that stands for no byte; no file
        can be called so.
    """
    if path.isascii() and "\\" not in path:
        return path
    path = _AMBIGUOUS.sub(r"\\x5c", path)
    path = _SURROGATE.sub(lambda match: f"\\x{ord(match.group()) - 0xDC00:02x}", path)
    path.encode("utf-8")
    return path


def from_key(key: str) -> str:
    """The opposite of `to_key`: a path as os.fsdecode gives it."""
    if "\\" not in key:
        return key
    data = _ESCAPE.sub(lambda match: bytes([int(match.group(1), 16)]), key.encode("utf-8"))
    return data.decode("utf-8", "surrogateescape")


def normalize_path(path: str) -> str:
    """One spelling for one place: `./a`, `a//b/..` and `a` are all `a`.

    A path that leads out of its root keeps its leading `../`; it is a name only, and
    nothing is opened by it. The result is "" when `path` names no file (`.`, ``).
    """
    if not _NOT_NORMAL.search(path):
        return path
    path = posixpath.normpath(path)
    return "" if path in (".", "/", "//") else path


def path_below(path: str, base: str) -> str | None:
    """`path` relative to `base`, or None where it lies outside.

    Args:
      path: an absolute path or a URI.
      base: the same, of a directory.
    """
    path, base = normal_uri(path), normal_uri(base).rstrip("/") + "/"
    return path[len(base) :] if path.startswith(base) else None


def without_root(path: str) -> str:
    """An absolute path or URI without its scheme and leading `/`, normalized."""
    path = normal_uri(path)
    match = _SCHEME.match(path)
    return path[match.end() if match else 0 :].lstrip("/")


def normal_uri(uri: str) -> str:
    """An absolute path or URI with its path normalized; file:// is cut off."""
    if uri[:7].lower() == "file://":
        uri = uri[7:]
    match = _SCHEME.match(uri)
    start = match.end() if match else 0
    normal = posixpath.normpath(uri[start:])
    return uri[:start] + (normal[1:] if normal.startswith("//") else normal)


def is_uri(path: str) -> bool:
    """Whether `path` has a scheme (`s3://…`)."""
    return _SCHEME.match(path) is not None


def key_prefixes(bases: Sequence[str]) -> list[str]:
    """What stands before the keys of each of several inputs, so that no two files share one.

    One base, or equal ones, need no prefix. Otherwise it is the base relative to the
    directory that they have in common: `data/a` and `data/b` give `a/` and `b/`, on
    every machine.

    Args:
      bases: absolute directories or URIs that paths are relative to.
    """
    plain = [normal_uri(base) for base in bases]
    if len(set(plain)) <= 1:
        return [""] * len(plain)
    parts = [tuple(base.split("/")) for base in plain]
    shared = _common(parts)
    return [
        to_key("".join(f"{part}/" for part in names[shared:] if part and part[-1] != ":"))
        for names in parts
    ]


def _common(sequences: Iterable[Sequence[str]]) -> int:
    """How many leading items all `sequences` share."""
    count = 0
    for items in zip(*sequences, strict=False):
        if len(set(items)) > 1:
            break
        count += 1
    return count
