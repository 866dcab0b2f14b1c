"""Presets and their checks, against small servers that play an engine."""

from __future__ import annotations

import pathlib
import time
from typing import Any

import apache_beam
import pytest
from apache_beam.options.pipeline_options import (
    FlinkRunnerOptions,
    PortableOptions,
)

from beam_pipeline import runners
from beam_pipeline.errors import ConversionError, UsageError
from beam_pipeline.runners import choose_engine, flink, network, prism
from beam_pipeline.runners.engine import Place
from tests import engines
from tests.engines import silent_port, web_server


def flink_pages(version: str = "1.20.1", slots: int = 4, free: int = 4) -> dict[str, Any]:
    overview = {"taskmanagers": 2, "slots-total": slots, "slots-available": free}
    return {"/config": {"flink-version": version}, "/overview": overview}


@pytest.fixture
def jar(tmp_path: pathlib.Path) -> str:
    """A file that can stand for a job server's jar: no check opens it."""
    path = tmp_path / "job-server.jar"
    path.write_bytes(b"PK")
    return str(path)


@pytest.fixture
def java(tmp_path: pathlib.Path) -> str:
    """A --job_server_java_launcher that exists."""
    path = tmp_path / "java"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return f"--job_server_java_launcher={path}"


# ---------------------------------------------------------------- prism


def test_prism_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    binary = tmp_path / "my-prism"
    binary.write_bytes(b"\0mod\tgithub.com/apache/beam/sdks/v2\tv2.1.0\th1:x=\n")
    binary.chmod(0o755)
    monkeypatch.setenv(prism.VARIABLE, str(binary))
    engine = choose_engine(["--runner=prism"])
    assert (engine.runner, engine.place) == ("PrismRunner", Place.THIS_PROCESS)
    assert engine.make_runner() == "PrismRunner"
    assert str(binary) in engine.lines[0]
    assert "built from Beam v2.1.0" in engine.lines[0]
    options = engine.options.view_as(PortableOptions)
    assert options.environment_type == "LOOPBACK"
    # Beam's 300 s would end the wait for any longer job.
    assert options.job_server_timeout > 24 * 3600
    binary.chmod(0o644)
    with pytest.raises(UsageError, match=r"IMAGEBEAM_PRISM is .* no executable file"):
        choose_engine(["--runner=prism"])


def test_no_prism_anywhere(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    for variable in (prism.VARIABLE, "GOBIN", "GOPATH"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(network, "why_no_download", lambda host: f"{host} is far away")
    with pytest.raises(UsageError, match=r"github.com is far away.*go install .*prism@v") as caught:
        choose_engine(["--runner=prism"])
    assert apache_beam.__version__ in str(caught.value)


def test_prism_location_that_is_no_file() -> None:
    with pytest.raises(UsageError, match="--prism_location /no/prism is no file"):
        choose_engine(["--runner=prism", "--prism_location=/no/prism"])


# ---------------------------------------------------------------- job servers


def test_portable_needs_an_endpoint() -> None:
    with pytest.raises(UsageError, match="needs --job_endpoint"):
        choose_engine(["--runner=portable"])


def test_a_job_server_that_is_not_there() -> None:
    endpoint = f"localhost:{engines.free_port()}"
    started = time.monotonic()
    with pytest.raises(ConversionError, match=f"no job server for --job_endpoint {endpoint}"):
        choose_engine(["--runner=portable", f"--job_endpoint={endpoint}"])
    assert time.monotonic() - started < 10


def test_something_else_than_a_job_server() -> None:
    with (
        web_server({}) as endpoint,
        pytest.raises(ConversionError, match=f"{endpoint} is no Beam job server"),
    ):
        choose_engine(["--runner=portable", f"--job_endpoint={endpoint}"])


def test_workers_must_be_named_where_the_engine_is_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runners.presets.job_service, "check_endpoint", lambda endpoint: False)
    with pytest.raises(UsageError, match="--environment_type EXTERNAL"):
        choose_engine(["--runner=portable", "--job_endpoint=jobs.example:8099"])
    engine = choose_engine(
        ["--runner=portable", "--job_endpoint=jobs.example:8099", "--environment_type=LOOPBACK"]
    )
    assert (engine.place, engine.survives) == (Place.THIS_PROCESS, False)
    image = ["--environment_type=DOCKER", "--environment_config=registry/imagebeam:1"]
    engine = choose_engine(["--runner=portable", "--job_endpoint=jobs.example:8099", *image])
    assert (engine.place, engine.survives) == (Place.ELSEWHERE, True)
    assert "registry/imagebeam:1" in engine.lines[1]


def test_an_unknown_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runners.presets.job_service, "check_endpoint", lambda endpoint: True)
    with pytest.raises(UsageError, match="must be one of LOOPBACK, EXTERNAL, PROCESS, DOCKER"):
        choose_engine(["--runner=portable", "--job_endpoint=h:1", "--environment_type=SIDECAR"])
    with pytest.raises(UsageError, match="needs the address of a worker pool"):
        choose_engine(["--runner=portable", "--job_endpoint=h:1", "--environment_type=EXTERNAL"])


# ---------------------------------------------------------------- flink


def _flink(*options: str) -> runners.Engine:
    return choose_engine(["--runner=flink", *options])


def test_flink_takes_version_and_parallelism_from_the_cluster(jar: str, java: str) -> None:
    with web_server(flink_pages("1.20.1", slots=6, free=5)) as master:
        engine = _flink(
            f"--flink_master={master}",
            f"--flink_job_server_jar={jar}",
            "--environment_type=LOOPBACK",
            java,
        )
    options = engine.options.view_as(FlinkRunnerOptions)
    assert (options.flink_version, options.parallelism) == ("1.20", 6)
    assert "Flink 1.20.1" in engine.lines[0]
    assert "5 of 6 slots free" in engine.lines[0]
    assert engine.status == f"http://{master}"
    everything = engine.options.get_all_options(retain_unknown_options=True)
    # Options that only the job server knows.
    assert everything["number_of_execution_retries"] == "10"
    assert everything["execution_retry_delay"] == "3000"
    assert everything["execution_mode_for_batch"] == "BATCH_FORCED"
    assert everything["environment_cache_millis"] in (60_000, "60000")
    assert engine.make_runner() == "FlinkRunner"


def test_flink_2_needs_no_batch_mode(jar: str, java: str) -> None:
    with web_server(flink_pages("2.2.1")) as master:
        engine = _flink(
            f"--flink_master=http://{master}/",
            f"--flink_job_server_jar={jar}",
            "--environment_type=LOOPBACK",
            "--parallelism=2",
            "--number_of_execution_retries=0",
            java,
        )
    everything = engine.options.get_all_options(retain_unknown_options=True)
    assert "execution_mode_for_batch" not in everything
    assert everything["number_of_execution_retries"] == "0"
    assert everything["parallelism"] == 2
    assert everything["flink_version"] == "2.2"


def test_wrong_flink_version(jar: str, java: str) -> None:
    with web_server(flink_pages("1.20.1")) as master:
        with pytest.raises(UsageError, match=r"--flink_version is 2\.2.*runs Flink 1\.20\.1"):
            _flink(f"--flink_master={master}", "--flink_version=2.2", java)
    with web_server(flink_pages("1.16.0")) as master:
        with pytest.raises(ConversionError, match=r"runs Flink 1\.16\.0; Beam has runners for"):
            _flink(f"--flink_master={master}", java)


def test_flink_cluster_that_is_not_there() -> None:
    master = f"127.0.0.1:{engines.free_port()}"
    with pytest.raises(ConversionError, match=r"no Flink cluster.*REST API"):
        _flink(f"--flink_master={master}")
    with web_server({"/": {}}) as other:
        with pytest.raises(ConversionError, match="not as Flink's REST API does"):
            _flink(f"--flink_master={other}")


def test_flink_without_a_job_server(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, java: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv(flink.JAR_VARIABLE, raising=False)
    with web_server(flink_pages()) as master:
        with pytest.raises(UsageError, match=r"/no\.jar is no file"):
            _flink(f"--flink_master={master}", "--flink_job_server_jar=/no.jar", java)
        with pytest.raises(UsageError, match=r"needs Java, but '/no/java' is not found"):
            _flink(f"--flink_master={master}", "--job_server_java_launcher=/no/java")
        monkeypatch.setattr(network, "why_no_download", lambda host: "no network")
        with pytest.raises(UsageError, match=f"no network; .*{flink.JAR_VARIABLE}"):
            _flink(f"--flink_master={master}", java)


def test_flink_jar_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, jar: str, java: str
) -> None:
    monkeypatch.setenv(flink.JAR_VARIABLE, jar)
    with web_server(flink_pages()) as master:
        engine = _flink(f"--flink_master={master}", "--environment_type=LOOPBACK", java)
    assert engine.options.view_as(FlinkRunnerOptions).flink_job_server_jar == jar


def test_flink_workers_must_be_named(jar: str, java: str) -> None:
    with web_server(flink_pages()) as master:
        with pytest.raises(UsageError, match="--environment_type EXTERNAL"):
            _flink(f"--flink_master={master}", f"--flink_job_server_jar={jar}", java)


def test_flink_pool_that_only_the_cluster_knows(jar: str, java: str) -> None:
    """Sidecars go by a name that every TaskManager resolves to its own."""
    with web_server(flink_pages()) as master:
        engine = _flink(
            f"--flink_master={master}",
            f"--flink_job_server_jar={jar}",
            "--environment_type=EXTERNAL",
            "--environment_config=pool-of-this-taskmanager.invalid:50000",
            java,
        )
    assert (engine.place, engine.survives) == (Place.ELSEWHERE, True)
    assert "not checked from here" in engine.lines[-1]


def test_flink_behind_a_forwarded_port(jar: str, java: str) -> None:
    """REST API and pool go by localhost, but on the cluster's side."""
    pages = {**flink_pages(), "/taskmanagers": {"taskmanagers": [{"id": "10.1.0.7:6122-a1b2"}]}}
    pool = f"localhost:{engines.free_port()}"
    given = [f"--flink_job_server_jar={jar}", java, "--environment_type=EXTERNAL"]
    with web_server(pages) as master:
        given += [f"--flink_master={master}", f"--environment_config={pool}"]
        engine = _flink(*given)
        assert engine.place is Place.ELSEWHERE
        assert "not checked from here" in engine.lines[-1]
        pages["/taskmanagers"] = {"taskmanagers": [{"id": "127.0.0.1:6122-a1b2"}]}
        with pytest.raises(ConversionError, match="no worker pool: nothing listens"):
            _flink(*given)


def test_flink_embedded_works_in_this_process(jar: str, java: str) -> None:
    engine = _flink(f"--flink_job_server_jar={jar}", java)
    assert (engine.place, engine.survives) == (Place.THIS_PROCESS, False)
    assert engine.options.view_as(PortableOptions).environment_type == "LOOPBACK"


def test_flink_job_states() -> None:
    jobs = {"jobs": [{"jid": "abc", "name": "faces", "state": "RUNNING"}]}
    with web_server({**flink_pages(), "/jobs/overview": jobs}) as master:
        assert flink.job_state(master, "abc") == "RUNNING"
        assert flink.job_state(master, "faces") == "RUNNING"
        assert flink.job_state(master, "other") is None


# ---------------------------------------------------------------- spark


def test_spark(jar: str, java: str) -> None:
    port = engines.free_port()
    with pytest.raises(ConversionError, match="no Spark master"):
        choose_engine(["--runner=spark", f"--spark_master_url=spark://127.0.0.1:{port}", java])
    with pytest.raises(UsageError, match="must be spark://HOST:PORT"):
        choose_engine(["--runner=spark", "--spark_master_url=127.0.0.1:7077", java])
    with silent_port() as address:
        options = [f"--spark_master_url=spark://{address}", f"--spark_job_server_jar={jar}", java]
        with pytest.raises(UsageError, match="--environment_type EXTERNAL"):
            choose_engine(["--runner=spark", *options])
    engine = choose_engine(["--runner=SparkRunner", f"--spark_job_server_jar={jar}", java])
    assert (engine.runner, engine.place) == ("SparkRunner", Place.THIS_PROCESS)
    assert any("untested on a cluster" in line for line in engine.lines)
