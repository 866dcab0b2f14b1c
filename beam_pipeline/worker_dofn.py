"""What every step has that reads or writes in a worker, wherever that runs."""

from __future__ import annotations

import apache_beam as beam

from beam_pipeline import storage
from beam_pipeline.worker_check import WorkerCheck


class WorkerDoFn(beam.DoFn):
    """A step that reaches stores with credentials that travel with it.

    Args:
      config: how workers reach object stores.
      check: what workers in other processes prove before they work, or None.
    """

    def __init__(self, config: storage.StorageConfig, check: WorkerCheck | None):
        self._config = config
        self._check = check

    def setup(self) -> None:
        """Prepares the worker."""
        storage.configure(self._config)
        if self._check is not None:
            self._check.check()
