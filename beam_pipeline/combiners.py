"""CombineFns: how what workers learn about their part becomes one answer."""

from __future__ import annotations

from collections.abc import Iterable

import apache_beam as beam

from beam_pipeline.inputs import ListingReport
from beam_pipeline.options import OutputOptions
from beam_pipeline.plan import PlanTally
from beam_pipeline.references import RefBatch


class CombinePlanTally(beam.CombineFn):
    """RefBatch → PlanTally of all of them."""

    def __init__(self, output: OutputOptions):
        self._output = output

    def create_accumulator(self) -> PlanTally:
        """An empty tally."""
        return PlanTally()

    def add_input(self, accumulator: PlanTally, element: RefBatch) -> PlanTally:
        """Adds a batch."""
        accumulator.add(element.refs, self._output)
        return accumulator

    def merge_accumulators(self, accumulators: Iterable[PlanTally]) -> PlanTally:
        """Adds tallies up."""
        merged = PlanTally()
        for accumulator in accumulators:
            merged.merge(accumulator)
        return merged

    def compact(self, accumulator: PlanTally) -> PlanTally:
        """Shrinks a tally before it is sent."""
        return accumulator.compact()

    def extract_output(self, accumulator: PlanTally) -> PlanTally:
        """The tally itself."""
        return accumulator


class CombineReports(beam.CombineFn):
    """ListingReport → one report of all listings."""

    def create_accumulator(self) -> ListingReport:
        """An empty report."""
        return ListingReport()

    def add_input(self, accumulator: ListingReport, element: ListingReport) -> ListingReport:
        """Adds one report."""
        accumulator.merge(element)
        return accumulator

    def merge_accumulators(self, accumulators: Iterable[ListingReport]) -> ListingReport:
        """Adds reports up."""
        merged = ListingReport()
        for accumulator in accumulators:
            merged.merge(accumulator)
        return merged

    def extract_output(self, accumulator: ListingReport) -> ListingReport:
        """The report itself."""
        return accumulator
