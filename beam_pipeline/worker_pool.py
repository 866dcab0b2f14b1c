"""Worker processes of one machine: all cores decode, whatever Python's global lock does.

A worker is `python -m beam_pipeline.worker_pool`: a plain process that loads Pillow and
the encoder but neither Beam nor TensorFlow, starts in a few tenths of a second, and
speaks pickles over its standard streams; records lie in memory that it shares with its
parent. It ends by itself when its parent is gone.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import dataclasses
import fcntl
import functools
import gc
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from beam_pipeline.errors import ConversionError
from beam_pipeline.inputs import InputPlan
from beam_pipeline.lean_imports import load_arrow
from beam_pipeline.listing_ahead import ListingAhead, serve_listing
from beam_pipeline.options import InputOptions
from beam_pipeline.shared_slots import SharedSlots, make_slots
from beam_pipeline.types import ImageRef

if TYPE_CHECKING:
    from beam_pipeline.records import Chunk, RecordMaker

T = TypeVar("T")

# By default the C library's allocator (glibc; others ignore it) hands what a chunk has freed
# back to the system and gets it again, page by page, for the next one; Arrow's own keeps more.
_ALLOCATOR = {
    "MALLOC_TRIM_THRESHOLD_": str(8 << 20),
    "MALLOC_MMAP_THRESHOLD_": str(4 << 20),
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}

_LAST_WRITES_SECONDS = 30

# Parts of a listing, of a few kB and 80 at most, that wait for a parent which is busy.
_LISTED_AHEAD = 512
_END = object()

_PIPE_BYTES = 1 << 20  # 1 MiB, the largest that an unprivileged process may ask for


def available_cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class WorkerPool:
    """A fixed number of worker processes that make records; thread-safe.

    Use as a context manager. Workers start at once and load their imports while the
    caller goes on.

    Args:
      workers: how many.
      inputs: are listed by one of the workers at once; see take_listing.
    """

    def __init__(self, workers: int, inputs: InputOptions | None = None):
        self.workers = workers
        self._closed = False
        self._processes = [_Worker(number, None if number else inputs) for number in range(workers)]
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self._listing: ListingAhead | None = None
        for process in self._processes:
            if process.lists is None:
                self._idle.put(process)
            else:
                end = functools.partial(self._idle.put, process)
                self._listing = ListingAhead(process.lists, process.receive, end)
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="imagebeam-worker")
        self._writers = ThreadPoolExecutor(thread_name_prefix="imagebeam-shard")
        self._started: set[Future[Any]] = set()
        # Chunks that are under way or wait to be taken, over all callers.
        self._permits = threading.Semaphore(2 * workers + 1)

    def __enter__(self) -> WorkerPool:
        global _current
        _current = self
        return self

    def __exit__(self, *exc_info: object) -> None:
        global _current
        _current = None
        self.close()

    def close(self) -> None:
        """Ends the workers; chunks that have not started are dropped.

        Waits until everything that was started by start() has come to an end (by an error,
        where it was not done): nobody writes any more when this returns, unless a write hangs.
        """
        if self._closed:
            return
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.close()
        self._writers.shutdown(wait=False, cancel_futures=True)
        concurrent.futures.wait(set(self._started), timeout=_LAST_WRITES_SECONDS)

    def start(self, work: Callable[..., T], *arguments: object) -> Future[T]:
        """Runs what asks this pool for records in a thread of its own."""
        future = self._writers.submit(work, *arguments)
        self._started.add(future)
        future.add_done_callback(self._started.discard)
        return future

    def listing(self, options: InputOptions) -> ListingAhead | None:
        """The listing of these inputs that a worker makes, or None."""
        found = self._listing
        return found if found is not None and found.options == options else None

    def take_listing(self, plan: InputPlan) -> ListingAhead | None:
        """The listing of what `plan` describes, or None; whoever takes it must use it up.

        The worker makes no records until then.
        """
        found, self._listing = self._listing, None
        if found is not None and found.plan() != plan:
            raise RuntimeError("the worker pool lists other inputs than this conversion")
        return found

    def map_ordered(
        self, maker: RecordMaker, chunks: Iterable[list[ImageRef]]
    ) -> Generator[Chunk, None, None]:
        """Makes the records of `chunks` side by side and yields the results in order.

        A result's data is good until the next one is asked for. At most two chunks per
        worker are under way or waiting to be yielded, over all callers together, which
        bounds the memory of the results.

        Raises:
          ConversionError: a worker died (for example killed for lack of memory).
          Exception: whatever a worker raised, with its own traceback as its cause.
        """
        pending: collections.deque[Future[_Answer]] = collections.deque()
        try:
            remaining = iter(chunks)
            while True:
                # Who waits for a permit must hold no result: others may wait for its permit.
                while not self._permits.acquire(blocking=not pending):
                    yield from self._next(pending)
                chunk = next(remaining, None)
                if chunk is None:
                    self._permits.release()
                    break
                pending.append(self._threads.submit(self._call, maker, chunk))
            while pending:
                yield from self._next(pending)
        finally:
            for future in pending:
                if future.cancel():
                    self._permits.release()
                else:
                    future.add_done_callback(self._drop)

    def _next(self, pending: collections.deque[Future[_Answer]]) -> Iterator[Chunk]:
        future = pending.popleft()
        try:
            yield future.result().chunk
        finally:
            self._drop(future)

    def _drop(self, future: Future[_Answer]) -> None:
        if not future.cancelled() and future.exception() is None:
            future.result().release()
        self._permits.release()

    def _call(self, maker: RecordMaker, chunk: list[ImageRef]) -> _Answer:
        worker = self._idle.get()
        try:
            return worker.make(maker, chunk)
        finally:
            self._idle.put(worker)


_current: WorkerPool | None = None


def current() -> WorkerPool | None:
    """The pool that is open in this process, for DoFns that run beside their launcher."""
    return _current


class _Answer:
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


class _Worker:
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
            [sys.executable, "-m", __name__, *map(str, shared)],
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

    def make(self, maker: RecordMaker, chunk: list[ImageRef]) -> _Answer:
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
            return _Answer(result)
        result = dataclasses.replace(result, data=self._slots.view(slot, length))
        return _Answer(result, self._slots, slot)

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


# ---------------------------------------------------------------- inside a worker


def _serve(requests: BinaryIO, answers: BinaryIO, slots: SharedSlots | None) -> None:
    inputs = pickle.load(requests)
    if inputs is not None:
        _list(inputs, answers)
    load_arrow()
    from beam_pipeline.imaging.decoder_warnings import quiet_decoders
    from beam_pipeline.records import RecordMaker

    quiet_decoders()
    # What is imported stays, and records hold no cycles: collecting rarely is enough.
    gc.freeze()
    gc.set_threshold(50_000)
    maker: RecordMaker | None = None
    while True:
        try:
            request = pickle.load(requests)
        except EOFError:
            return
        if isinstance(request, RecordMaker):
            maker = request
            continue
        assert maker is not None
        refs, slot = request
        buffer = None if slots is None or slot is None else slots.view(slot)
        pickle.dump(_answer(maker, refs, buffer), answers, protocol=5)
        answers.flush()


def _list(inputs: InputOptions, answers: BinaryIO) -> None:
    # The parent may look only when the pipe has long been full.
    parts: queue.Queue[object] = queue.Queue(_LISTED_AHEAD)
    sender = threading.Thread(target=_send, args=(parts, answers))
    sender.start()
    try:
        serve_listing(inputs, parts.put)
    except Exception as error:
        parts.put(_sendable(error))
    parts.put(_END)
    sender.join()


def _send(parts: queue.Queue[object], answers: BinaryIO) -> None:
    try:
        while (part := parts.get()) is not _END:
            pickle.dump(part, answers, protocol=5)
            answers.flush()
    except BrokenPipeError:
        os._exit(0)  # the parent is gone


def _answer(
    maker: RecordMaker, refs: list[tuple], buffer: memoryview | None
) -> tuple[object, int | None]:
    """A chunk, or what was raised; and how much of the buffer it fills if its data is there."""
    try:
        chunk = maker.make_chunk([ImageRef._make(fields) for fields in refs], buffer)
    except Exception as error:
        return _sendable(error), None
    if isinstance(chunk.data, memoryview):
        return dataclasses.replace(chunk, data=b""), len(chunk.data)
    return chunk, None


def _sendable(error: Exception) -> Exception:
    """`error`, or a description of it where it cannot be pickled."""
    import traceback

    trace = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.__cause__ = None
    error.add_note(trace) if hasattr(error, "add_note") else None
    return error


def _main() -> None:
    # Ctrl-C reaches the whole process group; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Nothing that a library prints may end up between the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    threading.current_thread().name = "imagebeam worker"
    slots = SharedSlots(int(sys.argv[1])) if sys.argv[1:] else None
    with contextlib.suppress(BrokenPipeError):
        _serve(sys.stdin.buffer, answers, slots)
    os._exit(0)  # the parent may be gone: do not wait for, or complain at, exit handlers


if __name__ == "__main__":
    _main()
