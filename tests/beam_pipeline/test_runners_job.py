"""A submitted job: progress from counters, how it ends, how it is given up."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from apache_beam.metrics.execution import MetricKey
from apache_beam.metrics.metricbase import MetricName
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import metrics_pb2
from apache_beam.runners.runner import PipelineState

from beam_pipeline.errors import ConversionError
from beam_pipeline.progress import Progress
from beam_pipeline.runners import DetachedJob, Engine, Job
from beam_pipeline.runners import job as job_module


class FakeResult:
    """What Pipeline.run() gives, as portable runners do: it remembers its first answer."""

    def __init__(self, counts: dict[str, int], state: str = PipelineState.RUNNING):
        self.counts = counts
        self.state = state
        self.cancelled = False
        self._job_id = "job-7"
        self._metrics: Any = None

    def metrics(self) -> Any:
        if self._metrics is None:
            counters = [
                SimpleNamespace(
                    key=MetricKey(step, MetricName("imagebeam", name)),
                    committed=None,
                    attempted=value,
                )
                for step, (name, value) in enumerate(self.counts.items())
            ]
            self._metrics = SimpleNamespace(query=lambda filter: {"counters": counters})
        return self._metrics

    def wait_until_finish(self) -> str:
        return self.state

    def cancel(self) -> None:
        self.cancelled = True
        self.state = PipelineState.CANCELLED


def _job(result: Any) -> Job:
    job = Job(Engine("flink", "FlinkRunner", PipelineOptions([])))
    job.started(result)
    return job


def test_progress_is_asked_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_module, "_POLL_SECONDS", 0.0)
    result = FakeResult({"images": 5, "bytes": 100, "compared": 7, "planned": 50})
    job = _job(result)
    assert job.progress() == (Progress(5, 100, 0, 7), 50)
    result.counts = {"images": 9, "bytes": 200, "rejected": 1, "planned": 50}
    assert job.progress() == (Progress(9, 200, 1), 50)
    assert job.id == "job-7"


def test_progress_before_the_start() -> None:
    assert Job(Engine("flink", "FlinkRunner", PipelineOptions([]))).progress() == (Progress(), None)


def test_a_job_that_ends_otherwise_than_done() -> None:
    _job(FakeResult({}, PipelineState.DONE)).wait()
    with pytest.raises(ConversionError, match="the job on flink ended as CANCELLED"):
        _job(FakeResult({}, PipelineState.CANCELLED)).wait()


class SilentResult(FakeResult):
    """A job that answers, waits for its end, and holds what a worker has counted."""

    def __init__(self, answers: Iterable[bytes]):
        super().__init__({})
        self.asked = 0
        self._answers = iter(answers)
        self._ended = threading.Event()
        self._job_service = self

    def GetJobMetrics(self, request: Any) -> Any:
        assert request.job_id == self._job_id
        self.asked += 1
        payload = next(self._answers)
        infos = [metrics_pb2.MonitoringInfo(urn="work", payload=payload)] if payload else []
        return SimpleNamespace(metrics=SimpleNamespace(attempted=infos, committed=[]))

    def wait_until_finish(self) -> str:
        assert self._ended.wait(30)
        raise RuntimeError(f"Pipeline failed in state {self.state}")

    def cancel(self) -> None:
        super().cancel()
        self._ended.set()


def _watched(result: Any) -> Job:
    job = Job(Engine("prism", "PrismRunner", PipelineOptions([]), silence_seconds=0.1))
    job.started(result)
    return job


def test_a_job_in_which_nothing_moves_is_given_up() -> None:
    # It has no work at first, moves, and then stands still.
    moving = [b"", b"", *(bytes([1 + number]) for number in range(30))]
    result = SilentResult(itertools.chain(moving, itertools.repeat(b"\x2a")))
    with pytest.raises(ConversionError, match="nothing moved in job job-7 on prism") as caught:
        _watched(result).wait()
    assert result.cancelled
    assert result.asked > len(moving) + 20
    assert "Nothing was kept" in str(caught.value)


@pytest.mark.parametrize("kind", ["moves", "has no work yet", "cannot be asked"])
def test_a_job_that_is_alive_or_unknown_is_not_given_up(kind: str) -> None:
    answers: Iterable[bytes] = {
        "moves": (str(number).encode() for number in itertools.count()),
        "has no work yet": itertools.repeat(b""),
        "cannot be asked": (),  # next() of it raises
    }[kind]
    result = SilentResult(answers)
    threading.Timer(0.5, result._ended.set).start()
    with pytest.raises(RuntimeError, match="failed in state RUNNING"):
        _watched(result).wait()
    assert not result.cancelled
    assert result.asked > 40


def test_engines_that_notice_a_lost_worker_are_not_watched() -> None:
    result = SilentResult(())
    job = _job(result)
    result._ended.set()
    with pytest.raises(RuntimeError):
        job.wait()
    assert result.asked == 0


def test_cancel_waits_for_the_end() -> None:
    result = FakeResult({})
    job = _job(result)
    assert not job.ended()
    assert job.cancel(seconds=5)
    assert result.cancelled
    stubborn = FakeResult({})
    stubborn.cancel = lambda: None  # type: ignore[method-assign]
    assert not _job(stubborn).cancel(seconds=0)


def test_an_engine_that_cannot_be_asked_has_not_ended() -> None:
    class Gone:
        @property
        def state(self) -> str:
            raise ConnectionError("the job server is gone")

    assert not _job(Gone()).ended()


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("ModuleNotFoundError: No module named 'beam_pipeline'", "imagebeam is not installed"),
        ("bundle inst012 failed:SDK worker disconnected: worker[x]", "a worker process died"),
        ("Heartbeat of TaskManager with id 1 timed out.", "a TaskManager was lost"),
        ("IOException: Insufficient number of network buffers: required 9", "network.min"),
        ("client.JobCancellationException: Job was cancelled.", "it was cancelled"),
        ("something else entirely", "something else entirely"),
    ],
)
def test_what_an_engine_says_is_explained(text: str, meaning: str) -> None:
    error = _job(FakeResult({})).failure(RuntimeError(f"Pipeline failed:\n  {text}\n  at java"))
    assert str(error).startswith("the job on flink failed")
    assert meaning in str(error)
    assert text in str(error)


def test_a_detached_job_says_how_to_look_at_it() -> None:
    text = DetachedJob("r1", "gs://b/out", "flink", "job-7", "http://cluster:8081").text()
    assert "job job-7 on flink" in text
    assert "imagebeam status gs://b/out" in text
    assert "http://cluster:8081" in text
