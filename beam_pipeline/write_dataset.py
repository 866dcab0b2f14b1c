"""The pipeline behind a conversion: references are planned, assigned to shards and written."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.utils.windowed_value import WindowedValue

from beam_pipeline import records, storage
from beam_pipeline.batching import Batcher, held_for
from beam_pipeline.combiners import CombinePlanTally, CombineReports
from beam_pipeline.dataset_info import DatasetInfo
from beam_pipeline.finalize import FinalizeContext, finalize
from beam_pipeline.inputs import ListingReport
from beam_pipeline.options import ConvertOptions, EqualImages
from beam_pipeline.output_directory import PLAN_FILE
from beam_pipeline.plan import ConversionPlan, PlanTally, make_plan
from beam_pipeline.progress import ProgressReporter
from beam_pipeline.reference_steps import DropEqualImages, ResolveDuplicates, in_global_window
from beam_pipeline.references import RefBatch
from beam_pipeline.stock_writer import WriteWithBeam
from beam_pipeline.tfrecord_writer import WriteShardsToTFRecord
from beam_pipeline.worker_check import WorkerCheck


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
        reach = (context.storage, context.check)
        resolved = batches | "Duplicates" >> ResolveDuplicates(*reach)
        # RefBatch
        if options.output.equal_images is EqualImages.DROP:
            resolved = resolved | "EqualImages" >> DropEqualImages(
                options.image.max_bytes, context.reporter, *reach
            )
            # RefBatch
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
        yield from map(in_global_window, self._batcher.rest() if self._batcher else ())


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
