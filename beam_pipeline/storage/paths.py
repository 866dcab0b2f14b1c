"""What a listing yields, and arithmetic on paths and URIs; touches no storage."""

from __future__ import annotations

import re
from typing import NamedTuple

FILE = "file"
DIRECTORY = "directory"
BROKEN_LINK = "broken_link"
OTHER = "other"  # a socket, a pipe, a device

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


class Entry(NamedTuple):
    """One name in a listing.

    Attributes:
      uri: where it is, literally (never a pattern); give it to `read_bytes`.
      path: relative to what was listed, `/` as separator; bytes that are not
        UTF-8 stand in it as surrogates, as os.fsdecode gives them.
      kind: "file", "directory", "broken_link" or "other".
      size: in bytes, or -1 when the listing does not tell.
    """

    uri: str
    path: str
    kind: str
    size: int = -1


def scheme(uri: str) -> str:
    """The lower-case scheme of `uri`, "" for a plain local path."""
    match = _SCHEME.match(uri)
    return match.group(1).lower() if match else ""


def is_local(uri: str) -> bool:
    """Whether `uri` names a path of this machine: no scheme, or file://."""
    return scheme(uri) in ("", "file")


def local_path(uri: str) -> str:
    """The plain path of a local URI; file:// is cut off, nothing is unquoted."""
    return uri[len("file://") :] if uri[:7].lower() == "file://" else uri


def root_length(uri: str) -> int:
    """How many characters of `uri` have no parent: `/`, or `s3://bucket`."""
    match = _SCHEME.match(uri)
    if match is None or match.group(1).lower() == "file":
        start = match.end() if match else 0
        return start + 1 if uri[start : start + 1] == "/" else start
    end = uri.find("/", match.end())
    return len(uri) if end < 0 else end


def join(base: str, *parts: str) -> str:
    """`base` and `parts` with one `/` between; an absolute part or URI starts anew."""
    for part in parts:
        if not part:
            continue
        if not base or part.startswith("/") or _SCHEME.match(part):
            base = part
        else:
            base = base + part if base.endswith("/") else f"{base}/{part}"
    return base


def parent(uri: str) -> str:
    """The directory that holds `uri`; a root (`/`, `s3://bucket`) is its own parent."""
    root = root_length(uri)
    stripped = uri[:root] + uri[root:].rstrip("/")
    cut = stripped.rfind("/", root)
    if cut >= root:
        return stripped[:root] + stripped[root:cut].rstrip("/")
    return uri[:root] or "."


def basename(uri: str) -> str:
    """The last name in `uri`, "" for a root."""
    return uri[root_length(uri) :].rstrip("/").rpartition("/")[2]


def walk_order(entry: Entry) -> str:
    """Sort key of one directory's entries.

    Directories count as name + "/", so that a walk yields whole paths in sorted
    order, which is also the order in which object stores list their keys.
    """
    return entry.path + "/" if entry.kind == DIRECTORY else entry.path
