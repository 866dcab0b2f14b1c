"""The public transforms and the wiring of a conversion, in small pipelines."""

from __future__ import annotations

import dataclasses
import os
import pathlib

import apache_beam as beam
import pytest
import tensorflow as tf
from apache_beam.testing.util import assert_that, equal_to

from beam_pipeline import ImageRef, ImagesToExamples, InputOptions, ListImages, RejectedImage
from beam_pipeline.errors import InputError
from beam_pipeline.options import Encoding, FeatureNames, ImageOptions
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


def test_options_cannot_be_changed_by_a_transform() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        InputOptions(("a",)).inputs = ("b",)  # type: ignore[misc]
