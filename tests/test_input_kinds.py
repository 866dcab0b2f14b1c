"""Every kind of input through a whole conversion: labels, splits, groups and ids as promised."""

from __future__ import annotations

import os
import pathlib

import pytest
import tensorflow as tf

from beam_pipeline.dataset_info import read_dataset_info
from beam_pipeline.errors import InputError
from beam_pipeline.options import Encoding, Writer
from tests import conversions, fakes

CORPUS = pathlib.Path(
    os.environ.get("IMAGEBEAM_CORPUS", pathlib.Path(__file__).parents[2] / "shared" / "corpus")
)


def labels_of(directory: object) -> dict[str, tuple[str, int]]:
    return {
        key: (row["label_name"][0].decode(), row["label"][0])
        for key, row in conversions.examples(directory).items()
    }


def test_folders_of_splits(tmp_path: pathlib.Path) -> None:
    for split in ("train", "val", "test"):
        fakes.class_folders(tmp_path / "in" / split, per_label=2)
    (tmp_path / "in" / "train" / "unused").mkdir()
    summary = conversions.run(tmp_path / "in", tmp_path / "out", split={"a": 0.5, "b": 0.5})
    # What the input says wins over --split; a class without images keeps its id.
    assert {name: split.records for name, split in summary.info.splits.items()} == {
        "test": 6,
        "train": 6,
        "val": 6,
    }
    assert summary.info.labels == ("angry", "happy", "sad", "unused")
    assert summary.info.splits["val"].classes["unused"] == 0
    for key, (name, number) in labels_of(tmp_path / "out").items():
        assert key.split("/")[1] == name
        assert summary.info.labels[number] == name


def test_globs_with_a_pattern_for_everything(tmp_path: pathlib.Path) -> None:
    for number in range(8):
        split = ("train", "test")[number % 2]
        name = f"{split}/p{number // 4}_{('sad', 'happy')[number // 2 % 2]}_{number}.jpg"
        fakes.write_tree(tmp_path / "in", {name: fakes.jpeg(number)})
    conversions.run(
        [f"{tmp_path}/in/train/*.jpg", f"{tmp_path}/in/test/*.jpg"],
        tmp_path / "out",
        label_from=r"regex:(?P<split>\w+)/(?P<group>p\d)_(?P<label>[a-z]+)_",
    )
    rows = conversions.index(tmp_path / "out").to_pylist()
    assert {(row["key"], row["split"], row["group"], row["label"]) for row in rows} == {
        (
            f"{('train', 'test')[i % 2]}/p{i // 4}_{('sad', 'happy')[i // 2 % 2]}_{i}.jpg",
            ("train", "test")[i % 2],
            f"p{i // 4}",
            ("sad", "happy")[i // 2 % 2],
        )
        for i in range(8)
    }


def test_a_labels_file_fixes_the_ids(tmp_path: pathlib.Path) -> None:
    fakes.class_folders(tmp_path / "in", per_label=1)
    (tmp_path / "labels.txt").write_text("sad\nfear\nhappy\nangry\n")
    conversions.run(tmp_path / "in", tmp_path / "out", labels_file=str(tmp_path / "labels.txt"))
    assert set(labels_of(tmp_path / "out").values()) == {("sad", 0), ("happy", 2), ("angry", 3)}
    written = tmp_path / "out" / "label.labels.txt"
    assert written.read_text() == "sad\nfear\nhappy\nangry\n"
    # A dataset's own list is a labels file.
    conversions.run(tmp_path / "in", tmp_path / "again", labels_file=str(written))
    assert labels_of(tmp_path / "again") == labels_of(tmp_path / "out")
    (tmp_path / "labels.txt").write_text("sad\nhappy\n")
    with pytest.raises(InputError, match="'angry'"):
        conversions.run(tmp_path / "in", tmp_path / "bad", labels_file=str(tmp_path / "labels.txt"))
    assert not (tmp_path / "bad").exists()


def test_a_label_of_a_row_that_no_file_knows(tmp_path: pathlib.Path) -> None:
    # Found in a worker, in the middle of the pipeline: still one readable sentence.
    fakes.class_folders(tmp_path / "in", per_label=1)
    (tmp_path / "m.csv").write_text("path,label\nin/sad/0.jpg,sad\nin/happy/0.jpg,hapy\n")
    (tmp_path / "labels.txt").write_text("happy\nsad\n")
    with pytest.raises(InputError, match="'hapy' may mean 'happy'"):
        conversions.run(
            tmp_path / "m.csv", tmp_path / "out", labels_file=str(tmp_path / "labels.txt")
        )
    assert not (tmp_path / "out").exists()


def test_fer2013(tmp_path: pathlib.Path) -> None:
    usages = ("Training", "PublicTest", "PrivateTest")
    rows = ["emotion,pixels,Usage"]
    for number in range(9):
        values = [str((number * 7 + i) % 256) for i in range(48 * 48)]
        rows.append(f"{number % 7},{' '.join(values)},{usages[number % 3]}")
    rows.append(f"3,{' '.join(['0'] * 100)},Training")  # too few pixels
    rows.append(f"3,{' '.join(['256'] * 2304)},Training")  # out of range
    (tmp_path / "fer2013.csv").write_text("\n".join(rows))
    summary = conversions.run(
        tmp_path / "fer2013.csv", tmp_path / "out", encoding=Encoding.RAW, max_rejects=2
    )
    assert summary.info.labels == (
        "angry",
        "disgust",
        "fear",
        "happy",
        "sad",
        "surprise",
        "neutral",
    )
    assert {name: split.records for name, split in summary.info.splits.items()} == {
        "test": 3,
        "train": 3,
        "validation": 3,
    }
    assert summary.info.rejects == {"bad_row": 2}
    assert [row["row"] for row in conversions.rejects(tmp_path / "out")] == [10, 11]
    rows_by_number = {row["row"]: row for row in conversions.index(tmp_path / "out").to_pylist()}
    for key, features in conversions.examples(tmp_path / "out").items():
        (number,) = [n for n, row in rows_by_number.items() if row["key"] == key]
        pixels = tf.io.decode_raw(features["image"][0], tf.uint8)
        assert pixels.shape == (48 * 48,)
        assert pixels[:3].numpy().tolist() == [((number - 1) * 7 + i) % 256 for i in range(3)]
        assert features["label"] == [(number - 1) % 7]


def test_beams_own_writer(tmp_path: pathlib.Path) -> None:
    fakes.class_folders(tmp_path / "in")
    fakes.write_tree(tmp_path / "in", {"sad/bad.jpg": b""})
    split = {"train": 0.6, "test": 0.4}
    for writer in Writer:
        conversions.run(
            tmp_path / "in",
            tmp_path / writer.value,
            writer=writer,
            split=split,
            max_rejects=1,
            num_shards=2,
            name="faces",
        )
    ours, theirs = (
        read_dataset_info(str(tmp_path / writer.value)) for writer in (Writer.SHARD, Writer.BEAM)
    )
    # Which record stands in which shard is Beam's affair; all else is the same.
    assert (
        theirs.ledger
        == ours.ledger
        == {
            "inputs": 16,
            "written": 15,
            "rejected": 1,
            "duplicates": 0,
        }
    )
    for name in split:
        records = [sorted(conversions.serialized(tmp_path / w.value, name)) for w in Writer]
        assert records[0] == records[1]
        assert theirs.splits[name].classes == ours.splits[name].classes
    assert conversions.rejects(tmp_path / "beam") == conversions.rejects(tmp_path / "shard")
    for row in conversions.index(tmp_path / "beam").to_pylist():
        if row["outcome"] == "written":
            shards = conversions.shard_paths(tmp_path / "beam", row["split"])
            path = pathlib.Path(shards[row["shard"]])
            data = path.read_bytes()[row["offset"] : row["offset"] + row["bytes"]]
            example = tf.train.Example.FromString(data[12:-4])
            assert example.features.feature["key"].bytes_list.value[0].decode() == row["key"]


@pytest.mark.corpus
@pytest.mark.skipif(not CORPUS.is_dir(), reason="the image corpus is not beside the checkout")
def test_real_faces(tmp_path: pathlib.Path) -> None:
    summary = conversions.run(CORPUS / "faces_fer", tmp_path / "out", workers=2)
    assert summary.info.ledger == {
        "inputs": 2450,
        "written": 2450,
        "rejected": 0,
        "duplicates": 0,
    }
    assert {name: split.records for name, split in summary.info.splits.items()} == {
        "test": 350,
        "train": 1750,
        "validation": 350,
    }
    assert (summary.info.size, summary.info.channels) == ((48, 48), 1)
    root = CORPUS / "faces_fer"
    for key, features in conversions.examples(tmp_path / "out", "test").items():
        assert features["image"][0] == (root / key).read_bytes()
