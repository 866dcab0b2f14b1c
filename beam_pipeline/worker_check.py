"""What every worker proves before it works: same versions, same files.

The launcher describes itself and what it sees; a worker in another process compares. A
worker with another Pillow would write other bytes, and one that does not see the
launcher's paths would write a dataset that nobody finds.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import platform
import socket
import time
from collections.abc import Iterable, Mapping

from beam_pipeline import storage
from beam_pipeline.errors import ConversionError
from beam_pipeline.storage.globbing import split_pattern
from beam_pipeline.version import __version__

# What decides the bytes of a dataset, and whether a pickled function can be read at all.
_PACKAGES = ("apache-beam", "pillow", "tfx-bsl")
# Network file systems may show a new file late: NFS keeps "not there" for up to a minute.
_PATIENCE_SECONDS = 70.0


def versions() -> dict[str, str]:
    """Versions in this process that a launcher and its workers must share."""
    found = {"python": ".".join(platform.python_version_tuple()[:2]), "imagebeam": __version__}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def differences(expected: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """Readable lines, one for each version that differs: launcher first."""
    return [
        f"{name} {found.get(name, 'not installed')} instead of {version}"
        for name, version in expected.items()
        if found.get(name) != version
    ]


@dataclasses.dataclass(frozen=True)
class WorkerCheck:
    """What a worker must have and see; made on the launcher, picklable.

    Attributes:
      versions: of the launcher.
      host: of the launcher, for messages.
      run_file: a local file that the launcher wrote, or None.
      run_id: what stands in it.
      paths: local inputs: (path, kind, size in bytes or -1).
      patience: seconds to wait for `run_file` to appear.
    """

    versions: Mapping[str, str]
    host: str
    run_file: str | None = None
    run_id: str = ""
    paths: tuple[tuple[str, str, int], ...] = ()
    patience: float = _PATIENCE_SECONDS

    def check(self) -> None:
        """Raises ConversionError where this worker is not fit for the job."""
        key = (self.run_id, self.run_file)
        if key in _passed:
            return
        wrong = differences(self.versions, versions())
        if wrong:
            raise ConversionError(
                f"a worker on {socket.gethostname()} has {', '.join(wrong)} (the launcher's on "
                f"{self.host}); install the same versions where workers run, or rebuild the "
                "worker image"
            )
        if self.run_file is not None:
            self._see_run_file(self.run_file)
        for path, kind, size in self.paths:
            self._see_input(path, kind, size)
        _passed.add(key)

    def _see_run_file(self, path: str) -> None:
        deadline = time.monotonic() + self.patience
        while True:
            entry = storage.stat(path)
            if entry is not None:
                found = json.loads(storage.read_bytes(path)).get("run_id")
                if found != self.run_id:
                    raise ConversionError(
                        f"a worker on {socket.gethostname()} sees another {path} than the "
                        f"launcher on {self.host} (run {found} instead of {self.run_id}): "
                        "--output must be on a file system that all of them share"
                    )
                return
            if time.monotonic() > deadline:
                raise ConversionError(
                    f"a worker on {socket.gethostname()} does not see {path}, which the launcher "
                    f"on {self.host} wrote: --output must be on a file system that all of them "
                    "share under the same path, or in an object store (gs://, s3://)"
                )
            time.sleep(0.5)

    def _see_input(self, path: str, kind: str, size: int) -> None:
        entry = storage.stat(path)
        if entry is None:
            found = "does not see it"
        elif entry.kind != kind or (kind == "file" and size >= 0 and entry.size != size):
            found = f"sees a {entry.kind} of {entry.size} bytes there"
        else:
            return
        raise ConversionError(
            f"input {path} is a {kind} on the launcher ({self.host}), but a worker on "
            f"{socket.gethostname()} {found}: inputs must be on a file system that all of them "
            "share under the same path, or in an object store (gs://, s3://)"
        )


# Checks that this process has passed; DoFns are set up many times.
_passed: set[tuple[str, str | None]] = set()


def make_check(
    *, run_id: str, run_file: str | None, inputs: Iterable[str], compare_versions: bool = True
) -> WorkerCheck:
    """Describes this process and what it sees.

    Args:
      run_id: of the run.
      run_file: the file in the staging directory that holds the run id; only looked for
        where it is local.
      inputs: folders, files or globs, as listed; those in object stores are left out.
      compare_versions: False leaves versions out (for workers of this very process).
    """
    paths = []
    for uri in inputs:
        if not storage.is_local(uri):
            continue
        entry = storage.stat(uri)
        if entry is None:  # a glob: its folder must be there
            uri = split_pattern(uri, storage.stat)[0]
            entry = storage.stat(uri)
        if entry is not None:
            paths.append((uri, entry.kind, entry.size if entry.kind == "file" else -1))
    return WorkerCheck(
        versions=versions() if compare_versions else {},
        host=socket.gethostname(),
        run_file=run_file if run_file is not None and storage.is_local(run_file) else None,
        run_id=run_id,
        paths=tuple(paths),
    )
