"""Which engine an option means, and what is refused before anything starts."""

from __future__ import annotations

import pytest
from apache_beam.options.pipeline_options import (
    DirectOptions,
    FlinkRunnerOptions,
    PipelineOptions,
    PortableOptions,
)

from beam_pipeline import runners
from beam_pipeline.errors import UsageError
from beam_pipeline.runners import choose_engine, network
from beam_pipeline.runners.engine import Place
from beam_pipeline.runners.flags import Flags
from tests import engines
from tests.engines import silent_port

# ---------------------------------------------------------------- names


@pytest.mark.parametrize(
    "name",
    [
        None,
        "direct",
        "DirectRunner",
        "directrunner",  # Beam takes any case
        "FnApiRunner",
        "apache_beam.runners.direct.direct_runner.DirectRunner",
    ],
)
def test_the_local_engine_has_several_names(name: str | None) -> None:
    engine = choose_engine([] if name is None else [f"--runner={name}"])
    assert (engine.name, engine.runner, engine.place) == (
        "direct",
        "FnApiRunner",
        Place.THIS_PROCESS,
    )
    assert not engine.survives
    assert type(engine.make_runner()).__name__ == "FnApiRunner"


def test_beam_worker_processes_are_on_this_machine() -> None:
    engine = choose_engine(["--direct_num_workers=2", "--direct_running_mode=multi_processing"])
    assert engine.place is Place.THIS_MACHINE
    assert engine.options.view_as(DirectOptions).direct_num_workers == 2


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("DaskRunner", "many times over"),
        ("apache_beam.runners.dask.dask_runner.DaskRunner", "many times over"),
        ("dask", "many times over"),
        ("InteractiveRunner", "notebooks"),
        ("BundleBasedDirectRunner", "four times"),
        ("KafkaStreamsRunner", "experimental"),
        ("TestDataflowRunner", "own tests"),
    ],
)
def test_runners_that_repeat_work_are_refused(name: str, reason: str) -> None:
    with pytest.raises(UsageError, match=rf"--runner {name} is refused: .*{reason}"):
        choose_engine([f"--runner={name}"])


def test_an_unknown_runner_is_told_with_the_choices() -> None:
    with pytest.raises(UsageError, match=r"did you mean flink\? Choose from direct, prism, flink"):
        choose_engine(["--runner=flinq"])


def test_a_class_of_the_users_own_gets_no_preset() -> None:
    engine = choose_engine(["--runner=mine.engine.MyRunner"])
    assert (engine.runner, engine.place) == ("mine.engine.MyRunner", Place.ELSEWHERE)
    assert "no checks" in engine.lines[0]


def test_streaming_is_refused() -> None:
    with pytest.raises(UsageError, match="--streaming"):
        choose_engine(["--streaming"])


# ---------------------------------------------------------------- options


def test_what_the_user_gives_wins_over_a_preset() -> None:
    flags = Flags(["--parallelism=3", "--environment-cache-millis", "5", "--machine_type=n2"])
    assert not flags.default("parallelism", 8)
    assert not flags.default("environment_cache_millis", 60_000)
    # Given under one of its names, known under the other.
    assert not flags.default("machine_type", "e2")
    assert flags.default("disk_size_gb", 50)
    assert flags.get("parallelism") == 3
    assert flags.get("disk_size_gb") == 50


def test_an_option_given_as_its_own_default_still_wins() -> None:
    flags = Flags(["--parallelism=-1"])
    assert not flags.default("parallelism", 8)
    assert flags.get("parallelism") == -1


def test_options_as_an_object() -> None:
    given = PipelineOptions(["--parallelism=3"], environment_type="LOOPBACK")
    flags = Flags(given)
    assert not flags.default("environment_type", "DOCKER")
    assert flags.default("job_server_timeout", 9)
    options = flags.options()
    assert options.view_as(FlinkRunnerOptions).parallelism == 3
    assert options.view_as(PortableOptions).environment_type == "LOOPBACK"
    assert options.view_as(PortableOptions).job_server_timeout == 9


@pytest.mark.parametrize(
    ("option", "suggestion"),
    [
        ("--direct_num_worker=2", "--direct_num_workers"),  # Beam's
        ("--num_shard=4", "--num_shards"),  # ours
        ("--wrokers=2", "--workers"),
    ],
)
def test_a_misspelt_option_is_refused(option: str, suggestion: str) -> None:
    """Beam drops what it does not know with a warning, and the run goes on without it."""
    with pytest.raises(
        UsageError, match=f"neither imagebeam nor Apache Beam; did you mean {suggestion}"
    ):
        choose_engine([option])


def test_a_value_that_beam_refuses_is_a_usage_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match=r"Apache Beam refuses an option.*--flink_version.*1\.5"):
        choose_engine(["--runner=flink", "--flink_version=1.5"])
    assert capfd.readouterr().err == ""


# ---------------------------------------------------------------- addresses


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("localhost:8081", ("localhost", 8081)),
        ("http://jobs.example:8081/", ("jobs.example", 8081)),
        ("https://jobs.example", ("jobs.example", 443)),
        ("[::1]:50000", ("::1", 50000)),
    ],
)
def test_addresses(text: str, expected: tuple[str, int]) -> None:
    assert network.split_address(text, 443) == expected


@pytest.mark.parametrize("text", ["localhost", "", "::1:5", "host:port"])
def test_bad_addresses(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        network.split_address(text)


def test_why_unreachable_tells_the_cases_apart() -> None:
    assert "refused" in str(network.why_unreachable("127.0.0.1", engines.free_port()))
    assert "cannot resolve" in str(network.why_unreachable("no-such-host.invalid", 80))
    with silent_port() as address:
        assert network.why_unreachable(*network.split_address(address)) is None


@pytest.mark.parametrize(
    ("host", "here"),
    [("127.0.0.3", True), ("localhost", True), ("::1", True), ("192.0.2.1", False)],
)
def test_is_this_machine(host: str, here: bool) -> None:
    assert network.is_this_machine(host) is here


# ---------------------------------------------------------------- paths


def _elsewhere(name: str = "flink") -> runners.Engine:
    return runners.Engine(name, "FlinkRunner", PipelineOptions([]), place=Place.ELSEWHERE)


def test_local_paths_and_workers_elsewhere() -> None:
    def check(engine: runners.Engine, source: str, output: str, shared: bool = False) -> None:
        runners.refuse_local_paths(engine, inputs=[source], output=output, shared_filesystem=shared)

    with pytest.raises(
        UsageError, match=r"--output /data/out .*nobody finds it.*--shared_filesystem"
    ):
        check(_elsewhere(), "gs://b/in", "/data/out")
    with pytest.raises(UsageError, match=r"--input photos .*would not find it"):
        check(_elsewhere(), "photos", "s3://b/out")
    check(_elsewhere(), "photos", "/data/out", shared=True)
    check(_elsewhere(), "gs://b/in", "s3://b/out")
    with pytest.raises(UsageError, match="Dataflow's workers share no file system"):
        check(_elsewhere("dataflow"), "gs://b/in", "/data/out", shared=True)
    here = runners.Engine("direct", "FnApiRunner", PipelineOptions([]))
    check(here, "photos", "/data/out")
