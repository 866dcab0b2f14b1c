"""The pipeline with millions of references and no pixels: memory, time, bytes shuffled.

    python benchmarks/scale.py --references 10000000 [--references 1000000 …]

Runs the real conversion pipeline (list, group by duplicate bucket, resolve, tally, plan,
assign splits and shards, group by shard, sort each shard) on the local engine, each size
in a process of its own. Two steps are replaced: listing makes up its references, and
writing a shard sorts and counts them instead of reading images. Prints one line of JSON
per size.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.metrics import Metrics
from apache_beam.metrics.metric import MetricsFilter

from beam_pipeline import runners, write_dataset
from beam_pipeline.batching import batches_by_bucket
from beam_pipeline.inputs import ListingReport
from beam_pipeline.options import ConvertOptions, InputOptions, OutputOptions
from beam_pipeline.progress import ProgressReporter
from beam_pipeline.reference_steps import REPORT_TAG
from beam_pipeline.references import RefBatch
from beam_pipeline.storage import StorageConfig
from beam_pipeline.tfrecord_writer import sorted_refs
from beam_pipeline.types import ImageRef

CLASSES = 1000
IMAGE_BYTES = 100_000  # of one image, as listing would tell

# Encoded bytes that go into each shuffle.
NAMESPACE = "scale"


def made_up_refs(count: int) -> Iterator[ImageRef]:
    """References with keys and paths as long as those of a large photo collection."""
    for number in range(count):
        label = f"class_{number * 7919 % CLASSES:04d}"
        key = f"{label}/2026/{number % 366:03d}/IMG_{number:010d}.jpg"
        yield ImageRef(key, f"s3://my-company-photos/training/v3/{key}", label, size=IMAGE_BYTES)


class _ListDoFn(beam.DoFn):
    def process(self, count: int) -> Iterator[Any]:
        for key, batch in batches_by_bucket(made_up_refs(count)):
            Metrics.counter(NAMESPACE, "by_bucket").inc(len(batch.encoded))
            yield key, batch
        report = ListingReport()
        report.listed = count
        yield beam.pvalue.TaggedOutput(REPORT_TAG, report)


class CountShards(beam.PTransform):
    """Stands for the writer: takes each shard's references, sorts them, counts them."""

    def __init__(self, options: ConvertOptions, *unused: Any):
        super().__init__()
        self._seed = options.output.seed

    def expand(self, grouped: beam.PCollection) -> beam.PCollection:
        """Applies the transform."""
        return grouped | "CountShards" >> beam.Map(_count_shard, self._seed)


def _count_shard(element: tuple[tuple[str, int], Iterable[RefBatch]], seed: int) -> int:
    _, batches = element
    batches = list(batches)
    Metrics.counter(NAMESPACE, "by_shard").inc(sum(len(batch.encoded) for batch in batches))
    return len(sorted_refs(batches, seed))


def _collect(
    _: None,
    plan: Any,
    report: ListingReport,
    results: Iterable[int],
    options: ConvertOptions,
    context: Any,
) -> dict[str, int]:
    counts = list(results)
    assert sum(counts) == report.listed == plan.inputs, (sum(counts), report.listed, plan.inputs)
    outcome = {"shards": len(counts), "largest_shard": max(counts), "smallest": min(counts)}
    print(json.dumps(outcome), file=sys.stderr)
    return outcome


def measure(count: int) -> dict[str, Any]:
    """Runs the pipeline over `count` references in this process."""
    write_dataset.WriteShardsToTFRecord = CountShards  # type: ignore[misc, assignment]
    write_dataset._finalize = _collect  # type: ignore[assignment]
    options = ConvertOptions(
        InputOptions(("s3://my-company-photos",)),
        OutputOptions("made-up", name="scale", split={"train": 0.9, "test": 0.1}),
    )
    before = _resident()
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as staging:
        context = write_dataset.WriteContext(
            staging=staging,
            replaced=(),
            run={},
            reporter=ProgressReporter(None),
            storage=StorageConfig(),
        )
        pipeline = beam.Pipeline(runner=runners.choose_engine([]).make_runner())
        listed = (
            pipeline
            | "Inputs" >> beam.Create([count])
            | "List" >> beam.ParDo(_ListDoFn()).with_outputs(REPORT_TAG, main="batches")
        )
        batches = listed.batches | "Types" >> beam.Map(lambda pair: pair).with_output_types(
            tuple[int, RefBatch]
        )
        _ = batches | "Write" >> write_dataset.WriteDataset(options, context, listed.report)
        result = pipeline.run()
        result.wait_until_finish()
    found = result.metrics().query(MetricsFilter().with_namespace(NAMESPACE))["counters"]
    shuffled = {counter.key.metric.name: counter.result for counter in found}
    seconds = time.monotonic() - start
    usage = resource.getrusage(resource.RUSAGE_SELF)
    peak = usage.ru_maxrss * 1024
    return {
        "references": count,
        "seconds": round(seconds, 1),
        "references_per_second": round(count / seconds),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "memory_before_bytes": before,
        "memory_peak_bytes": peak,
        "memory_bytes_per_reference": round((peak - before) / count, 1),
        "shuffled_bytes_per_reference": round(sum(shuffled.values()) / count, 1),
        "shuffled_bytes": shuffled,
    }


def _resident() -> int:
    """Bytes of this process in memory."""
    with open("/proc/self/statm") as stream:
        return int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--references", type=int, action="append", metavar="N")
    parser.add_argument("--in_this_process", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    counts = args.references or [10_000_000]
    if args.in_this_process:
        print(json.dumps(measure(counts[0])), flush=True)
        return
    for count in counts:
        command = [sys.executable, __file__, "--in_this_process", "--references", str(count)]
        done = subprocess.run(command, check=False)
        if done.returncode:
            print(f"{count:,} references: stopped with exit code {done.returncode}")
            sys.exit(1)


if __name__ == "__main__":
    main()
