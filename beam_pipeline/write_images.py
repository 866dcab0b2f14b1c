"""The writer of `imagebeam convert` for pipelines of your own."""

from __future__ import annotations

import apache_beam as beam

from beam_pipeline.batching import BUCKETS
from beam_pipeline.dataset_info import DatasetInfo
from beam_pipeline.errors import ConversionError
from beam_pipeline.hashing import bucket_hash
from beam_pipeline.inputs import ListingReport
from beam_pipeline.naming import with_name
from beam_pipeline.options import ConvertOptions, ImageOptions, InputOptions, OutputOptions
from beam_pipeline.output_directory import OutputDirectory, failed_directory
from beam_pipeline.progress import ProgressReporter
from beam_pipeline.references import RefBatch
from beam_pipeline.run_description import describe_run
from beam_pipeline.storage import config as storage_config
from beam_pipeline.types import ImageRef
from beam_pipeline.write_dataset import WriteContext, WriteDataset

_BATCH = 512


class WriteImages(beam.PTransform):
    """Writes a dataset by shard: PCollection[ImageRef] → PCollection[DatasetInfo].

    The same steps, bytes and proof as `imagebeam convert`: duplicates are resolved,
    label ids and shards planned, images read, checked and written, `_SUCCESS` comes
    last. A run that must not become a dataset (nothing written, too many rejects) fails
    the pipeline and keeps its rejects in `{output}.failed`.

    The output directory is claimed when the transform is applied, and stays claimed
    until its pipeline has run.

    Args:
      output: the dataset directory and how it is cut.
      image: what is accepted and how it is stored.
      labels: class names in the order of their ids; None: those that occur, sorted.

    Raises:
      OutputError: when the transform is applied to a directory that is not free.
    """

    def __init__(
        self,
        output: OutputOptions,
        image: ImageOptions | None = None,
        labels: tuple[str, ...] | None = None,
    ):
        super().__init__()
        given = InputOptions(inputs=("(a pipeline)",))
        self._options = with_name(ConvertOptions(given, output, image or ImageOptions()))
        self._labels = labels

    def expand(self, refs: beam.PCollection[ImageRef]) -> beam.PCollection[DatasetInfo]:
        """Applies the transform."""
        output = self._options.output
        with OutputDirectory(output.output, overwrite=output.overwrite) as directory:
            # The pipeline runs later: the directory stays claimed by its staging directory.
            directory.describe_run(detached=True, runner="a pipeline of its own")
            directory.detach()
        context = WriteContext(
            staging=directory.staging,
            replaced=tuple(directory.replaced),
            run=describe_run(self._options, "a pipeline of its own", directory.run_id, None),
            reporter=ProgressReporter(None),
            storage=storage_config.current(),
            given_labels=self._labels,
        )
        report = (
            refs
            | "CountInputs" >> beam.combiners.Count.Globally()
            # int
            | "MakeReport" >> beam.Map(lambda count: ListingReport(listed=count))
            # ListingReport
        )
        return (
            refs
            | "Batch" >> beam.BatchElements(1, _BATCH)
            # list[ImageRef]
            | "Bucket" >> beam.FlatMap(_by_bucket).with_output_types(tuple[int, RefBatch])
            # (bucket, RefBatch)
            | "Write" >> WriteDataset(self._options, context, report)
            # DatasetInfo
            | "Check" >> beam.Map(_finished).with_output_types(DatasetInfo)
            # DatasetInfo
        )


def _finished(info: DatasetInfo) -> DatasetInfo:
    failure = info.run.get("failure")
    if failure:
        kept = failed_directory(info.directory)
        raise ConversionError(f"{failure}. All rejects and the index are kept in {kept}")
    return info


def _by_bucket(refs: list[ImageRef]) -> list[tuple[int, RefBatch]]:
    buckets: dict[int, list[ImageRef]] = {}
    for ref in refs:
        buckets.setdefault(bucket_hash(ref.key, BUCKETS), []).append(ref)
    return [(bucket, RefBatch(members)) for bucket, members in buckets.items()]
