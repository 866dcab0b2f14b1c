"""Writes TFRecords by shard: Beam's own sink and naming, our choice of what goes where.

Beam's WriteToTFRecord deals records round robin to shards and lets every one of them
cross a shuffle. WriteShardsToTFRecord, a subclass, is given references that are grouped
by shard already; a worker reads, checks and serializes the images of one shard in the
shard's order and writes its file. What is written where is then a function of the
references alone, and pixels never leave the worker.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import apache_beam as beam
from apache_beam.io import filebasedsink
from apache_beam.io.filesystem import CompressedFile, CompressionTypes
from apache_beam.io.tfrecordio import _TFRecordSink
from apache_beam.options.value_provider import StaticValueProvider

from beam_pipeline import records, storage, worker_pool
from beam_pipeline.hashing import order_hash
from beam_pipeline.index import IndexBuilder
from beam_pipeline.options import Compression, ConvertOptions
from beam_pipeline.plan import ConversionPlan
from beam_pipeline.progress import ProgressReporter
from beam_pipeline.records import Chunk, RecordMaker
from beam_pipeline.references import RefBatch
from beam_pipeline.types import ImageRef, RejectedImage
from beam_pipeline.worker_check import WorkerCheck

BEAM_COMPRESSION = {
    Compression.NONE: CompressionTypes.UNCOMPRESSED,
    Compression.GZIP: CompressionTypes.GZIP,
}

_RENAME_THREADS = 16
# Rejects whose text travels with a shard's result for the summary; all are in the file.
_REJECTS_SHOWN = 3


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


class HashingFile:
    """A writable file that knows the size and the SHA-256 of what went through it."""

    mode = "wb"  # asked for by Beam's compressing file

    def __init__(self, stream: Any):
        self._stream = stream
        self._digest = hashlib.sha256()
        self.bytes = 0

    def write(self, data: bytes) -> None:
        """Writes and hashes `data`."""
        self._digest.update(data)
        self.bytes += len(data)
        self._stream.write(data)

    def tell(self) -> int:
        """Bytes written so far."""
        return self.bytes

    def hexdigest(self) -> str:
        """SHA-256 (hex) of everything written."""
        return self._digest.hexdigest()

    def flush(self) -> None:
        """Flushes the file below."""
        self._stream.flush()

    def close(self) -> None:
        """Closes the file below."""
        self._stream.close()

    @property
    def closed(self) -> bool:
        """Whether the file below is closed."""
        return self._stream.closed

    def readable(self) -> bool:
        """Never."""
        return False

    def writable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Never."""
        return False


class ShardSink(_TFRecordSink):
    """Beam's TFRecord sink with a checksum of every file and safe finalizing.

    Beam's finalize step matches existing files by a glob made of the output path, which
    fails where the path holds `[`, and takes a target of equal size for the same file.
    Here names are literal, and a staged file always wins. Files are opened and renamed
    through our storage, which repeats what an object store refuses for a moment.
    """

    def open(self, temp_path: str) -> Any:
        """Opens a staged file; its checksum is that of the bytes on disk."""
        self.file = HashingFile(storage.open_write(temp_path))
        if self.compression_type == CompressionTypes.UNCOMPRESSED:
            return self.file
        return CompressedFile(self.file, self.compression_type)

    def finalize_write(
        self, init_result: str, writer_results: list[str], unused_pre_finalize: Any
    ) -> Iterator[str]:
        """Renames staged files to their final names, in sorted order; safe to repeat."""
        results = sorted(writer_results)
        sources, targets, _, _ = self._check_state_for_finalize_write(results, len(results))
        with ThreadPoolExecutor(_RENAME_THREADS) as pool:
            list(pool.map(storage.rename, sources, targets))
        storage.delete_tree(init_result)
        yield from targets

    def _get_final_name_glob(self, num_shards: int, w: Any = None) -> str:
        return self._get_final_name(0, num_shards, w)  # only reported, never matched

    def _check_state_for_finalize_write(
        self, writer_results: list[str], num_shards: int, window: Any = None
    ) -> tuple[list[str], list[str], list[str], int]:
        sources, targets, skipped = [], [], 0
        for number, source in enumerate(writer_results):
            target = self._get_final_name(number, num_shards, window)
            if storage.exists(source):
                if storage.exists(target):
                    storage.delete([target])
                sources.append(source)
                targets.append(target)
            elif storage.exists(target):
                skipped += 1  # an earlier attempt of this step renamed it
            else:
                raise filebasedsink.BeamIOError(
                    f"neither the staged shard {source} nor its target {target} exists"
                )
        return sources, targets, [], skipped


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


def sink_for_split(options: ConvertOptions, split: str) -> ShardSink:
    """The sink whose file names are {output}/{name}-{split}.tfrecord-SSSSS-of-NNNNN."""
    prefix = storage.join(options.output.output, f"{options.output.name}-{split}.tfrecord")
    return ShardSink(
        prefix,
        coder=beam.coders.BytesCoder(),
        file_name_suffix="",
        num_shards=0,
        shard_name_template=None,
        compression_type=BEAM_COMPRESSION[options.output.compression],
    )


def finalize_shards(
    options: ConvertOptions, split: str, staging: str, paths: Iterable[str]
) -> list[str]:
    """Renames the staged files of a split, in the order of `paths`, and returns their names.

    Safe to repeat: what an earlier attempt renamed is left alone.
    """
    sink = copy.copy(sink_for_split(options, split))
    assert isinstance(sink.file_path_prefix, StaticValueProvider)
    paths = sorted(paths)
    list(sink.finalize_write(storage.join(staging, "shards", split), paths, None))
    return [sink._get_final_name(number, len(paths)) for number in range(len(paths))]


class _WriteShardDoFn(beam.DoFn):
    """((split, number), Iterable[RefBatch]) → ShardResult."""

    def __init__(
        self,
        options: ConvertOptions,
        staging: str,
        reporter: ProgressReporter,
        config: storage.StorageConfig,
        check: WorkerCheck | None,
    ):
        self._options = options
        self._staging = staging
        self._progress = reporter
        self._config = config
        self._check = check
        self._maker: tuple[ConversionPlan, RecordMaker] | None = None
        self._images = beam.metrics.Metrics.counter("imagebeam", "images")
        self._bytes = beam.metrics.Metrics.counter("imagebeam", "bytes")
        self._rejected = beam.metrics.Metrics.counter("imagebeam", "rejected")

    def setup(self) -> None:
        """Reaches object stores with the credentials that travelled with the DoFn."""
        storage.configure(self._config)
        if self._check is not None:
            self._check.check()

    def process(
        self, element: tuple[tuple[str, int], Iterable[RefBatch]], plan: ConversionPlan
    ) -> Iterator[ShardResult]:
        """Writes one shard."""
        (split, number), batches = element
        refs = sorted_refs(batches, self._options.output.seed)
        maker = self._maker_for(plan)
        chunks = records.chunks(refs, self._options.image)
        pool = worker_pool.current()
        results = map(maker.make_chunk, chunks) if pool is None else pool.map_ordered(maker, chunks)
        yield self._write(split, number, results)

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
                writer.temp_handle.write(chunk.data)
            index.add(chunk.rows)
            for kind, counter in chunk.counts.items():
                counts.setdefault(kind, Counter()).update(counter)
            channels.update(chunk.channels)
            sizes |= chunk.sizes
            reasons.update(reject.reason for reject in chunk.rejected)
            shown = shown_rejects([*shown, *chunk.rejected])
            rejected_lines += map(rejected_line, chunk.rejected)
            input_bytes += chunk.input_bytes
            self._report(len(chunk.rows), chunk.input_bytes, len(chunk.rejected))
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

    def _report(self, images: int, size: int, rejected: int) -> None:
        self._images.inc(images)
        self._bytes.inc(size)
        self._rejected.inc(rejected)
        self._progress.add(images, size, rejected)


def sorted_refs(batches: Iterable[RefBatch], seed: int) -> list[ImageRef]:
    """The references of a shard in the order of the dataset.

    Equal keys (duplicates, conflicting rows) are told apart by what they say, so that
    the order never depends on how references travelled.
    """
    refs = [ref for batch in batches for ref in batch.refs]
    refs.sort(
        key=lambda ref: (
            order_hash(seed, ref.key),
            ref.key,
            ref.problem is not None,
            ref.row or 0,
            ref.uri,
            ref.label or "",
        )
    )
    return refs


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
