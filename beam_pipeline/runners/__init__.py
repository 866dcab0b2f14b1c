"""Which engine runs a pipeline: presets, checks before the start, and the pinned local engine.

flags        Beam's options with our defaults under them
presets      --runner → a checked Engine
prism, flink, spark, dataflow    one preset each
environment, pool_probe          where workers are, and whether they are fit
job_service, network             is somebody there?
paths        local paths and workers elsewhere
job          a submitted job: progress, end, cancel
engine       what an engine is; the local one
"""

from beam_pipeline.runners.engine import (
    Engine,
    Place,
    describe,
    is_local,
    make_runner,
    uses_worker_processes,
)
from beam_pipeline.runners.job import DetachedJob, Job
from beam_pipeline.runners.paths import refuse_local_paths
from beam_pipeline.runners.presets import PRESETS, choose_engine

__all__ = [
    "PRESETS",
    "DetachedJob",
    "Engine",
    "Job",
    "Place",
    "choose_engine",
    "describe",
    "is_local",
    "make_runner",
    "refuse_local_paths",
    "uses_worker_processes",
]
