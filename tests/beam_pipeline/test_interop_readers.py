"""Other readers of the same files: Model Garden, DALI's index, tfrecord, HuggingFace, loaders."""

from __future__ import annotations

import concurrent.futures
import importlib.util
import io
import json
import multiprocessing
import os
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from PIL import Image

from beam_pipeline.cli import main
from beam_pipeline.options import FeatureNames
from beam_pipeline.random_access import RandomAccessDataset
from tests import conversions, fakes
from tests.datasets_on_disk import read_records, shard


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    root = tmp_path_factory.mktemp("readers") / "images"
    fakes.class_folders(root, per_label=6)
    return root


@pytest.fixture(scope="module")
def dataset(source: pathlib.Path) -> pathlib.Path:
    output = source.parent / "faces"
    conversions.run(source, output, num_shards=2)
    return output


@pytest.fixture(scope="module")
def slim(source: pathlib.Path) -> pathlib.Path:
    output = source.parent / "slim"
    conversions.run(source, output, feature_names=FeatureNames.SLIM)
    return output


def test_model_garden_conventions(slim: pathlib.Path, source: pathlib.Path) -> None:
    """The features that official.vision's classification Decoder asks for, with its defaults."""
    import tensorflow as tf

    wanted = {
        "image/encoded": tf.io.FixedLenFeature((), tf.string, default_value=""),
        "image/class/label": tf.io.FixedLenFeature((), tf.int64, default_value=-1),
        # The older slim readers also ask for these.
        "image/format": tf.io.FixedLenFeature((), tf.string, default_value="jpeg"),
        "image/class/text": tf.io.FixedLenFeature((), tf.string, default_value=""),
        "image/filename": tf.io.FixedLenFeature((), tf.string, default_value=""),
        "image/height": tf.io.FixedLenFeature((), tf.int64, default_value=-1),
        "image/width": tf.io.FixedLenFeature((), tf.int64, default_value=-1),
    }
    records = tf.data.TFRecordDataset([str(shard(slim, "train"))])
    names = (slim / "label.labels.txt").read_text().split()
    found = 0
    for example in records.map(lambda record: tf.io.parse_single_example(record, wanted)):
        key = example["image/filename"].numpy().decode()
        assert example["image/encoded"].numpy() == (source / key).read_bytes()
        assert names[int(example["image/class/label"])] == key.split("/")[0]
        assert example["image/class/text"].numpy().decode() == key.split("/")[0]
        image = tf.io.decode_image(example["image/encoded"])
        assert image.shape == (example["image/height"], example["image/width"], 3)
        found += 1
    assert found == 18


def test_model_garden_itself(slim: pathlib.Path) -> None:
    """The real reader, where tf-models-official is installed."""
    try:
        reader = importlib.import_module("official.vision.dataloaders.classification_input")
    except ImportError:
        pytest.skip("needs tf-models-official")
    import tensorflow as tf

    decoder = reader.Decoder()
    parser = reader.Parser(output_size=[32, 32], num_classes=3, decode_jpeg_only=False)
    records = tf.data.TFRecordDataset([str(shard(slim, "train"))]).map(decoder.decode)
    for is_training in (True, False):
        batches = list(records.map(parser.parse_fn(is_training)).batch(18))
        assert [image.shape for image, _ in batches] == [(18, 32, 32, 3)]
        assert sorted(batches[0][1].numpy()) == sorted([0, 1, 2] * 6)


# The tfrecord package registers TensorFlow's message names for itself, which TensorFlow in
# the same process does not bear: it runs in one of its own.
TFRECORD_SCRIPT = """
import hashlib, json, os, sys
from tfrecord.reader import tfrecord_loader
from tfrecord.tools.tfrecord2idx import create_index
shard, our_index, their_index = sys.argv[1:]
create_index(shard, their_index)
found = []
for part in range(3):  # its way to share a file between workers
    description = {"image": "byte", "label": "int", "key": "byte"}
    for example in tfrecord_loader(shard, our_index, description, shard=(part, 3)):
        image = hashlib.sha256(bytes(example["image"])).hexdigest()
        found.append([bytes(example["key"]).decode(), int(example["label"][0]), image])
print(json.dumps(found))
"""


@pytest.mark.skipif(importlib.util.find_spec("tfrecord") is None, reason="needs tfrecord")
def test_dali_index_and_the_tfrecord_package(dataset: pathlib.Path, tmp_path: pathlib.Path) -> None:
    assert main(["index", str(dataset)]) == 0
    records = RandomAccessDataset(str(dataset))
    expected = {r["key"]: [r["key"], r["label"], r["sha256"]] for r in records}
    for number in range(2):
        path = shard(dataset, "train", number)
        ours = dataset / "dali_index" / f"{path.name}.idx"
        theirs = tmp_path / "theirs.idx"
        command = [sys.executable, "-c", TFRECORD_SCRIPT, str(path), str(ours), str(theirs)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        assert ours.read_text() == theirs.read_text()  # its tool is DALI's tfrecord2idx
        assert len(found) == len(read_records(path)[0])
        for row in found:
            assert row == expected.pop(row[0])
    assert not expected
    # Neither verify nor a pattern takes index files for shards.
    assert len(list(dataset.glob("*.tfrecord-*"))) == 2
    assert main(["verify", str(dataset)]) == 0


def read_one(arguments: tuple[RandomAccessDataset, int]) -> tuple[str, int]:
    dataset, number = arguments
    features = dataset[number]
    return features["key"], features["label"]


def test_map_style_dataset_in_worker_processes(dataset: pathlib.Path) -> None:
    """What torch's DataLoader does with a dataset: pickle it, ask workers for any number."""
    records = RandomAccessDataset(str(dataset), "train")
    order = np.random.default_rng(0).permutation(len(records)).tolist()
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
        found = list(pool.map(read_one, [(records, i) for i in order]))
    assert [key for key, _ in found] == [records.keys()[i] for i in order]
    assert {label for _, label in found} == {0, 1, 2}


def test_torch_data_loader(dataset: pathlib.Path) -> None:
    data = pytest.importorskip("torch.utils.data")

    def collate(batch: list[dict[str, Any]]) -> tuple[np.ndarray, list[int]]:
        images = [np.asarray(Image.open(io.BytesIO(item["image"]))) for item in batch]
        return np.stack(images), [item["label"] for item in batch]

    records = RandomAccessDataset(str(dataset), "train")
    loader = data.DataLoader(records, batch_size=6, shuffle=True, collate_fn=collate)
    assert [images.shape for images, _ in loader] == [(6, 24, 32, 3)] * 3


def test_hugging_face(dataset: pathlib.Path, source: pathlib.Path, tmp_path: pathlib.Path) -> None:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    records = RandomAccessDataset(str(dataset), "train")

    def rows() -> Any:
        for features in records:
            yield {"image": {"bytes": features["image"]}, "label": features["label"],
                   "key": features["key"]}  # fmt: skip

    table = datasets.Dataset.from_generator(
        rows,
        features=datasets.Features(
            image=datasets.Image(),
            label=datasets.ClassLabel(names=list(records.info.labels or ())),
            key=datasets.Value("string"),
        ),
        cache_dir=str(tmp_path),
    )
    assert len(table) == 18
    for row in table:
        with Image.open(source / row["key"]) as expected:
            assert np.array_equal(np.asarray(row["image"]), np.asarray(expected))
        assert table.features["label"].int2str(row["label"]) == row["key"].split("/")[0]
