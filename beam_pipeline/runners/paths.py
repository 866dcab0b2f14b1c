"""Paths that only this machine knows, and workers that are elsewhere."""

from __future__ import annotations

from collections.abc import Iterable

from beam_pipeline import storage
from beam_pipeline.errors import UsageError
from beam_pipeline.runners.engine import Engine, Place


def refuse_local_paths(
    engine: Engine, *, inputs: Iterable[str], output: str, shared_filesystem: bool
) -> None:
    """Raises UsageError where workers on other machines would look for, or lose, local files.

    Args:
      engine: that runs the job.
      inputs: folders, globs, files.
      output: the output directory.
      shared_filesystem: the user states that all machines share these paths.
    """
    if engine.place is not Place.ELSEWHERE:
        return
    named = [("--output", output), *(("--input", uri) for uri in inputs)]
    local = [(option, uri) for option, uri in named if storage.is_local(uri)]
    if not local:
        return
    option, uri = local[0]
    loss = (
        "they would write it to disks of their own, where nobody finds it"
        if option == "--output"
        else "they would not find it there"
    )
    start = (
        f"{option} {uri} is a path of this machine, but --runner {engine.name} works "
        f"{engine.place.value}: {loss}. Use an object store (gs://, s3://)"
    )
    if engine.name == "dataflow":
        raise UsageError(f"{start}; Dataflow's workers share no file system with this machine")
    if not shared_filesystem:
        raise UsageError(
            f"{start}, or, where every machine has the same file system under this path, say so "
            "with --shared_filesystem; every worker then proves that it sees it"
        )
