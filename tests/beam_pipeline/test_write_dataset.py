"""Planned references are assigned to their shards."""

from __future__ import annotations

import apache_beam as beam
from apache_beam.testing.util import assert_that, equal_to

from beam_pipeline.duplicates import resolve_duplicates
from beam_pipeline.plan import PlanTally, make_plan
from beam_pipeline.references import RefBatch
from beam_pipeline.types import ImageRef
from beam_pipeline.write_dataset import _AssignShardsDoFn
from tests import conversions


def test_assign_shards_in_a_pipeline() -> None:
    options = conversions.make_options("in", "out", num_shards=3, split={"a": 0.5, "b": 0.5})
    refs = resolve_duplicates(ImageRef(f"{i}.jpg", "/x", "a", size=10) for i in range(60))
    tally = PlanTally()
    tally.add(refs, options.output)
    plan = make_plan(tally, options)
    expected = [
        (shard, one.key)
        for shard, members in plan.shards_of(refs, options.output).items()
        for one in members
    ]
    assert len({shard for shard, _ in expected}) == 6
    with conversions.local_pipeline() as pipeline:
        side = beam.pvalue.AsSingleton(pipeline | "Plan" >> beam.Create([plan]))
        found = (
            pipeline
            | "Refs" >> beam.Create([RefBatch(refs[:25]), RefBatch(refs[25:])])
            | beam.ParDo(_AssignShardsDoFn(options), side)
            | beam.FlatMap(lambda element: [(element[0], one.key) for one in element[1].refs])
        )
        assert_that(found, equal_to(expected))
