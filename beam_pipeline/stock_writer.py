"""`--writer beam`: the same conversion through Beam's own WriteToTFRecord, unchanged.

Beam decides which record stands in which shard, anew in every run, and lets every record
cross a shuffle when shards are counted. The files are read back to learn where records
ended up; index, proof and metadata are then made as for our own writer.
"""

from __future__ import annotations

import hashlib
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam

from beam_pipeline import records, storage
from beam_pipeline.examples import FEATURE_NAMES, Role
from beam_pipeline.index import IndexBuilder, IndexRow
from beam_pipeline.options import ConvertOptions
from beam_pipeline.plan import ConversionPlan
from beam_pipeline.progress import ProgressReporter
from beam_pipeline.records import Chunk, RecordMaker, Records
from beam_pipeline.references import RefBatch
from beam_pipeline.shard_sink import BEAM_COMPRESSION
from beam_pipeline.splits import assign_split
from beam_pipeline.tfrecord_writer import (
    ShardResult,
    rejected_line,
    shown_rejects,
)
from beam_pipeline.types import RejectedImage

_ROWS_TAG = "rows"
_HASH_PIECE = 1 << 20  # 1 MiB
_PLACELESS = ""  # the "file" of inputs that are in none


class WriteWithBeam(beam.PTransform):
    """PCollection[RefBatch] → PCollection[ShardResult], through beam.io.WriteToTFRecord.

    Args:
      options: of the conversion.
      staging: directory for files that are not final yet.
      plan: the plan, known before the pipeline is built: Beam's writer needs the splits.
      reporter: is told what is done.
      config: how workers reach object stores.
    """

    def __init__(
        self,
        options: ConvertOptions,
        staging: str,
        plan: ConversionPlan,
        reporter: ProgressReporter,
        config: storage.StorageConfig,
    ):
        super().__init__()
        self._options = options
        self._staging = staging
        self._plan = plan
        self._reporter = reporter
        self._config = config

    def expand(self, batches: beam.PCollection[RefBatch]) -> beam.PCollection[ShardResult]:
        """Applies the transform."""
        options, plan = self._options, self._plan
        specs = records.make_specs(options, plan)
        maker = RecordMaker(options.image, specs, plan.labels, self._config)
        made = batches | "MakeRecords" >> beam.ParDo(
            _MakeRecordsDoFn(maker, options, self._reporter)
        ).with_outputs(_ROWS_TAG, *map(_split_tag, plan.splits))
        files = []
        for split, split_plan in plan.splits.items():
            prefix = storage.join(self._staging, "shards", split, f"{split}.tfrecord")
            files.append(
                made[_split_tag(split)]
                | f"Write[{split}]"
                >> beam.io.WriteToTFRecord(
                    prefix,
                    num_shards=min(len(split_plan.bounds), max(1, split_plan.records)),
                    compression_type=BEAM_COMPRESSION[options.output.compression],
                )
                # str
                | f"NameSplit[{split}]" >> beam.Map(lambda path, split=split: (split, path))
                # (split, path)
            )
        key_feature = FEATURE_NAMES[options.output.feature_names][Role.KEY]
        places = (
            files
            | "FlattenFiles" >> beam.Flatten()
            # (split, path)
            | "SpreadFiles" >> beam.Reshuffle()
            | "ReadKeys" >> beam.FlatMap(_read_keys, key_feature, options)
            # (key, (path, position))
        )
        rows = made[_ROWS_TAG]
        # (key, (split, IndexRow, RejectedImage | None))
        return (
            {"rows": rows, "places": places}
            | "JoinPlaces" >> beam.CoGroupByKey()
            # (key, {"rows": […], "places": […]})
            | "PlaceRows" >> beam.FlatMap(_place_rows)
            # ((split, path), (position, IndexRow, RejectedImage | None))
            | "GroupByFile" >> beam.GroupByKey()
            # ((split, path), Iterable[(position, IndexRow, RejectedImage | None)])
            | "NumberFiles"
            >> beam.Map(_describe_file, self._staging).with_output_types(ShardResult)
            # ShardResult
        )


def _split_tag(split: str) -> str:
    return f"split:{split}"


class _MakeRecordsDoFn(beam.DoFn):
    """RefBatch → records by split, index rows."""

    def __init__(self, maker: RecordMaker, options: ConvertOptions, reporter: ProgressReporter):
        self._maker = maker
        self._options = options
        self._reporter = reporter

    def setup(self) -> None:
        # Beam's own writer follows in the same process and must reach the same stores.
        storage.configure_beam(self._maker.storage)

    def process(self, batch: RefBatch) -> Iterator[Any]:
        output = self._options.output
        for refs in records.chunks(batch.refs, self._options.image):
            made = self._maker.make(refs)
            examples, rejected = iter(made.examples), iter(made.rejected)
            for ref, row in zip(refs, made.rows, strict=True):
                split = assign_split(ref, output.split, output.seed)
                if row.record_bytes is not None:
                    yield beam.pvalue.TaggedOutput(_split_tag(split), next(examples))
                reject = next(rejected) if row.outcome == "rejected" else None
                yield beam.pvalue.TaggedOutput(
                    _ROWS_TAG,
                    (row.key, (split, tuple(row), None if reject is None else tuple(reject))),
                )
            self._reporter.add(len(refs), made.input_bytes, len(made.rejected))


def _read_keys(
    element: tuple[str, str], key_feature: str, options: ConvertOptions
) -> Iterator[tuple[str, tuple[str, int]]]:
    """The key of every record of a file, decoded by tfx-bsl without the pixels."""
    from apache_beam.io.tfrecordio import _TFRecordUtil
    from tensorflow_metadata.proto.v0 import schema_pb2
    from tfx_bsl.coders.example_coder import ExamplesToRecordBatchDecoder

    _, path = element
    schema = schema_pb2.Schema()
    schema.feature.add(name=key_feature, type=schema_pb2.BYTES)
    decoder = ExamplesToRecordBatchDecoder(schema.SerializeToString())
    compression = BEAM_COMPRESSION[options.output.compression]
    with beam.io.filesystems.FileSystems.open(path, compression_type=compression) as stream:
        position = 0
        while (record := _TFRecordUtil.read_record(stream)) is not None:
            (values,) = decoder.DecodeBatch([record]).column(0).to_pylist()
            yield values[0].decode(), (path, position)
            position += 1


def _place_rows(
    element: tuple[str, dict[str, Iterable[Any]]],
) -> Iterator[tuple[tuple[str, str], tuple[int, tuple, tuple | None]]]:
    """Gives each row the file and position of its record."""
    key, joined = element
    places = iter(joined["places"])
    for split, fields, reject in joined["rows"]:
        if IndexRow._make(fields).record_bytes is None:
            yield (split, _PLACELESS), (0, fields, reject)
            continue
        place = next(places, None)
        if place is None:
            raise RuntimeError(f"the record of {key!r} is in none of the files that Beam wrote")
        yield (split, place[0]), (place[1], fields, reject)


def _describe_file(
    element: tuple[tuple[str, str], Iterable[tuple[int, tuple, tuple | None]]], staging: str
) -> ShardResult:
    """Writes the index of one file and says what is in it."""
    (split, path), members = element
    ordered = sorted(members, key=lambda member: (member[0], member[1][0]))
    rows = [IndexRow._make(fields) for _, fields, _ in ordered]
    rejected = [RejectedImage._make(fields) for _, _, fields in ordered if fields is not None]
    # Files are counted by the names that Beam gave; inputs in no file come last.
    number = int(path.rsplit("-", 3)[1]) if path else 99_999
    index = IndexBuilder(split, number)
    chunk = Chunk.of(Records([], rows, rejected, 0, Counter()))
    index.add(chunk.rows)
    attempt = f"{number:05d}-{uuid.uuid4()}"
    index_path = storage.join(staging, "index", f"{split}-{attempt}.parquet")
    storage.make_directory(storage.parent(index_path))
    storage.write_bytes(index_path, index.to_parquet())
    rejected_path = None
    if rejected:
        rejected_path = storage.join(staging, "rejected", f"{split}-{attempt}.jsonl")
        storage.make_directory(storage.parent(rejected_path))
        storage.write_bytes(rejected_path, "".join(map(rejected_line, rejected)).encode())
    size, digest = _size_and_digest(path) if path else (0, "")
    return ShardResult(
        split=split,
        number=number,
        path=path or None,
        records=index.records,
        bytes=size,
        sha256=digest,
        index_path=index_path,
        rejected_path=rejected_path,
        counts={
            **{kind: dict(counter) for kind, counter in chunk.counts.items()},
            "reasons": dict(Counter(reject.reason for reject in rejected)),
        },
        channels=dict(chunk.channels),
        sizes=sorted(chunk.sizes),
        shown=shown_rejects(rejected),
        input_bytes=sum(row.image_bytes or 0 for row in rows),
    )


def _size_and_digest(path: str) -> tuple[int, str]:
    digest = hashlib.sha256()
    size = 0
    with storage.open_read(path) as stream:
        while piece := stream.read(_HASH_PIECE):
            digest.update(piece)
            size += len(piece)
    return size, digest.hexdigest()
