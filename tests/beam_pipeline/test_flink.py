"""The whole conversion on a real Flink cluster (`make test-flink`).

Needs a Flink distribution, a JDK, and Beam's job server for its version: a jar named by
IMAGEBEAM_FLINK_JOB_SERVER_JAR ({version} in it stands for 1.20, 2.2 …), in Beam's cache, or
from Maven Central.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any

import apache_beam
import pytest

from beam_pipeline.runners import flink as flink_preset
from beam_pipeline.status import read_status
from tests import engines, fakes
from tests.beam_pipeline.test_flink_cluster import (
    cluster_script,
    distribution_ids,
    distributions,
    require_distribution,
)

pytestmark = [pytest.mark.flink, pytest.mark.timeout(900)]

# Long enough that something can happen in the middle.
IMAGES = 240
OPTIONS = ("--num_shards=12", "--resize=64x64", "--name=large")
# Half of the cluster's slots, so that one TaskManager can take the other's place.
PARALLELISM = "--parallelism=2"


def _require_job_server(version: str) -> None:
    jar = os.environ.get(flink_preset.JAR_VARIABLE, "").replace("{version}", version)
    if jar:
        assert os.path.isfile(jar), f"{flink_preset.JAR_VARIABLE}: no file {jar}"
        return
    name = f"beam-runners-flink-{version}-job-server-{apache_beam.__version__}.jar"
    if os.path.isfile(os.path.expanduser(f"~/.apache_beam/cache/jars/{name}")):
        return
    where = f"org/apache/beam/{name.rsplit('-', 1)[0]}/{apache_beam.__version__}/{name}"
    request = urllib.request.Request(f"https://repo.maven.apache.org/maven2/{where}", method="HEAD")
    try:
        urllib.request.urlopen(request, timeout=10).close()
    except OSError as error:
        pytest.skip(
            f"no job server for Flink {version}: set {flink_preset.JAR_VARIABLE} "
            f"(Maven Central: {error})"
        )


@pytest.fixture(scope="module", params=distributions() or [None], ids=distribution_ids())
def flink(request: pytest.FixtureRequest) -> pathlib.Path:
    """A distribution for which there is a job server."""
    path = require_distribution(request.param)
    jar = next(path.glob("lib/flink-dist*.jar")).stem
    _require_job_server(".".join(jar.rsplit("-", 1)[1].split(".")[:2]))
    return path


@contextlib.contextmanager
def _cluster(flink: pathlib.Path, directory: pathlib.Path, **options: Any) -> Iterator[Any]:
    cluster = cluster_script.start(flink, directory, rest_port=engines.free_port(), **options)
    try:
        yield cluster
    finally:
        cluster_script.Cluster(directory).stop()


@pytest.fixture(scope="module")
def cluster(flink: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A cluster with the restart settings that deploy/flink recommends."""
    with _cluster(flink, tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, pathlib.Path]:
    """(inputs, the dataset that the local engine makes of them)."""
    root = tmp_path_factory.mktemp("flink")
    engines.copies(
        root / "in", fakes.jpeg(1, height=1500, width=2000), IMAGES, ("angry", "happy", "sad")
    )
    done = engines.convert("--input", root / "in", "--output", root / "local", *OPTIONS)
    assert done.returncode == 0, done.stderr
    return root / "in", root / "local"


@contextlib.contextmanager
def _launched(
    cluster: Any, inputs: pathlib.Path, output: pathlib.Path, *more: str
) -> Iterator[tuple[subprocess.Popen, pathlib.Path]]:
    """A conversion at work, after its first shard; (process, its log)."""
    log = output.with_suffix(".log")
    family: list[int] = []  # its job server outlives a launcher that is killed
    with open(log, "wb") as stream:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "beam_pipeline", "convert"),
                *("--input", inputs, "--output", output, *OPTIONS, PARALLELISM),
                *cluster_script.options(cluster),
                *more,
            ],
            stdout=stream,
            stderr=stream,
            env={**os.environ, "PYTHONPATH": str(engines.ROOT)},
        )
    try:
        engines.wait_until(
            lambda: list(output.glob(".imagebeam-*/shards/*/*")) or process.poll() is not None,
            240,
            "the first shard",
        )
        assert process.poll() is None, log.read_text()
        family = engines.descendants(process.pid)
        yield process, log
    finally:
        process.kill()
        process.wait()
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _kill_taskmanager(cluster: Any, number: int) -> None:
    (process,) = [p for p in cluster.alive() if p["name"] == f"taskmanager-{number}"]
    os.kill(process["pid"], signal.SIGKILL)


def _assert_nothing_finished(output: pathlib.Path) -> None:
    assert not engines.looks_finished(output), sorted(output.rglob("*"))
    assert not list(output.glob(".imagebeam*"))


def _jobs(cluster: Any) -> list[dict[str, Any]]:
    return cluster_script.rest(cluster.state["flink_master"], "/jobs/overview")["jobs"]


def test_the_same_dataset(
    cluster: Any, images: tuple[pathlib.Path, pathlib.Path], tmp_path: pathlib.Path
) -> None:
    inputs, local = images
    output = tmp_path / "out"
    done = engines.convert(
        *("--input", inputs, "--output", output, *OPTIONS, *cluster_script.options(cluster)),
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    engines.assert_same_dataset(output, local)
    assert f"{IMAGES:,} inputs = {IMAGES:,} written" in done.stdout


def test_a_storm_of_rejects(cluster: Any, tmp_path: pathlib.Path) -> None:
    inputs, output = tmp_path / "in", tmp_path / "out"
    fakes.class_folders(inputs, per_label=3)
    fakes.write_tree(inputs, {f"sad/broken-{n}.jpg": b"no image" for n in range(30)})
    done = engines.convert(
        *("--input", inputs, "--output", output, *cluster_script.options(cluster)), timeout=600
    )
    assert done.returncode == 1
    assert "30 of 39 inputs" in done.stderr
    assert "--max_reject_fraction" in done.stderr
    _assert_nothing_finished(output)
    rejected = (tmp_path / "out.failed" / "rejected.jsonl").read_text().splitlines()
    assert len(rejected) == 30


def test_a_cancelled_job(
    cluster: Any, images: tuple[pathlib.Path, pathlib.Path], tmp_path: pathlib.Path
) -> None:
    output = tmp_path / "out"
    with _launched(cluster, images[0], output) as (process, log):
        (job,) = [job for job in _jobs(cluster) if job["state"] == "RUNNING"]
        master = cluster.state["flink_master"]
        urllib.request.urlopen(
            urllib.request.Request(f"http://{master}/jobs/{job['jid']}", method="PATCH"), timeout=10
        ).close()
        assert process.wait(timeout=120) == 1, log.read_text()
    assert "the job on flink failed: it was cancelled" in log.read_text()
    _assert_nothing_finished(output)


def test_a_client_that_is_gone(
    cluster: Any, images: tuple[pathlib.Path, pathlib.Path], tmp_path: pathlib.Path
) -> None:
    """The job goes on, status finds it, and its last step leaves nothing beside the dataset."""
    inputs, local = images
    output = tmp_path / "out"
    with _launched(cluster, inputs, output) as (process, _):
        process.kill()
        process.wait()
        (run,) = read_status(str(output)).runs
        assert run.job_state == "RUNNING"
        assert run.planned_shards == 12
        second = engines.convert("--input", inputs, "--output", output, *OPTIONS)
        assert second.returncode == 1
        assert "imagebeam status" in second.stderr
        engines.wait_until(lambda: (output / "_SUCCESS").exists(), 300, "the dataset")
    engines.wait_until(lambda: not list(output.glob(".imagebeam-*")), 60, "the end of staging")
    status = read_status(str(output))
    assert status.finished is not None
    assert status.runs == ()
    assert engines.contents(output) == engines.contents(local)


def test_a_lost_taskmanager(
    flink: pathlib.Path, images: tuple[pathlib.Path, pathlib.Path], tmp_path: pathlib.Path
) -> None:
    inputs, local = images
    output = tmp_path / "out"
    with (
        _cluster(flink, tmp_path / "cluster") as cluster,
        _launched(cluster, inputs, output) as (process, log),
    ):
        _kill_taskmanager(cluster, 1)
        assert process.wait(timeout=600) == 0, log.read_text()
    engines.assert_same_dataset(output, local)


def test_a_lost_taskmanager_without_restarts(
    flink: pathlib.Path, images: tuple[pathlib.Path, pathlib.Path], tmp_path: pathlib.Path
) -> None:
    output = tmp_path / "out"
    with (
        _cluster(flink, tmp_path / "cluster", restarts=False) as cluster,
        _launched(cluster, images[0], output, "--number_of_execution_retries=0") as (process, log),
    ):
        _kill_taskmanager(cluster, 1)
        assert process.wait(timeout=300) == 1, log.read_text()
    assert "TaskManager" in log.read_text()
    assert "Traceback" not in log.read_text()
    _assert_nothing_finished(output)
