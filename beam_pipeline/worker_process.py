"""One worker process, seen from its parent: asked by pickles over its standard streams.

The records that a worker makes lie in memory that both share.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import pickle
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any, BinaryIO

from beam_pipeline import worker_main
from beam_pipeline.errors import ConversionError
from beam_pipeline.options import InputOptions
from beam_pipeline.shared_slots import SharedSlots, make_slots
from beam_pipeline.types import ImageRef

if TYPE_CHECKING:
    from beam_pipeline.records import Chunk, RecordMaker

# By default the C library's allocator (glibc; others ignore it) hands what a chunk has freed
# back to the system and gets it again, page by page, for the next one; Arrow's own keeps more.
_ALLOCATOR = {
    "MALLOC_TRIM_THRESHOLD_": str(8 << 20),
    "MALLOC_MMAP_THRESHOLD_": str(4 << 20),
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}

_PIPE_BYTES = 1 << 20  # 1 MiB, the largest that an unprivileged process may ask for


class Answer:
    """A worker's result, and the slot of shared memory that its data lies in, if any."""

    def __init__(self, chunk: Chunk, slots: SharedSlots | None = None, slot: int | None = None):
        self.chunk = chunk
        self._slots = slots
        self._slot = slot

    def release(self) -> None:
        """Lets the slot be filled again; the chunk's data is void from here on."""
        if self._slots is not None and self._slot is not None:
            self._slots.give_back(self._slot)
            self._slot = None


class WorkerProcess:
    """One worker process, seen from its parent."""

    def __init__(self, number: int, lists: InputOptions | None):
        self.lists = lists
        self._number = number
        self._maker: RecordMaker | None = None
        environment = dict(os.environ)
        # The worker must import the same package, installed or not.
        root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, [root, environment.get("PYTHONPATH")])
        )
        # One decoding thread per worker; BLAS pools would only cost start-up time.
        for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            environment.setdefault(variable, "1")
        for variable, value in _ALLOCATOR.items():
            environment.setdefault(variable, value)
        self._slots = make_slots()
        shared = [] if self._slots is None else [self._slots.descriptor]
        self._process = subprocess.Popen(
            [sys.executable, "-m", worker_main.__name__, *map(str, shared)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            pass_fds=shared,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin: BinaryIO = self._process.stdin  # type: ignore[assignment]
        self._stdout: BinaryIO = self._process.stdout  # type: ignore[assignment]
        _enlarge_pipe(self._stdout.fileno())
        with contextlib.suppress(BrokenPipeError):  # whoever asks it for something is told
            pickle.dump(lists, self._stdin, protocol=5)
            self._stdin.flush()

    def receive(self) -> Any:
        """The next part of the listing."""
        try:
            part = pickle.load(self._stdout)
        except (EOFError, ValueError, pickle.UnpicklingError) as error:
            raise ConversionError(self._obituary("listed the inputs")) from error
        if isinstance(part, BaseException):
            raise part
        return part

    def make(self, maker: RecordMaker, chunk: list[ImageRef]) -> Answer:
        """Has the records of one chunk made; waits for them."""
        slot = None if self._slots is None else self._slots.take()
        length = None
        try:
            result, length = self._ask(maker, chunk, slot)
        finally:
            if length is None and self._slots is not None and slot is not None:
                self._slots.give_back(slot)
        if isinstance(result, BaseException):
            raise result
        if self._slots is None or slot is None or length is None:
            return Answer(result)
        result = dataclasses.replace(result, data=self._slots.view(slot, length))
        return Answer(result, self._slots, slot)

    def _ask(
        self, maker: RecordMaker, chunk: list[ImageRef], slot: int | None
    ) -> tuple[Any, int | None]:
        """See _answer(), which answers in the worker."""
        try:
            if maker is not self._maker:
                pickle.dump(maker, self._stdin, protocol=5)
                self._maker = maker
            pickle.dump(([tuple(ref) for ref in chunk], slot), self._stdin, protocol=5)
            self._stdin.flush()
            return pickle.load(self._stdout)
        except (EOFError, BrokenPipeError, ValueError, pickle.UnpicklingError) as error:
            task = (
                f"converted one of {len(chunk)} images from {chunk[0].key!r} to {chunk[-1].key!r}"
            )
            raise ConversionError(self._obituary(task)) from error

    def close(self) -> None:
        """Ends the process, in the middle of a chunk if need be."""
        with contextlib.suppress(OSError, ValueError):
            self._stdin.close()
        # A worker in the middle of a chunk would go on decoding; nobody wants the result.
        self._process.terminate()
        self._process.wait()
        with contextlib.suppress(OSError, ValueError):
            self._stdout.close()
        if self._slots is not None:
            self._slots.close()

    def _obituary(self, task: str) -> str:
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return f"worker process {self._number} stopped answering"
        if code == -signal.SIGKILL:
            how = "was killed by the system (signal 9), most likely for lack of memory"
        elif code < 0:
            how = f"died of signal {-code} ({signal.Signals(-code).name})"
        else:
            how = f"ended with exit code {code}"
        return (
            f"worker process {self._number} {how} while it {task}. Fewer --workers need less "
            f"memory; --max_pixels and --max_bytes bound what one image may need"
        )


def _enlarge_pipe(descriptor: int) -> None:
    """Lets a worker hand over a whole chunk without waiting for its reader (Linux)."""
    with contextlib.suppress(AttributeError, OSError):
        fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
