"""`imagebeam worker_pool`: one address, this interpreter, and an end that takes workers along."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys

import pytest

from beam_pipeline import worker_check
from beam_pipeline.errors import UsageError
from beam_pipeline.external_pool import serve
from beam_pipeline.runners.pool_probe import ask_pool
from tests import engines


def _pool(address: str) -> list[str]:
    return [sys.executable, "-m", "beam_pipeline", "worker_pool", "--listen", address]


def test_two_pools_on_one_port_of_two_addresses(tmp_path: pathlib.Path) -> None:
    """As beside the TaskManagers of one machine; without any `python` in PATH."""
    port = engines.free_port()
    env = {**os.environ, "PATH": "/usr/bin:/bin", "PYTHONPATH": str(engines.ROOT)}
    with (
        engines.running(
            _pool(f"127.0.0.1:{port}"), port=port, log=tmp_path / "1", cwd=tmp_path, env=env
        ) as first,
        engines.running(
            _pool(f"127.0.0.2:{port}"), port=port, log=tmp_path / "2", cwd=tmp_path, env=env
        ),
    ):
        found = ask_pool(f"127.0.0.1:{port}")
        assert worker_check.differences(worker_check.versions(), found) == []
        assert found["executable"] == sys.executable
        engines.wait_until(
            lambda: engines.network_listens("127.0.0.2", port), 30, "the second pool"
        )
        first.send_signal(signal.SIGTERM)
        assert first.wait(timeout=20) == 0
        assert not engines.network_listens("127.0.0.1", port)
        assert engines.network_listens("127.0.0.2", port)


def test_a_pool_on_a_taken_port_says_so(tmp_path: pathlib.Path) -> None:
    with engines.silent_port() as address:
        done = subprocess.run(
            _pool(address),
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(engines.ROOT)},
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    assert f"cannot listen on {address}" in done.stderr
    assert "Traceback" not in done.stderr


def test_no_address() -> None:
    with pytest.raises(UsageError, match="--listen: expected HOST:PORT, got 'here'"):
        serve("here")
