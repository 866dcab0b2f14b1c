"""deploy/flink: a cluster is started and stopped again, its own processes only."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
from types import ModuleType

import pytest

from beam_pipeline import worker_check
from beam_pipeline.runners import choose_engine
from beam_pipeline.runners.engine import Place
from beam_pipeline.runners.pool_probe import ask_pool
from tests import engines

REQUIRE = "IMAGEBEAM_REQUIRE_FLINK_CLUSTER"


def load_cluster_script() -> ModuleType:
    """deploy/flink/cluster.py as a module."""
    path = engines.ROOT / "deploy" / "flink" / "cluster.py"
    spec = importlib.util.spec_from_file_location("flink_cluster", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


cluster_script = load_cluster_script()


def distributions() -> list[pathlib.Path]:
    """Flink distributions here: IMAGEBEAM_FLINK (several: separated by :), build/flink-*."""
    named = [part for part in os.environ.get("IMAGEBEAM_FLINK", "").split(os.pathsep) if part]
    found = [pathlib.Path(part) for part in named] or sorted(engines.ROOT.glob("build/flink-*"))
    return [path for path in found if list(path.glob("lib/flink-dist*.jar"))]


def distribution_ids() -> list[str]:
    """A readable name for each distribution; one that says so where there is none."""
    names = [next(path.glob("lib/flink-dist*.jar")).stem for path in distributions()]
    return names or ["no-distribution"]


def require_distribution(path: pathlib.Path | None) -> pathlib.Path:
    """The distribution, or no test."""
    if path is None:
        engines.missing(
            "no Flink distribution here; `python deploy/flink/cluster.py fetch 1.20.1 "
            "build/flink-1.20` takes one from PyPI",
            REQUIRE,
        )
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        engines.missing("no Java here, which Flink needs", REQUIRE)
    assert path is not None
    return path


@pytest.fixture
def bystander() -> subprocess.Popen:
    """A process that is none of a cluster's."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize("flink", distributions() or [None], ids=distribution_ids())
def test_start_and_stop(
    flink: pathlib.Path | None, tmp_path: pathlib.Path, bystander: subprocess.Popen
) -> None:
    flink = require_distribution(flink)
    port = engines.free_port()
    cluster = cluster_script.start(flink, tmp_path, rest_port=port)
    try:
        names = [process["name"] for process in cluster.alive()]
        assert names == ["jobmanager", "pool-0", "taskmanager-0", "pool-1", "taskmanager-1"]
        overview = cluster_script.rest(f"127.0.0.1:{port}", "/overview")
        assert (overview["taskmanagers"], overview["slots-total"]) == (2, 4)
        # Each pool starts workers of this very installation.
        for pool in cluster.state["pools"]:
            found = ask_pool(pool)
            assert worker_check.differences(worker_check.versions(), found) == []
        _preset_fits(cluster, tmp_path)
        with pytest.raises(cluster_script.ClusterError, match=r"runs in .* already"):
            cluster_script.start(flink, tmp_path, rest_port=port)
        family = [pid for p in cluster.alive() for pid in engines.descendants(p["pid"])]
    finally:
        stopped = cluster_script.Cluster(tmp_path).stop()
    assert stopped == 5
    assert not cluster.alive()
    assert not any(engines.command_line(pid) for pid in family)
    assert not engines.network_listens("127.0.0.1", port)
    assert bystander.poll() is None
    assert not (tmp_path / "tmp").exists()
    assert not (tmp_path / "processes.json").exists()


def _preset_fits(cluster: object, directory: pathlib.Path) -> None:
    """The options that the script prints, through the preset's checks, on the real REST API."""
    jar = directory / "job-server.jar"
    jar.write_bytes(b"PK")
    options = [o for o in cluster_script.options(cluster) if o != "--shared_filesystem"]
    engine = choose_engine([*options, f"--flink_job_server_jar={jar}"], "faces")
    assert (engine.place, engine.survives) == (Place.ELSEWHERE, True)
    assert "4 of 4 slots free; parallelism 4" in engine.lines[0]


def test_a_cluster_that_does_not_come_up_is_stopped(tmp_path: pathlib.Path) -> None:
    flink = tmp_path / "flink"
    (flink / "lib").mkdir(parents=True)
    (flink / "lib" / "flink-dist-1.0.jar").write_bytes(b"")
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    # It answers what memory to use, and dies when it is to be a JobManager.
    java.write_text(
        '#!/bin/sh\ncase "$*" in *BashJavaUtils*) '
        'echo "BASH_JAVA_UTILS_EXEC_RESULT:-Xmx1m"; exit 0;; esac\n'
        "echo no memory today; exit 1\n"
    )
    java.chmod(0o755)
    environment = pytest.MonkeyPatch()
    environment.setenv("JAVA_HOME", str(tmp_path))
    try:
        with pytest.raises(cluster_script.ClusterError, match="ended at once") as caught:
            cluster_script.start(flink, tmp_path / "cluster", rest_port=engines.free_port())
    finally:
        environment.undo()
    assert "no memory today" in str(caught.value)
    assert not (tmp_path / "cluster" / "processes.json").exists()


def test_a_recycled_process_id_is_left_alone(
    tmp_path: pathlib.Path, bystander: subprocess.Popen
) -> None:
    """The file of a cluster that died with its machine names processes of somebody else."""
    processes = [{"name": "jobmanager", "pid": bystander.pid, "started": "1"}]
    (tmp_path / "processes.json").write_text(json.dumps({"processes": processes}))
    cluster = cluster_script.Cluster(tmp_path)
    assert cluster.alive() == []
    assert cluster.stop() == 0
    assert bystander.poll() is None


def test_a_directory_that_is_no_distribution(tmp_path: pathlib.Path) -> None:
    with pytest.raises(cluster_script.ClusterError, match="no lib/flink-dist"):
        cluster_script.find_distribution(str(tmp_path))


def test_a_taken_port_is_told(tmp_path: pathlib.Path) -> None:
    with engines.silent_port() as address:
        port = int(address.rpartition(":")[2])
        with pytest.raises(cluster_script.ClusterError, match=f"port {port} is taken"):
            cluster_script.start(tmp_path, tmp_path / "cluster", rest_port=port)
