"""Memory that a worker process shares with its parent: results need no pipe, and no copy."""

from __future__ import annotations

import contextlib
import mmap
import os
import threading

SLOT_BYTES = 8 << 20  # 8 MiB: what is larger goes through the pipe
_SLOTS = 4


class SharedSlots:
    """A few equally large pieces of memory that two processes see.

    The parent makes them and hands a free slot out with each request; the worker opens
    them by their file descriptor and fills the slot. A slot that was never used takes no
    memory, and the one that was used last is used again first.

    Args:
      descriptor: of the parent's memory, in a worker; None makes new memory.
    """

    def __init__(self, descriptor: int | None = None):
        if descriptor is None:
            descriptor = os.memfd_create("imagebeam")
            os.ftruncate(descriptor, _SLOTS * SLOT_BYTES)
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, _SLOTS * SLOT_BYTES)
        self._view = memoryview(self._memory)
        self._free = list(range(_SLOTS))
        self._lock = threading.Lock()

    def take(self) -> int | None:
        """A free slot, or None when all are in use."""
        with self._lock:
            return self._free.pop() if self._free else None

    def give_back(self, slot: int) -> None:
        """The opposite of take()."""
        with self._lock:
            self._free.append(slot)

    def view(self, slot: int, length: int = SLOT_BYTES) -> memoryview:
        """The first `length` bytes of a slot."""
        return self._view[slot * SLOT_BYTES : slot * SLOT_BYTES + length]

    def close(self) -> None:
        """Frees the memory, unless somebody still looks at it: then it goes with the process."""
        os.close(self.descriptor)
        with contextlib.suppress(BufferError):
            self._view.release()
            self._memory.close()


def make_slots() -> SharedSlots | None:
    """New slots, or None on systems that have no anonymous files."""
    return SharedSlots() if hasattr(os, "memfd_create") else None
