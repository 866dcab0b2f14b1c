"""References in small pipelines: listed in batches, duplicates and equal images resolved."""

from __future__ import annotations

import pathlib
from typing import Any

import apache_beam as beam
from apache_beam.testing.util import assert_that, equal_to

from beam_pipeline.batching import BATCH_REFS, BUCKETS, HELD_REFS, batches_by_bucket
from beam_pipeline.hashing import bucket_hash
from beam_pipeline.inputs import resolve_inputs
from beam_pipeline.options import InputOptions
from beam_pipeline.progress import ProgressReporter
from beam_pipeline.reference_steps import DropEqualImages, ListBatches, ResolveDuplicates
from beam_pipeline.references import RefBatch
from beam_pipeline.storage import StorageConfig
from beam_pipeline.types import ImageRef, Outcome, Problem
from tests import conversions, fakes


def plain_refs(count: int, prefix: str = "") -> list[ImageRef]:
    return [ImageRef(f"{prefix}{i}.jpg", "/x", "a", size=10) for i in range(count)]


def test_list_batches(tmp_path: pathlib.Path) -> None:
    files = fakes.class_folders(tmp_path)
    plan = resolve_inputs(InputOptions((str(tmp_path),)))
    with conversions.local_pipeline() as pipeline:
        listed = pipeline | ListBatches(plan, StorageConfig())
        keys = listed.batches | beam.FlatMap(
            lambda element: [(element[0], one.key) for one in element[1].refs]
        )
        assert_that(
            keys,
            equal_to([(bucket_hash(key, BUCKETS), key) for key in files]),
            label="keys",
        )
        assert_that(
            listed.report | beam.Map(lambda report: report.listed),
            equal_to([len(files)]),
            label="report",
        )


def test_batches_hold_each_key_in_its_bucket() -> None:
    refs = plain_refs(3000) * 2
    seen: list[ImageRef] = []
    for bucket, batch in batches_by_bucket(refs):
        assert isinstance(batch, RefBatch)
        assert {bucket_hash(one.key, BUCKETS) for one in batch.refs} == {bucket}
        assert 0 < len(batch.refs) <= BATCH_REFS
        seen += batch.refs
    assert sorted(seen) == sorted(refs)


def test_batches_are_given_out_in_bounded_memory() -> None:
    drawn = 0

    def refs() -> Any:
        nonlocal drawn
        for one in plain_refs(2 * HELD_REFS):
            drawn += 1
            yield one

    given = 0
    most = 0
    for _, batch in batches_by_bucket(refs()):  # a bucket of 2,048 at a time
        most = max(most, drawn - given)
        given += len(batch.refs)
    assert given == 2 * HELD_REFS
    assert most <= HELD_REFS


def test_resolve_duplicates_in_a_pipeline(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(b"12345")
    one = ImageRef("a.jpg", str(path), "a", row=1)
    two = one._replace(row=2)
    with conversions.local_pipeline() as pipeline:
        refs = (
            pipeline
            | beam.Create(
                [(0, RefBatch([two])), (0, RefBatch([one])), (1, RefBatch(plain_refs(1)))]
            )
            | ResolveDuplicates(StorageConfig())
            | beam.FlatMap(lambda batch: batch.refs)
        )
        assert_that(
            refs,
            equal_to(
                [
                    one._replace(size=5),  # asked on the way
                    two._replace(problem=Problem(Outcome.DUPLICATE, "same_path", "row 1")),
                    *plain_refs(1),
                ]
            ),
        )


def test_drop_equal_images_in_a_pipeline(tmp_path: pathlib.Path) -> None:
    files = {"a.png": fakes.png(0), "b.png": fakes.png(1), "c.png": fakes.png(0), "d.png": b""}
    fakes.write_tree(tmp_path, files)
    refs = [ImageRef(key, str(tmp_path / key), "x", size=len(files[key])) for key in files]
    with conversions.local_pipeline() as pipeline:
        found = (
            pipeline
            | beam.Create([RefBatch(refs[:1]), RefBatch(refs[1:3]), RefBatch(refs[3:])])
            | DropEqualImages(1 << 20, ProgressReporter(None), StorageConfig())
            | beam.FlatMap(lambda batch: batch.refs)
        )
        problem = Problem(Outcome.DUPLICATE, "same_bytes", "same bytes as a.png")
        assert_that(found, equal_to([*refs[:2], refs[2]._replace(problem=problem), refs[3]]))
