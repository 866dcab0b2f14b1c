"""Asking a worker pool for its versions."""

from __future__ import annotations

import os
import pathlib
import stat
import sys

import pytest

from beam_pipeline import worker_check
from beam_pipeline.errors import ConversionError
from beam_pipeline.runners import choose_engine
from beam_pipeline.runners.pool_probe import ask_pool
from tests import engines
from tests.engines import web_server


def test_a_pool_is_asked_for_its_versions(tmp_path: pathlib.Path) -> None:
    with engines.worker_pool(tmp_path) as (address, process):
        found = ask_pool(address)
        assert worker_check.differences(worker_check.versions(), found) == []
        assert os.path.samefile(
            os.path.dirname(found["executable"]), os.path.dirname(sys.executable)
        )
        # The worker that was asked is gone again.
        engines.wait_until(
            lambda: not engines.descendants(process.pid), 20, "the end of the worker"
        )


def _script(directory: pathlib.Path, text: str) -> str:
    """A PATH whose `python` is a script."""
    directory.mkdir()
    script = directory / "python"
    script.write_text(f"#!/bin/sh\n{text}\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return f"{directory}{os.pathsep}{os.environ['PATH']}"


def test_a_pool_with_other_versions(tmp_path: pathlib.Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.metadata as m\n"
        "real = m.version\n"
        "m.version = lambda name: '9.1.0' if name == 'pillow' else real(name)\n"
    )
    path = _script(
        tmp_path / "bin", f'PYTHONPATH={tmp_path}:{engines.ROOT} exec {sys.executable} "$@"'
    )
    with (
        engines.local_job_service(tmp_path) as endpoint,
        engines.worker_pool(tmp_path, path) as (address, _),
    ):
        with pytest.raises(ConversionError, match=r"have pillow 9\.1\.0 instead of \d+") as caught:
            choose_engine(
                [
                    *("--runner=portable", f"--job_endpoint={endpoint}"),
                    *("--environment_type=EXTERNAL", f"--environment_config={address}"),
                ]
            )
    assert sys.executable in str(caught.value)


def test_a_pool_that_starts_the_wrong_python(tmp_path: pathlib.Path) -> None:
    """The engine itself would wait for minutes."""
    path = _script(tmp_path / "bin", "exit 1")
    with engines.worker_pool(tmp_path, path) as (address, _):
        with pytest.raises(ConversionError, match=r"starts `python` from its PATH"):
            ask_pool(address, seconds=3)


def test_no_pool() -> None:
    port = engines.free_port()
    with pytest.raises(
        ConversionError, match=f"no worker pool: nothing listens at localhost:{port}"
    ):
        ask_pool(f"localhost:{port}")
    with web_server({}) as address:
        with pytest.raises(ConversionError, match="is no Beam worker pool"):
            ask_pool(address, seconds=5)
