"""Runs that are killed, interrupted, or run out of room: nothing looks finished, the next run works.

The command runs in a process of its own; a line on its stdout tells where it is, and it
waits there to be killed.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from beam_pipeline import shard_sink, storage, worker_pool
from beam_pipeline.dataset_info import read_dataset_info
from beam_pipeline.errors import ConversionError, DatasetError, OutputError, StorageError
from beam_pipeline.output_directory import LOCK_FILE, STAGING_PREFIX
from beam_pipeline.progress import ProgressReporter
from tests import conversions, fakes

ROOT = pathlib.Path(__file__).parent.parent

# Stops in the middle of the images, or in the middle of the last step.
COMMAND = """
import sys, time
from beam_pipeline import cli
from beam_pipeline.engine import prepare_engine

prepare_engine(verbose=False)
from beam_pipeline import metadata, progress, worker_pool

def stop(*args):
    pool = worker_pool.current()
    print("here", *[worker._process.pid for worker in pool._processes], flush=True)
    for _ in range(1200):
        if pool._closed:
            break
        time.sleep(0.1)

where = sys.argv.pop(1)
if where == "writing":
    progress.ProgressReporter.add = stop
else:
    metadata.tfds_dataset_info = stop
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    root = tmp_path_factory.mktemp("source")
    fakes.class_folders(root, per_label=12)  # 36 images, three chunks
    return root


@contextlib.contextmanager
def stopped(where: str, source: pathlib.Path, output: pathlib.Path) -> Iterator[tuple]:
    """A command that has come to `where`, and the pids of its workers."""
    arguments = ["convert", f"--input={source}", f"--output={output}", "--workers=1", "--overwrite"]
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, where, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,  # a process group of its own, as a shell gives it
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline().split()
        assert line[:1] == ["here"], process.communicate()[1]
        yield process, [int(pid) for pid in line[1:]]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def gone(pids: list[int]) -> bool:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if not any(os.path.exists(f"/proc/{pid}/exe") for pid in pids):
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize("where", ["writing", "finishing"])
def test_kill_9(where: str, source: pathlib.Path, tmp_path: pathlib.Path) -> None:
    output = tmp_path / "out"
    with stopped(where, source, output) as (process, workers):
        with pytest.raises(OutputError, match=f"another run .*process {process.pid} on"):
            conversions.run(source, output)
        process.kill()
        process.wait()
    assert gone(workers)
    names = conversions.names(output)
    assert "_SUCCESS" not in names
    assert [name for name in names if name.startswith(STAGING_PREFIX)]
    if where == "writing":
        # Not a single file that a glob would take for data.
        assert len(names) == 2
        assert LOCK_FILE in names
    with pytest.raises(DatasetError, match="did not finish"):
        read_dataset_info(str(output))
    conversions.run(source, output)
    assert read_dataset_info(str(output)).records == 36
    assert not [name for name in conversions.names(output) if name.startswith(".")]


@pytest.mark.parametrize("where", ["writing", "finishing"])
def test_ctrl_c(where: str, source: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with stopped(where, source, tmp_path / "out") as (process, workers):
        os.killpg(process.pid, signal.SIGINT)  # as a terminal sends it: to everyone
        begin = time.monotonic()
        _, errors = process.communicate(timeout=30)
        assert time.monotonic() - begin < 15, errors
    assert process.returncode == 130, errors
    assert errors.splitlines()[-1] == "imagebeam: interrupted; nothing was kept"
    assert "Traceback" not in errors
    assert gone(workers)
    assert conversions.names(tmp_path) == []


def test_a_worker_killed_in_the_middle(
    source: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = ProgressReporter.add
    killed: list[int] = []

    def kill(self: object, *counts: int) -> None:
        pool = worker_pool.current()
        assert pool is not None
        if not killed:
            killed.append(pool._processes[0]._process.pid)
            os.kill(killed[0], signal.SIGKILL)
        report(self, *counts)  # type: ignore[arg-type]

    # 36 small images could be done before the first report: let them come one by one.
    monkeypatch.setattr("beam_pipeline.records.CHUNK_BYTES", 1)
    monkeypatch.setattr(ProgressReporter, "add", kill)
    with pytest.raises(ConversionError, match=r"worker process 0 was killed by the system"):
        conversions.run(source, tmp_path / "out", workers=1)
    assert killed
    assert conversions.names(tmp_path) == []


# ---------------------------------------------------------------- no room, no permission


@pytest.fixture
def small_disk(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A file system of 40 kB; needs the right to mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=40k", "tmpfs", str(disk)]
    try:
        done = subprocess.run(mount, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if done.returncode:
        pytest.skip(f"cannot mount a small file system: {done.stderr.decode().strip()}")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk(source: pathlib.Path, small_disk: pathlib.Path) -> None:
    with pytest.raises((ConversionError, StorageError), match=r"(?i)disk is full|no space left"):
        conversions.run(source, small_disk / "out")
    assert conversions.names(small_disk) == []


@pytest.mark.parametrize("when", ["write", "close"])
def test_a_disk_that_becomes_full(
    when: str, source: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: object, *args: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(shard_sink.HashingFile, when, full)
        with pytest.raises(ConversionError) as raised:
            conversions.run(source, tmp_path / "out")
    assert str(raised.value).startswith("the conversion stopped: the disk is full (")
    assert str(raised.value).endswith("Nothing was kept")
    assert conversions.names(tmp_path) == []


def test_an_index_that_cannot_be_written(
    source: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = storage.write_bytes

    def refuse(uri: str, data: bytes) -> None:
        if uri.endswith(".parquet"):
            raise StorageError(f"cannot write {uri}: Permission denied")
        real(uri, data)

    monkeypatch.setattr(storage, "write_bytes", refuse)
    with pytest.raises(StorageError, match="Permission denied"):
        conversions.run(source, tmp_path / "out")
    assert conversions.names(tmp_path) == []


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")
def test_a_place_where_nobody_may_write(source: pathlib.Path) -> None:
    with pytest.raises((OutputError, StorageError), match="/proc/imagebeam-out"):
        conversions.run(source, "/proc/imagebeam-out")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_a_reject(tmp_path: pathlib.Path) -> None:
    fakes.class_folders(tmp_path / "in")
    (tmp_path / "in" / "sad" / "0.jpg").chmod(0)
    summary = conversions.run(tmp_path / "in", tmp_path / "out", max_rejects=1)
    assert summary.info.rejects == {"unreadable": 1}


def test_a_file_that_may_not_be_read_is_a_reject_faked(
    source: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refuse(path: str, *args: int, **kwargs: int) -> int:
        if str(path).endswith("sad/0.jpg"):
            raise PermissionError(13, "Permission denied", path)
        return real(path, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", refuse)
    summary = conversions.run(source, tmp_path / "out", max_rejects=1)
    assert summary.info.rejects == {"unreadable": 1}
    (reject,) = conversions.rejects(tmp_path / "out")
    assert (reject["key"], reject["stage"]) == ("sad/0.jpg", "read")
