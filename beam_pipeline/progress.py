"""How far a conversion is: counted where images are made, shown where the user looks.

Beam's local runner tells its metrics only at the end, so workers on this machine also
count on the side: in memory where they share the process of the display, else in small
files of a directory that both know. On other runners the display asks for metrics.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import NamedTuple, TextIO

_WRITE_EVERY = 0.5  # seconds between updates of a worker's progress file


class Progress(NamedTuple):
    """What is done so far: inputs with a verdict, bytes read for it, rejects.

    `compared` counts the inputs that were read before, to find equal ones.
    """

    images: int = 0
    bytes: int = 0
    rejected: int = 0
    compared: int = 0

    def __add__(self, other: Progress) -> Progress:  # type: ignore[override]
        return Progress(*(a + b for a, b in zip(self, other, strict=True)))


class _Board:
    """The counts of this process, and the plan's total once it is known."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.done = Progress()
        self.total: int | None = None

    def add(self, more: Progress) -> None:
        with self._lock:
            self.done += more

    def reset(self) -> None:
        with self._lock:
            self.done, self.total = Progress(), None


# One conversion at a time runs in a process, so one board is enough; its process id
# tells a worker process that it has inherited somebody else's.
BOARD = _Board()
_BOARD_PID = os.getpid()


class ProgressReporter:
    """Counts what one worker has done; picklable, made on the launcher.

    Args:
      directory: local directory for progress files, or None where workers may be on
        other machines.
    """

    def __init__(self, directory: str | None):
        self._directory = directory
        self._launcher = os.getpid()

    def add(self, images: int, size: int, rejected: int) -> None:
        """Adds finished inputs, bytes read and rejects."""
        self._add(Progress(images, size, rejected))

    def add_compared(self, images: int) -> None:
        """Adds inputs that were read to find equal ones."""
        self._add(Progress(compared=images))

    def _add(self, more: Progress) -> None:
        BOARD.add(more)
        if os.getpid() != self._launcher and self._directory is not None:
            self._publish()

    def set_total(self, total: int) -> None:
        """Tells how many inputs there are."""
        BOARD.total = total
        if os.getpid() != self._launcher and self._directory is not None:
            self._publish(force=True)

    def _publish(self, force: bool = False) -> None:
        now = time.monotonic()
        if not force and now - getattr(self, "_published", 0.0) < _WRITE_EVERY:
            return
        self._published = now
        assert self._directory is not None
        path = os.path.join(self._directory, str(os.getpid()))
        try:
            with open(path + ".new", "w") as stream:
                json.dump([*BOARD.done, BOARD.total], stream)
            os.replace(path + ".new", path)
        except OSError:
            pass  # progress is a courtesy; the directory may be on another machine


def collect(directory: str | None) -> tuple[Progress, int | None]:
    """The sum of this process's counts and of all progress files; and the total if known."""
    done, total = BOARD.done, BOARD.total
    if directory is not None and os.path.isdir(directory):
        for name in os.listdir(directory):
            if name.endswith(".new"):
                continue
            try:
                with open(os.path.join(directory, name)) as stream:
                    *counts, known = json.load(stream)
            except (OSError, ValueError):
                continue
            done += Progress(*counts)
            total = known if known is not None else total
    return done, total


class ProgressDisplay:
    """A live line on a terminal, an occasional plain line elsewhere.

    Args:
      source: gives the progress so far and the total.
      stream: where to write; stderr by default.
      enabled: False shows nothing.
    """

    def __init__(
        self,
        source: Callable[[], tuple[Progress, int | None]],
        stream: TextIO | None = None,
        enabled: bool = True,
    ):
        self._source = source
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._enabled = enabled
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._start = time.monotonic()
        self._shown = 0

    def __enter__(self) -> ProgressDisplay:
        self._start = time.monotonic()
        if self._enabled:
            self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        if self._enabled:
            self._thread.join()
            if self._live and self._shown:
                self._stream.write("\r" + " " * self._shown + "\r")
                self._stream.flush()

    def _run(self) -> None:
        # Plain lines come ever more rarely: after 5, 10, 20, 40, then every 60 seconds.
        pause = 0.2 if self._live else 5.0
        while not self._stop.wait(pause):
            try:
                done, total = self._source()
            except Exception:
                # A runner that cannot be asked right now must not end the conversion.
                continue
            if not done.images:
                # Rates count from the first image on, not from the listing.
                self._start = time.monotonic()
            line = progress_line(done, total, time.monotonic() - self._start)
            if self._live:
                width = os.get_terminal_size(self._stream.fileno()).columns - 1
                line = line[:width]
                self._stream.write("\r" + line.ljust(self._shown))
                self._shown = len(line)
            else:
                self._stream.write(line + "\n")
                pause = min(2 * pause, 60.0)
            self._stream.flush()


def progress_line(done: Progress, total: int | None, seconds: float) -> str:
    """One line: images done of total, images/s, MB/s, rejects, time left."""
    rate = done.images / seconds if seconds else 0.0
    of_total = f" of {total:,}" if total is not None else ""
    parts = [
        f"{done.images:,}{of_total} images",
        f"{rate:,.0f} images/s",
        f"{done.bytes / seconds / 1e6 if seconds else 0:,.1f} MB/s",
        f"{done.rejected:,} rejected",
    ]
    if not done.images and total is not None:
        parts = [f"{total:,} images listed"]
    elif not done.images:
        parts = [f"comparing images: {done.compared:,}" if done.compared else "listing images"]
    elif total is not None and rate:
        parts.append(f"{duration(max(0, total - done.images) / rate)} left")
    return "  ".join(parts)


def duration(seconds: float) -> str:
    """A readable length of time: 42s, 3m 05s, 2h 10m."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
