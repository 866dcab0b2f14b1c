"""From --runner and Beam's options to an engine that has been checked."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence

from apache_beam.options.pipeline_options import PipelineOptions

from beam_pipeline.errors import UsageError
from beam_pipeline.runners import dataflow, environment, flink, job_service, prism, spark
from beam_pipeline.runners.engine import Engine, Place, uses_worker_processes
from beam_pipeline.runners.flags import Flags


def _direct(flags: Flags, name: str) -> Engine:
    """The local engine of this process."""
    flags.refuse_unknown()
    options = flags.options()
    processes = uses_worker_processes(options)
    return Engine(
        name="direct",
        runner="FnApiRunner",
        options=options,
        place=Place.THIS_MACHINE if processes else Place.THIS_PROCESS,
        lines=("engine: local, with Beam's own worker processes",) if processes else (),
    )


def _portable(flags: Flags, name: str) -> Engine:
    """Any engine behind a job server that runs already."""
    endpoint = flags.get("job_endpoint")
    if not endpoint:
        raise UsageError(
            "--runner portable needs --job_endpoint HOST:PORT of a job server. Beam's own for "
            "this machine: python -m apache_beam.runners.portability.local_job_service_main -p 8099"
        )
    here = job_service.check_endpoint(endpoint)
    flags.default("job_server_timeout", job_service.JOB_SECONDS)
    if here and environment.environment_type(flags) is None:
        flags.default("environment_type", "LOOPBACK")
    if environment.environment_type(flags) is None:
        raise environment.needs_environment(
            "portable", "an engine on another machine starts Beam's own image, without imagebeam"
        )
    place = environment.place_of_workers(flags, engine_here=here)
    lines = [f"engine: behind the job server at {endpoint}"]
    lines += environment.check_workers(flags, engine_here=here)
    return Engine(
        name="portable",
        runner="PortableRunner",
        options=flags.options(),
        place=place,
        survives=endpoint != "embed" and place is not Place.THIS_PROCESS,
        lines=tuple(lines),
    )


_Preset = Callable[[Flags, str], Engine]

# Name → (Beam's runner, preset). Beam's own names lead to the same presets.
PRESETS: dict[str, tuple[str, _Preset]] = {
    "direct": ("DirectRunner", _direct),
    "prism": ("PrismRunner", prism.preset),
    "flink": ("FlinkRunner", flink.preset),
    "dataflow": ("DataflowRunner", dataflow.preset),
    "spark": ("SparkRunner", spark.preset),
    "portable": ("PortableRunner", _portable),
}
_ALIASES = {"fnapi": "direct", "switchingdirect": "direct"}

# Runners that would lose or repeat work, or that are no runners for a conversion.
REFUSED = {
    "dask": "it runs the steps that prepare and finish an output many times over, leaves "
    "temporary folders behind and has no counters",
    "interactive": "it keeps every intermediate result for notebooks",
    "bundlebaseddirect": "it is Beam's old engine and tries every bundle that fails four times; use "
    "direct",
    "pythonrpcdirect": "it is an experiment that Beam no longer maintains; use direct",
    "kafkastreams": "Beam calls it experimental, and it is part of no release",
    "testdirect": "it is for Beam's own tests; use direct",
    "testdataflow": "it is for Beam's own tests; use dataflow",
    "render": "it draws the pipeline instead of running it",
}


def choose_engine(beam_options: Sequence[str] | PipelineOptions, name: str = "images") -> Engine:
    """Finds the engine that Beam's options ask for, completes them and checks what it needs.

    Args:
      beam_options: as on the command line, or as an object; --runner is a preset's name,
        one of Beam's runner names, or the dotted name of a class.
      name: of the dataset, for engines whose jobs have names.

    Returns:
      The engine; nothing has been started.

    Raises:
      UsageError: the runner is unknown or refused, or an option is missing or wrong.
      ConversionError: a server or worker pool that the job needs is not there.
    """
    flags = Flags(beam_options)
    given = str(flags.get("runner") or "direct")
    short = given.lower().rsplit(".", 1)[-1].removesuffix("runner")
    short = _ALIASES.get(short, short)
    if short in REFUSED:
        raise UsageError(f"--runner {given} is refused: {REFUSED[short]}")
    if flags.get("streaming"):
        raise UsageError("--streaming: a conversion has an end; leave the option out")
    if short in PRESETS and ("." not in given or given.startswith("apache_beam.runners.")):
        runner, preset = PRESETS[short]
        if given != runner:
            flags.replace("runner", runner)
        return preset(flags, name)
    if "." in given:
        return Engine(
            name=given,
            runner=given,
            options=flags.options(),
            place=Place.ELSEWHERE,
            lines=(f"engine: {given}, which imagebeam does not know: no checks, no defaults",),
        )
    close = difflib.get_close_matches(short, PRESETS, n=1)
    raise UsageError(
        f"--runner {given!r} is unknown"
        + (f"; did you mean {close[0]}?" if close else "")
        + f" Choose from {', '.join(PRESETS)}, one of Beam's runner names, or a dotted class name"
    )
