"""What an output directory tells of the runs that write, or wrote, into it.

Needs no engine and no launcher: a run leaves its traces in `.imagebeam-<run id>/`, a
finished dataset has `_SUCCESS`, and a run that failed over its inputs left
`{output}.failed`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import re
import time
from typing import Any

from beam_pipeline import dataset_info, storage
from beam_pipeline.dataset_info import DatasetInfo
from beam_pipeline.errors import ImagebeamError
from beam_pipeline.finalize import failed_directory
from beam_pipeline.output_directory import LOCK_FILE, PLAN_FILE, RUN_FILE, STAGING_PREFIX
from beam_pipeline.progress import duration
from beam_pipeline.summary import size_text

# Index files are written last of all that a shard has: {split}-{number}-{attempt}.parquet.
_INDEX_FILE = re.compile(r"(?P<split>.+?)-(?P<number>\d{5})-[0-9a-f-]{36}\.parquet")


@dataclasses.dataclass(frozen=True)
class RunStatus:
    """A run that has not finished.

    Attributes:
      staging: its staging directory.
      run: what it says of itself (run.json).
      alive: True or False where that can be told from here, else None.
      shards: shards that are complete.
      bytes: of the shard files that are staged, lost attempts included.
      planned_shards, inputs: of the plan; None before it was made.
      job_state: what the engine says of the job, or why it could not be asked.
    """

    staging: str
    run: dict[str, Any]
    alive: bool | None
    shards: int
    bytes: int
    planned_shards: int | None
    inputs: int | None
    job_state: str | None

    def text(self) -> str:
        """For a terminal."""
        run = self.run
        seen = time.time() - float(run.get("seen") or time.time())
        started = f"started {duration(max(0.0, seen))} ago on {run.get('host', 'unknown host')}"
        if run.get("detached"):
            head = f"run {run.get('run_id')}: job {run.get('job') or '?'} on {run.get('runner')}"
        else:
            head = f"run {run.get('run_id', '?')}: process {run.get('pid', '?')}"
        of = f" of {self.planned_shards:,}" if self.planned_shards is not None else ""
        inputs = f", {self.inputs:,} inputs" if self.inputs is not None else ""
        lines = [
            f"{head}, {started}",
            f"{self.shards:,}{of} shards complete ({size_text(self.bytes)} staged){inputs}",
        ]
        if self.planned_shards is None:
            lines[-1] = "listing inputs: no shard is planned yet"
        if self.job_state is not None:
            lines.append(f"the engine says: {self.job_state}")
        if run.get("status"):
            lines.append(f"look at it: {run['status']}")
        if self.alive is False:
            lines.append("it is dead; the next conversion into this directory clears it away")
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class Status:
    """What was found in and beside an output directory.

    Attributes:
      output: the directory.
      finished: the dataset, where it is complete.
      runs: runs that have not finished.
      failure: why the last run made no dataset, from `{output}.failed`; or None.
    """

    output: str
    finished: DatasetInfo | None
    runs: tuple[RunStatus, ...]
    failure: str | None

    def text(self) -> str:
        """For a terminal."""
        parts = []
        if self.finished is not None:
            ledger = self.finished.ledger
            shards = sum(len(split.shards) for split in self.finished.splits.values())
            parts.append(
                f"{self.output} holds a finished dataset: {ledger['written']:,} images in "
                f"{shards:,} shards, {ledger['rejected']:,} rejected, "
                f"{ledger['duplicates']:,} duplicates (run {self.finished.run.get('run_id')}, "
                f"{self.finished.run.get('finished')})"
            )
        parts += [run.text() for run in self.runs]
        if self.failure is not None:
            parts.append(
                f"a run failed: {self.failure}\nits rejects: {failed_directory(self.output)}"
            )
        return "\n\n".join(parts) or f"{self.output}: no dataset, and no run writes one"


def read_status(output: str) -> Status:
    """Looks at an output directory and beside it.

    Raises:
      StorageError: it cannot be looked at.
      DatasetError: what looks like a finished dataset is damaged.
    """
    entries = []
    if storage.stat(output) is not None:
        entries = storage.list_directory(output)
    names = {entry.path.rstrip("/") for entry in entries}
    finished = None
    if dataset_info.SUCCESS_FILE in names:
        finished = dataset_info.read_dataset_info(output)
    runs = tuple(
        _run_status(output, storage.join(output, name))
        for name in sorted(names)
        if name.startswith(STAGING_PREFIX)
    )
    return Status(output, finished, runs, _failure(output, finished))


def _failure(output: str, finished: DatasetInfo | None) -> str | None:
    info = _read_json(storage.join(failed_directory(output), dataset_info.CONVERSION_FILE))
    run = info.get("run", {})
    if finished is not None and str(run.get("finished")) < str(finished.run.get("finished")):
        return None  # mended since
    return run.get("failure")


def _run_status(output: str, staging: str) -> RunStatus:
    run = _read_json(storage.join(staging, RUN_FILE))
    plan = _read_json(storage.join(staging, PLAN_FILE))
    complete: set[tuple[str, str]] = set()
    size = 0
    for entry in storage.walk(staging):
        match = _INDEX_FILE.fullmatch(storage.basename(entry.path))
        if entry.path.startswith("index/") and match is not None:
            complete.add((match["split"], match["number"]))
        elif entry.path.startswith("shards/") and entry.kind == "file":
            size += max(0, entry.size)
    return RunStatus(
        staging=staging,
        run=run,
        alive=_is_alive(output, run),
        shards=len(complete),
        bytes=size,
        planned_shards=plan.get("shards"),
        inputs=plan.get("inputs"),
        job_state=_job_state(run),
    )


def _is_alive(output: str, run: dict[str, Any]) -> bool | None:
    """Whether the launcher's lock is held; None where that says nothing."""
    if run.get("detached") or not storage.is_local(output):
        return None
    try:
        with open(os.path.join(output.removeprefix("file://"), LOCK_FILE)) as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False
    except FileNotFoundError:
        return False
    except OSError:
        return None


def _job_state(run: dict[str, Any]) -> str | None:
    """Asks the engine, where it has an address that needs no login."""
    if run.get("runner") != "flink" or not run.get("status"):
        return None
    from beam_pipeline.runners import flink

    try:
        state = flink.job_state(run["status"], str(run.get("job_name")))
    except ImagebeamError as error:
        return f"nothing ({error})"
    return state or f"it knows no job {run.get('job_name')}"


def _read_json(uri: str) -> dict[str, Any]:
    with contextlib.suppress(Exception):
        data = json.loads(storage.read_bytes(uri))
        if isinstance(data, dict):
            return data
    return {}
