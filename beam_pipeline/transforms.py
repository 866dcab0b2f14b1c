"""Public PTransforms: images are listed, and made into Examples, in pipelines of your own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam

from beam_pipeline import records
from beam_pipeline.examples import feature_specs
from beam_pipeline.inputs import ListingReport, list_images, resolve_inputs
from beam_pipeline.options import FeatureNames, ImageOptions, InputOptions
from beam_pipeline.types import ImageRef

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
