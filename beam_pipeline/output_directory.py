"""Who may write into an output directory, and what is left there by runs that died.

A run works in a staging directory inside its output, `.imagebeam-<run id>`; nothing
outside it changes before all shards are written. On local disk the run also holds a lock
that the system takes back when the process dies, so a second run into the same directory
is refused, and a dead one is recognised and cleared away.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import socket
import time
import uuid
from typing import IO

from beam_pipeline import dataset_info, storage
from beam_pipeline.errors import OutputError

STAGING_PREFIX = ".imagebeam-"
LOCK_FILE = ".imagebeam.lock"
RUN_FILE = "run.json"
PLAN_FILE = "plan.json"  # written by the job: inputs and shards to come
# Written into the staging directory before the first file moves out of it: names that
# appear in, and names that disappear from, the output directory.
MOVES_FILE = "moves.json"
# A run that fails over its rejects keeps what it learned beside the output.
FAILED_SUFFIX = ".failed"
# A run on another machine is taken for dead when it has been silent for this long.
SILENT_SECONDS = 15 * 60

_OWN_FILES = frozenset(
    {
        dataset_info.CONVERSION_FILE,
        dataset_info.DATASET_INFO_FILE,
        dataset_info.FEATURES_FILE,
        dataset_info.LABELS_FILE,
        dataset_info.SCHEMA_FILE,
        dataset_info.INDEX_DIRECTORY,
        dataset_info.REJECTED_FILE,
        dataset_info.SUCCESS_FILE,
        dataset_info.CARD_FILE,
        dataset_info.PREVIEW_FILE,
        dataset_info.DALI_INDEX_DIRECTORY,
    }
)
_SHARD_LIKE = re.compile(r".*\.tfrecords?(-\d+-of-\d+)?(\.gz)?(\.idx)?|.*\.labels\.txt")


class OutputDirectory:
    """Claims an output directory for one run; use as a context manager.

    Attributes:
      uri: the output directory.
      staging: the staging directory of this run.
      run_id: identifies the run.
      replaced: names in the output directory that go when the new dataset is complete.
      cleared: staging directories of dead runs that were removed.
    """

    def __init__(self, uri: str, *, overwrite: bool = False):
        self.uri = uri
        self.run_id = time.strftime("%Y%m%d-%H%M%S-", time.gmtime()) + uuid.uuid4().hex[:8]
        self.staging = storage.join(uri, STAGING_PREFIX + self.run_id)
        self.replaced: list[str] = []
        self.cleared: list[str] = []
        self._overwrite = overwrite
        self._lock: IO[str] | None = None
        self._created = False
        self._detached = False

    def __enter__(self) -> OutputDirectory:
        entry = storage.stat(self.uri)
        if entry is not None and entry.kind != "directory":
            raise OutputError(
                f"--output {self.uri} is a file; expected a directory, or nothing yet"
            )
        self._created = entry is None
        try:
            storage.make_directory(self.uri)
            self._take_lock()
            self._look_around()
            self._check_failed_directory()
            storage.make_directory(self.staging)
            self.describe_run()
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *exc_info: object) -> None:
        if self._detached:
            self._release()
            return
        # A run that failed leaves nothing; a run that succeeded has emptied its staging.
        moves = {} if exc_type is None else _read_json(storage.join(self.staging, MOVES_FILE))
        with contextlib.suppress(Exception):
            storage.delete_tree(self.staging)
        with contextlib.suppress(Exception):
            self._undo(moves)
        self._release()

    def detach(self) -> None:
        """Leaves the staging directory to a job that goes on without this process.

        The last step of the job deletes it; until then the next run into the same
        output directory is refused.
        """
        self._detached = True

    def _undo(self, moves: dict) -> None:
        """Removes what a failed last step had moved already, unless it did finish."""
        success = storage.join(self.uri, dataset_info.SUCCESS_FILE)
        if not moves or storage.exists(success):
            return
        for name in [*moves["appear"], *moves["disappear"]]:
            storage.delete_tree(storage.join(self.uri, name))
        # After Ctrl-C that step may still run; without its staging it writes no marker,
        # but it may have been just about to.
        storage.delete([success])

    def describe_run(self, **details: object) -> None:
        """Writes who runs here into the staging directory; also the sign of life of the run."""
        self._details = {**getattr(self, "_details", {}), **details}
        run = {
            "run_id": self.run_id,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "seen": time.time(),
            **self._details,
        }
        storage.write_bytes(storage.join(self.staging, RUN_FILE), json.dumps(run).encode())

    # ------------------------------------------------------------ before the run

    def _take_lock(self) -> None:
        if not storage.is_local(self.uri):
            return
        path = os.path.join(self.uri.removeprefix("file://"), LOCK_FILE)
        try:
            while True:
                self._lock = open(path, "a+")  # noqa: SIM115  (held until the run ends)
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_file(self._lock, path):
                    break
                # The run that held it removed it meanwhile; a lock on it keeps nobody out.
                self._lock.close()
        except BlockingIOError:
            holder = ""
            if self._lock is not None:
                self._lock.seek(0)
                holder = self._lock.read().strip()
                self._lock.close()
            self._lock = None
            raise OutputError(
                f"another run is writing into {self.uri}"
                + (f" ({holder})" if holder else "")
                + "; wait for it, or give another --output"
            ) from None
        except OSError as error:
            self._lock = None
            if self._created:
                with contextlib.suppress(OSError):
                    os.rmdir(os.path.dirname(path))
            raise OutputError(f"cannot write into --output {self.uri}: {error.strerror}") from error
        self._lock.truncate(0)
        self._lock.write(f"process {os.getpid()} on {socket.gethostname()}")
        self._lock.flush()

    def _look_around(self) -> None:
        if self._created and not storage.is_local(self.uri):
            return  # object stores have no empty directories that could be listed
        names = {entry.path: entry for entry in storage.list_directory(self.uri)}
        names.pop(LOCK_FILE, None)
        for name in [name for name in names if name.startswith(STAGING_PREFIX)]:
            staging = storage.join(self.uri, name)
            self._clear_dead_run(staging, names)
            names.pop(name)
        if not names:
            return
        finished = dataset_info.SUCCESS_FILE in names
        if not self._overwrite:
            what = "holds a finished dataset" if finished else "is not empty"
            some = ", ".join(sorted(names)[:3]) + (" …" if len(names) > 3 else "")
            raise OutputError(
                f"--output {self.uri} {what} ({some}); give another directory, or --overwrite "
                f"to replace {'it' if finished else 'a dataset there'} once the new one is complete"
            )
        foreign = [n for n in names if n not in _OWN_FILES and not _SHARD_LIKE.fullmatch(n)]
        if foreign:
            raise OutputError(
                f"--overwrite would delete files in {self.uri} that are no part of a dataset: "
                f"{', '.join(sorted(foreign)[:5])}{' …' if len(foreign) > 5 else ''}; "
                "move them away, or give another directory"
            )
        self.replaced = sorted(names)

    def _check_failed_directory(self) -> None:
        """A failed run replaces the report of an earlier one, and nothing else."""
        failed = failed_directory(self.uri)
        entry = storage.stat(failed)
        if entry is None:
            return
        names = [e.path for e in storage.list_directory(failed)] if entry.kind != "file" else [""]
        if names and dataset_info.CONVERSION_FILE not in names:
            raise OutputError(
                f"{failed} is not the report of a failed run, and a run that fails would keep its "
                "report there; move it away, or give another --output"
            )

    def _clear_dead_run(self, staging: str, names: dict[str, storage.Entry]) -> None:
        """Removes what a run left that is not alive any more; refuses when it may be."""
        run = _read_json(storage.join(staging, RUN_FILE))
        here = run.get("host") == socket.gethostname() and storage.is_local(self.uri)
        detached = run.get("detached")
        silent = time.time() - float(str(run.get("seen", 0))) > SILENT_SECONDS
        if detached or (not here and not silent):
            raise OutputError(
                f"{self.uri} is being written by run {run.get('run_id', staging)} "
                + (
                    f"as job {run.get('job', '?')} on {run.get('runner', '?')}; `imagebeam status "
                    f"{self.uri}` tells how far it is. If it is dead, delete {staging}"
                    if detached
                    else f"on {run.get('host', 'another machine')}; wait for it, give another "
                    f"--output, or, if it is dead, delete {staging}"
                )
            )
        moves = _read_json(storage.join(staging, MOVES_FILE))
        # It died while it moved its files: what it moved, and what it was about to
        # replace, belongs to no finished dataset.
        if dataset_info.SUCCESS_FILE not in names:
            for name in [*moves.get("appear", []), *moves.get("disappear", [])]:
                if name in names:
                    storage.delete_tree(storage.join(self.uri, name))
                    names.pop(name)
        storage.delete_tree(staging)
        self.cleared.append(staging)

    def _release(self) -> None:
        if self._lock is None:
            return
        path = self._lock.name
        with contextlib.suppress(OSError):
            os.unlink(path)
        self._lock.close()
        self._lock = None
        if self._created:
            # Nothing came of the run: leave no empty directory behind.
            with contextlib.suppress(OSError):
                os.rmdir(os.path.dirname(path))


def failed_directory(output: str) -> str:
    """Where a failed run keeps its rejects and index."""
    if storage.is_local(output) and "://" not in output:
        output = os.path.abspath(output)  # of "." too
    return output.rstrip("/") + FAILED_SUFFIX


def _is_file(stream: IO[str], path: str) -> bool:
    """Whether `stream` is still the file that is called `path`."""
    try:
        return os.path.samestat(os.fstat(stream.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


def _read_json(uri: str) -> dict:
    try:
        data = json.loads(storage.read_bytes(uri))
    except Exception:
        return {}  # never written: the run died at once
    return data if isinstance(data, dict) else {}
