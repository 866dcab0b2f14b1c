"""Writes small dataset directories the way `imagebeam convert` lays them out, without Beam."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import pathlib

import numpy as np
import tensorflow as tf

from beam_pipeline import dataset_info
from beam_pipeline.examples import ExampleEncoder, feature_specs
from beam_pipeline.options import Encoding, FeatureNames
from beam_pipeline.types import ImageRecord, PreparedImage
from tests import fakes

LABELS = ("angry", "happy", "sad")


def face(label: int, seed: int, size: tuple[int, int], channels: int) -> np.ndarray:
    """A picture that shows its label: a bright bar, placed by the label, on noise."""
    height, width = size
    pixels = np.random.default_rng(seed).integers(0, 60, (height, width, channels), dtype=np.uint8)
    top = height * label // len(LABELS)
    pixels[top : top + max(height // len(LABELS), 1)] += 150
    return pixels


def prepared(pixels: np.ndarray, encoding: str) -> PreparedImage:
    height, width, channels = pixels.shape
    plain = pixels[..., 0] if channels == 1 else pixels
    if encoding == "raw":
        data = pixels.tobytes()
    elif encoding == "jpeg":
        data = fakes.encode(plain, "JPEG", quality=95)
    else:
        data = fakes.encode(plain, "PNG")
    return PreparedImage(data, encoding, height, width, channels, encoding)


def write_dataset(
    directory: str | os.PathLike[str],
    *,
    splits: dict[str, int] | None = None,
    shards: int = 2,
    encoding: str = "png",
    size: tuple[int, int] | None = (12, 16),
    channels: int = 1,
    names: FeatureNames = FeatureNames.DEFAULT,
    compressed: bool = False,
    labelled: bool = True,
    label_offset: int = 0,
) -> pathlib.Path:
    """Writes a finished dataset; returns its directory.

    Args:
      directory: where to.
      splits: split → images; labels go round, keys are `{split}/{number}`.
      shards: per split.
      encoding: "jpeg", "png" or "raw", or "mixed" for JPEG and PNG alternately.
      size: (height, width), or None for sizes that differ.
      channels: 1 or 3.
      names: default or slim feature names.
      compressed: gzip the shards.
      labelled: False leaves the labels out.
      label_offset: added to every stored label id, to break the map on purpose.
    """
    path = pathlib.Path(directory)
    path.mkdir(parents=True, exist_ok=True)
    stored = {"raw": Encoding.RAW, "mixed": Encoding.PASSTHROUGH}.get(encoding)
    stored = stored or Encoding(encoding)
    specs = feature_specs(names, labelled=labelled, encoding=stored)
    encoder = ExampleEncoder(specs)
    infos, formats = {}, {}
    for split_number, (split, count) in enumerate((splits or {"train": 24}).items()):
        records = []
        classes = dict.fromkeys(LABELS, 0)
        for number in range(count):
            label = number % len(LABELS)
            own = encoding if encoding != "mixed" else ("jpeg", "png")[number % 2]
            sides = size or (10 + number % 5, 12 + number % 7)
            image = prepared(face(label, 1000 * split_number + number, sides, channels), own)
            formats[own] = formats.get(own, 0) + 1
            classes[LABELS[label]] += 1
            records.append(
                ImageRecord(
                    key=f"{split}/{number}",
                    image=image,
                    sha256=hashlib.sha256(image.data).hexdigest(),
                    label=label + label_offset if labelled else None,
                    label_name=LABELS[label] if labelled else None,
                )
            )
        order = np.random.default_rng(7).permutation(count)
        shard_infos = []
        for index, part in enumerate(np.array_split(order, shards)):
            file = dataset_info.shard_file_name("faces", split, index, shards)
            write_shard(path / file, encoder.encode([records[i] for i in part]), compressed)
            shard_infos.append(describe_shard(path / file, len(part)))
        infos[split] = dataset_info.SplitInfo(split, tuple(shard_infos), classes)
    info = dataset_info.DatasetInfo(
        directory=str(path),
        name="faces",
        splits=infos,
        labels=LABELS if labelled else None,
        features=specs,
        encoding=stored.value,
        feature_names=names.value,
        compression="gzip" if compressed else "none",
        formats=formats,
        channels=channels,
        size=size,
        ledger={"inputs": 0},
        rejects={},
        fingerprint=dataset_info.fingerprint(s for i in infos.values() for s in i.shards),
    )
    (path / dataset_info.CONVERSION_FILE).write_text(json.dumps(info.to_json()))
    (path / dataset_info.SUCCESS_FILE).write_text("")
    return path


def write_shard(path: pathlib.Path, records: list[bytes], compressed: bool = False) -> None:
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)
    if compressed:
        path.write_bytes(gzip.compress(path.read_bytes(), mtime=0))


def describe_shard(path: pathlib.Path, records: int) -> dataset_info.ShardInfo:
    data = path.read_bytes()
    return dataset_info.ShardInfo(path.name, records, len(data), hashlib.sha256(data).hexdigest())
