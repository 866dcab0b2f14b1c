"""Worker processes: order, errors with their cause, death, and what they load."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from beam_pipeline import records, storage, worker_main, worker_pool
from beam_pipeline.errors import ConversionError, InputError, StorageError
from beam_pipeline.examples import feature_specs
from beam_pipeline.options import Encoding, FeatureNames, ImageOptions
from beam_pipeline.records import RecordMaker
from beam_pipeline.tfrecord_format import frame, frame_into
from beam_pipeline.types import ImageRef
from beam_pipeline.worker_pool import WorkerPool
from tests import fakes


def make_maker(labels: tuple[str, ...] = ("a",)) -> RecordMaker:
    specs = feature_specs(FeatureNames.DEFAULT, labelled=True, encoding=Encoding.PASSTHROUGH)
    return RecordMaker(ImageOptions(), specs, labels)


@pytest.fixture(scope="module")
def refs(tmp_path_factory: pytest.TempPathFactory) -> list[ImageRef]:
    root = tmp_path_factory.mktemp("images")
    fakes.write_tree(root, {f"{i}.png": fakes.png(i) for i in range(24)})
    return [ImageRef(f"{i}.png", str(root / f"{i}.png"), "a") for i in range(24)]


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(2) as opened:
        yield opened


def processes(pool: WorkerPool) -> list[subprocess.Popen]:
    return [worker._process for worker in pool._processes]


def made_by(
    pool: WorkerPool, maker: RecordMaker, chunks: list[list[ImageRef]]
) -> list[records.Chunk]:
    """The chunks with data of their own: the pool's is good for a moment only."""
    return [
        dataclasses.replace(chunk, data=bytes(chunk.data))
        for chunk in pool.map_ordered(maker, chunks)
    ]


def test_results_are_those_of_this_process_in_order(pool: WorkerPool, refs: Any) -> None:
    chunks = [refs[i : i + 3] for i in range(0, len(refs), 3)]
    maker = make_maker()
    found = made_by(pool, maker, chunks)
    assert found == [maker.make_chunk(chunk) for chunk in chunks]
    # A second maker, and the first again: workers keep no stale state.
    other = make_maker(("b", "a"))
    assert made_by(pool, other, chunks[:2]) == [other.make_chunk(c) for c in chunks[:2]]
    assert made_by(pool, maker, chunks[:2]) == found[:2]
    assert made_by(pool, maker, []) == []


def test_what_does_not_fit_into_shared_memory_goes_through_the_pipe(
    refs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker = make_maker()
    want = [maker.make_chunk(refs[:9]), maker.make_chunk(refs[9:])]
    with contextlib.closing(WorkerPool(1)) as own:
        slots = own._processes[0]._slots
        assert slots is not None
        views = slots.view(0), slots.view(0, 5)
        monkeypatch.setattr(slots, "take", lambda: None)  # as if all were in use
        assert made_by(own, maker, [refs[:9], refs[9:]]) == want
    assert frame_into(views[0], [b"a record"]) == frame([b"a record"])
    assert frame_into(views[1], [b"a record"]) is None
    monkeypatch.delattr(os, "memfd_create")  # as on macOS
    with contextlib.closing(WorkerPool(1)) as own:
        assert own._processes[0]._slots is None
        assert made_by(own, maker, [refs[:9], refs[9:]]) == want


def test_several_callers_share_the_workers_and_what_is_under_way(
    pool: WorkerPool, refs: Any
) -> None:
    """More callers than permits, each with more chunks than slots: none waits for ever."""
    maker = make_maker()
    chunks = [[ref] for ref in refs]
    want = [maker.make_chunk(chunk) for chunk in chunks]
    callers = [pool.start(made_by, pool, maker, chunks) for _ in range(7)]
    assert all(caller.result(timeout=60) == want for caller in callers)
    # A caller that gives up leaves nothing taken behind.
    for _ in range(20):
        abandoned = pool.map_ordered(maker, chunks)
        next(abandoned)
        abandoned.close()
    assert made_by(pool, maker, chunks) == want
    assert pool._permits._value == 2 * pool.workers + 1
    for worker in pool._processes:
        assert worker._slots is not None
        assert sorted(worker._slots._free) == [0, 1, 2, 3]


def test_what_is_under_way_is_bounded(pool: WorkerPool, refs: Any) -> None:
    taken = 0

    def chunks() -> Iterator[list[ImageRef]]:
        nonlocal taken
        for ref in refs:
            taken += 1
            yield [ref]

    results = pool.map_ordered(make_maker(), chunks())
    next(results)
    assert taken <= 2 * pool.workers + 1
    results.close()  # type: ignore[attr-defined]


def test_an_error_keeps_its_type_message_and_trace(pool: WorkerPool, refs: Any) -> None:
    with pytest.raises(InputError, match="has the label 'a', expected one of 'b'") as raised:
        list(pool.map_ordered(make_maker(("b",)), [refs[:1]]))
    assert "beam_pipeline/records.py" in "".join(raised.value.__notes__)
    # The worker lives on.
    assert len(list(pool.map_ordered(make_maker(), [refs[:1]]))) == 1


def test_the_pool_is_known_while_it_is_open(pool: WorkerPool) -> None:
    assert worker_pool.current() is pool


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks into /proc")
def test_workers_load_neither_beam_nor_tensorflow(pool: WorkerPool, refs: Any) -> None:
    list(pool.map_ordered(make_maker(), [[ref] for ref in refs]))
    for process in processes(pool):
        mapped = pathlib.Path(f"/proc/{process.pid}/maps").read_text()
        assert "tfx_bsl" in mapped  # it has worked
        assert "tensorflow/" not in mapped
        assert "apache_beam" not in mapped


def test_a_killed_worker_is_named_with_what_it_did(refs: Any) -> None:
    with WorkerPool(1) as own:
        list(own.map_ordered(make_maker(), [refs[:1]]))
        os.kill(processes(own)[0].pid, signal.SIGKILL)
        with pytest.raises(ConversionError) as raised:
            list(own.map_ordered(make_maker(), [refs[:2], refs[2:4]]))
    message = str(raised.value)
    assert "worker process 0 was killed by the system (signal 9)" in message
    assert "one of 2 images from '0.png' to '1.png'" in message
    assert "Fewer --workers need less memory" in message


def test_a_worker_that_cannot_start_says_so(refs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with (
        WorkerPool(1) as own,
        pytest.raises(ConversionError, match="worker process 0 ended with exit code 1"),
    ):
        list(own.map_ordered(make_maker(), [refs[:1]]))


def test_closing_ends_every_process() -> None:
    with WorkerPool(2) as own:
        started = processes(own)
        assert all(process.poll() is None for process in started)
    assert all(process.poll() is not None for process in started)
    assert worker_pool.current() is None


def test_closing_waits_for_what_was_started(refs: Any) -> None:
    """A shard that goes on after its run has failed must not write into a cleared directory."""
    running = threading.Event()
    ends: list[BaseException] = []

    def write(pool: WorkerPool) -> None:
        try:
            for _ in pool.map_ordered(make_maker(), itertools.repeat([refs[0]])):
                running.set()
        except BaseException as error:
            time.sleep(0.3)
            ends.append(error)

    own = WorkerPool(2)
    for _ in range(2):
        own.start(write, own)
    assert running.wait(30)
    own.close()
    assert len(ends) == 2
    own.close()  # a second time does nothing


def test_workers_end_with_their_parent() -> None:
    # What kill -9 of the command leaves behind: pipes that are closed.
    script = (
        "import os, sys\n"
        "from beam_pipeline.worker_pool import WorkerPool\n"
        "pool = WorkerPool(2)\n"
        "print(*[worker._process.pid for worker in pool._processes], flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2
    deadline = time.monotonic() + 20
    while any(map(_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(_alive, pids))


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stream:
            return stream.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_what_cannot_be_pickled_is_described() -> None:
    class Odd(Exception):
        pass

    try:
        raise Odd("why")
    except Odd as error:
        sent = pickle.loads(pickle.dumps(worker_main._sendable(error)))
    assert isinstance(sent, RuntimeError)
    assert str(sent) == "Odd: why"


def test_an_environment_fault_comes_through(pool: WorkerPool) -> None:
    bad = ImageRef("k", "nosuchscheme://bucket/x.jpg", "a")
    with pytest.raises(StorageError):
        list(pool.map_ordered(make_maker(), [[bad]]))
    assert storage.is_local("/x")
