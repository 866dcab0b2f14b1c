"""Every other scheme (hdfs://, azfs:// …) through the file systems that Beam brings.

Beam's listings say neither what is a directory nor, on some stores, what is one
level down; this finds out with what its FileSystem interface has.
"""

from __future__ import annotations

import contextlib
import glob as glob_module
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, cast

from beam_pipeline.errors import ImageRejectedError, StorageError
from beam_pipeline.storage.beam_options import configure_beam
from beam_pipeline.storage.config import StorageConfig
from beam_pipeline.storage.local import short_range, too_many_bytes
from beam_pipeline.storage.paths import (
    DIRECTORY,
    FILE,
    Entry,
    basename,
    join,
    parent,
    scheme,
    walk_order,
)
from beam_pipeline.types import RejectReason


@contextlib.contextmanager
def _explained(action: str, uri: str) -> Iterator[None]:
    """Turns what Beam and its clients raise into a StorageError."""
    try:
        yield
    except (StorageError, ImageRejectedError):
        raise
    except Exception as error:  # Beam documents BeamIOError; clients raise anything
        cause = " ".join(str(error).split()) or type(error).__name__
        raise StorageError(
            f"cannot {action} {uri!r}: {cause} (check the path, the Beam options of "
            f"{scheme(uri)}:// and its credentials)"
        ) from error


class BeamStore:
    """The functions of `beam_pipeline.storage` over one Beam FileSystem.

    Retries are those of the FileSystem.
    """

    def __init__(self, name: str, config: StorageConfig):
        from apache_beam.io.filesystems import FileSystems

        configure_beam(config)
        with _explained("use", f"{name}://"):
            # Kept for the life of the process: making one may mean connecting.
            self._beam: Any = FileSystems.get_filesystem(f"{name}://host/")

    def identity(self, uri: str) -> str:
        """Links are not known to Beam."""
        return uri

    def _match(self, pattern: str) -> list[Any]:
        return self._beam.match([pattern])[0].metadata_list

    def _children(self, uri: str) -> list[Entry] | None:
        """One level, unsorted; None when `uri` is a file or nothing at all."""
        base = uri.rstrip("/")
        escaped = glob_module.escape(base)
        found: dict[str, Entry] = {}
        # Flat stores list everything below anyway; `**` shows their directories.
        with _explained("list", uri):
            matches = self._match(f"{escaped}/*" if self._beam.has_dirs() else f"{escaped}/**")
        for metadata in matches:
            name, slash, _ = metadata.path[len(base) + 1 :].partition("/")
            if not name:
                if self._beam.has_dirs():
                    return None  # a file that lists itself
                continue
            child = join(base, name)
            if slash:
                found[name + "/"] = Entry(child, name, DIRECTORY)
            else:
                found[name] = Entry(child, name, FILE, metadata.size_in_bytes)
        if self._beam.has_dirs():
            return [self._with_kind(entry) for entry in found.values()]
        return list(found.values()) or None

    def _with_kind(self, entry: Entry) -> Entry:
        # Directories have size 0, and hardly any file that matters has.
        if entry.size == 0 and self._is_directory(entry.uri):
            return entry._replace(kind=DIRECTORY, size=-1)
        return entry

    def _is_directory(self, uri: str) -> bool:
        pattern = glob_module.escape(uri.rstrip("/"))
        if not self._beam.has_dirs():
            return bool(self._match(f"{pattern}/**"))
        try:
            names = [m.path[len(uri.rstrip("/")) + 1 :] for m in self._match(f"{pattern}/*")]
        except Exception:  # it cannot be listed, so it is a file
            return False
        return "" not in names

    def stat(self, uri: str) -> Entry | None:
        """See `storage.stat`."""
        with _explained("look at", uri):
            if not uri.endswith("/") and self._beam.exists(uri):
                try:
                    size = self._beam.metadata(uri).size_in_bytes
                except Exception:
                    return Entry(uri, basename(uri), DIRECTORY)
                return self._with_kind(Entry(uri, basename(uri), FILE, size))
            there = self._beam.exists(uri) if self._beam.has_dirs() else self._is_directory(uri)
            return Entry(uri, basename(uri), DIRECTORY) if there else None

    def list_directory(self, uri: str) -> list[Entry]:
        """See `storage.list_directory`."""
        try:
            entries = self._children(uri)
        except StorageError:
            if self.stat(uri) is not None:
                raise
            entries = None
        if entries is None or (not entries and self.stat(uri) is None):
            raise StorageError(
                f"cannot list {uri!r}: there is no such directory (check the spelling of the path)"
            )
        return sorted(entries, key=lambda entry: entry.path)

    def walk(
        self, uri: str, skip: Callable[[str], bool] | None = None, directories: bool = False
    ) -> Iterator[Entry]:
        """See `storage.walk`."""
        yield from self._walk(self._kept(self.list_directory(uri), skip), "", skip, directories)

    @staticmethod
    def _kept(entries: list[Entry], skip: Callable[[str], bool] | None) -> list[Entry]:
        left = [entry for entry in entries if skip is None or not skip(entry.path)]
        return sorted(left, key=walk_order)

    def _walk(
        self,
        entries: list[Entry],
        prefix: str,
        skip: Callable[[str], bool] | None,
        directories: bool,
    ) -> Iterator[Entry]:
        for entry in entries:
            path = prefix + entry.path
            if entry.kind != DIRECTORY:
                yield entry._replace(path=path)
                continue
            below = self._kept(self._children(entry.uri) or [], skip)
            if directories or not below:
                yield entry._replace(path=path)
            yield from self._walk(below, path + "/", skip, directories)

    def read_bytes(
        self, uri: str, byte_range: tuple[int, int] | None = None, max_bytes: int | None = None
    ) -> bytes:
        """See `storage.read_bytes`."""
        with _explained("read", uri):
            try:
                stream = self._open(uri)
            except Exception as error:
                entry = self.stat(uri)
                if entry is None:
                    raise ImageRejectedError(
                        RejectReason.MISSING, f"{uri!r} does not exist"
                    ) from error
                if entry.kind == DIRECTORY:
                    raise ImageRejectedError(
                        RejectReason.NOT_A_FILE, f"{uri!r} is a directory, not a file"
                    ) from error
                raise
            limit = -1 if max_bytes is None else max_bytes + 1
            with stream:
                if byte_range is not None:
                    stream.seek(byte_range[0])
                    limit = byte_range[1]
                data = stream.read(limit)
        if byte_range is not None and len(data) != byte_range[1]:
            raise short_range(uri, byte_range, len(data))
        if max_bytes is not None and len(data) > max_bytes:
            raise too_many_bytes(uri, len(data), max_bytes)
        return data

    def _open(self, uri: str) -> Any:
        from apache_beam.io.filesystem import CompressionTypes

        return self._beam.open(uri, compression_type=CompressionTypes.UNCOMPRESSED)

    def open_read(self, uri: str) -> BinaryIO:
        """See `storage.open_read`."""
        with _explained("read", uri):
            return cast(BinaryIO, self._open(uri))

    def open_write(self, uri: str) -> BinaryIO:
        """See `storage.open_write`."""
        from apache_beam.io.filesystem import CompressionTypes

        with _explained("write", uri):
            self.make_directory(parent(uri))
            if self._beam.has_dirs() and self._beam.exists(uri):
                self._beam.delete([uri])  # HDFS refuses to write over a file
            stream = self._beam.create(uri, compression_type=CompressionTypes.UNCOMPRESSED)
            return cast(BinaryIO, stream)

    def write_bytes(self, uri: str, data: bytes) -> None:
        """See `storage.write_bytes`; with directories: under another name, then renamed."""
        with _explained("write", uri):
            target = uri + ".imagebeam.tmp" if self._beam.has_dirs() else uri
            with self.open_write(target) as stream:
                stream.write(data)
            if target != uri:
                self.rename(target, uri)

    def make_directory(self, uri: str) -> None:
        """See `storage.make_directory`."""
        with _explained("make the directory", uri):
            if self._beam.has_dirs() and not self._beam.exists(uri):
                self._beam.mkdirs(uri)

    def rename(self, source: str, target: str) -> None:
        """See `storage.rename`."""
        with _explained(f"rename to {target!r} the path", source):
            entry = self.stat(source)
            if entry is None:
                raise StorageError(f"cannot rename {source!r} to {target!r}: it does not exist")
            if self._beam.has_dirs():
                self.make_directory(parent(target))
                if entry.kind == FILE and self._beam.exists(target):
                    self._beam.delete([target])
                self._beam.rename([source], [target])
                return
            pairs = [(source, target)]
            if entry.kind == DIRECTORY:
                files = [child for child in self.walk(source) if child.kind == FILE]
                pairs = [(child.uri, join(target, child.path)) for child in files]
            self._beam.rename([pair[0] for pair in pairs], [pair[1] for pair in pairs])

    def delete(self, uris: Iterable[str]) -> None:
        """See `storage.delete`."""
        for uri in uris:
            with _explained("delete", uri):
                if self._beam.exists(uri):
                    self._beam.delete([uri])

    def delete_tree(self, uri: str) -> None:
        """See `storage.delete_tree`."""
        with _explained("delete", uri):
            if self._beam.has_dirs():
                self.delete([uri])
                return
            entry = self.stat(uri)
            if entry is not None and entry.kind == DIRECTORY:
                self.delete([child.uri for child in self.walk(uri) if child.kind == FILE])
            self.delete([uri])
