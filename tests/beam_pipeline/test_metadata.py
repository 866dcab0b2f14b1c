"""schema.pbtxt and the TFDS files: what they say, and that tfx-bsl reads datasets by them."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pytest
from apache_beam.testing.util import assert_that
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2

from beam_pipeline import metadata
from beam_pipeline.dataset_info import DatasetInfo, read_dataset_info
from beam_pipeline.examples import Role, feature_specs
from beam_pipeline.options import Encoding, FeatureNames, FeatureType
from tests import conversions, fakes


def make_info(**changes: Any) -> DatasetInfo:
    encoding = changes.pop("encoding", Encoding.PASSTHROUGH)
    labels = changes.pop("labels", ("a", "b", "c"))
    specs = feature_specs(
        changes.pop("names", FeatureNames.DEFAULT),
        labelled=labels is not None,
        encoding=encoding,
        extra={"age": (FeatureType.INT64, False), "box": (FeatureType.FLOAT, True),
               "note": (FeatureType.TEXT, False)},
    )  # fmt: skip
    values: dict[str, Any] = {
        "directory": "/d", "name": "d", "splits": {}, "labels": labels, "features": specs,
        "encoding": encoding.value, "feature_names": "default", "compression": "none",
        "formats": {"png": 1, "jpeg": 2}, "channels": 3, "size": None, "ledger": {},
        "rejects": {}, "fingerprint": "", **changes,
    }  # fmt: skip
    return DatasetInfo(**values)


def by_name(info: DatasetInfo) -> dict[str, Any]:
    return {feature.name: feature for feature in metadata.schema(info).feature}


def test_presence_valency_and_types() -> None:
    features = by_name(make_info())
    assert len(features) == 12
    for name, feature in features.items():
        if name == "box":
            assert feature.value_count.min == 0
            assert not feature.value_count.HasField("max")
            assert not feature.HasField("presence")
        else:
            assert feature.HasField("shape")
            assert not feature.shape.dim  # one value, no list
            assert feature.presence.min_fraction == 1.0
    types = {name: schema_pb2.FeatureType.Name(f.type) for name, f in features.items()}
    assert types["image"] == types["key"] == types["note"] == "BYTES"
    assert types["label"] == types["age"] == "INT"
    assert types["box"] == "FLOAT"


def test_domains() -> None:
    features = by_name(make_info())
    label = features["label"].int_domain
    assert (label.min, label.max, label.is_categorical) == (0, 2, True)
    assert list(features["label_name"].string_domain.value) == ["a", "b", "c"]
    assert list(features["format"].string_domain.value) == ["jpeg", "png"]
    assert features["image"].HasField("image_domain")
    assert features["height"].int_domain.min == 1
    assert features["note"].HasField("natural_language_domain")
    assert not features["sha256"].HasField("natural_language_domain")


def test_raw_and_unlabelled() -> None:
    features = by_name(make_info(encoding=Encoding.RAW, labels=None))
    assert "label" not in features
    assert "label_name" not in features
    assert not features["image"].HasField("image_domain")
    assert list(features["dtype"].string_domain.value) == ["uint8"]


def test_schema_text_is_read_back() -> None:
    info = make_info(names=FeatureNames.SLIM)
    text = metadata.schema_pbtxt(info)
    assert text_format.Parse(text, schema_pb2.Schema()) == metadata.schema(info)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"shape": {"dimensions": ["-1", "-1", "3"]}}),
        ({"channels": 1, "size": (48, 48), "formats": {"png": 3}},
         {"shape": {"dimensions": ["48", "48", "1"]}, "encodingFormat": "png"}),
        ({"channels": None}, {"shape": {"dimensions": ["-1", "-1", "3"]}}),
    ],
)  # fmt: skip
def test_tfds_image_feature(changes: dict[str, Any], expected: dict[str, Any]) -> None:
    features = json.loads(metadata.tfds_features(make_info(**changes)))
    image = features["featuresDict"]["features"]["image"]
    assert image["image"] == {"dtype": "uint8", **expected}


@pytest.mark.parametrize("size", [(4, 5), None])
def test_tfds_raw_pixels(size: tuple[int, int] | None) -> None:
    info = make_info(encoding=Encoding.RAW, size=size, channels=3)
    feature = json.loads(metadata.tfds_features(info))["featuresDict"]["features"]["image"]
    if size is None:
        assert feature["pythonClassName"].endswith("text_feature.Text")
    else:
        assert feature["tensor"]["shape"]["dimensions"] == ["4", "5", "3"]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    root = tmp_path_factory.mktemp("tfxio")
    rows = []
    for i in range(6):
        fakes.write_tree(root, {f"{i}.jpg": fakes.jpeg(i)})
        rows.append({"path": f"{i}.jpg", "label": "ab"[i % 2], "age": i, "box": [0.5] * i})
    (root / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    conversions.run(
        root / "m.jsonl",
        root / "out",
        features={"age": FeatureType.INT64, "box": FeatureType.FLOAT},
        num_shards=2,
    )
    return root / "out"


@pytest.fixture(scope="module")
def tfxio(dataset: pathlib.Path) -> Any:
    from tfx_bsl.public import tfxio

    schema = text_format.Parse((dataset / "schema.pbtxt").read_text(), schema_pb2.Schema())
    return tfxio.TFExampleRecord(
        file_pattern=str(dataset / "*.tfrecord-*"), schema=schema, telemetry_descriptors=["test"]
    )


def test_tfxio_record_batches(tfxio: Any, dataset: pathlib.Path) -> None:
    from tfx_bsl.public.tfxio import RecordBatchesOptions

    options = RecordBatchesOptions(batch_size=4, num_epochs=1, shuffle=False)
    table = pa.Table.from_batches(list(tfxio.RecordBatches(options)))
    info = read_dataset_info(str(dataset))
    assert set(table.schema.names) == {spec.name for spec in info.features}
    assert table.num_rows == 6
    boxes = dict(
        zip([v[0] for v in table["age"].to_pylist()], table["box"].to_pylist(), strict=True)
    )
    assert boxes[3] == [0.5] * 3
    image = info.feature(Role.IMAGE)
    assert all(value[0].startswith(b"\xff\xd8") for value in table[image].to_pylist())


def test_tfxio_tensorflow_dataset(tfxio: Any) -> None:
    from tfx_bsl.public.tfxio import TensorFlowDatasetOptions

    options = TensorFlowDatasetOptions(batch_size=6, num_epochs=1, shuffle=False)
    (batch,) = list(tfxio.TensorFlowDataset(options))
    assert batch["label"].shape == (6,)
    assert sorted(batch["age"].numpy().ravel().tolist()) == list(range(6))
    assert sorted(batch["label"].numpy().ravel().tolist()) == [0, 0, 0, 1, 1, 1]


def test_tfxio_beam_source(tfxio: Any) -> None:
    with conversions.local_pipeline() as pipeline:
        batches = pipeline | tfxio.BeamSource(batch_size=4)
        rows = batches | beam.Map(lambda batch: batch.num_rows) | beam.CombineGlobally(sum)

        def six(found: list[int]) -> None:
            assert found == [6]

        assert_that(rows, six)
