"""Objects of remote stores: gs:// through Google's client, s3:// and hdfs:// through Arrow."""

from __future__ import annotations

import abc
import os

import pyarrow.fs


class Store(abc.ABC):
    """Reads objects by path (bucket/name); failures are OSErrors, worth another try.

    A missing object is a FileNotFoundError.
    """

    @abc.abstractmethod
    def exists(self, path: str) -> bool:
        """Whether there is an object."""

    @abc.abstractmethod
    def size(self, path: str) -> int:
        """Bytes of an object."""

    @abc.abstractmethod
    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """Bytes of an object from `start` on: `length` of them, or all."""


class ArrowStore(Store):
    """Any file system of pyarrow."""

    def __init__(self, filesystem: pyarrow.fs.FileSystem):
        self._filesystem = filesystem

    def exists(self, path: str) -> bool:
        """Whether there is an object."""
        return self._filesystem.get_file_info(path).type != pyarrow.fs.FileType.NotFound

    def size(self, path: str) -> int:
        """Bytes of an object."""
        with self._filesystem.open_input_file(path) as stream:
            return stream.size()

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """Bytes of an object."""
        with self._filesystem.open_input_file(path) as stream:
            stream.seek(start)
            return stream.read(length)


class GoogleStore(Store):
    """Google Cloud Storage, with the same client and credentials as a conversion.

    Arrow's own client is left aside: it does not get along with the emulator.
    """

    def __init__(self) -> None:
        from google.auth.credentials import AnonymousCredentials
        from google.auth.exceptions import GoogleAuthError
        from google.cloud import storage

        try:
            if os.environ.get("STORAGE_EMULATOR_HOST"):
                self._client = storage.Client("emulator", AnonymousCredentials())
            else:
                self._client = storage.Client()
        except (GoogleAuthError, OSError) as error:
            raise OSError(f"no usable Google credentials: {error}") from error

    def exists(self, path: str) -> bool:
        """Whether there is an object."""
        return self._call(lambda: self._blob(path).exists())

    def size(self, path: str) -> int:
        """Bytes of an object."""

        def ask() -> int:
            blob = self._blob(path)
            blob.reload()
            return int(blob.size)

        return self._call(ask)

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """Bytes of an object."""
        end = None if length is None else start + length - 1
        return self._call(lambda: self._blob(path).download_as_bytes(start=start, end=end))

    def _blob(self, path: str):  # type: ignore[no-untyped-def]
        bucket, _, name = path.partition("/")
        return self._client.bucket(bucket).blob(name)

    @staticmethod
    def _call(action):  # type: ignore[no-untyped-def]
        from google.api_core.exceptions import GoogleAPIError, NotFound
        from google.auth.exceptions import GoogleAuthError

        try:
            return action()
        except NotFound as error:
            raise FileNotFoundError(str(error)) from error
        except (GoogleAPIError, GoogleAuthError) as error:
            raise OSError(str(error)) from error
