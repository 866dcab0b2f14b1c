"""What a dataset remembers of the run that wrote it: command, options, versions, time."""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import platform
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from beam_pipeline.options import ConvertOptions
from beam_pipeline.version import __version__


def describe_run(
    options: ConvertOptions,
    runner: str,
    run_id: str,
    command: Sequence[str] | None,
) -> dict[str, Any]:
    """What conversion.json says of the run itself.

    Args:
      options: of the conversion.
      runner: name of the runner.
      run_id: from the OutputDirectory.
      command: the command line; None: this process's.
    """
    versions = {
        name: _version(name)
        for name in ("apache-beam", "tfx-bsl", "pillow", "pyarrow", "tensorflow-metadata")
    }
    return {
        "run_id": run_id,
        "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join(sys.argv if command is None else command),
        "runner": runner,
        "options": _plain(options),
        "versions": {"imagebeam": __version__, "python": platform.python_version(), **versions},
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _plain(value: Any) -> Any:
    """Options as JSON can hold them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict) or hasattr(value, "items"):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    return getattr(value, "value", value)
