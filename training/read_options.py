"""ReadOptions: caching, threads and memory of reading; it decides how, never what is read."""

from __future__ import annotations

import dataclasses

from beam_pipeline.errors import UsageError

CACHES = ("auto", "none", "memory", "file")


@dataclasses.dataclass(frozen=True)
class ReadOptions:
    """How a split is read; none of it changes which examples an epoch has.

    Attributes:
      cache: "none" decodes anew in every epoch; "memory" and "file" keep the decoded
        uint8 images (with random crops "memory" keeps the encoded records); "auto" is
        "memory" for splits of up to 256 MiB decoded, else "none".
      cache_dir: folder of the "file" cache; it is used again by later runs.
      deterministic: the same order on every run; False lets faster shards go ahead.
      threads: decoding calls at the same time, in a thread pool of this reader's own;
        None: one per core, in TensorFlow's common pool.
      ram_budget: bytes that buffers, batches in flight and caches may take; None: the
        shuffle buffer is at most 256 MiB, and caches are not bounded.
      shuffle_records: records in the shuffle buffer; None: as many as fit. Where it can hold
        the whole split, training keeps the encoded images in memory instead.
      prefetch: finished batches kept ready.
    """

    cache: str = "auto"
    cache_dir: str | None = None
    deterministic: bool = True
    threads: int | None = None
    ram_budget: int | None = None
    shuffle_records: int | None = None
    prefetch: int = 2

    def __post_init__(self) -> None:
        if self.cache not in CACHES:
            raise UsageError(f"cache must be one of {', '.join(CACHES)}, got {self.cache!r}")
        if self.cache == "file" and not self.cache_dir:
            raise UsageError("cache 'file' needs a folder: give --cache_dir")
        for name, least in (("threads", 1), ("ram_budget", 1 << 20), ("shuffle_records", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UsageError(f"{name} must be at least {least}, got {value}")
        if self.prefetch < 0:
            raise UsageError(f"prefetch must be 0 or more batches, got {self.prefetch}")
