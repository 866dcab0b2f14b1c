"""What an engine is, and the pinned local one."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions, StandardOptions

_SAMPLING_PERIOD_MS = 10
# Options that say "here, in this process".
LOCAL_RUNNERS = frozenset({"", "direct", "directrunner", "fnapirunner", "switchingdirectrunner"})


class Place(enum.Enum):
    """Where the work of a pipeline is done, seen from the launcher."""

    THIS_PROCESS = "in this process"
    THIS_MACHINE = "in other processes of this machine"
    ELSEWHERE = "on other machines or in containers"


@dataclasses.dataclass(frozen=True)
class Engine:
    """A chosen and checked engine.

    Attributes:
      name: of the preset, such as "flink".
      runner: Beam's runner class name.
      options: for Beam, presets included.
      place: where images are decoded.
      survives: the job goes on when this process is gone.
      lines: what it will do, for the user.
      status: where else the job can be looked at (a URL or a command), or None.
      job_name: by which the engine lists the job, or None.
      silence_seconds: after which a job whose metrics all stand still is taken for dead;
        None for engines that notice by themselves that a worker is gone.
    """

    name: str
    runner: str
    options: PipelineOptions
    place: Place = Place.THIS_PROCESS
    survives: bool = False
    lines: tuple[str, ...] = ()
    status: str | None = None
    job_name: str | None = None
    silence_seconds: float | None = None

    def make_runner(self) -> Any:
        """A runner object for the local engine, else the runner's name."""
        return make_runner(self.options)


def is_local(options: PipelineOptions) -> bool:
    """Whether the pipeline runs on this machine's own in-process engine."""
    return (options.view_as(StandardOptions).runner or "").lower() in LOCAL_RUNNERS


def make_runner(options: PipelineOptions) -> Any:
    """The runner for `options`: a runner object for the local engine, else its name.

    Beam's DirectRunner may hand a job to other engines, depending on what it can
    download; the local engine here is always the in-process FnApiRunner.
    """
    if not is_local(options):
        return options.view_as(StandardOptions).runner
    from apache_beam.portability.api import beam_provision_api_pb2
    from apache_beam.runners.portability.fn_api_runner import fn_runner
    from apache_beam.runners.portability.portable_runner import JobServiceHandle

    _sample_states_often()
    encoded = JobServiceHandle.encode_pipeline_options(options.get_all_options())
    return fn_runner.FnApiRunner(
        provision_info=fn_runner.ExtendedProvisionInfo(
            beam_provision_api_pb2.ProvisionInfo(pipeline_options=encoded)
        )
    )


def _sample_states_often() -> None:
    """Shortens the sleep of the thread that samples which step of a stage is running.

    Beam waits for that thread at the end of every stage, and it sleeps for 200 ms.
    """
    from apache_beam.runners.worker import statesampler

    statesampler.StateSampler.__init__.__defaults__ = (_SAMPLING_PERIOD_MS,)


def uses_worker_processes(options: PipelineOptions) -> bool:
    """Whether Beam itself was asked to start several local workers."""
    direct = options.view_as(DirectOptions)
    return direct.direct_running_mode == "multi_processing" or direct.direct_num_workers != 1


def describe(options: PipelineOptions) -> str:
    """The runner's name, as conversion.json records it."""
    return "FnApiRunner" if is_local(options) else str(options.view_as(StandardOptions).runner)
