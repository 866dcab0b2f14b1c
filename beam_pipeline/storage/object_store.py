"""What all object stores have in common: directories made of key prefixes, retries, errors."""

from __future__ import annotations

import abc
import concurrent.futures
import functools
import io
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, NamedTuple, cast

from beam_pipeline.errors import ImageRejectedError, StorageError
from beam_pipeline.storage.local import short_range, too_many_bytes
from beam_pipeline.storage.paths import DIRECTORY, FILE, Entry, basename
from beam_pipeline.storage.prefixes import walk_paths
from beam_pipeline.storage.retry import Fault, Kind, ObjectStoreError, Retrier, failure
from beam_pipeline.storage.streams import READ_BYTES, RangeReader, UploadWriter
from beam_pipeline.types import RejectReason

_THREADS = 16  # copies and deletions at the same time


class Listed(NamedTuple):
    """One line of a listing: an object, or with size None a common prefix (ends with `/`)."""

    key: str
    size: int | None


class Head(NamedTuple):
    """An object's size in bytes, and what identifies this version of it."""

    size: int
    version: str


def is_unicode(name: str) -> bool:
    """Whether `name` has a UTF-8 form, as all keys have and not all local file names."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


class ObjectStore(abc.ABC):
    """The functions of `beam_pipeline.storage` on buckets and keys.

    A subclass makes single requests, does not repeat them, and explains their
    errors; everything here is safe to call from several threads.

    Attributes:
      scheme: of its URIs.
      part_bytes: size of the pieces in which large objects are written.
    """

    scheme: str
    part_bytes = 16 << 20  # 16 MiB

    def __init__(self, retry_seconds: float):
        self._retrier = Retrier(self.classify, retry_seconds)

    # What a subclass provides: one request each.

    @abc.abstractmethod
    def classify(self, error: Exception) -> Fault | None:
        """What `error` means, None when storage is not to blame for it."""

    @abc.abstractmethod
    def _list_page(
        self, bucket: str, prefix: str, delimiter: str, token: str | None, limit: int
    ) -> tuple[list[Listed], str | None]:
        """A page of a listing and the token of the next, None after the last."""

    @abc.abstractmethod
    def _head(self, bucket: str, key: str) -> Head: ...

    @abc.abstractmethod
    def _get(
        self,
        bucket: str,
        key: str,
        byte_range: tuple[int, int] | None,
        max_bytes: int | None,
        version: str | None,
    ) -> bytes:
        """The object's bytes, or (offset, length) of them; checked to be complete."""

    @abc.abstractmethod
    def _put(self, bucket: str, key: str, data: bytes) -> None: ...

    @abc.abstractmethod
    def _start_upload(self, bucket: str, key: str) -> Any:
        """Begins a large object; returns what the next three need."""

    @abc.abstractmethod
    def _send_part(self, upload: Any, data: bytes, last: bool) -> None: ...

    @abc.abstractmethod
    def _finish_upload(self, upload: Any) -> None: ...

    @abc.abstractmethod
    def _abort_upload(self, upload: Any) -> None: ...

    @abc.abstractmethod
    def _copy(self, bucket: str, key: str, target_bucket: str, target_key: str) -> None: ...

    @abc.abstractmethod
    def _delete(self, bucket: str, keys: list[str]) -> None:
        """Deletes objects of one bucket; missing ones are no error."""

    # Names.

    def split(self, uri: str) -> tuple[str, str]:
        """Bucket and key (literally; "" for the bucket itself) of a URI."""
        bucket, _, key = uri[len(self.scheme) + 3 :].partition("/")
        if not bucket:
            raise StorageError(
                f"cannot use {uri!r}: expected {self.scheme}://BUCKET/KEY, found no bucket"
            )
        return bucket, key

    def _uri(self, bucket: str, key: str) -> str:
        return f"{self.scheme}://{bucket}/{key}"

    def _prefix(self, uri: str) -> tuple[str, str]:
        bucket, key = self.split(uri)
        return bucket, key if not key or key.endswith("/") else key + "/"

    def identity(self, uri: str) -> str:
        """Two URIs are never one directory: object stores have no links."""
        return uri

    # Listing.

    def _list(
        self, uri: str, bucket: str, prefix: str, delimiter: str = "", limit: int = 1000
    ) -> Iterator[Listed]:
        token: str | None = None
        while True:
            request = functools.partial(self._list_page, bucket, prefix, delimiter, token, limit)
            try:
                page, token = self._retrier.call("list", uri, request)
            except ObjectStoreError as error:
                if error.kind is Kind.MISSING:  # a listing has nothing else to miss
                    raise self._no_bucket("list", uri, bucket) from error
                raise
            yield from page
            if token is None:
                return

    @staticmethod
    def _no_bucket(action: str, uri: str, bucket: str) -> ObjectStoreError:
        return failure(
            action,
            uri,
            Fault(
                Kind.NO_BUCKET,
                f"there is no bucket {bucket!r}",
                "check its name, the endpoint and the region, or make it",
            ),
        )

    def _is_directory(self, uri: str) -> bool:
        bucket, prefix = self._prefix(uri)
        for _ in self._list(uri, bucket, prefix, limit=1):
            return True
        return not prefix  # an empty bucket is a directory, and is there

    def stat(self, uri: str) -> Entry | None:
        """See `storage.stat`."""
        bucket, key = self.split(uri)
        if not is_unicode(key):
            return None  # a local name; no object can be called so
        if key and not key.endswith("/"):
            try:
                head = self._retrier.call("look at", uri, lambda: self._head(bucket, key))
                return Entry(uri, basename(uri), FILE, head.size)
            except ObjectStoreError as error:
                if error.kind is not Kind.MISSING:
                    raise
        return Entry(uri, basename(uri), DIRECTORY) if self._is_directory(uri) else None

    def list_directory(self, uri: str) -> list[Entry]:
        """See `storage.list_directory`."""
        bucket, prefix = self._prefix(uri)
        entries = []
        found = not prefix
        for key, size in self._list(uri, bucket, prefix, "/"):
            found = True
            if key == prefix:
                continue  # an object that stands for the directory itself
            if size is None:
                name = key[len(prefix) : -1]
                entries.append(Entry(self._uri(bucket, key[:-1]), name, DIRECTORY))
            else:
                entries.append(Entry(self._uri(bucket, key), key[len(prefix) :], FILE, size))
        if not found:
            raise self._no_directory(uri)
        entries.sort(key=lambda entry: entry.path)
        return entries

    def _no_directory(self, uri: str) -> StorageError:
        return StorageError(
            f"cannot list the directory {uri!r}: no object has a name that starts with "
            f"{self._prefix(uri)[1]!r} (check the spelling of the path)"
        )

    def walk(
        self, uri: str, skip: Callable[[str], bool] | None = None, directories: bool = False
    ) -> Iterator[Entry]:
        """See `storage.walk`."""
        bucket, prefix = self._prefix(uri)
        found = not prefix
        listing = self._list(uri, bucket, prefix)

        def paths() -> Iterator[tuple[str, int]]:
            nonlocal found
            for key, size in listing:
                found = True
                yield key[len(prefix) :], size or 0

        for path, kind, size in walk_paths(paths(), skip, directories):
            yield Entry(self._uri(bucket, prefix + path), path, kind, size)
        if not found:
            raise self._no_directory(uri)

    # Reading.

    def read_bytes(
        self, uri: str, byte_range: tuple[int, int] | None = None, max_bytes: int | None = None
    ) -> bytes:
        """See `storage.read_bytes`."""
        if byte_range is not None and max_bytes is not None and byte_range[1] > max_bytes:
            raise too_many_bytes(uri, byte_range[1], max_bytes)
        bucket, key = self.split(uri)
        if not key:
            raise ImageRejectedError(RejectReason.NOT_A_FILE, f"{uri!r} is a bucket")
        if not is_unicode(key):
            raise ImageRejectedError(
                RejectReason.MISSING, f"{uri!r} is not Unicode: no such object"
            )
        if byte_range is not None and byte_range[1] == 0:
            return b""
        try:
            data = self._retrier.call(
                "read", uri, lambda: self._get(bucket, key, byte_range, max_bytes, None)
            )
        except ObjectStoreError as error:
            raise self._refusal(uri, byte_range, error) from error
        if byte_range is not None and len(data) != byte_range[1]:
            raise short_range(uri, byte_range, len(data))
        return data

    def _refusal(
        self, uri: str, byte_range: tuple[int, int] | None, error: ObjectStoreError
    ) -> Exception:
        """What is wrong with this one object, or `error` when the environment is to blame."""
        if error.kind is Kind.MISSING:
            if self._is_directory(uri):  # raises when there is no such bucket
                return ImageRejectedError(
                    RejectReason.NOT_A_FILE, f"{uri!r} is a directory, not a file"
                )
            return ImageRejectedError(RejectReason.MISSING, f"{uri!r} does not exist")
        if error.kind is Kind.DENIED:
            return ImageRejectedError(RejectReason.UNREADABLE, str(error))
        if error.kind is Kind.RANGE and byte_range is not None:
            return short_range(uri, byte_range, 0)
        return error

    def open_read(self, uri: str) -> BinaryIO:
        """See `storage.open_read`."""
        bucket, key = self.split(uri)
        try:
            head = self._retrier.call("read", uri, lambda: self._head(bucket, key))
        except ObjectStoreError as error:
            if error.kind is Kind.MISSING:
                what = "it is a directory" if self._is_directory(uri) else "it does not exist"
                raise StorageError(
                    f"cannot read {uri!r}: {what} (check the spelling of the path)"
                ) from error
            raise

        def fetch(offset: int, length: int) -> bytes:
            return self._retrier.call(
                "read", uri, lambda: self._get(bucket, key, (offset, length), None, head.version)
            )

        raw = RangeReader(fetch, head.size)
        return cast(BinaryIO, io.BufferedReader(raw, buffer_size=READ_BYTES))

    # Writing.

    def write_bytes(self, uri: str, data: bytes) -> None:
        """See `storage.write_bytes`."""
        if len(data) > 4 * self.part_bytes:
            with self.open_write(uri) as stream:
                stream.write(data)
            return
        bucket, key = self._target(uri)
        self._write(uri, bucket, lambda: self._put(bucket, key, data))

    def _target(self, uri: str) -> tuple[str, str]:
        bucket, key = self.split(uri)
        if not key or key.endswith("/"):
            raise StorageError(f"cannot write {uri!r}: expected the name of an object")
        return bucket, key

    def _write(self, uri: str, bucket: str, request: Callable[[], Any]) -> Any:
        try:
            return self._retrier.call("write", uri, request)
        except ObjectStoreError as error:
            if error.kind is Kind.MISSING:  # writing can miss nothing else
                raise self._no_bucket("write", uri, bucket) from error
            raise

    def open_write(self, uri: str) -> BinaryIO:
        """See `storage.open_write`."""
        bucket, key = self._target(uri)

        def write(request: Callable[[], Any]) -> Any:
            return self._write(uri, bucket, request)

        def abort(upload: Any) -> None:
            self._retrier.call("abort writing", uri, lambda: self._abort_upload(upload))

        writer = UploadWriter(
            part_bytes=self.part_bytes,
            put=lambda data: write(lambda: self._put(bucket, key, data)),
            start=lambda: write(lambda: self._start_upload(bucket, key)),
            send=lambda upload, data, last: write(lambda: self._send_part(upload, data, last)),
            finish=lambda upload: write(lambda: self._finish_upload(upload)),
            abort=abort,
        )
        return cast(BinaryIO, writer)

    def make_directory(self, uri: str) -> None:
        """Nothing to do: a directory is there as soon as something is in it."""
        self.split(uri)

    def rename(self, source: str, target: str) -> None:
        """See `storage.rename`."""
        entry = self.stat(source)
        if entry is None:
            raise StorageError(f"cannot rename {source!r} to {target!r}: it does not exist")
        if entry.kind == FILE:
            pairs = [(source, target)]
        else:
            base, goal = source.rstrip("/") + "/", target.rstrip("/") + "/"
            bucket, prefix = self._prefix(source)
            keys = [key for key, _ in self._list(source, bucket, prefix)]
            pairs = [
                (self._uri(bucket, key), goal + self._uri(bucket, key)[len(base) :]) for key in keys
            ]
        self._parallel(self._copy_one, pairs)
        self.delete([pair[0] for pair in pairs])

    def _copy_one(self, pair: tuple[str, str]) -> None:
        (bucket, key), (target_bucket, target_key) = map(self.split, pair)
        self._retrier.call(
            f"copy to {pair[1]!r} the object",
            pair[0],
            lambda: self._copy(bucket, key, target_bucket, target_key),
        )

    def _parallel(self, function: Callable[[Any], None], items: list[Any]) -> None:
        if len(items) < 2:
            for item in items:
                function(item)
            return
        with concurrent.futures.ThreadPoolExecutor(min(_THREADS, len(items))) as pool:
            for future in [pool.submit(function, item) for item in items]:
                future.result()

    def delete(self, uris: Iterable[str]) -> None:
        """See `storage.delete`."""
        keys: dict[str, list[str]] = {}
        for uri in uris:
            bucket, key = self._target(uri) if not uri.endswith("/") else self.split(uri)
            keys.setdefault(bucket, []).append(key)
        for bucket, names in keys.items():
            self._delete_keys(bucket, names)

    def _delete_keys(self, bucket: str, keys: list[str]) -> None:
        uri = self._uri(bucket, keys[0]) + (f" and {len(keys) - 1} more" if keys[1:] else "")
        self._retrier.call("delete", uri, lambda: self._delete(bucket, keys))

    def delete_tree(self, uri: str) -> None:
        """See `storage.delete_tree`."""
        bucket, prefix = self._prefix(uri)
        keys = [key for key, _ in self._list(uri, bucket, prefix)]
        if prefix:
            keys.append(prefix[:-1])  # an object of that very name
        if keys:
            self._delete_keys(bucket, keys)
