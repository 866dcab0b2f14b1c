"""What a pipeline does with references before they are planned: list, compare, drop copies.

References are grouped by what they are compared by, pixels never.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import WindowedValue

import beam_pipeline.ref_coder  # noqa: F401  # registers the coder of RefBatch
from beam_pipeline import storage, worker_pool
from beam_pipeline.batching import BATCH_REFS, BUCKETS, Batcher, batches_by_bucket
from beam_pipeline.duplicates import resolve_duplicates
from beam_pipeline.equal_images import drop_equal_images, with_digests
from beam_pipeline.hashing import bucket_hash
from beam_pipeline.inputs import InputPlan, ListingReport, list_images
from beam_pipeline.listing_sizes import with_sizes
from beam_pipeline.progress import ProgressReporter
from beam_pipeline.references import RefBatch
from beam_pipeline.types import ImageRef
from beam_pipeline.worker_check import WorkerCheck
from beam_pipeline.worker_dofn import WorkerDoFn

REPORT_TAG = "report"


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


class _ListBatchesDoFn(WorkerDoFn):
    def process(self, plan: InputPlan) -> Iterator[Any]:
        report = ListingReport()
        pool = worker_pool.current()
        ahead = None if pool is None else pool.take_listing(plan)
        if ahead is None:
            yield from batches_by_bucket(list_images(plan, report))
        else:
            yield from ahead.batches(report)
        yield beam.pvalue.TaggedOutput(REPORT_TAG, report)


class ResolveDuplicates(beam.PTransform):
    """Gives each of several references to one path its verdict.

    Input: PCollection[tuple[int, RefBatch]], as ListBatches gives them. Output:
    PCollection[RefBatch].
    """

    def __init__(self, config: storage.StorageConfig, check: WorkerCheck | None = None):
        super().__init__()
        self._config = config
        self._check = check

    def expand(self, batches: beam.PCollection[tuple[int, RefBatch]]) -> Any:
        """Applies the transform."""
        return (
            batches
            | "GroupByBucket" >> beam.GroupByKey()
            # (bucket, Iterable[RefBatch])
            | "ResolveDuplicates" >> beam.ParDo(_ResolveDuplicatesDoFn(self._config, self._check))
            # RefBatch
        )


class _ResolveDuplicatesDoFn(WorkerDoFn):
    def process(self, element: tuple[int, Iterable[RefBatch]]) -> Iterator[RefBatch]:
        _, batches = element
        refs = resolve_duplicates(ref for batch in batches for ref in batch.refs)
        yield from _batches(with_sizes(refs))


class DropEqualImages(beam.PTransform):
    """Gives each of several inputs with the same bytes its verdict: PCollection[RefBatch] → same.

    Args:
      max_bytes: larger inputs are not read.
      reporter: is told what is read.
      config: how workers reach object stores.
      check: what workers in other processes prove before they work, or None.
    """

    def __init__(
        self,
        max_bytes: int,
        reporter: ProgressReporter,
        config: storage.StorageConfig,
        check: WorkerCheck | None = None,
    ):
        super().__init__()
        self._hash = _HashImagesDoFn(max_bytes, reporter, config, check)

    def expand(self, batches: beam.PCollection[RefBatch]) -> Any:
        """Applies the transform."""
        return (
            batches
            | "HashImages" >> beam.ParDo(self._hash).with_output_types(tuple[int, RefBatch])
            # (bucket, RefBatch)
            | "GroupByBytes" >> beam.GroupByKey()
            # (bucket, Iterable[RefBatch])
            | "DropEqualImages" >> beam.FlatMap(_drop_equal_images)
            # RefBatch
        )


class _HashImagesDoFn(WorkerDoFn):
    """Reads and hashes inputs, and groups them by a part of their hash."""

    def __init__(
        self,
        max_bytes: int,
        reporter: ProgressReporter,
        config: storage.StorageConfig,
        check: WorkerCheck | None,
    ):
        super().__init__(config, check)
        self._max_bytes = max_bytes
        self._reporter = reporter
        self._compared = beam.metrics.Metrics.counter("imagebeam", "compared")

    def start_bundle(self) -> None:
        self._batcher = Batcher()

    def process(self, batch: RefBatch) -> Iterator[tuple[int, RefBatch]]:
        refs = with_digests(batch.refs, self._max_bytes)
        self._reporter.add_compared(len(refs))
        self._compared.inc(len(refs))
        for ref in refs:
            # What could not be read goes anywhere.
            number = bucket_hash(ref.key if ref.digest is None else ref.digest.hex(), BUCKETS)
            yield from self._batcher.add(number, [ref])

    def finish_bundle(self) -> Iterator[WindowedValue]:
        yield from map(in_global_window, self._batcher.rest())


def _drop_equal_images(element: tuple[int, Iterable[RefBatch]]) -> Iterator[RefBatch]:
    _, batches = element
    return _batches(drop_equal_images(ref for batch in batches for ref in batch.refs))


def _batches(refs: list[ImageRef]) -> Iterator[RefBatch]:
    for start in range(0, len(refs), BATCH_REFS):
        yield RefBatch(refs[start : start + BATCH_REFS])


def in_global_window(element: Any) -> WindowedValue:
    """`element` as finish_bundle must give it."""
    window = GlobalWindow()
    return WindowedValue(element, window.max_timestamp(), [window])
