"""Public PTransforms; they only wire plain functions together."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import WindowedValue

import beam_pipeline.ref_coder  # noqa: F401  # registers the coder of RefBatch
from beam_pipeline import records, storage, worker_pool
from beam_pipeline.batching import BATCH_REFS, BUCKETS, Batcher, batches_by_bucket, held_for
from beam_pipeline.combiners import CombinePlanTally, CombineReports
from beam_pipeline.dataset_info import DatasetInfo
from beam_pipeline.duplicates import resolve_duplicates
from beam_pipeline.equal_images import drop_equal_images, with_digests
from beam_pipeline.examples import feature_specs
from beam_pipeline.finalize import FinalizeContext, finalize
from beam_pipeline.hashing import bucket_hash
from beam_pipeline.inputs import (
    InputPlan,
    ListingReport,
    list_images,
    resolve_inputs,
)
from beam_pipeline.listing_sizes import with_sizes
from beam_pipeline.options import (
    ConvertOptions,
    EqualImages,
    FeatureNames,
    ImageOptions,
    InputOptions,
)
from beam_pipeline.output_directory import PLAN_FILE
from beam_pipeline.plan import ConversionPlan, PlanTally, make_plan
from beam_pipeline.progress import ProgressReporter
from beam_pipeline.references import RefBatch
from beam_pipeline.stock_writer import WriteWithBeam
from beam_pipeline.tfrecord_writer import WriteShardsToTFRecord
from beam_pipeline.types import ImageRef
from beam_pipeline.worker_check import WorkerCheck

REPORT_TAG = "report"
REJECTS_TAG = "rejects"


class ListImages(beam.PTransform):
    """Lists images: PBegin → PCollection[ImageRef].

    The listing happens inside the pipeline, in a worker; a million rows never stand in
    the job graph. Inputs that are refused or repeated already are ImageRefs with a
    `problem`.

    Args:
      options: where images, labels, splits and groups come from.

    Raises:
      UsageError, InputError: when the transform is made, for what can be seen at once
        (no such folder, unknown layout, missing columns).
    """

    def __init__(self, options: InputOptions):
        super().__init__()
        self._plan = resolve_inputs(options)

    def expand(self, pipeline: beam.Pipeline) -> beam.PCollection[ImageRef]:
        """Applies the transform."""
        return (
            pipeline
            | "Inputs" >> beam.Create([self._plan])
            # InputPlan
            | "ListImages" >> beam.FlatMap(lambda plan: list_images(plan, ListingReport()))
            # ImageRef
            | "Spread" >> beam.Reshuffle().with_output_types(ImageRef)
        )


class ImagesToExamples(beam.PTransform):
    """Reads, checks and serializes images: PCollection[ImageRef] → two outputs.

    Output `examples` (the main one): PCollection[tuple[str, bytes]], key and serialized
    tf.train.Example. Output `rejects`: PCollection[RejectedImage].

    Args:
      image: what is accepted and how it is stored.
      labels: class names by id, or None for no label features.
      feature_names: default or slim.
      batch: references that are handled at once.
    """

    def __init__(
        self,
        image: ImageOptions | None = None,
        labels: Iterable[str] | None = None,
        feature_names: FeatureNames = FeatureNames.DEFAULT,
        batch: int = records.MAX_CHUNK_IMAGES,
    ):
        super().__init__()
        image = image or ImageOptions()
        known = None if labels is None else tuple(labels)
        specs = feature_specs(feature_names, labelled=known is not None, encoding=image.encoding)
        self._maker = records.RecordMaker(image, specs, known)
        self._batch = batch

    def expand(self, refs: beam.PCollection[ImageRef]) -> Any:
        """Applies the transform; the result has attributes `examples` and `rejects`."""
        return (
            refs
            | "Batch" >> beam.BatchElements(1, self._batch)
            # list[ImageRef]
            | "MakeRecords"
            >> beam.ParDo(_MakeRecordsDoFn(self._maker)).with_outputs(REJECTS_TAG, main="examples")
        )


class _MakeRecordsDoFn(beam.DoFn):
    def __init__(self, maker: records.RecordMaker):
        self._maker = maker

    def process(self, element: list[ImageRef]) -> Iterator[Any]:
        result = self._maker.make(element)
        yield from zip(
            (row.key for row in result.rows if row.record_bytes is not None),
            result.examples,
            strict=True,
        )
        for reject in result.rejected:
            yield beam.pvalue.TaggedOutput(REJECTS_TAG, reject)


@dataclasses.dataclass(frozen=True)
class WriteContext:
    """What WriteDataset needs beside the options.

    Attributes:
      staging: staging directory inside the output directory.
      replaced: names in the output directory that are replaced.
      run: run id, command, versions …; stored in conversion.json.
      reporter: is told what is done.
      storage: how workers reach object stores.
      declared_labels: classes that keep their id without images.
      given_labels: class names in the order of a labels file.
      known_plan: the plan, where it was made before the pipeline (needed by
        Beam's own writer only).
      check: what workers in other processes prove before they work, or None.
    """

    staging: str
    replaced: tuple[str, ...]
    run: dict[str, Any]
    reporter: ProgressReporter
    storage: storage.StorageConfig
    declared_labels: tuple[str, ...] | None = None
    given_labels: tuple[str, ...] | None = None
    known_plan: ConversionPlan | None = None
    check: WorkerCheck | None = None


class ListBatches(beam.PTransform):
    """Lists images in batches grouped by duplicate bucket: PBegin → two outputs.

    Output `batches`: PCollection[tuple[int, RefBatch]]. Output `report`:
    PCollection[ListingReport].
    """

    def __init__(
        self, plan: InputPlan, config: storage.StorageConfig, check: WorkerCheck | None = None
    ):
        super().__init__()
        self._plan = plan
        self._config = config
        self._check = check

    def expand(self, pipeline: beam.Pipeline) -> Any:
        """Applies the transform."""
        listed = (
            pipeline
            | "Inputs" >> beam.Create([self._plan])
            # InputPlan
            | "ListImages"
            >> beam.ParDo(_ListBatchesDoFn(self._config, self._check)).with_outputs(
                REPORT_TAG, main="batches"
            )
        )
        # Beam cannot infer the types of several outputs; this one chooses RefBatchCoder.
        listed.batches.element_type = beam.typehints.Tuple[int, RefBatch]
        return listed


class _ListBatchesDoFn(beam.DoFn):
    def __init__(self, config: storage.StorageConfig, check: WorkerCheck | None):
        self._config = config
        self._check = check

    def setup(self) -> None:
        storage.configure(self._config)
        if self._check is not None:
            self._check.check()

    def process(self, plan: InputPlan) -> Iterator[Any]:
        report = ListingReport()
        pool = worker_pool.current()
        ahead = None if pool is None else pool.take_listing(plan)
        if ahead is None:
            yield from batches_by_bucket(list_images(plan, report))
        else:
            yield from ahead.batches(report)
        yield beam.pvalue.TaggedOutput(REPORT_TAG, report)


class WriteDataset(beam.PTransform):
    """Writes a whole dataset: PCollection[tuple[int, RefBatch]] → PCollection[DatasetInfo].

    References are grouped twice, pixels never: by bucket to resolve duplicates, then by
    shard to write. (Once more between the two, by the hash of the bytes, where equal images
    are dropped.) The one DatasetInfo of the output says what was written, or, in
    `run["failure"]`, why nothing was.

    Args:
      options: of the conversion; output.name must be set.
      context: of the run.
      report: PCollection of the ListingReports of these references.
    """

    def __init__(
        self,
        options: ConvertOptions,
        context: WriteContext,
        report: beam.PCollection[ListingReport],
    ):
        super().__init__()
        self._options = options
        self._context = context
        self._report = report

    def expand(self, batches: beam.PCollection[tuple[int, RefBatch]]) -> Any:
        """Applies the transform."""
        options, context = self._options, self._context
        resolved = (
            batches
            | "GroupByBucket" >> beam.GroupByKey()
            # (bucket, Iterable[RefBatch])
            | "ResolveDuplicates"
            >> beam.ParDo(_ResolveDuplicatesDoFn(context.storage, context.check))
            # RefBatch
        )
        if options.output.equal_images is EqualImages.DROP:
            resolved = (
                resolved
                | "HashImages"
                >> beam.ParDo(
                    _HashImagesDoFn(options.image.max_bytes, context.storage, context.check)
                ).with_output_types(tuple[int, RefBatch])
                # (bucket, RefBatch)
                | "GroupByBytes" >> beam.GroupByKey()
                # (bucket, Iterable[RefBatch])
                | "DropEqualImages" >> beam.FlatMap(_drop_equal_images)
                # RefBatch
            )
        report = self._report | "MergeReports" >> beam.CombineGlobally(CombineReports())
        plan = (
            resolved
            | "TallyReferences" >> beam.CombineGlobally(CombinePlanTally(options.output))
            # PlanTally
            | "MakePlan" >> beam.Map(_make_plan, options, context)
            # ConversionPlan
        )
        if context.known_plan is not None:
            results = resolved | "WriteWithBeam" >> WriteWithBeam(
                options, context.staging, context.known_plan, context.reporter, context.storage
            )
            # ShardResult
        else:
            results = (
                resolved
                | "AssignShards"
                >> beam.ParDo(
                    _AssignShardsDoFn(options), beam.pvalue.AsSingleton(plan)
                ).with_output_types(tuple[tuple[str, int], RefBatch])
                # ((split, shard), RefBatch)
                | "GroupByShard" >> beam.GroupByKey()
                # ((split, shard), Iterable[RefBatch])
                | "WriteShards"
                >> WriteShardsToTFRecord(
                    options,
                    context.staging,
                    beam.pvalue.AsSingleton(plan),
                    context.reporter,
                    context.storage,
                    context.check,
                )
                # ShardResult
            )
        return (
            batches.pipeline
            | "Once" >> beam.Create([None])
            | "Finalize"
            >> beam.Map(
                _finalize,
                beam.pvalue.AsSingleton(plan),
                beam.pvalue.AsSingleton(report),
                beam.pvalue.AsIter(results),
                options,
                context,
            )
            # DatasetInfo
        )


class _ResolveDuplicatesDoFn(beam.DoFn):
    def __init__(self, config: storage.StorageConfig, check: WorkerCheck | None):
        self._config = config
        self._check = check

    def setup(self) -> None:
        storage.configure(self._config)
        if self._check is not None:
            self._check.check()

    def process(self, element: tuple[int, Iterable[RefBatch]]) -> Iterator[RefBatch]:
        _, batches = element
        refs = resolve_duplicates(ref for batch in batches for ref in batch.refs)
        yield from _batches(with_sizes(refs))


class _HashImagesDoFn(beam.DoFn):
    """Reads and hashes inputs, and groups them by a part of their hash."""

    def __init__(self, max_bytes: int, config: storage.StorageConfig, check: WorkerCheck | None):
        self._max_bytes = max_bytes
        self._config = config
        self._check = check

    def setup(self) -> None:
        storage.configure(self._config)
        if self._check is not None:
            self._check.check()

    def start_bundle(self) -> None:
        self._batcher = Batcher()

    def process(self, batch: RefBatch) -> Iterator[tuple[int, RefBatch]]:
        for ref in with_digests(batch.refs, self._max_bytes):
            # What could not be read goes anywhere.
            number = bucket_hash(ref.key if ref.digest is None else ref.digest.hex(), BUCKETS)
            yield from self._batcher.add(number, [ref])

    def finish_bundle(self) -> Iterator[WindowedValue]:
        yield from map(_in_global_window, self._batcher.rest())


def _drop_equal_images(element: tuple[int, Iterable[RefBatch]]) -> Iterator[RefBatch]:
    _, batches = element
    return _batches(drop_equal_images(ref for batch in batches for ref in batch.refs))


def _batches(refs: list[ImageRef]) -> Iterator[RefBatch]:
    for start in range(0, len(refs), BATCH_REFS):
        yield RefBatch(refs[start : start + BATCH_REFS])


def _in_global_window(element: Any) -> WindowedValue:
    window = GlobalWindow()
    return WindowedValue(element, window.max_timestamp(), [window])


def _make_plan(tally: PlanTally, options: ConvertOptions, context: WriteContext) -> ConversionPlan:
    storage.configure(context.storage)
    plan = make_plan(
        tally,
        options,
        declared_labels=context.declared_labels,
        given_labels=context.given_labels,
        size_ratio=lambda sample: records.measure_size_ratio(sample, options.image),
    )
    context.reporter.set_total(plan.inputs)
    beam.metrics.Metrics.counter("imagebeam", "planned").inc(plan.inputs)
    shards = sum(len(split.bounds) for split in plan.splits.values() if split.records)
    # For `imagebeam status`, which may be asked on another machine.
    storage.write_bytes(
        storage.join(context.staging, PLAN_FILE),
        json.dumps({"inputs": plan.inputs, "shards": shards}).encode(),
    )
    return plan


class _AssignShardsDoFn(beam.DoFn):
    def __init__(self, options: ConvertOptions):
        self._options = options

    def start_bundle(self) -> None:
        self._batcher: Batcher | None = None

    def process(
        self, batch: RefBatch, plan: ConversionPlan
    ) -> Iterator[tuple[tuple[str, int], RefBatch]]:
        if self._batcher is None:
            shards = sum(len(split.bounds) for split in plan.splits.values())
            self._batcher = Batcher(held_for(shards))
        for shard, refs in plan.shards_of(batch.refs, self._options.output).items():
            yield from self._batcher.add(shard, refs)

    def finish_bundle(self) -> Iterator[WindowedValue]:
        yield from map(_in_global_window, self._batcher.rest() if self._batcher else ())


def _finalize(
    _: None,
    plan: ConversionPlan,
    report: ListingReport,
    results: Iterable[Any],
    options: ConvertOptions,
    context: WriteContext,
) -> DatasetInfo:
    storage.configure(context.storage)
    return finalize(
        FinalizeContext(options, context.staging, context.replaced, context.run),
        plan,
        report,
        records.make_specs(options, plan),
        results,
    )
