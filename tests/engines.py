"""Engines and worker pools for tests: found or skipped with a reason, started, stopped by pid."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from beam_pipeline.runners import prism

ROOT = pathlib.Path(__file__).resolve().parent.parent
REQUIRE_PRISM = "IMAGEBEAM_REQUIRE_PRISM"


def missing(reason: str, variable: str) -> None:
    """Skips the test, or fails it where `variable` says that nothing may be missing."""
    if os.environ.get(variable) == "1":
        pytest.fail(f"{variable}=1, but {reason}")
    pytest.skip(reason)


def prism_binary() -> str:
    """Prism's binary, or no test."""
    path = prism.find_prism()
    if path is None:
        missing(f"no Prism here; build it with `{prism.install_hint()}`", REQUIRE_PRISM)
    assert path is not None
    return path


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens to at the moment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_until(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    """The first true value of `condition`, which is asked again and again."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"{what}: not within {seconds:g} s")


def network_listens(host: str, port: int) -> bool:
    """Whether somebody listens at host:port."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1):
        return True
    return False


@contextlib.contextmanager
def running(
    command: Sequence[str],
    *,
    port: int,
    log: pathlib.Path,
    cwd: pathlib.Path | None = None,
    env: dict[str, str] | None = None,
) -> Iterator[subprocess.Popen]:
    """A server process that listens at `port`; it and its children are gone afterwards."""
    with open(log, "wb") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=stream, cwd=cwd, env=env)
    try:
        wait_until(
            lambda: process.poll() is not None or network_listens("127.0.0.1", port),
            60,
            f"{command[0]} at {port}",
        )
        assert process.poll() is None, log.read_text(errors="replace")
        yield process
    finally:
        family = [process.pid, *descendants(process.pid)]
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=10)
        for pid in family[1:]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        process.kill()
        process.wait()


@contextlib.contextmanager
def prism_server(directory: pathlib.Path) -> Iterator[str]:
    """Prism as a server of its own; gives its HOST:PORT."""
    port = free_port()
    command = [prism_binary(), "--job_port", str(port), "--serve_http=false"]
    with running(command, port=port, log=directory / "prism.log", cwd=directory):
        yield f"localhost:{port}"


@contextlib.contextmanager
def worker_pool(
    directory: pathlib.Path, path: str | None = None
) -> Iterator[tuple[str, subprocess.Popen]]:
    """Beam's worker pool in another process and another directory: (HOST:PORT, process).

    Args:
      directory: its working directory, and where its log goes.
      path: PATH of the pool, which decides what `python` its workers are; this one's.
    """
    port = free_port()
    own = os.path.dirname(sys.executable)
    env = {**os.environ, "PATH": path or own + os.pathsep + os.environ["PATH"]}
    env["PYTHONPATH"] = str(ROOT)
    command = [sys.executable, "-m", "apache_beam.runners.worker.worker_pool_main"]
    command += ["--service_port", str(port)]
    log = directory / "pool.log"
    with running(command, port=port, log=log, cwd=directory, env=env) as process:
        yield f"localhost:{port}", process


@contextlib.contextmanager
def local_job_service(directory: pathlib.Path) -> Iterator[str]:
    """Beam's portable engine in Python, as a server of its own; gives its HOST:PORT."""
    port = free_port()
    command = [sys.executable, "-m", "apache_beam.runners.portability.local_job_service_main"]
    command += ["-p", str(port)]
    with running(command, port=port, log=directory / "service.log", cwd=directory):
        yield f"localhost:{port}"


def descendants(pid: int) -> list[int]:
    """Process ids of children, their children …, as /proc tells (Linux)."""
    parents: dict[int, list[int]] = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found = list(parents.get(pid, ()))
    for child in found:
        found += parents.get(child, ())
    return found


def command_line(pid: int) -> str:
    """The command of a process; empty when it is gone."""
    with contextlib.suppress(OSError):
        data = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
        return data.replace(b"\0", b" ").decode(errors="replace")
    return ""


def convert(
    *arguments: str | os.PathLike[str],
    cwd: pathlib.Path | None = None,
    env: dict[str, str] | None = None,
    timeout: float = 240,
) -> subprocess.CompletedProcess[str]:
    """`imagebeam convert` in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "beam_pipeline", "convert", *map(os.fspath, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
        timeout=timeout,
        check=False,
    )


# ---------------------------------------------------------------- servers that play an engine


@contextlib.contextmanager
def web_server(pages: dict[str, Any]) -> Iterator[str]:
    """An HTTP server with JSON documents by path; gives its HOST:PORT."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = pages.get(self.path)
            self.send_response(404 if page is None else 200)
            self.end_headers()
            self.wfile.write(json.dumps(page).encode())

        def log_message(self, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def silent_port() -> Iterator[str]:
    """Something that listens and never says a word."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(16)
        yield f"127.0.0.1:{listener.getsockname()[1]}"


# ---------------------------------------------------------------- comparing datasets


def contents(dataset: pathlib.Path) -> dict[str, str]:
    """Relative path → SHA-256 of every file of a dataset that must not depend on the engine.

    conversion.json and the card in README.md tell of the run itself.
    """
    return {
        path.relative_to(dataset).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(dataset.rglob("*"))
        if path.is_file() and path.name not in ("conversion.json", "README.md")
    }


def account(dataset: pathlib.Path) -> dict[str, Any]:
    """What conversion.json says, without what is told of the run itself."""
    info = json.loads((dataset / "conversion.json").read_text())
    run = info.pop("run")
    for name in ("run_id", "started", "finished", "command", "runner", "options"):
        run.pop(name)
    return {**info, "run": run}


def assert_same_dataset(found: pathlib.Path, expected: pathlib.Path) -> None:
    """Every byte and every count is the same."""
    assert contents(found) == contents(expected)
    assert account(found) == account(expected)
    assert not list(found.glob(".imagebeam*"))


def looks_finished(output: pathlib.Path) -> bool:
    """Whether a reader would take `output` for a dataset, or for a part of one."""
    return output.exists() and any(
        path.name == "_SUCCESS" or ".tfrecord-" in path.name or path.suffix == ".json"
        for path in output.iterdir()
    )


def summary_of(done: subprocess.CompletedProcess[str], output: pathlib.Path) -> list[str]:
    """The lines of a summary that must not depend on the engine or the clock."""
    text = done.stdout.replace(os.fspath(output), "OUTPUT")
    return [line for line in text.splitlines() if " images/s, " not in line]


def copies(root: pathlib.Path, data: bytes, number: int, labels: Sequence[str]) -> None:
    """`number` files with the same bytes, dealt to the folders of `labels`."""
    first = root / "first"
    root.mkdir(parents=True)
    first.write_bytes(data)
    for index in range(number):
        folder = root / labels[index % len(labels)]
        folder.mkdir(exist_ok=True)
        shutil.copyfile(first, folder / f"{index:05d}.jpg")
    first.unlink()
