"""File objects over an object store: reads in ranges, writes in parts."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Any

READ_BYTES = 8 << 20  # 8 MiB a request

_LOGGER = logging.getLogger(__name__)


class RangeReader(io.RawIOBase):
    """An object to read and seek in; wrap it in a BufferedReader.

    Args:
      fetch: (offset, length) → exactly those bytes.
      size: of the object in bytes.
    """

    def __init__(self, fetch: Callable[[int, int], bytes], size: int):
        super().__init__()
        self._fetch = fetch
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """The position in bytes."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Moves; nothing is fetched."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError(f"position must be 0 or more, got {base + offset}")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fills `buffer` as far as the object goes."""
        view = memoryview(buffer).cast("B")
        length = min(len(view), self._size - self._position)
        if length <= 0:
            return 0
        view[:length] = self._fetch(self._position, length)
        self._position += length
        return length

    def readall(self) -> bytes:
        """The rest, in pieces of READ_BYTES (RawIOBase would ask for 8 KiB at a time)."""
        pieces = []
        while self._position < self._size:
            length = min(READ_BYTES, self._size - self._position)
            pieces.append(self._fetch(self._position, length))
            self._position += length
        return b"".join(pieces)


class UploadWriter(io.RawIOBase):
    """An object that appears whole when closed, and not at all after an exception.

    Small objects are one request; larger ones go in parts of `part_bytes`, so
    that memory stays bounded. Each callable repeats its request by itself.
    A writer that is dropped without `close` leaves no object.
    """

    def __init__(
        self,
        part_bytes: int,
        put: Callable[[bytes], None],
        start: Callable[[], Any],
        send: Callable[[Any, bytes, bool], None],
        finish: Callable[[Any], None],
        abort: Callable[[Any], None],
    ):
        super().__init__()
        self._part_bytes = part_bytes
        self._put, self._start, self._send = put, start, send
        self._finish, self._abort = finish, abort
        self._buffer = bytearray()
        self._upload: Any = None
        self._broken = False
        self._position = 0

    def writable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """How many bytes were written."""
        return self._position

    def write(self, data: Any) -> int:
        """Takes all of `data`."""
        if self.closed or self._broken:
            raise ValueError("write to a file that is closed or failed before")
        view = memoryview(data).cast("B")
        self._buffer += view
        self._position += len(view)
        # One part always stays here: the last one is sent by close.
        while len(self._buffer) > self._part_bytes:
            part = bytes(memoryview(self._buffer)[: self._part_bytes])
            try:
                if self._upload is None:
                    self._upload = self._start()
                self._send(self._upload, part, False)
            except BaseException:
                self.discard()
                raise
            del self._buffer[: self._part_bytes]
        return len(view)

    def close(self) -> None:
        """Makes the object appear."""
        if self.closed:
            return
        try:
            if not self._broken:
                if self._upload is None:
                    self._put(bytes(self._buffer))
                else:
                    self._send(self._upload, bytes(self._buffer), True)
                    self._finish(self._upload)
        except BaseException:
            self.discard()
            raise
        finally:
            self._buffer = bytearray()
            super().close()

    def discard(self) -> None:
        """Gives up: no object appears, what was sent is deleted."""
        if self.closed or self._broken:
            return
        self._broken = True
        if self._upload is not None:
            try:
                self._abort(self._upload)
            except Exception:  # the reason for giving up must reach the user, not this
                _LOGGER.warning("an unfinished upload could not be deleted", exc_info=True)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.discard()
        self.close()

    def __del__(self) -> None:
        # io.RawIOBase would close, which would publish half a file.
        if not self.closed:
            self.discard()
            self.close()
