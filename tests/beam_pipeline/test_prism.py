"""The whole conversion on Prism, Beam's portable engine, and on Beam's portable job service."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys

import pytest

from beam_pipeline.status import read_status
from tests import engines, fakes

OPTIONS = ("--split=train=0.7,test=0.3", "--num_shards=train=3,test=2", "--name=small")
OPTIONS += ("--max_reject_fraction=0.5",)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Images, broken images, and names that are hard to carry."""
    root = tmp_path_factory.mktemp("prism-inputs")
    fakes.class_folders(root, per_label=12)
    fakes.write_tree(
        root,
        {
            "happy/empty.jpg": b"",
            "happy/cut.jpg": fakes.jpeg(7)[:200],
            "sad/page.png": b"<!DOCTYPE html><html></html>",
            "sad/a [1-3] #%20é.png": fakes.png(8),
        },
    )
    return root


@pytest.fixture(scope="module")
def local(
    inputs: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[pathlib.Path, list[str]]:
    """The dataset that the local engine writes, and its summary."""
    output = tmp_path_factory.mktemp("local") / "dataset"
    done = engines.convert("--input", inputs, "--output", output, *OPTIONS)
    assert done.returncode == 0, done.stderr
    return output, engines.summary_of(done, output)


def _assert_like_local(
    done: subprocess.CompletedProcess[str],
    output: pathlib.Path,
    local: tuple[pathlib.Path, list[str]],
) -> None:
    assert done.returncode == 0, done.stderr
    engines.assert_same_dataset(output, local[0])
    assert engines.summary_of(done, output) == local[1]


def _left_behind(binary: str) -> set[int]:
    """Processes of `binary` whose parent is gone."""
    return {pid for pid in engines.descendants(1) if engines.command_line(pid).startswith(binary)}


@pytest.mark.prism
def test_prism_runner(
    inputs: pathlib.Path, local: tuple[pathlib.Path, list[str]], tmp_path: pathlib.Path
) -> None:
    binary = engines.prism_binary()
    before = _left_behind(binary)
    output = tmp_path / "dataset"
    arguments = ("--input", inputs, "--output", output, *OPTIONS, "--runner=prism")
    done = engines.convert(*arguments, env={"IMAGEBEAM_PRISM": binary})
    _assert_like_local(done, output, local)
    assert f"engine: Prism ({binary}" in done.stderr
    # The engine that was started for this run is gone with it.
    engines.wait_until(lambda: _left_behind(binary) <= before, 10, "the end of Prism")


@pytest.mark.prism
def test_prism_server_with_a_worker_pool_elsewhere(
    inputs: pathlib.Path, local: tuple[pathlib.Path, list[str]], tmp_path: pathlib.Path
) -> None:
    """Three processes in three directories; the paths given are relative to the first."""
    for name in ("prism", "pool"):
        (tmp_path / name).mkdir()
    output = tmp_path / "launcher" / "dataset"
    output.parent.mkdir()
    with (
        engines.prism_server(tmp_path / "prism") as endpoint,
        engines.worker_pool(tmp_path / "pool") as (pool, _),
    ):
        done = engines.convert(
            *("--input", os.path.relpath(inputs, output.parent), "--output", "dataset", *OPTIONS),
            *("--runner=prism", f"--job_endpoint={endpoint}"),
            *("--environment_type=EXTERNAL", f"--environment_config={pool}"),
            cwd=output.parent,
        )
    done.stdout = done.stdout.replace(" dataset\n", f" {output}\n")
    _assert_like_local(done, output, local)
    assert f"workers: pool {pool}, " in done.stderr
    assert not list((tmp_path / "pool").glob("dataset*"))


def test_portable_job_service(
    inputs: pathlib.Path, local: tuple[pathlib.Path, list[str]], tmp_path: pathlib.Path
) -> None:
    output = tmp_path / "dataset"
    with engines.local_job_service(tmp_path) as endpoint:
        done = engines.convert(
            *("--input", inputs, "--output", output, *OPTIONS),
            *("--runner=PortableRunner", f"--job_endpoint={endpoint}"),
        )
    _assert_like_local(done, output, local)


def test_beam_worker_processes(
    inputs: pathlib.Path, local: tuple[pathlib.Path, list[str]], tmp_path: pathlib.Path
) -> None:
    output = tmp_path / "dataset"
    done = engines.convert(
        *("--input", inputs, "--output", output, *OPTIONS, "--runner=DirectRunner"),
        *("--direct_num_workers=2", "--direct_running_mode=multi_processing"),
    )
    _assert_like_local(done, output, local)


@pytest.mark.prism
def test_a_job_that_goes_on_alone(
    inputs: pathlib.Path, local: tuple[pathlib.Path, list[str]], tmp_path: pathlib.Path
) -> None:
    """--no_wait: the last step clears up, for its launcher is gone."""
    output = tmp_path / "dataset"
    with (
        engines.prism_server(tmp_path) as endpoint,
        engines.worker_pool(tmp_path) as (pool, _),
    ):
        done = engines.convert(
            *("--input", inputs, "--output", output, *OPTIONS, "--no_wait"),
            *("--runner=prism", f"--job_endpoint={endpoint}"),
            *("--environment_type=EXTERNAL", f"--environment_config={pool}"),
        )
        assert done.returncode == 0, done.stderr
        assert f"imagebeam status {output}" in done.stdout
        assert "it goes on without this process" in done.stdout
        engines.wait_until(lambda: (output / "_SUCCESS").exists(), 120, "the dataset")
        engines.wait_until(lambda: not list(output.glob(".imagebeam*")), 30, "the end of staging")
    engines.assert_same_dataset(output, local[0])
    assert read_status(str(output)).finished is not None


def test_no_wait_needs_an_engine_that_goes_on(inputs: pathlib.Path, tmp_path: pathlib.Path) -> None:
    done = engines.convert("--input", inputs, "--output", tmp_path / "out", "--no_wait")
    assert done.returncode == 2
    assert "the job ends with this process" in done.stderr
    assert not (tmp_path / "out").exists()


# The command with a shorter patience: Prism does not notice every lost worker.
PATIENCE = 30.0
IMPATIENT = (
    "import sys; from beam_pipeline import cli; from beam_pipeline.runners import prism; "
    f"prism.SILENCE_SECONDS = {PATIENCE}; sys.exit(cli.main(sys.argv[1:]))"
)


@pytest.mark.prism
@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_lost_in_the_middle(blow: signal.Signals, tmp_path: pathlib.Path) -> None:
    """Killed: the identical output, or a failure. Silent: given up. Nothing looks finished."""
    inputs = tmp_path / "inputs"
    engines.copies(inputs, fakes.jpeg(1, height=1500, width=2000), 120, ("a", "b"))
    options = ("--num_shards=12", "--resize=64x64", "--name=large")
    expected = tmp_path / "expected"
    done = engines.convert("--input", inputs, "--output", expected, *options)
    assert done.returncode == 0, done.stderr
    output = tmp_path / "output"
    with (
        engines.prism_server(tmp_path) as endpoint,
        engines.worker_pool(tmp_path) as (pool, process),
    ):
        log = tmp_path / "convert.log"
        with open(log, "wb") as stream:
            launcher = subprocess.Popen(
                [
                    *(sys.executable, "-c", IMPATIENT, "convert"),
                    *("--input", inputs, "--output", output, *options),
                    *("--runner=prism", f"--job_endpoint={endpoint}"),
                    *("--environment_type=EXTERNAL", f"--environment_config={pool}"),
                ],
                stdout=stream,
                stderr=stream,
                env={**os.environ, "PYTHONPATH": str(engines.ROOT)},
            )
        try:
            engines.wait_until(
                lambda: list(output.glob(".imagebeam-*/shards/*/*")) or launcher.poll() is not None,
                120,
                "the first shard",
            )
            assert launcher.poll() is None, log.read_text()
            workers = [
                pid
                for pid in engines.descendants(process.pid)
                if "SdkHarness" in engines.command_line(pid)
            ]
            assert workers
            for pid in workers:
                os.kill(pid, blow)
            code = launcher.wait(timeout=180)
        finally:
            launcher.kill()
            launcher.wait()
    if code == 0 and blow == signal.SIGKILL:
        engines.assert_same_dataset(output, expected)
        return
    assert code == 1
    text = log.read_text()
    if blow == signal.SIGSTOP:
        assert f"nothing moved in job job-001 on prism for {PATIENCE:.0f}s" in text
    assert "Traceback" not in text
    assert not engines.looks_finished(output), sorted(output.rglob("*"))
    assert not list(output.glob(".imagebeam*"))
