"""Serialized Examples: what TensorFlow reads in them, and that their bytes never vary."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from beam_pipeline.errors import UsageError
from beam_pipeline.examples import (
    FEATURE_NAMES,
    ExampleEncoder,
    FeatureSpec,
    Role,
    check_feature_names,
    feature_specs,
)
from beam_pipeline.options import Encoding, FeatureNames, FeatureType
from beam_pipeline.types import ImageRecord, PreparedImage
from tests import fakes


def record(number: int = 0, data: bytes | None = None, **fields: object) -> ImageRecord:
    image = PreparedImage(data or fakes.jpeg(number), "jpeg", 24, 32, 3, "jpeg")
    given = {"label": 1, "label_name": "glücklich", **fields}
    return ImageRecord(f"a/{number}.jpg", image, "0f" * 32, **given)  # type: ignore[arg-type]


def default_specs(**extra: tuple[FeatureType, bool]) -> tuple[FeatureSpec, ...]:
    return feature_specs(
        FeatureNames.DEFAULT, labelled=True, encoding=Encoding.PASSTHROUGH, extra=extra
    )


def test_default_names() -> None:
    assert [(spec.name, spec.type, spec.repeated) for spec in default_specs()] == [
        ("channels", "int64", False),
        ("format", "text", False),
        ("height", "int64", False),
        ("image", "bytes", False),
        ("key", "text", False),
        ("label", "int64", False),
        ("label_name", "text", False),
        ("sha256", "text", False),
        ("width", "int64", False),
    ]


def test_slim_names() -> None:
    specs = feature_specs(FeatureNames.SLIM, labelled=True, encoding=Encoding.RAW)
    assert {spec.role: spec.name for spec in specs} == FEATURE_NAMES[FeatureNames.SLIM]
    assert {
        "image/encoded",
        "image/format",
        "image/height",
        "image/width",
        "image/channels",
        "image/class/label",
        "image/class/text",
        "image/filename",
        "image/key/sha256",
    } <= {spec.name for spec in specs}


@pytest.mark.parametrize("names", list(FeatureNames))
def test_without_labels_the_label_features_are_absent(names: FeatureNames) -> None:
    specs = feature_specs(names, labelled=False, encoding=Encoding.PNG)
    assert not {Role.LABEL, Role.LABEL_NAME, Role.DTYPE} & {spec.role for spec in specs}


@pytest.mark.parametrize("names", list(FeatureNames))
def test_every_own_name_is_reserved(names: FeatureNames) -> None:
    # Two features of one name would make an Example that readers parse at random.
    for name in FEATURE_NAMES[names].values():
        with pytest.raises(UsageError, match=f"--feature {name}: .* rename the column"):
            check_feature_names(names, {name: FeatureType.TEXT})
    check_feature_names(names, {"age": FeatureType.INT64})


def parse(serialized: bytes) -> dict[str, list]:
    example = tf.train.Example.FromString(serialized)
    return {
        name: list(getattr(value, value.WhichOneof("kind")).value)
        for name, value in example.features.feature.items()
        if value.WhichOneof("kind")
    }


def test_every_feature_reads_back() -> None:
    extra = {
        "age": (FeatureType.INT64, False),
        "blob": (FeatureType.BYTES, False),
        "score": (FeatureType.FLOAT, False),
        "tags": (FeatureType.TEXT, True),
        "boxes": (FeatureType.FLOAT, True),
    }
    values = {
        "age": -(1 << 63),
        "blob": b"\x00\xff",
        "score": 0.1,
        "tags": ["ü", "", "x"],
        "boxes": [1, 2.5],
    }
    (serialized,) = ExampleEncoder(default_specs(**extra)).encode([record(features=values)])
    assert parse(serialized) == {
        "age": [-(1 << 63)],
        "blob": [b"\x00\xff"],
        "boxes": [1.0, 2.5],
        "channels": [3],
        "format": [b"jpeg"],
        "height": [24],
        "image": [fakes.jpeg(0)],
        "key": [b"a/0.jpg"],
        "label": [1],
        "label_name": ["glücklich".encode()],
        "score": [float(np.float32(0.1))],
        "sha256": [b"0f" * 32],
        "tags": ["ü".encode(), b"", b"x"],
        "width": [32],
    }


def test_an_empty_list_parses_as_empty() -> None:
    specs = default_specs(tags=(FeatureType.TEXT, True))
    (serialized,) = ExampleEncoder(specs).encode([record(features={"tags": []})])
    parsed = tf.io.parse_single_example(serialized, {"tags": tf.io.VarLenFeature(tf.string)})
    assert parsed["tags"].values.shape == (0,)


def test_the_wire_form_is_canonical() -> None:
    # Exactly what protobuf writes, with the features (a map, in any order) sorted by name.
    for item in ExampleEncoder(default_specs()).encode([record(i) for i in range(20)]):
        features = tf.train.Example.FromString(item).features.feature
        assert len(features) == 9
        entries = [
            tf.train.Features(feature={name: features[name]}).SerializeToString()
            for name in sorted(features)
        ]
        inner = b"".join(entries)
        example = tf.train.Example.FromString(item)
        assert item.endswith(inner)
        assert len(item) == len(example.SerializeToString())


@pytest.mark.parametrize("size", [1, 100, 127, 128, 16_383, 16_384, 1 << 20, 3 << 20])
def test_length_prefixes_of_every_width(size: int) -> None:
    data = bytes(size)
    (serialized,) = ExampleEncoder(default_specs()).encode([record(data=data)])
    assert parse(serialized)["image"] == [data]


def test_batches_do_not_show() -> None:
    # More than half a megabyte is encoded in several calls.
    records = [record(i, data=bytes([i % 256]) * 60_000) for i in range(40)]
    encoder = ExampleEncoder(default_specs())
    assert encoder.encode(records) == [encoder.encode([one])[0] for one in records]
    assert encoder.encode([]) == []


def test_what_repeats_is_encoded_like_what_does_not() -> None:
    labels = [1, 0, 1, -1, 0, 2**40, 1]
    records = [
        record(number, label=label, label_name="ü" * (number % 3))
        for number, label in enumerate(labels)
    ]
    found = [parse(one) for one in ExampleEncoder(default_specs()).encode(records)]
    assert [one["label"] for one in found] == [[label] for label in labels]
    assert [one["label_name"] for one in found] == [
        [("ü" * (number % 3)).encode()] for number in range(len(labels))
    ]


def test_raw_has_a_dtype() -> None:
    specs = feature_specs(FeatureNames.DEFAULT, labelled=False, encoding=Encoding.RAW)
    image = PreparedImage(bytes(6), "raw", 1, 2, 3, "png")
    (serialized,) = ExampleEncoder(specs).encode([ImageRecord("k", image, "00")])
    assert parse(serialized)["dtype"] == [b"uint8"]
    assert "label" not in parse(serialized)
