"""The progress line: what it says, who may be asked, and where it appears."""

from __future__ import annotations

import io
import json
import os
import pathlib
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from beam_pipeline import progress
from beam_pipeline.progress import (
    BOARD,
    Progress,
    ProgressDisplay,
    ProgressReporter,
    collect,
    duration,
    progress_line,
)


@pytest.fixture(autouse=True)
def _clean_board() -> Iterator[None]:
    BOARD.reset()
    yield
    BOARD.reset()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (59.4, "59s"),
        (59.6, "1m 00s"),
        (185, "3m 05s"),
        (3599.7, "1h 00m"),
        (7800, "2h 10m"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("done", "total", "seconds", "line"),
    [
        (Progress(), None, 1, "listing images"),
        (Progress(compared=4321), None, 1, "comparing images: 4,321"),
        (Progress(compared=4321), 1200, 1, "1,200 images listed"),
        (Progress(), 1200, 1, "1,200 images listed"),
        (
            Progress(1000, 50_000_000, 3),
            4000,
            10,
            "1,000 of 4,000 images  100 images/s  5.0 MB/s  3 rejected  30s left",
        ),
        (
            Progress(1000, 0, 0),
            None,
            10,
            "1,000 images  100 images/s  0.0 MB/s  0 rejected",
        ),
        # A clock that has not moved yet.
        (Progress(5, 5, 0), 10, 0, "5 of 10 images  0 images/s  0.0 MB/s  0 rejected"),
        # A runner that counted a retried bundle twice: never a negative time.
        (
            Progress(20, 0, 0),
            10,
            1,
            "20 of 10 images  20 images/s  0.0 MB/s  0 rejected  0s left",
        ),
    ],
)
def test_progress_line(done: Progress, total: int | None, seconds: float, line: str) -> None:
    assert progress_line(done, total, seconds) == line


def test_counts_of_this_process() -> None:
    reporter = ProgressReporter(None)
    reporter.set_total(10)
    reporter.add(3, 100, 1)
    reporter.add(2, 50, 0)
    reporter.add_compared(7)
    assert collect(None) == (Progress(5, 150, 1, 7), 10)


def test_counts_of_other_processes_come_by_file(tmp_path: pathlib.Path) -> None:
    reporter = ProgressReporter(str(tmp_path))
    reporter.add(1, 10, 0)
    script = (
        "import pickle, sys\n"
        "reporter = pickle.loads(bytes.fromhex(sys.argv[1]))\n"
        "reporter.set_total(9)\n"
        "reporter.add(4, 40, 2)\n"
        "reporter._published = 0\n"
        "reporter.add(1, 10, 0)\n"
        "reporter._published = 0\n"
        "reporter.add_compared(8)\n"
    )
    sent = pickle.dumps(reporter).hex()
    subprocess.run([sys.executable, "-c", script, sent], check=True)
    assert collect(str(tmp_path)) == (Progress(6, 60, 2, 8), 9)


def test_half_written_files_are_passed_over(tmp_path: pathlib.Path) -> None:
    (tmp_path / "1").write_text("[1, 2")
    (tmp_path / "2.new").write_text(json.dumps([9, 9, 9, 9, None]))
    (tmp_path / "3").write_text(json.dumps([1, 2, 0, 3, None]))
    assert collect(str(tmp_path)) == (Progress(1, 2, 0, 3), None)
    assert collect(str(tmp_path / "nothing")) == (Progress(), None)


def test_a_directory_that_cannot_be_written_stops_nobody(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reporter = ProgressReporter(str(tmp_path / "gone"))
    monkeypatch.setattr(os, "getpid", lambda: -1)  # as if in a worker process
    reporter.add(1, 1, 0)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return 1


def test_a_live_line_on_a_terminal_is_wiped_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "get_terminal_size", lambda fd: os.terminal_size((40, 24)))
    stream = Terminal()
    with ProgressDisplay(lambda: (Progress(1000, 10**9, 0), 2000), stream):
        deadline = time.monotonic() + 10
        while not stream.getvalue() and time.monotonic() < deadline:
            time.sleep(0.05)
    shown = stream.getvalue()
    assert shown.startswith("\r1,000 of 2,000 images")
    assert "\n" not in shown
    assert all(len(part) <= 39 for part in shown.split("\r"))  # never wraps
    assert shown.endswith("\r")
    assert shown.split("\r")[-2].strip() == ""


def test_plain_lines_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    with ProgressDisplay(lambda: (Progress(1, 1, 0), 2), stream) as display:
        waits: list[float] = []

        class Stop:
            def wait(self, pause: float) -> bool:
                waits.append(pause)
                return len(waits) > 6

            def set(self) -> None:
                pass

        display._stop.set()
        display._thread.join()
        display._stop = Stop()  # type: ignore[assignment]
        display._run()
    assert waits == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0, 60.0]
    assert stream.getvalue().count("\n") == 6
    assert "\r" not in stream.getvalue()


def test_quiet_shows_nothing() -> None:
    stream = Terminal()
    with ProgressDisplay(lambda: (Progress(1, 1, 0), 2), stream, enabled=False):
        time.sleep(0.3)
    assert stream.getvalue() == ""


def test_a_source_that_fails_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def source() -> tuple[Progress, int | None]:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("the runner cannot be asked right now")
        return Progress(7, 7, 0), None

    monkeypatch.setattr(os, "get_terminal_size", lambda fd: os.terminal_size((80, 24)))
    stream = Terminal()
    with ProgressDisplay(source, stream):
        deadline = time.monotonic() + 10
        while "7 images" not in stream.getvalue() and time.monotonic() < deadline:
            time.sleep(0.05)
    assert "7 images" in stream.getvalue()


def test_progress_adds_up() -> None:
    ten = Progress(10, 20, 30, 40)
    assert Progress(1, 2, 3, 4) + ten == Progress(11, 22, 33, 44)
    assert isinstance(Progress(1, 2, 3) + Progress(1, 1, 1), Progress)
    assert progress.BOARD is BOARD
