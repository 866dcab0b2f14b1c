"""Whole conversions, read back exactly as a training script would read them."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import pathlib
import struct
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from beam_pipeline.dataset_info import read_dataset_info
from beam_pipeline.hashing import order_hash
from beam_pipeline.options import Compression, Encoding, FeatureNames, FeatureType
from tests import conversions, fakes

LABELS = ("angry", "happy", "sad")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """18 images in three classes: JPEG and PNG, colour and gray."""
    root = tmp_path_factory.mktemp("source")
    found = {f"{root}/{key}": data for key, data in fakes.class_folders(root).items()}
    for label in LABELS:
        gray = fakes.encode(fakes.picture(17, 13, channels=1, seed=7), "PNG")
        fakes.write_tree(root, {f"{label}/gray.png": gray})
        found[f"{root}/{label}/gray.png"] = gray
    return {os.path.relpath(path, root): data for path, data in found.items()} | {
        "": os.fsencode(root)
    }


@pytest.fixture(scope="module")
def source(files: dict[str, bytes]) -> str:
    return os.fsdecode(files[""])


@pytest.fixture(scope="module")
def images(files: dict[str, bytes]) -> dict[str, bytes]:
    return {key: data for key, data in files.items() if key}


@pytest.fixture(scope="module")
def dataset(source: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The default conversion, in three shards, by two worker processes."""
    output = tmp_path_factory.mktemp("out") / "faces"
    conversions.run(source, output, num_shards=3, workers=2)
    return str(output)


SPEC = {
    "image": tf.io.FixedLenFeature([], tf.string),
    "label": tf.io.FixedLenFeature([], tf.int64),
    "label_name": tf.io.FixedLenFeature([], tf.string),
    "key": tf.io.FixedLenFeature([], tf.string),
    "height": tf.io.FixedLenFeature([], tf.int64),
    "width": tf.io.FixedLenFeature([], tf.int64),
    "channels": tf.io.FixedLenFeature([], tf.int64),
    "format": tf.io.FixedLenFeature([], tf.string),
    "sha256": tf.io.FixedLenFeature([], tf.string),
}
UNLABELLED = {name: kind for name, kind in SPEC.items() if not name.startswith("label")}
SLIM = {
    "image": "image/encoded",
    "label": "image/class/label",
    "label_name": "image/class/text",
    "key": "image/filename",
    "height": "image/height",
    "width": "image/width",
    "channels": "image/channels",
    "format": "image/format",
    "sha256": "image/key/sha256",
}


def read(
    directory: Any, spec: dict[str, Any] | None = None, compression: str = ""
) -> dict[str, dict[str, Any]]:
    """Key → parsed features; image files are decoded by TensorFlow, in a tf.data pipeline."""
    spec = SPEC if spec is None else spec
    paths = conversions.shard_paths(directory)
    stream = tf.data.TFRecordDataset(paths, compression_type=compression).map(
        lambda record: tf.io.parse_single_example(record, spec)
    )
    found: dict[str, dict[str, Any]] = {}
    for row in stream.as_numpy_iterator():
        key = row["key" if "key" in row else SLIM["key"]].decode()
        assert key not in found
        found[key] = row
    return found


def check_rows(rows: dict[str, dict[str, Any]], expected: dict[str, np.ndarray]) -> None:
    """What every reader relies on: stored size, channels, format, checksum, pixels."""
    assert set(rows) == set(expected)
    for key, row in rows.items():
        assert row["sha256"].decode() == hashlib.sha256(row["image"]).hexdigest()
        shape = (row["height"], row["width"], row["channels"])
        if row["format"] == b"raw":
            pixels = tf.reshape(tf.io.decode_raw(row["image"], tf.uint8), shape).numpy()
        else:
            pixels = tf.io.decode_image(row["image"], expand_animations=False).numpy()
            signature = {b"jpeg": b"\xff\xd8\xff", b"png": b"\x89PNG"}[row["format"]]
            assert row["image"].startswith(signature)
        assert pixels.shape == shape
        difference = np.abs(pixels.astype(int) - expected[key].astype(int))
        assert difference.mean() < (0.01 if row["format"] != b"jpeg" else 3), key


def pixels_of(data: bytes) -> np.ndarray:
    pixels = np.asarray(Image.open(io.BytesIO(data)))
    return pixels[..., None] if pixels.ndim == 2 else pixels


# ---------------------------------------------------------------- the default


def test_passthrough_keeps_every_byte(dataset: str, images: dict[str, bytes]) -> None:
    rows = read(dataset)
    check_rows(rows, {key: pixels_of(data) for key, data in images.items()})
    for key, row in rows.items():
        assert row["image"] == images[key]
        assert row["label_name"].decode() == key.split("/")[0]
        assert LABELS[row["label"]] == key.split("/")[0]


def test_the_order_is_a_global_shuffle(dataset: str, images: dict[str, bytes]) -> None:
    keys = [
        tf.train.Example.FromString(record).features.feature["key"].bytes_list.value[0].decode()
        for record in conversions.serialized(dataset)
    ]
    assert keys == sorted(images, key=lambda key: order_hash(0, key))
    assert [len(conversions.serialized(dataset)), len(keys)] == [18, 18]


def test_the_directory_holds_what_it_promises(dataset: str) -> None:
    info = read_dataset_info(dataset)
    assert [shard.records for shard in info.splits["train"].shards] == [6, 6, 6]
    assert info.ledger == {"inputs": 18, "written": 18, "rejected": 0, "duplicates": 0}
    assert info.splits["train"].classes == {"angry": 6, "happy": 6, "sad": 6}
    assert info.formats == {"jpeg": 9, "png": 9}
    assert set(conversions.names(dataset)) == {
        "README.md",
        "_SUCCESS",
        "conversion.json",
        "dataset_info.json",
        "faces-train.tfrecord-00000-of-00003",
        "faces-train.tfrecord-00001-of-00003",
        "faces-train.tfrecord-00002-of-00003",
        "features.json",
        "index",
        "label.labels.txt",
        "rejected.jsonl",
        "schema.pbtxt",
    }
    assert pathlib.Path(dataset, "label.labels.txt").read_text() == "angry\nhappy\nsad\n"
    assert conversions.rejects(dataset) == []
    for shard in info.splits["train"].shards:
        data = pathlib.Path(dataset, shard.file).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (shard.bytes, shard.sha256)
    run = info.run
    assert run["command"] == "imagebeam convert"
    assert run["runner"] == "FnApiRunner"
    assert run["versions"]["apache-beam"]  # type: ignore[index]
    assert run["options"]["output"]["num_shards"] == 3  # type: ignore[index]


def test_the_index_finds_every_record(dataset: str, images: dict[str, bytes]) -> None:
    rows = conversions.index(dataset).to_pylist()
    assert {row["key"] for row in rows} == set(images)
    for row in rows:
        path = pathlib.Path(dataset, f"faces-train.tfrecord-{row['shard']:05d}-of-00003")
        data = path.read_bytes()[row["offset"] : row["offset"] + row["bytes"]]
        (length,) = struct.unpack("<Q", data[:8])
        assert length == row["bytes"] - 16
        example = tf.train.Example.FromString(data[12:-4])
        feature = example.features.feature
        assert feature["key"].bytes_list.value[0].decode() == row["key"]
        assert hashlib.sha256(images[row["key"]]).hexdigest() == row["sha256"]
        assert (row["outcome"], row["split"], row["reason"]) == ("written", "train", None)
        assert row["image_bytes"] == len(images[row["key"]])
        assert row["label"] == row["key"].split("/")[0]
        records = list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator())
        assert records[row["position"]] == data[12:-4]


# ---------------------------------------------------------------- encodings and names


@pytest.mark.parametrize("encoding", [Encoding.JPEG, Encoding.PNG, Encoding.RAW])
def test_other_encodings(
    encoding: Encoding, source: str, images: dict[str, bytes], tmp_path: pathlib.Path
) -> None:
    conversions.run(source, tmp_path / "out", encoding=encoding)
    rows = read(tmp_path / "out")
    assert {row["format"].decode() for row in rows.values()} == {encoding.value}
    check_rows(rows, {key: pixels_of(data) for key, data in images.items()})
    assert {row["channels"] for row in rows.values()} == {1, 3}


def test_raw_says_its_dtype(source: str, tmp_path: pathlib.Path) -> None:
    conversions.run(source, tmp_path / "out", encoding=Encoding.RAW, resize=(10, 12), channels=3)
    stream = tf.data.TFRecordDataset(conversions.shard_paths(tmp_path / "out")).map(
        lambda record: tf.io.parse_single_example(
            record, {**SPEC, "dtype": tf.io.FixedLenFeature([], tf.string)}
        )
    )
    # All of one shape: a whole batch decodes at once.
    batch = next(iter(stream.batch(18)))
    assert set(batch["dtype"].numpy()) == {b"uint8"}
    pixels = tf.reshape(tf.io.decode_raw(batch["image"], tf.uint8), [-1, 10, 12, 3])
    assert pixels.shape == (18, 10, 12, 3)
    info = read_dataset_info(str(tmp_path / "out"))
    assert (info.size, info.channels) == ((10, 12), 3)


def test_slim_names_in_gzip(source: str, images: dict[str, bytes], tmp_path: pathlib.Path) -> None:
    conversions.run(
        source,
        tmp_path / "out",
        feature_names=FeatureNames.SLIM,
        compression=Compression.GZIP,
        num_shards=2,
    )
    paths = conversions.shard_paths(tmp_path / "out")
    assert [pathlib.Path(path).read_bytes()[:2] for path in paths] == [b"\x1f\x8b"] * 2
    spec = {SLIM[name]: kind for name, kind in SPEC.items()}
    rows = read(tmp_path / "out", spec, "GZIP")
    plain = {key: {name: row[slim] for name, slim in SLIM.items()} for key, row in rows.items()}
    check_rows(plain, {key: pixels_of(data) for key, data in images.items()})
    # Offsets of the index are those of the uncompressed records.
    by_shard = {}
    for row in conversions.index(tmp_path / "out").to_pylist():
        by_shard.setdefault(row["shard"], []).append((row["offset"], row["bytes"]))
    for places in by_shard.values():
        assert [start for start, _ in places] == np.cumsum([0, *(n for _, n in places)])[
            :-1
        ].tolist()


def test_no_labels(source: str, images: dict[str, bytes], tmp_path: pathlib.Path) -> None:
    summary = conversions.run(f"{source}/*/*", tmp_path / "out", label_from="none")
    rows = read(tmp_path / "out", UNLABELLED)
    check_rows(rows, {key: pixels_of(data) for key, data in images.items()})
    for features in conversions.examples(tmp_path / "out").values():
        assert not any("label" in name for name in features)
    assert summary.info.labels is None
    assert "label.labels.txt" not in conversions.names(tmp_path / "out")


# ---------------------------------------------------------------- further features


def test_extra_features_of_json_lines(source: str, tmp_path: pathlib.Path) -> None:
    lines = [
        {
            "path": f"angry/{i}.{'png' if i % 2 else 'jpg'}",
            "label": "angry",
            "age": -i,
            "score": i / 3,
            "note": f"ünï {i}",
            "blob": base64.b64encode(bytes([i, 255])).decode(),
            "tags": [f"t{n}" for n in range(i)],
            "boxes": [0.5] * (4 * (i % 3)),
            "ids": [1 << 40] * i,
        }
        for i in range(5)
    ]
    manifest = tmp_path / "m.jsonl"
    manifest.write_text("".join(json.dumps(line) + "\n" for line in lines))
    conversions.run(
        manifest,
        tmp_path / "out",
        image_root=source,
        features={
            "age": FeatureType.INT64,
            "score": FeatureType.FLOAT,
            "note": FeatureType.TEXT,
            "blob": FeatureType.BYTES,
            "tags": FeatureType.TEXT,
            "boxes": FeatureType.FLOAT,
            "ids": FeatureType.INT64,
        },
    )
    spec = {
        **SPEC,
        "age": tf.io.FixedLenFeature([], tf.int64),
        "score": tf.io.FixedLenFeature([], tf.float32),
        "note": tf.io.FixedLenFeature([], tf.string),
        "blob": tf.io.FixedLenFeature([], tf.string),
        "tags": tf.io.VarLenFeature(tf.string),
        "boxes": tf.io.RaggedFeature(tf.float32),
        "ids": tf.io.FixedLenSequenceFeature([], tf.int64, allow_missing=True),
    }
    rows = {}
    for record in conversions.serialized(tmp_path / "out"):
        row = tf.io.parse_single_example(record, spec)
        rows[row["key"].numpy().decode()] = row
    assert len(rows) == 5
    for i, line in enumerate(lines):
        row = rows[line["path"]]
        assert row["age"].numpy() == -i
        assert row["score"].numpy() == np.float32(i / 3)
        assert row["note"].numpy().decode() == f"ünï {i}"
        assert row["blob"].numpy() == bytes([i, 255])
        assert row["tags"].values.numpy().tolist() == [f"t{n}".encode() for n in range(i)]
        assert row["boxes"].numpy().tolist() == [0.5] * (4 * (i % 3))
        assert row["ids"].numpy().tolist() == [1 << 40] * i


# ---------------------------------------------------------------- splits and shards


def splits_of(directory: Any) -> dict[str, str]:
    return {row["key"]: row["split"] for row in conversions.index(directory).to_pylist()}


def test_a_split_never_changes_when_images_are_added(
    source: str, images: dict[str, bytes], tmp_path: pathlib.Path
) -> None:
    fractions = {"train": 0.6, "test": 0.4}
    fakes.write_tree(tmp_path / "more", images)
    conversions.run(source, tmp_path / "a", split=fractions)
    fakes.write_tree(
        tmp_path / "more", {f"happy/new {i}.png": fakes.png(900 + i) for i in range(20)}
    )
    fakes.write_tree(tmp_path / "more", {"surprise/1.png": fakes.png(1)})
    conversions.run(tmp_path / "more", tmp_path / "b", split=fractions)
    before, after = splits_of(tmp_path / "a"), splits_of(tmp_path / "b")
    assert set(before.values()) == {"train", "test"}
    assert len(after) == 39
    assert {key: after[key] for key in before} == before
    read_dataset_info(str(tmp_path / "b"))
    names = {
        os.path.basename(path).split(".")[0] for path in conversions.shard_paths(tmp_path / "a")
    }
    assert names == {"a-train", "a-test"}


def test_groups_stay_together(
    source: str, images: dict[str, bytes], tmp_path: pathlib.Path
) -> None:
    rows = ["path,label,person"] + [
        f"{key},{key.split('/')[0]},person {i % 4}" for i, key in enumerate(sorted(images))
    ]
    (tmp_path / "m.csv").write_text("\n".join(rows))
    conversions.run(
        tmp_path / "m.csv",
        tmp_path / "out",
        image_root=source,
        group_column="person",
        split={"train": 0.5, "test": 0.5},
        seed=1,
    )
    by_group: dict[str, set[str]] = {}
    for row in conversions.index(tmp_path / "out").to_pylist():
        by_group.setdefault(row["group"], set()).add(row["split"])
    assert len(by_group) == 4
    assert all(len(found) == 1 for found in by_group.values())
    assert set().union(*by_group.values()) == {"train", "test"}


def test_num_shards_per_split(source: str, tmp_path: pathlib.Path) -> None:
    summary = conversions.run(
        source,
        tmp_path / "out",
        split={"train": 0.7, "test": 0.3},
        num_shards={"train": 4, "test": 2},
    )
    assert {name: len(split.shards) for name, split in summary.info.splits.items()} == {
        "test": 2,
        "train": 4,
    }
    read_dataset_info(str(tmp_path / "out"))


def test_never_more_shards_than_records(source: str, tmp_path: pathlib.Path) -> None:
    summary = conversions.run(source, tmp_path / "out", num_shards=50)
    assert [shard.records for shard in summary.info.splits["train"].shards] == [1] * 18
    assert min(os.path.getsize(path) for path in conversions.shard_paths(tmp_path / "out")) > 0


@pytest.mark.parametrize("limit", [3000, 8000])
def test_shard_size_bounds_every_file(source: str, tmp_path: pathlib.Path, limit: int) -> None:
    summary = conversions.run(source, tmp_path / "out", shard_size=limit)
    sizes = [os.path.getsize(path) for path in conversions.shard_paths(tmp_path / "out")]
    assert max(sizes) <= limit
    assert len(sizes) <= 2 * (sum(sizes) // limit + 1)  # and no shower of small files
    assert sum(shard.records for shard in summary.info.splits["train"].shards) == 18


def test_shard_size_counts_what_comes_with_an_image(source: str, tmp_path: pathlib.Path) -> None:
    # Long names and kept columns weigh more than these small images.
    lines = []
    for i in range(12):
        folder = tmp_path / "images" / ("x" * 200) / ("y" * 200)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{i}.png").write_bytes(fakes.png(i, height=4, width=4))
        path = f"{'x' * 200}/{'y' * 200}/{i}.png"
        lines.append({"path": path, "label": "l" * 100, "note": "n" * 1500, "v": [1.5] * 200})
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    conversions.run(
        tmp_path / "m.jsonl",
        tmp_path / "out",
        image_root=str(tmp_path / "images"),
        features={"note": FeatureType.TEXT, "v": FeatureType.FLOAT},
        shard_size=10_000,
    )
    sizes = [os.path.getsize(path) for path in conversions.shard_paths(tmp_path / "out")]
    assert max(sizes) <= 10_000
    assert 4 <= len(sizes) <= 8


def test_a_shard_whose_images_were_all_refused_leaves_no_gap(
    source: str, images: dict[str, bytes], tmp_path: pathlib.Path
) -> None:
    order = sorted(images, key=lambda key: order_hash(0, key))
    bad = set(order[6:12])  # the middle one of three shards
    fakes.write_tree(
        tmp_path / "in", {key: b"" if key in bad else data for key, data in images.items()}
    )
    summary = conversions.run(
        tmp_path / "in", tmp_path / "out", num_shards=3, max_reject_fraction=0.5
    )
    assert [os.path.basename(path) for path in conversions.shard_paths(tmp_path / "out")] == [
        "out-train.tfrecord-00000-of-00002",
        "out-train.tfrecord-00001-of-00002",
    ]
    assert summary.rejected == 6
    rows = {row["key"]: row for row in conversions.index(tmp_path / "out").to_pylist()}
    assert len(rows) == 18
    for key in order[:6]:
        assert rows[key]["shard"] == 0
    for key in bad:
        assert (rows[key]["outcome"], rows[key]["shard"]) == ("rejected", None)
    for number, key in enumerate(order[12:]):
        assert (rows[key]["shard"], rows[key]["position"]) == (1, number)
    assert [row["key"] for row in conversions.rejects(tmp_path / "out")] == sorted(bad)
    assert set(read(tmp_path / "out")) == set(images) - bad
    read_dataset_info(str(tmp_path / "out"))


# ---------------------------------------------------------------- names


NAMES = (
    "[1-3].png",
    "1.png",  # what the pattern above would match
    "a b,c;#%20?.png",
    "{x}*.png",
    "back\\slash\\x41.png",
    "quote'\".png",
    "new\nline\ttab.png",
    "ünï ☃ 😀.png",
    "cafe\u0301.png",  # NFD
    "caf\u00e9.png",  # NFC: another file
    "<script>alert(1)<script>.png",
    "x" * 251 + ".png",  # as long as a name may be
)


@pytest.mark.parametrize("where", ["plain", "out [1-3] *?", "ünï\n☃ {x}\\"])
def test_every_name_converts(tmp_path: pathlib.Path, where: str) -> None:
    images = {f"class [a]/{name}": fakes.png(i) for i, name in enumerate(NAMES)}
    images[os.fsdecode(b"class [a]/\xff\xfe.png")] = fakes.png(99)
    fakes.write_tree(tmp_path / where, images)
    output = tmp_path / f"to {where}"
    conversions.run(tmp_path / where, output, num_shards=2)
    rows = read(output)
    assert {key: row["image"] for key, row in rows.items()} == {
        **{f"class [a]/{n}": fakes.png(i) for i, n in enumerate(NAMES) if "\\" not in n},
        "class [a]/back\\slash\\x5cx41.png": fakes.png(4),
        "class [a]/\\xff\\xfe.png": fakes.png(99),
    }
    assert {row["key"] for row in conversions.index(output).to_pylist()} == set(rows)
    read_dataset_info(str(output))
    assert conversions.names(tmp_path) == sorted([where, f"to {where}"])
