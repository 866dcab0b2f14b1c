"""CombineFns: what they add up is what one call would have told."""

from __future__ import annotations

import pickle

import apache_beam as beam
from apache_beam.testing.util import assert_that, equal_to

from beam_pipeline.combiners import CombinePlanTally, CombineReports
from beam_pipeline.inputs import ListingReport
from beam_pipeline.options import ConvertOptions, InputOptions, OutputOptions
from beam_pipeline.plan import PlanTally, make_plan
from beam_pipeline.references import RefBatch
from beam_pipeline.types import ImageRef
from tests import conversions

OPTIONS = ConvertOptions(
    InputOptions(("in",)), OutputOptions("out", num_shards=3, split={"a": 0.5, "b": 0.5})
)
REFS = [ImageRef(f"{i}.jpg", "/x", f"label {i % 3}", size=i) for i in range(100)]


def test_plan_tally_in_a_pipeline() -> None:
    tally = PlanTally()
    tally.add(REFS, OPTIONS.output)
    expected = make_plan(tally, OPTIONS)
    batches = [RefBatch(REFS[i : i + 7]) for i in range(0, 100, 7)]
    with conversions.local_pipeline() as pipeline:
        plans = (
            pipeline
            | beam.Create(batches)
            | beam.CombineGlobally(CombinePlanTally(OPTIONS.output))
            | beam.Map(make_plan, OPTIONS)
        )
        assert_that(plans, equal_to([expected]))


def test_plan_tally_merges_what_was_sent() -> None:
    combine = CombinePlanTally(OPTIONS.output)
    parts = []
    for start in (0, 50):
        accumulator = combine.create_accumulator()
        accumulator = combine.add_input(accumulator, RefBatch(REFS[start : start + 50]))
        parts.append(pickle.loads(pickle.dumps(combine.compact(accumulator))))
    merged = combine.extract_output(combine.merge_accumulators(parts))
    whole = combine.add_input(combine.create_accumulator(), RefBatch(REFS))
    assert make_plan(merged, OPTIONS) == make_plan(whole, OPTIONS)
    assert merged.sample == whole.sample


def test_no_references_at_all() -> None:
    combine = CombinePlanTally(OPTIONS.output)
    tally = combine.compact(combine.merge_accumulators([]))
    assert (tally.inputs, tally.splits, tally.sample) == (0, [], [])


def test_reports() -> None:
    one, two = ListingReport(listed=3), ListingReport(listed=4)
    one.ignore("hidden", ".a")
    two.ignore("hidden", ".b")
    two.ignore("other", "c")
    one.warn("look")
    two.warn("look")
    with conversions.local_pipeline() as pipeline:
        merged = pipeline | beam.Create([one, two]) | beam.CombineGlobally(CombineReports())
        told = merged | beam.Map(
            lambda report: (
                report.listed,
                dict(report.ignored),
                {kind: sorted(names) for kind, names in report.examples.items()},
                report.warnings,
            )
        )
        assert_that(
            told,
            equal_to(
                [(7, {"hidden": 2, "other": 1}, {"hidden": [".a", ".b"], "other": ["c"]}, ["look"])]
            ),
        )
