"""The files beside the shards that other tools read: TFDS metadata and the tfmd schema."""

from __future__ import annotations

import json
from typing import Any

from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2

from beam_pipeline.dataset_info import DatasetInfo
from beam_pipeline.examples import FeatureSpec, Role

_TFDS = "tensorflow_datasets.core.features."
_TFDS_VERSION = "1.0.0"


def tfds_dataset_info(info: DatasetInfo) -> str:
    """dataset_info.json, as tfds.builder_from_directory reads it."""
    splits = [
        {
            "name": split.name,
            "shardLengths": [str(shard.records) for shard in split.shards],
            "numBytes": str(split.bytes),
            "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
        }
        for split in info.splits.values()
    ]
    return _dumps(
        {
            "name": info.name,
            "version": _TFDS_VERSION,
            "fileFormat": "tfrecord",
            "description": _description(info),
            "moduleName": "",
            "splits": splits,
            **({"supervisedKeys": _supervised_keys(info)} if info.labels is not None else {}),
        }
    )


def _description(info: DatasetInfo) -> str:
    what = "images" if info.labels is None else f"images of {len(info.labels)} classes"
    text = f"{info.records} {what}, written by imagebeam."
    if info.compression != "none":
        text += (
            f" The shards are {info.compression}-compressed: TFDS cannot read them; read them "
            "with tf.data.TFRecordDataset(files, compression_type='GZIP'), or convert again "
            "without --compression."
        )
    return text


def _supervised_keys(info: DatasetInfo) -> dict[str, Any]:
    return {
        "tuple": {
            "items": [
                {"featureKey": info.feature(Role.IMAGE)},
                {"featureKey": info.feature(Role.LABEL)},
            ]
        }
    }


def tfds_features(info: DatasetInfo) -> str:
    """features.json: the feature structure, as TFDS reads it.

    Names with slashes become nested dictionaries, which TFDS flattens to the same names.
    """
    nested: dict[str, Any] = {}
    for spec in info.features:
        *parents, last = spec.name.split("/")
        level = nested
        for name in parents:
            level = level.setdefault(name, {})
        level[last] = _TfdsLeaf(_tfds_feature(spec, info))
    return _dumps(_features_dict(nested))


class _TfdsLeaf(dict):
    """A finished feature, told apart from a level of names."""


def _features_dict(level: dict[str, Any]) -> dict[str, Any]:
    return {
        "pythonClassName": _TFDS + "features_dict.FeaturesDict",
        "featuresDict": {
            "features": {
                name: dict(value) if isinstance(value, _TfdsLeaf) else _features_dict(value)
                for name, value in level.items()
            }
        },
    }


def _tfds_feature(spec: FeatureSpec, info: DatasetInfo) -> dict[str, Any]:
    if spec.role is Role.IMAGE:
        return _tfds_image(info)
    if spec.role is Role.LABEL:
        return {
            "pythonClassName": _TFDS + "class_label_feature.ClassLabel",
            "classLabel": {"numClasses": str(len(info.labels or ()))},
        }
    if spec.type == "text":
        single: dict[str, Any] = {"pythonClassName": _TFDS + "text_feature.Text", "text": {}}
    else:
        dtype = {"int64": "int64", "float": "float32", "bytes": "string"}[spec.type]
        name = "tensor_feature.Tensor" if spec.repeated else "scalar.Scalar"
        single = {
            "pythonClassName": _TFDS + name,
            "tensor": {"dtype": dtype, "encoding": "none", "shape": {}},
        }
    if not spec.repeated:
        return single
    return {
        "pythonClassName": _TFDS + "sequence_feature.Sequence",
        "sequence": {"feature": single, "length": "-1"},
    }


def _tfds_image(info: DatasetInfo) -> dict[str, Any]:
    height, width = info.size or (-1, -1)
    shape = {"dimensions": [str(height), str(width), str(info.channels or 3)]}
    if info.encoding == "raw":
        if info.size is None or info.channels is None:
            # TFDS has no feature for pixels whose shape stands in other features.
            return {"pythonClassName": _TFDS + "text_feature.Text", "text": {}}
        return {
            "pythonClassName": _TFDS + "tensor_feature.Tensor",
            "tensor": {"dtype": "uint8", "encoding": "bytes", "shape": shape},
        }
    image: dict[str, Any] = {"dtype": "uint8", "shape": shape}
    if len(info.formats) == 1:
        image["encodingFormat"] = next(iter(info.formats))
    return {"pythonClassName": _TFDS + "image_feature.Image", "image": image}


def schema(info: DatasetInfo) -> schema_pb2.Schema:
    """The tensorflow_metadata schema: presence, valency, types and domains of all features."""
    result = schema_pb2.Schema()
    types = {
        "int64": schema_pb2.INT,
        "float": schema_pb2.FLOAT,
        "bytes": schema_pb2.BYTES,
        "text": schema_pb2.BYTES,
    }
    for spec in info.features:
        feature = result.feature.add(name=spec.name, type=types[spec.type])
        if spec.repeated:
            feature.value_count.min = 0
        else:
            # A shape without dimensions: one value, which readers give as a dense tensor.
            feature.shape.SetInParent()
            feature.presence.min_fraction = 1.0
        if spec.role is not Role.EXTRA:
            feature.presence.min_count = 1
        if spec.role is Role.IMAGE:
            if info.encoding != "raw":  # the domain is that of encoded images
                feature.image_domain.SetInParent()
        elif spec.role is Role.LABEL:
            feature.int_domain.name = spec.name
            feature.int_domain.min = 0
            feature.int_domain.max = max(0, len(info.labels or ()) - 1)
            feature.int_domain.is_categorical = True
        elif spec.role is Role.LABEL_NAME:
            feature.string_domain.name = spec.name
            feature.string_domain.value.extend(info.labels or ())
        elif spec.role is Role.FORMAT:
            feature.string_domain.name = spec.name
            feature.string_domain.value.extend(sorted(info.formats))
        elif spec.role in (Role.HEIGHT, Role.WIDTH):
            feature.int_domain.min = 1
        elif spec.role is Role.CHANNELS:
            feature.int_domain.min, feature.int_domain.max = 1, 3
        elif spec.role is Role.DTYPE:
            feature.string_domain.name = spec.name
            feature.string_domain.value.append("uint8")
        elif spec.type == "text" and spec.role is Role.EXTRA:
            feature.natural_language_domain.SetInParent()
    return result


def schema_pbtxt(info: DatasetInfo) -> str:
    """schema.pbtxt."""
    return text_format.MessageToString(schema(info))


def conversion_json(info: DatasetInfo) -> str:
    """conversion.json."""
    return _dumps(info.to_json())


def _dumps(data: Any) -> str:
    return json.dumps(data, indent=2, ensure_ascii=True) + "\n"
