"""tfds.builder_from_directory loads what convert writes: the real library, every encoding."""

from __future__ import annotations

import io
import json
import pathlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from beam_pipeline.options import Compression, Encoding, FeatureType
from tests import conversions, fakes

tfds = pytest.importorskip("tensorflow_datasets")

LABELS = ("angry", "happy", "sad")


def write_images(root: pathlib.Path, kind: str) -> None:
    """Class folders of "colour", "gray" or "mixed" pictures, all of one size or "sizes"."""
    files = {}
    for number, label in enumerate(LABELS):
        for i in range(4):
            gray = kind == "gray" or (kind == "mixed" and i % 2 == 0)
            size = (24 + i, 32 + number) if kind == "sizes" else (24, 32)
            pixels = fakes.picture(*size, channels=1 if gray else 3, seed=10 * number + i)
            lossy = i < 2
            files[f"{label}/{i}.{'jpg' if lossy else 'png'}"] = fakes.encode(
                pixels, "JPEG" if lossy else "PNG"
            )
    fakes.write_tree(root, files)


def load(directory: pathlib.Path) -> Any:
    return tfds.builder_from_directory(str(directory))


@pytest.mark.parametrize("kind", ["colour", "gray", "mixed", "sizes"])
@pytest.mark.parametrize("encoding", list(Encoding))
def test_images_and_names(tmp_path: pathlib.Path, kind: str, encoding: Encoding) -> None:
    write_images(tmp_path / "images", kind)
    conversions.run(
        tmp_path / "images",
        tmp_path / "faces",
        encoding=encoding,
        jpeg_quality=100,
        split={"train": 0.5, "test": 0.5},
    )
    builder = load(tmp_path / "faces")
    assert builder.info.features["label"].names == list(LABELS)
    found = 0
    for split, records in builder.info.splits.items():
        examples = list(tfds.as_numpy(builder.as_dataset(split=split)))
        assert len(examples) == records.num_examples
        for example in examples:
            key = example["key"].decode()
            check_picture(example, tmp_path / "images" / key, encoding)
            name = builder.info.features["label"].int2str(int(example["label"]))
            assert name == key.split("/")[0] == example["label_name"].decode()
            found += 1
    assert found == 12


def check_picture(example: dict[str, Any], path: pathlib.Path, encoding: Encoding) -> None:
    with Image.open(path) as picture:
        expected = np.asarray(picture)
    shape = (example["height"], example["width"], example["channels"])
    assert shape == (*expected.shape[:2], 1 if expected.ndim == 2 else 3)
    image = example["image"]
    if isinstance(image, bytes):  # raw pixels of different shapes stay bytes
        assert encoding is Encoding.RAW
        image = np.frombuffer(image, np.uint8).reshape(shape)
    assert image.dtype == np.uint8
    assert image.shape[:2] == expected.shape[:2]
    wanted = expected[..., None] if expected.ndim == 2 else expected
    # Decoders of JPEG differ by a few levels; a wrong picture differs by dozens.
    difference = np.abs(image.astype(int) - wanted)
    assert difference.mean() < (4 if encoding is Encoding.JPEG or path.suffix == ".jpg" else 0.001)


def test_supervised_frame_and_figure(tmp_path: pathlib.Path) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    write_images(tmp_path / "images", "colour")
    conversions.run(tmp_path / "images", tmp_path / "faces")
    builder = load(tmp_path / "faces")
    dataset = builder.as_dataset(split="train", as_supervised=True)
    image, label = next(iter(tfds.as_numpy(dataset)))
    assert image.shape == (24, 32, 3)
    assert label in range(3)
    frame = tfds.as_dataframe(builder.as_dataset(split="train"), builder.info)
    assert len(frame) == 12
    assert set(frame["label_name"]) == {name.encode() for name in LABELS}
    assert "<img" in frame.to_html() or frame._repr_html_().count("<img") == 12
    figure = tfds.show_examples(builder.as_dataset(split="train"), builder.info)
    stream = io.BytesIO()
    figure.savefig(stream, format="png")
    assert stream.getvalue().startswith(b"\x89PNG")


def test_subsplits_and_shards(tmp_path: pathlib.Path) -> None:
    write_images(tmp_path / "images", "colour")
    conversions.run(tmp_path / "images", tmp_path / "faces", num_shards=3)
    builder = load(tmp_path / "faces")
    assert len(builder.info.splits["train"].filenames) == 3
    parts = [builder.as_dataset(split=part) for part in ("train[:50%]", "train[50%:]")]
    keys = [{e["key"] for e in tfds.as_numpy(part)} for part in parts]
    assert len(keys[0] | keys[1]) == 12
    assert not keys[0] & keys[1]


def test_extra_features_and_no_labels(tmp_path: pathlib.Path) -> None:
    fakes.write_tree(tmp_path, {"a.jpg": fakes.jpeg(0), "b.jpg": fakes.jpeg(1)})
    rows = [
        {"path": "a.jpg", "age": 3, "score": 0.5, "note": "Grüße", "box": [1.5, 2.0], "ids": [7]},
        {"path": "b.jpg", "age": -4, "score": 2.0, "note": "", "box": [], "ids": [1, 2, 3]},
    ]
    manifest = tmp_path / "m.jsonl"
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    conversions.run(
        manifest,
        tmp_path / "out",
        features={
            "age": FeatureType.INT64,
            "score": FeatureType.FLOAT,
            "note": FeatureType.TEXT,
            "box": FeatureType.FLOAT,
            "ids": FeatureType.INT64,
        },
    )
    builder = load(tmp_path / "out")
    assert "label" not in builder.info.features
    examples = {e["key"].decode(): e for e in tfds.as_numpy(builder.as_dataset(split="train"))}
    for row in rows:
        example = examples[str(row["path"])]
        assert example["age"] == row["age"]
        assert example["score"] == row["score"]
        assert example["note"].decode() == row["note"]
        assert example["box"].tolist() == row["box"]
        assert example["ids"].tolist() == row["ids"]
    assert len(tfds.as_dataframe(builder.as_dataset(split="train"), builder.info)) == 2


def test_gzip_is_told(tmp_path: pathlib.Path) -> None:
    """TFDS has no option to read compressed TFRecords: the description says so."""
    write_images(tmp_path / "images", "colour")
    conversions.run(tmp_path / "images", tmp_path / "faces", compression=Compression.GZIP)
    builder = load(tmp_path / "faces")
    assert "gzip" in builder.info.description
    import tensorflow as tf

    with pytest.raises(tf.errors.DataLossError):
        next(iter(builder.as_dataset(split="train")))
