"""Worker processes of one machine: all cores decode, whatever Python's global lock does.

A worker is `python -m beam_pipeline.worker_pool`: a plain process that loads Pillow and
the encoder but neither Beam nor TensorFlow, starts in a few tenths of a second, and
speaks pickles over its standard streams. It ends by itself when its parent is gone.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, BinaryIO

from beam_pipeline.errors import ConversionError
from beam_pipeline.types import ImageRef

if TYPE_CHECKING:
    from beam_pipeline.records import Chunk, RecordMaker

_PIPE_BYTES = 1 << 20  # 1 MiB, the largest that an unprivileged process may ask for


class WorkerPool:
    """A fixed number of worker processes that make records; thread-safe.

    Use as a context manager. Workers start at once and load their imports while the
    caller goes on.
    """

    def __init__(self, workers: int):
        self.workers = workers
        self._processes = [_Worker(number) for number in range(workers)]
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        for process in self._processes:
            self._idle.put(process)
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="imagebeam-worker")

    def __enter__(self) -> WorkerPool:
        global _current
        _current = self
        return self

    def __exit__(self, *exc_info: object) -> None:
        global _current
        _current = None
        self.close()

    def close(self) -> None:
        """Ends the workers; chunks that have not started are dropped."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.close()

    def map_ordered(self, maker: RecordMaker, chunks: Iterable[list[ImageRef]]) -> Iterator[Chunk]:
        """Makes the records of `chunks` side by side and yields the results in order.

        At most two chunks per worker are under way or waiting to be yielded, which
        bounds the memory of the results.

        Raises:
          ConversionError: a worker died (for example killed for lack of memory).
          Exception: whatever a worker raised, with its own traceback as its cause.
        """
        pending: collections.deque[Future[Chunk]] = collections.deque()
        try:
            for chunk in chunks:
                pending.append(self._threads.submit(self._call, maker, chunk))
                if len(pending) > 2 * self.workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()

    def _call(self, maker: RecordMaker, chunk: list[ImageRef]) -> Chunk:
        worker = self._idle.get()
        try:
            return worker.make(maker, chunk)
        finally:
            self._idle.put(worker)


_current: WorkerPool | None = None


def current() -> WorkerPool | None:
    """The pool that is open in this process, for DoFns that run beside their launcher."""
    return _current


class _Worker:
    """One worker process, seen from its parent."""

    def __init__(self, number: int):
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
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin: BinaryIO = self._process.stdin  # type: ignore[assignment]
        self._stdout: BinaryIO = self._process.stdout  # type: ignore[assignment]
        _enlarge_pipe(self._stdout.fileno())

    def make(self, maker: RecordMaker, chunk: list[ImageRef]) -> Chunk:
        try:
            if maker is not self._maker:
                pickle.dump(maker, self._stdin, protocol=5)
                self._maker = maker
            pickle.dump([tuple(ref) for ref in chunk], self._stdin, protocol=5)
            self._stdin.flush()
            result = pickle.load(self._stdout)
        except (EOFError, BrokenPipeError, ValueError, pickle.UnpicklingError) as error:
            raise ConversionError(self._obituary(chunk)) from error
        if isinstance(result, BaseException):
            raise result
        return result

    def close(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stdin.close()
        # A worker in the middle of a chunk would go on decoding; nobody wants the result.
        self._process.terminate()
        self._process.wait()
        with contextlib.suppress(OSError, ValueError):
            self._stdout.close()

    def _obituary(self, chunk: list[ImageRef]) -> str:
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
            f"worker process {self._number} {how} while it converted one of {len(chunk)} images "
            f"from {chunk[0].key!r} to {chunk[-1].key!r}. Fewer --workers need less memory; "
            f"--max_pixels and --max_bytes bound what one image may need"
        )


def _enlarge_pipe(descriptor: int) -> None:
    """Lets a worker hand over a whole chunk without waiting for its reader (Linux)."""
    with contextlib.suppress(AttributeError, OSError):
        fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


# ---------------------------------------------------------------- inside a worker


def _serve(requests: BinaryIO, answers: BinaryIO) -> None:
    from beam_pipeline.imaging.decoder_warnings import quiet_decoders
    from beam_pipeline.records import RecordMaker

    quiet_decoders()
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
        try:
            answer: object = maker.make_chunk([ImageRef._make(fields) for fields in request])
        except Exception as error:
            answer = _sendable(error)
        pickle.dump(answer, answers, protocol=5)
        answers.flush()


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
    with contextlib.suppress(BrokenPipeError):
        _serve(sys.stdin.buffer, answers)
    os._exit(0)  # the parent may be gone: do not wait for, or complain at, exit handlers


if __name__ == "__main__":
    _main()
