"""Writes TFRecords by shard: Beam's own sink and naming, our choice of what goes where.

Beam's WriteToTFRecord deals records round robin to shards and lets every one of them
cross a shuffle. WriteShardsToTFRecord, a subclass, is given references that are grouped
by shard already; a worker reads, checks and serializes the images of one shard in the
shard's order and writes its file. What is written where is then a function of the
references alone, and pixels never leave the worker.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from typing import Any

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import MIN_TIMESTAMP
from apache_beam.utils.windowed_value import WindowedValue

from beam_pipeline import records, storage, worker_pool
from beam_pipeline.hashing import order_hashes
from beam_pipeline.index import IndexBuilder
from beam_pipeline.options import Compression, ConvertOptions
from beam_pipeline.plan import ConversionPlan
from beam_pipeline.progress import ProgressReporter
from beam_pipeline.records import Chunk, RecordMaker
from beam_pipeline.references import RefBatch
from beam_pipeline.shard_sink import BEAM_COMPRESSION, sink_for_split
from beam_pipeline.types import ImageRef, RejectedImage
from beam_pipeline.worker_check import WorkerCheck
from beam_pipeline.worker_dofn import WorkerDoFn

# Rejects whose text travels with a shard's result for the summary; all are in the file.
_REJECTS_SHOWN = 3
_SHARDS_AT_ONCE = 2


@dataclasses.dataclass(frozen=True)
class ShardResult:
    """What became of one shard; small, and the only thing that goes to the finalize step.

    Attributes:
      split, number: the planned shard.
      path: staged shard file, or None where no image was accepted.
      records, bytes, sha256: of the staged file.
      index_path, rejected_path: staged index (Parquet) and rejects (JSON lines, or None).
      counts: "outcomes", "reasons", "classes", "formats", "notes", "warnings" → value →
        how often.
      channels: channel count → images.
      sizes: distinct (height, width), at most two of them.
      shown: the first rejects of each reason.
      input_bytes: bytes read.
    """

    split: str
    number: int
    path: str | None
    records: int
    bytes: int
    sha256: str
    index_path: str
    rejected_path: str | None
    counts: dict[str, dict[str, int]]
    channels: dict[int, int]
    sizes: list[tuple[int, int]]
    shown: list[RejectedImage]
    input_bytes: int


class WriteShardsToTFRecord(beam.io.WriteToTFRecord):
    """Writes references that are grouped by shard as TFRecord files in a staging directory.

    Input: ((split, shard number), Iterable[RefBatch]).
    Output: ShardResult, one per shard that has any reference.

    The files are renamed by finalize_shards once all shards are written.
    """

    def __init__(
        self,
        options: ConvertOptions,
        staging: str,
        plan: beam.pvalue.AsSingleton,
        reporter: ProgressReporter,
        config: storage.StorageConfig,
        check: WorkerCheck | None = None,
    ):
        """Prepares the transform.

        Args:
          options: of the conversion; output.name must be set.
          staging: directory for files that are not final yet.
          plan: side input, the ConversionPlan.
          reporter: is told what is done.
          config: how workers reach object stores.
          check: what workers in other processes prove before they work, or None.
        """
        super().__init__(
            file_path_prefix="unset",  # differs by split, see sink_for_split
            num_shards=0,
            compression_type=BEAM_COMPRESSION[options.output.compression],
        )
        self._options = options
        self._staging = staging
        self._plan = plan
        self._reporter = reporter
        self._config = config
        self._check = check

    def expand(self, grouped: beam.PCollection) -> beam.PCollection:
        """Applies the writer to grouped references."""
        return grouped | "WriteShards" >> beam.ParDo(
            _WriteShardDoFn(
                self._options, self._staging, self._reporter, self._config, self._check
            ),
            self._plan,
        ).with_output_types(ShardResult)


class _WriteShardDoFn(WorkerDoFn):
    """((split, number), Iterable[RefBatch]) → ShardResult.

    Beside a worker pool two shards are under way at a time, so that the workers have
    something to do while one shard is finished and the next one begins.
    """

    def __init__(
        self,
        options: ConvertOptions,
        staging: str,
        reporter: ProgressReporter,
        config: storage.StorageConfig,
        check: WorkerCheck | None,
    ):
        super().__init__(config, check)
        self._options = options
        self._staging = staging
        self._progress = reporter
        self._maker: tuple[ConversionPlan, RecordMaker] | None = None
        self._under_way: collections.deque[Future[ShardResult]] = collections.deque()
        self._images = beam.metrics.Metrics.counter("imagebeam", "images")
        self._bytes = beam.metrics.Metrics.counter("imagebeam", "bytes")
        self._rejected = beam.metrics.Metrics.counter("imagebeam", "rejected")

    def process(
        self, element: tuple[tuple[str, int], Iterable[RefBatch]], plan: ConversionPlan
    ) -> Iterator[ShardResult]:
        """Writes one shard, or yields an earlier one's result once two others are under way."""
        (split, number), batches = element
        maker = self._maker_for(plan)
        pool = worker_pool.current()
        if pool is None:
            chunks = self._chunks(batches)
            yield self._counted(self._write(split, number, map(maker.make_chunk, chunks)))
            return
        if len(self._under_way) >= _SHARDS_AT_ONCE:
            yield self._counted(self._under_way.popleft().result())
        # Still encoded; as a list, since what Beam gives is for its own thread only.
        batches = list(batches)
        self._under_way.append(pool.start(self._write_with, pool, maker, split, number, batches))

    def finish_bundle(self) -> Iterator[WindowedValue]:
        """Yields the results of the shards that are still under way."""
        while self._under_way:
            result = self._counted(self._under_way.popleft().result())
            yield WindowedValue(result, MIN_TIMESTAMP, [GlobalWindow()])

    def _write_with(
        self,
        pool: worker_pool.WorkerPool,
        maker: RecordMaker,
        split: str,
        number: int,
        batches: list[RefBatch],
    ) -> ShardResult:
        with contextlib.closing(pool.map_ordered(maker, self._chunks(batches))) as results:
            return self._write(split, number, results)

    def _chunks(self, batches: Iterable[RefBatch]) -> Iterator[list[ImageRef]]:
        refs = sorted_refs(batches, self._options.output.seed)
        return records.chunks(refs, self._options.image)

    def _maker_for(self, plan: ConversionPlan) -> RecordMaker:
        # The same object for every shard: a worker process is told of it only once.
        if self._maker is None or self._maker[0] is not plan:
            specs = records.make_specs(self._options, plan)
            maker = RecordMaker(self._options.image, specs, plan.labels, self._config)
            self._maker = (plan, maker)
        return self._maker[1]

    def _write(self, split: str, number: int, chunks: Iterable[Chunk]) -> ShardResult:
        sink = sink_for_split(self._options, split)
        directory = storage.join(self._staging, "shards", split)
        storage.make_directory(directory)
        attempt = f"{number:05d}-{uuid.uuid4()}"
        writer: Any = None
        # Streams to object stores and compressing ones want bytes, files take any buffer.
        plain = self._options.output.compression is Compression.NONE
        takes_buffers = plain and storage.is_local(directory)
        index = IndexBuilder(split, number)
        counts: dict[str, Counter[str]] = {}
        reasons: Counter[str] = Counter()
        channels: Counter[int] = Counter()
        sizes: set[tuple[int, int]] = set()
        shown: list[RejectedImage] = []
        rejected_lines: list[str] = []
        input_bytes = 0
        for chunk in chunks:
            if chunk.data:
                if writer is None:
                    # Opened with the first record: a shard is never empty.
                    writer = sink.open_writer(directory, attempt)
                writer.temp_handle.write(chunk.data if takes_buffers else bytes(chunk.data))
            index.add(chunk.rows)
            for kind, counter in chunk.counts.items():
                counts.setdefault(kind, Counter()).update(counter)
            channels.update(chunk.channels)
            sizes |= chunk.sizes
            reasons.update(reject.reason for reject in chunk.rejected)
            shown = shown_rejects([*shown, *chunk.rejected])
            rejected_lines += map(rejected_line, chunk.rejected)
            input_bytes += chunk.input_bytes
            self._progress.add(len(chunk.rows), chunk.input_bytes, len(chunk.rejected))
        path = None
        if writer is not None:
            path = writer.close()
        index_path = storage.join(self._staging, "index", f"{split}-{attempt}.parquet")
        storage.make_directory(storage.parent(index_path))
        storage.write_bytes(index_path, index.to_parquet())
        rejected_path = None
        if rejected_lines:
            rejected_path = storage.join(self._staging, "rejected", f"{split}-{attempt}.jsonl")
            storage.make_directory(storage.parent(rejected_path))
            storage.write_bytes(rejected_path, "".join(rejected_lines).encode())
        return ShardResult(
            split=split,
            number=number,
            path=path,
            records=index.records,
            bytes=sink.file.bytes if path else 0,
            sha256=sink.file.hexdigest() if path else "",
            index_path=index_path,
            rejected_path=rejected_path,
            counts={**{kind: dict(c) for kind, c in counts.items()}, "reasons": dict(reasons)},
            channels=dict(channels),
            sizes=sorted(sizes)[:2],
            shown=shown,
            input_bytes=input_bytes,
        )

    def _counted(self, result: ShardResult) -> ShardResult:
        # Here, and not where chunks are written: Beam counts in its own threads only.
        self._images.inc(sum(result.counts["outcomes"].values()))
        self._bytes.inc(result.input_bytes)
        self._rejected.inc(sum(result.counts["reasons"].values()))
        return result


def sorted_refs(batches: Iterable[RefBatch], seed: int) -> list[ImageRef]:
    """The references of a shard in the order of the dataset.

    Equal keys (duplicates, conflicting rows) are told apart by what they say, so that
    the order never depends on how references travelled.
    """
    refs = [ref for batch in batches for ref in batch.refs]
    hashes = order_hashes(seed, [ref.key for ref in refs])
    order = sorted(range(len(refs)), key=hashes.__getitem__)
    if len(set(hashes)) < len(hashes):
        order.sort(key=lambda number: (hashes[number], *_told_apart(refs[number])))
    return [refs[number] for number in order]


def _told_apart(ref: ImageRef) -> tuple[str, bool, int, str, str]:
    return (ref.key, ref.problem is not None, ref.row or 0, ref.uri, ref.label or "")


def shown_rejects(rejected: Iterable[RejectedImage]) -> list[RejectedImage]:
    """The first few of each reason."""
    counted: Counter[str] = Counter()
    shown = []
    for reject in rejected:
        counted[reject.reason] += 1
        if counted[reject.reason] <= _REJECTS_SHOWN:
            shown.append(reject)
    return shown


def rejected_line(reject: RejectedImage) -> str:
    """One line of rejected.jsonl (ASCII: nothing in a name can break a terminal or a parser)."""
    return json.dumps(reject._asdict()) + "\n"


beam.coders.registry.register_coder(ShardResult, beam.coders.PickleCoder)
