"""Finds the record behind a reading error, so that the message can name it."""

from __future__ import annotations

import os

import tensorflow as tf

from beam_pipeline.dataset_info import DatasetInfo
from beam_pipeline.errors import DatasetError
from beam_pipeline.examples import FeatureSpec, Role
from training.shards import DamagedRecordError, read_records

_KINDS = {"int64_list": "int64", "float_list": "float", "bytes_list": "bytes"}


def explain_reading_error(error: tf.errors.OpError, info: DatasetInfo, split: str) -> DatasetError:
    """A DatasetError that names shard, record and feature behind `error`.

    Reads the split record by record, in order, until it finds a fault; only used once
    reading has failed.
    """
    fault = find_fault(info, split)
    if fault is None:
        first_line = (error.message or str(error)).splitlines()[0]
        fault = f"split {split!r} could not be read: {first_line}"
    return DatasetError(f"{info.directory}: {fault}")


def find_fault(info: DatasetInfo, split: str) -> str | None:
    """The first record of a split that training cannot use, and why; None when all is well."""
    for shard in info.split(split).shards:
        path = os.path.join(info.directory, shard.file)
        number = 0
        try:
            for _, record in read_records(path):
                fault = _record_fault(record, info)
                if fault:
                    return f"{shard.file}, record {number}: {fault}"
                number += 1
        except (OSError, DamagedRecordError) as error:
            return f"{shard.file}: {error}"
        if number != shard.records:
            return f"{shard.file} holds {number} records, expected {shard.records}"
    return None


def _record_fault(record: bytes, info: DatasetInfo) -> str | None:
    try:
        example = tf.train.Example.FromString(record)
    except Exception as error:  # protobuf raises classes of its own
        return f"not a tf.train.Example: {error}"
    features = example.features.feature
    key_name = info.feature(Role.KEY)
    where = ""
    if key_name in features and features[key_name].bytes_list.value:
        where = f" (key {features[key_name].bytes_list.value[0].decode('utf-8', 'replace')!r})"
    for spec in info.features:
        if spec.role is Role.EXTRA:
            continue
        fault = _feature_fault(spec, features, info)
        if fault:
            return f"feature {spec.name!r}{where}: {fault}"
    return None


def _feature_fault(spec: FeatureSpec, features, info: DatasetInfo) -> str | None:  # type: ignore[no-untyped-def]
    wanted = "bytes" if spec.type == "text" else spec.type
    if spec.name not in features:
        return f"wanted one {wanted}, found no such feature among {', '.join(sorted(features))}"
    kind = features[spec.name].WhichOneof("kind")
    found = _KINDS.get(kind or "", "nothing")
    values = list(getattr(features[spec.name], kind).value) if kind else []
    if found != wanted or len(values) != 1:
        return f"wanted one {wanted}, found {len(values)} of {found}"
    classes = len(info.labels or ())
    if spec.role is Role.LABEL and not 0 <= values[0] < classes:
        return f"wanted a label id of 0 to {classes - 1}, found {values[0]}"
    if spec.role is Role.IMAGE and info.encoding != "raw":
        try:
            tf.io.decode_image(values[0], expand_animations=False)
        except tf.errors.InvalidArgumentError as error:
            return f"TensorFlow cannot decode it: {(error.message or '').splitlines()[0]}"
    return None
