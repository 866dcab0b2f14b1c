"""The public transforms and the wiring of a conversion, in small pipelines."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from typing import Any

import apache_beam as beam
import pytest
import tensorflow as tf
from apache_beam.testing.util import assert_that, equal_to

from beam_pipeline import ImageRef, ImagesToExamples, InputOptions, ListImages, RejectedImage
from beam_pipeline.batching import BATCH_REFS, BUCKETS, HELD_REFS, batches_by_bucket
from beam_pipeline.duplicates import resolve_duplicates
from beam_pipeline.errors import InputError
from beam_pipeline.hashing import bucket_hash
from beam_pipeline.inputs import resolve_inputs
from beam_pipeline.options import Encoding, FeatureNames, ImageOptions
from beam_pipeline.plan import PlanTally, make_plan
from beam_pipeline.references import RefBatch
from beam_pipeline.storage import StorageConfig
from beam_pipeline.transforms import (
    ListBatches,
    _AssignShardsDoFn,
    _ResolveDuplicatesDoFn,
)
from beam_pipeline.types import Outcome, Problem
from tests import conversions, fakes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    root = tmp_path_factory.mktemp("folder")
    fakes.write_tree(
        root,
        {
            "happy/0.jpg": fakes.jpeg(0),
            "happy/1.png": fakes.png(1),
            "sad/0.jpg": fakes.jpeg(2),
            "sad/bad.jpg": b"no image",
        },
    )
    return root


def ref(folder: pathlib.Path, key: str) -> ImageRef:
    path = str(folder / key)
    return ImageRef(key, path, os.path.dirname(key), size=os.path.getsize(path))


KEYS = ("happy/0.jpg", "happy/1.png", "sad/0.jpg", "sad/bad.jpg")


def test_list_images(folder: pathlib.Path) -> None:
    with conversions.local_pipeline() as pipeline:
        refs = pipeline | ListImages(InputOptions((str(folder),)))
        known = refs | beam.Map(lambda ref: ref._replace(size=os.path.getsize(ref.uri)))
        assert_that(known, equal_to([ref(folder, key) for key in KEYS]))


def test_list_images_fails_where_it_is_made(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        ListImages(InputOptions((str(tmp_path / "nothing"),)))


def keys_and_labels(example: tuple[str, bytes]) -> tuple[str, int, bytes]:
    key, serialized = example
    parsed = tf.io.parse_single_example(
        serialized,
        {
            "key": tf.io.FixedLenFeature([], tf.string),
            "label": tf.io.FixedLenFeature([], tf.int64),
            "image": tf.io.FixedLenFeature([], tf.string),
        },
    )
    assert parsed["key"].numpy().decode() == key
    return key, int(parsed["label"]), parsed["image"].numpy()


def test_images_to_examples(folder: pathlib.Path) -> None:
    refused = RejectedImage(
        "sad/bad.jpg",
        str(folder / "sad/bad.jpg"),
        "decode",
        "not_an_image",
        "",
    )
    with conversions.local_pipeline() as pipeline:
        results = (
            pipeline
            | beam.Create([ref(folder, key) for key in KEYS])
            | ImagesToExamples(labels=("sad", "happy"))
        )
        assert_that(
            results.examples | beam.Map(keys_and_labels),
            equal_to(
                [
                    ("happy/0.jpg", 1, fakes.jpeg(0)),
                    ("happy/1.png", 1, fakes.png(1)),
                    ("sad/0.jpg", 0, fakes.jpeg(2)),
                ]
            ),
            label="examples",
        )
        assert_that(
            results.rejects | "Detail" >> beam.Map(lambda reject: reject._replace(detail="")),
            equal_to([refused]),
            label="rejects",
        )


def test_images_to_examples_without_labels(folder: pathlib.Path) -> None:
    def names(example: tuple[str, bytes]) -> tuple[str, list[str]]:
        return example[0], sorted(tf.train.Example.FromString(example[1]).features.feature)

    image = ImageOptions(encoding=Encoding.RAW)
    with conversions.local_pipeline() as pipeline:
        results = (
            pipeline
            | ListImages(InputOptions((str(folder),)))  # with labels, which are not wanted here
            | ImagesToExamples(image, feature_names=FeatureNames.SLIM, batch=1)
        )
        expected = [
            "image/channels",
            "image/dtype",
            "image/encoded",
            "image/filename",
            "image/format",
            "image/height",
            "image/key/sha256",
            "image/width",
        ]
        assert_that(
            results.examples | beam.Map(names),
            equal_to([(key, expected) for key in KEYS[:3]]),
        )


def test_list_batches(folder: pathlib.Path) -> None:
    plan = resolve_inputs(InputOptions((str(folder),)))
    with conversions.local_pipeline() as pipeline:
        listed = pipeline | ListBatches(plan, StorageConfig())
        keys = listed.batches | beam.FlatMap(
            lambda element: [(element[0], one.key) for one in element[1].refs]
        )
        assert_that(
            keys,
            equal_to([(bucket_hash(key, BUCKETS), key) for key in KEYS]),
            label="keys",
        )
        assert_that(
            listed.report | beam.Map(lambda report: report.listed), equal_to([4]), label="report"
        )


def plain_refs(count: int, prefix: str = "") -> list[ImageRef]:
    return [ImageRef(f"{prefix}{i}.jpg", "/x", "a", size=10) for i in range(count)]


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
            | beam.GroupByKey()
            | beam.ParDo(_ResolveDuplicatesDoFn(StorageConfig(), None))
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


def test_assign_shards_in_a_pipeline() -> None:
    options = conversions.make_options("in", "out", num_shards=3, split={"a": 0.5, "b": 0.5})
    refs = resolve_duplicates(plain_refs(60))
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


def test_options_cannot_be_changed_by_a_transform() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        InputOptions(("a",)).inputs = ("b",)  # type: ignore[misc]
