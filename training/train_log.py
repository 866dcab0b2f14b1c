"""What a run tells: log.csv and log.jsonl, TensorBoard events, the progress line."""

from __future__ import annotations

import csv
import json
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TextIO

import tensorflow as tf

from beam_pipeline.errors import OutputError
from training.checkpoints import cannot_write

LOG_CSV = "log.csv"
LOG_JSONL = "log.jsonl"


class EpochLog:
    """One row per finished epoch, as CSV and as JSON lines.

    Args:
      workdir: where the files go.
      rows: rows of epochs that are already behind (from the checkpoint); what the files
        hold beyond them is dropped.
    """

    def __init__(self, workdir: str, rows: Sequence[Mapping[str, float]] = ()):
        self._workdir = workdir
        self.rows: list[dict[str, float]] = [dict(row) for row in rows]
        self._write()

    def add(self, row: Mapping[str, float]) -> None:
        """Appends a row; every row has the same columns."""
        self.rows.append(dict(row))
        self._write()

    def _write(self) -> None:
        # Small files, written anew each time: never half a row, never a row twice.
        columns = list(dict.fromkeys(name for row in self.rows for name in row))
        try:
            with _replacing(os.path.join(self._workdir, LOG_CSV)) as stream:
                writer = csv.DictWriter(stream, columns)
                writer.writeheader()
                writer.writerows(self.rows)
            with _replacing(os.path.join(self._workdir, LOG_JSONL)) as stream:
                stream.writelines(json.dumps(row) + "\n" for row in self.rows)
        except OSError as error:
            raise cannot_write(os.path.join(self._workdir, LOG_CSV), error) from error


class _replacing:
    """Opens a text file that takes the place of `path` when it was written without error."""

    def __init__(self, path: str):
        self._path = path

    def __enter__(self) -> TextIO:
        self._stream = open(f"{self._path}.part", "w", encoding="utf-8", newline="")
        return self._stream

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._stream.close()
        if error is None:
            os.replace(f"{self._path}.part", self._path)


def write_json(path: str, value: object) -> None:
    """Writes `value` as JSON, whole or not at all; OutputError when that fails."""
    try:
        with _replacing(path) as stream:
            json.dump(value, stream, indent=1)
            stream.write("\n")
    except OSError as error:
        raise cannot_write(path, error) from error


class Events:
    """TensorBoard event files, written without the tensorboard package.

    Args:
      directory: where they go.
      step: the step to start from; TensorBoard forgets what an earlier, killed run
        wrote from there on.
    """

    def __init__(self, directory: str, step: int):
        self._directory = directory
        try:
            os.makedirs(directory, exist_ok=True)
        except OSError as error:
            raise cannot_write(directory, error) from error
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        self._writer = tf.io.TFRecordWriter(os.path.join(directory, name))
        self._add(tf.compat.v1.Event(wall_time=time.time(), file_version="brain.Event:2"))
        start = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)
        self._add(tf.compat.v1.Event(wall_time=time.time(), step=step, session_log=start))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Writes scalar values of a step."""
        summary = tf.compat.v1.Summary(
            value=[
                tf.compat.v1.Summary.Value(tag=tag, simple_value=value)
                for tag, value in values.items()
            ]
        )
        self._add(tf.compat.v1.Event(wall_time=time.time(), step=step, summary=summary))
        try:
            self._writer.flush()
        except tf.errors.OpError as error:
            raise OutputError(f"cannot write {self._directory}: {error.message}") from error

    def close(self) -> None:
        """Closes the file."""
        self._writer.close()

    def _add(self, event: tf.compat.v1.Event) -> None:
        self._writer.write(event.SerializeToString())


class StepClock:
    """Measures an epoch: images per second, and the share of time spent waiting for input.

    Attributes:
      images: trained on since the start.
      waited: seconds in which the device had nothing to do because the next batch was
        not there.
    """

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self.images = 0
        self.waited = 0.0

    @property
    def seconds(self) -> float:
        """Since the start."""
        return max(time.perf_counter() - self._start, 1e-9)

    @property
    def rate(self) -> float:
        """Images per second."""
        return self.images / self.seconds

    @property
    def input_share(self) -> float:
        """Part of the time that was spent waiting for input, 0 to 1."""
        return self.waited / self.seconds


class ProgressLine:
    """A line that is rewritten on a terminal, and printed now and then elsewhere.

    Args:
      stream: where to; None: standard error.
      quiet: print nothing.
    """

    def __init__(self, stream: TextIO | None = None, quiet: bool = False):
        self._stream = stream or sys.stderr
        self._live = not quiet and self._stream.isatty()
        self._quiet = quiet
        self._next = 0.0
        self._width = 0

    def show(self, text: str) -> None:
        """Shows `text` where it is time to."""
        now = time.monotonic()
        if self._quiet or now < self._next:
            return
        self._next = now + (0.2 if self._live else 30.0)
        if self._live:
            self._stream.write("\r" + text.ljust(self._width))
            self._width = len(text)
            self._stream.flush()
        else:
            print(text, file=self._stream, flush=True)

    def say(self, text: str) -> None:
        """Prints a line that stays."""
        if self._quiet:
            return
        if self._live:
            self._stream.write("\r" + " " * self._width + "\r")
            self._width = 0
        print(text, file=self._stream, flush=True)
        self._next = time.monotonic() + (0.2 if self._live else 30.0)
