"""Which engine runs a pipeline: presets, checks before the start, and the pinned local engine."""

from beam_pipeline.runners.engine import (
    Engine,
    Place,
    available_cores,
    describe,
    is_local,
    make_runner,
    uses_worker_processes,
)

__all__ = [
    "Engine",
    "Place",
    "available_cores",
    "describe",
    "is_local",
    "make_runner",
    "uses_worker_processes",
]
