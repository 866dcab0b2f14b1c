"""Lists the inputs in a worker process, while its parent still loads and builds a pipeline.

The worker streams what it finds: the plan of the inputs, batches of references, the
report; or, at any point, the exception that ended the listing. The pipeline takes the
batches where it would have listed by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from beam_pipeline.batching import batches_by_bucket
from beam_pipeline.inputs import InputPlan, ListingReport, list_images, resolve_inputs
from beam_pipeline.options import InputOptions
from beam_pipeline.references import RefBatch


def serve_listing(options: InputOptions, send: Callable[[Any], None]) -> None:
    """Lists inputs and sends a plan, (bucket, encoded RefBatch) pairs, and a report.

    Args:
      options: where the images come from.
      send: called with each part; blocks while the receiver has enough.

    Raises:
      ImagebeamError: as resolve_inputs and list_images do.
    """
    plan = resolve_inputs(options)
    send(plan)
    report = ListingReport()
    for bucket, batch in batches_by_bucket(list_images(plan, report)):
        send((bucket, batch.encoded))
    send(report)


class ListingAhead:
    """A listing that a worker makes, seen from its parent.

    Args:
      options: of the inputs that are listed.
      receive: gives the next part that serve_listing sent, or raises what it raised.
      end: called once when nothing more is to come.
    """

    def __init__(
        self, options: InputOptions, receive: Callable[[], Any], end: Callable[[], None]
    ) -> None:
        self.options = options
        self._receive = receive
        self._end = end
        self._plan: InputPlan | None = None

    def plan(self) -> InputPlan:
        """What the inputs are; waits for it.

        Raises:
          ImagebeamError: as resolve_inputs does.
        """
        if self._plan is None:
            self._plan = self._received()
        return self._plan

    def batches(self, report: ListingReport) -> Iterator[tuple[int, RefBatch]]:
        """The references, as batches_by_bucket gives them; once.

        Args:
          report: gets what the listing counted.

        Raises:
          ImagebeamError: as list_images does.
        """
        while True:
            part = self._received()
            if isinstance(part, ListingReport):
                break
            bucket, encoded = part
            yield bucket, RefBatch(encoded=encoded)
        self._end()
        report.merge(part)

    def _received(self) -> Any:
        try:
            return self._receive()
        except BaseException:
            self._end()
            raise
