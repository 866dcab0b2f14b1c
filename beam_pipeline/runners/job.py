"""A submitted job: how far it is, how it ends, and how it is given up."""

from __future__ import annotations

import contextlib
import time
from typing import Any, NamedTuple

from apache_beam.metrics.metric import MetricsFilter
from apache_beam.portability.api import beam_job_api_pb2
from apache_beam.runners.runner import PipelineState

from beam_pipeline.errors import ConversionError
from beam_pipeline.progress import Progress, duration
from beam_pipeline.runners.engine import Engine
from beam_pipeline.runners.silence import SilenceWatch

NAMESPACE = "imagebeam"
_CANCEL_SECONDS = 60.0
_DIED = "a worker process died; was it killed, for example for lack of memory?"
_LOST = "a TaskManager was lost, and the restarts that the cluster allows did not bring it back"
# Signs in an engine's error → what is behind it.
_MEANINGS = {
    "No module named 'beam_pipeline'": "imagebeam is not installed where the workers run; "
    "install it there, or use a worker image (deploy/Dockerfile)",
    "SDK worker disconnected": _DIED,
    "Channel closed prematurely": _DIED,
    "SDK harness was terminated": _DIED,
    "JobCancellationException": "it was cancelled",
    "failed in state CANCELLED": "it was cancelled",
    "Heartbeat of TaskManager": _LOST,
    "is no longer reachable": _LOST,
    "Insufficient number of network buffers": "the TaskManagers have too few network buffers; "
    "raise taskmanager.memory.network.min and .max, or lower --parallelism",
    "NoResourceAvailableException": "the cluster has too few free slots",
}
_POLL_SECONDS = 3.0  # between two questions for metrics


class Job:
    """A job on an engine.

    Args:
      engine: that runs it.
    """

    def __init__(self, engine: Engine):
        self.engine = engine
        self._result: Any = None
        self._asked = 0.0
        self._known: tuple[Progress, int | None] = (Progress(), None)

    def started(self, result: Any) -> None:
        """Takes what Pipeline.run() returned."""
        self._result = result

    @property
    def id(self) -> str | None:
        """The engine's own name of the job, where it has one."""
        for read in (lambda: self._result.job_id(), lambda: self._result._job_id):
            with contextlib.suppress(Exception):
                return str(read())
        return None

    def progress(self) -> tuple[Progress, int | None]:
        """Inputs with a verdict, bytes, rejects, and the number of inputs once known.

        From Beam's counters: retried work may count twice, so this is for the eye alone.
        """
        if self._result is None or time.monotonic() - self._asked < _POLL_SECONDS:
            return self._known
        self._asked = time.monotonic()
        # A portable result answers with what it was told first, for ever.
        if getattr(self._result, "_metrics", None) is not None:
            self._result._metrics = None
        found = self._result.metrics().query(MetricsFilter().with_namespace(NAMESPACE))
        counts: dict[str, int] = {}
        for counter in found["counters"]:
            value = counter.committed if counter.committed is not None else counter.attempted
            name = counter.key.metric.name
            counts[name] = counts.get(name, 0) + int(value or 0)
        done = Progress(*(counts.get(name, 0) for name in Progress._fields))
        self._known = done, counts.get("planned")
        return self._known

    def wait(self) -> None:
        """Waits for the end of the job.

        Raises:
          ConversionError: it was cancelled, or it was given up because nothing moved in it.
          Exception: whatever the engine raises for a job that failed.
        """
        seconds = self.engine.silence_seconds
        if seconds is None:
            return self._wait()
        with SilenceWatch(self._work, seconds, self.cancel) as watch:
            try:
                return self._wait()
            except Exception as error:
                if not watch.silent:
                    raise
                raise ConversionError(
                    f"nothing moved in job {self.id} on {self.engine.name} for "
                    f"{duration(seconds)}, so it was given up. Most likely a worker is gone "
                    "(killed, for lack of memory?) and the engine has not noticed; see what the "
                    "workers wrote last, and start again. Nothing was kept"
                ) from error

    def _wait(self) -> None:
        state = self._result.wait_until_finish()
        if state is not None and state != PipelineState.DONE:
            raise ConversionError(f"the job on {self.engine.name} ended as {state}")

    def _work(self) -> frozenset[bytes] | None:
        """All that the engine counts and times in a job, or None before the first work."""
        request = beam_job_api_pb2.GetJobMetricsRequest(job_id=self._result._job_id)
        metrics = self._result._job_service.GetJobMetrics(request).metrics
        infos = [*metrics.attempted, *metrics.committed]
        return frozenset(info.SerializeToString(deterministic=True) for info in infos) or None

    def ended(self) -> bool:
        """Whether the engine says that the job is over; False where it cannot be asked."""
        try:
            return PipelineState.is_terminal(self._result.state)
        except Exception:
            return False

    def failure(self, error: Exception) -> ConversionError:
        """What an engine's error means to the user."""
        text = str(error) or repr(error)
        where = f"the job on {self.engine.name} failed"
        for sign, meaning in _MEANINGS.items():
            if sign in text:
                line = next(line.strip() for line in text.splitlines() if sign in line)
                return ConversionError(f"{where}: {meaning} ({line}). Nothing was kept")
        return ConversionError(f"{where}. Nothing was kept. {text.strip()}")

    def cancel(self, seconds: float = _CANCEL_SECONDS) -> bool:
        """Stops the job; returns whether it is over within `seconds`."""
        with contextlib.suppress(Exception):
            self._result.cancel()
        deadline = time.monotonic() + seconds
        while not self.ended():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.5)
        return True


class DetachedJob(NamedTuple):
    """A job that goes on without its launcher.

    Attributes:
      run_id: of the conversion.
      output: its output directory.
      engine: name of the engine.
      job: the engine's own name of the job, or None.
      status: where the engine shows it, or None.
    """

    run_id: str
    output: str
    engine: str
    job: str | None
    status: str | None

    def text(self) -> str:
        """What the user is told."""
        lines = [
            f"started: job {self.job or self.run_id} on {self.engine}; it goes on without this "
            "process",
            f"look at it:  imagebeam status {self.output}",
        ]
        if self.status:
            lines.append(f"        or:  {self.status}")
        lines.append(f"it is done when {self.output} holds _SUCCESS")
        return "\n".join(lines)
