"""The worker processes of this machine: all cores decode, whatever Python's global lock does.

Seen from the parent: worker_process.py is one worker, worker_main.py what runs in it.
"""

from __future__ import annotations

import collections
import concurrent.futures
import functools
import os
import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from beam_pipeline.inputs import InputPlan
from beam_pipeline.listing_ahead import ListingAhead
from beam_pipeline.options import InputOptions
from beam_pipeline.types import ImageRef
from beam_pipeline.worker_process import Answer, WorkerProcess

if TYPE_CHECKING:
    from beam_pipeline.records import Chunk, RecordMaker

T = TypeVar("T")

_LAST_WRITES_SECONDS = 30


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
        self._processes = [
            WorkerProcess(number, None if number else inputs) for number in range(workers)
        ]
        self._idle: queue.SimpleQueue[WorkerProcess] = queue.SimpleQueue()
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
        pending: collections.deque[Future[Answer]] = collections.deque()
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

    def _next(self, pending: collections.deque[Future[Answer]]) -> Iterator[Chunk]:
        future = pending.popleft()
        try:
            yield future.result().chunk
        finally:
            self._drop(future)

    def _drop(self, future: Future[Answer]) -> None:
        if not future.cancelled() and future.exception() is None:
            future.result().release()
        self._permits.release()

    def _call(self, maker: RecordMaker, chunk: list[ImageRef]) -> Answer:
        worker = self._idle.get()
        try:
            return worker.make(maker, chunk)
        finally:
            self._idle.put(worker)


_current: WorkerPool | None = None


def current() -> WorkerPool | None:
    """The pool that is open in this process, for DoFns that run beside their launcher."""
    return _current
