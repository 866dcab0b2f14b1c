"""The functions of beam_pipeline.storage: each finds the right store for its URI."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

from beam_pipeline.errors import StorageError
from beam_pipeline.storage import globbing, local
from beam_pipeline.storage.config import StorageConfig, current
from beam_pipeline.storage.paths import Entry, is_local, scheme

_lock = threading.Lock()
_stores: dict[str, tuple[StorageConfig, Any]] = {}


def _forget_stores() -> None:
    """After a fork: connections of the parent must not be used."""
    global _lock
    _lock = threading.Lock()
    _stores.clear()


os.register_at_fork(after_in_child=_forget_stores)


def _store(uri: str) -> Any:
    """What holds the functions for `uri`; cloud libraries and Beam are loaded only here.

    One store with its client serves all threads of a process, until `configure`
    changes the endpoints or credentials.
    """
    if is_local(uri):
        return local
    name = scheme(uri)
    config = current()
    with _lock:
        known = _stores.get(name)
        if known is None or known[0] != config:
            known = _stores[name] = (config, _make_store(name, config))
        return known[1]


def _make_store(name: str, config: StorageConfig) -> Any:
    if name == "s3":
        from beam_pipeline.storage.s3 import S3Store

        return S3Store(config)
    if name == "gs":
        from beam_pipeline.storage.gcs import GcsStore

        return GcsStore(config)
    from beam_pipeline.storage.beam_fs import BeamStore

    return BeamStore(name, config)


def stat(uri: str) -> Entry | None:
    """What is at `uri`, or None when nothing is.

    Args:
      uri: a literal name, never a pattern. Its entry's `path` is the last name.

    Raises:
      StorageError: the storage cannot be asked.
    """
    return _store(uri).stat(uri)


def exists(uri: str) -> bool:
    """Whether a file or directory is at `uri`; a dead link is not."""
    entry = stat(uri)
    return entry is not None and entry.kind != "broken_link"


def list_directory(uri: str, sizes: bool = True) -> list[Entry]:
    """One level of a directory, sorted by name.

    Args:
      uri: the directory.
      sizes: False allows entries without a size, where that is faster.

    Raises:
      StorageError: there is no such directory, or it cannot be listed.
    """
    store = _store(uri)
    return store.list_directory(uri, sizes) if store is local else store.list_directory(uri)


def walk(
    uri: str, skip: Callable[[str], bool] | None = None, directories: bool = False
) -> Iterator[Entry]:
    """Everything below a directory, ordered by path; links are followed, loops end.

    Args:
      uri: the directory.
      skip: called with each name of a file or directory (on object stores: once
        for each directory); what it accepts is left out with all below.
      directories: yield every directory, before what it holds. False: only
        those of which nothing is left to yield.

    Yields:
      Files, broken links, other things, and directories; `path` is relative to `uri`.

    Raises:
      StorageError: `uri` is no directory, or something below it cannot be listed.
    """
    return _store(uri).walk(uri, skip, directories)


def glob(pattern: str, skip: Callable[[str], bool] | None = None) -> Iterator[Entry]:
    """What matches a pattern, ordered by path.

    `*` and `?` match inside one name, also names that start with a dot; `[a-c]`
    and `[!a-c]` match one character; `**` matches any number of directories,
    none included. When something is called exactly like `pattern`, it is that.

    Args:
      pattern: `[*]`, `[?]` and `[[]` stand for the characters themselves.
      skip: as for `walk`.

    Yields:
      Files, directories and links that match; `path` is relative to the longest
      directory prefix of `pattern` that is no pattern.
    """
    store = _store(pattern)
    return globbing.glob(pattern, store.stat, store.list_directory, store.identity, skip)


def read_bytes(
    uri: str, byte_range: tuple[int, int] | None = None, max_bytes: int | None = None
) -> bytes:
    """The bytes of one input.

    Args:
      uri: a literal name.
      byte_range: (offset, length) of the wanted part; None for all.
      max_bytes: refuse more than this without reading it.

    Raises:
      ImageRejectedError: this one input is MISSING, NOT_A_FILE, UNREADABLE or
        TOO_MANY_BYTES.
      StorageError: the environment failed, or the file ended before `byte_range`.
    """
    if "://" not in uri:  # the fast way for the usual case
        return local.read_bytes(uri, byte_range, max_bytes)
    return _store(uri).read_bytes(uri, byte_range, max_bytes)


def open_read(uri: str) -> BinaryIO:
    """A stream of the bytes as they are stored; nothing is decompressed."""
    return _store(uri).open_read(uri)


def open_write(uri: str) -> BinaryIO:
    """A stream to a new or replaced file; the folders above are made.

    On object stores the object appears when the stream is closed, whole; leaving
    a `with` block by an exception leaves no object.
    """
    return _store(uri).open_write(uri)


def write_bytes(uri: str, data: bytes) -> None:
    """Writes a file that others see whole or not at all; the folders above are made."""
    _store(uri).write_bytes(uri, data)


def make_directory(uri: str) -> None:
    """Makes a directory and those above it; object stores need none, there it does nothing."""
    _store(uri).make_directory(uri)


def rename(source: str, target: str) -> None:
    """Moves a file (replacing one at `target`) or a directory (to where none is).

    On object stores this copies and deletes, one object after the other.
    """
    if _store(source) is not _store(target):
        raise StorageError(f"cannot rename {source!r} to {target!r}: these are different storages")
    _store(source).rename(source, target)


def delete(uris: Iterable[str]) -> None:
    """Deletes files and objects; those that are gone already are no error."""
    by_store: dict[Any, list[str]] = {}
    for uri in uris:
        by_store.setdefault(_store(uri), []).append(uri)
    for store, names in by_store.items():
        store.delete(names)


def delete_tree(uri: str) -> None:
    """Deletes a file, or a directory with everything in it; links are not followed."""
    _store(uri).delete_tree(uri)
