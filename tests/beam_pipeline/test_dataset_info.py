"""conversion.json and what reading a dataset directory refuses."""

from __future__ import annotations

import json
import pathlib

import pytest

from beam_pipeline import dataset_info
from beam_pipeline.dataset_info import (
    SHARD_FILE,
    DatasetInfo,
    ShardInfo,
    SplitInfo,
    fingerprint,
    labels_text,
    read_dataset_info,
    shard_file_name,
)
from beam_pipeline.errors import DatasetError
from beam_pipeline.examples import Role, feature_specs
from beam_pipeline.labels import read_labels_file
from beam_pipeline.options import Encoding, FeatureNames


def make_info(directory: str = "/d", **fields: object) -> DatasetInfo:
    train = SplitInfo(
        "train",
        (
            ShardInfo("faces-train.tfrecord-00000-of-00002", 2, 5, "aa"),
            ShardInfo("faces-train.tfrecord-00001-of-00002", 1, 3, "bb"),
        ),
        {"a": 2, "b": 1},
    )
    values: dict = {
        "directory": directory,
        "name": "faces",
        "splits": {"train": train},
        "labels": ("a", "b"),
        "features": feature_specs(FeatureNames.SLIM, labelled=True, encoding=Encoding.PASSTHROUGH),
        "encoding": "passthrough",
        "feature_names": "slim",
        "compression": "none",
        "formats": {"jpeg": 3},
        "channels": 3,
        "size": (4, 5),
        "ledger": {"inputs": 4, "written": 3, "rejected": 1, "duplicates": 0},
        "rejects": {"empty": 1},
        "fingerprint": fingerprint(train.shards),
        "run": {"run_id": "x"},
    }
    return DatasetInfo(**{**values, **fields})


def write(directory: pathlib.Path, info: DatasetInfo | None = None) -> pathlib.Path:
    info = info or make_info(str(directory))
    (directory / "conversion.json").write_text(json.dumps(info.to_json()))
    for split in info.splits.values():
        for shard in split.shards:
            (directory / shard.file).write_bytes(bytes(shard.bytes))
    (directory / "_SUCCESS").touch()
    return directory


def test_json_round_trip() -> None:
    info = make_info()
    assert DatasetInfo.from_json("/d", json.loads(json.dumps(info.to_json()))) == info
    bare = make_info(labels=None, size=None, channels=None)
    assert DatasetInfo.from_json("/d", json.loads(json.dumps(bare.to_json()))) == bare


def test_what_it_tells() -> None:
    info = make_info()
    assert info.records == 3
    assert info.split("train").bytes == 8
    assert info.feature(Role.IMAGE) == "image/encoded"
    assert info.feature(Role.DTYPE) is None
    with pytest.raises(DatasetError, match="/d has no split 'test'; it has train"):
        info.split("test")


def test_a_finished_directory_is_read(tmp_path: pathlib.Path) -> None:
    assert read_dataset_info(str(write(tmp_path))) == make_info(str(tmp_path))


def test_no_directory(tmp_path: pathlib.Path) -> None:
    with pytest.raises(DatasetError, match="is not a directory"):
        read_dataset_info(str(tmp_path / "nothing"))


def test_unfinished(tmp_path: pathlib.Path) -> None:
    with pytest.raises(DatasetError, match=r"no _SUCCESS\): the directory is empty"):
        read_dataset_info(str(tmp_path))
    (write(tmp_path) / "_SUCCESS").unlink()
    with pytest.raises(DatasetError, match="did not finish; run it again"):
        read_dataset_info(str(tmp_path))


def test_foreign_and_damaged(tmp_path: pathlib.Path) -> None:
    (tmp_path / "_SUCCESS").touch()
    with pytest.raises(DatasetError, match="it was not written by imagebeam convert"):
        read_dataset_info(str(tmp_path))
    (tmp_path / "conversion.json").write_text("{")
    with pytest.raises(DatasetError, match="is damaged"):
        read_dataset_info(str(tmp_path))
    (tmp_path / "conversion.json").write_text('{"format_version": 1}')
    with pytest.raises(DatasetError, match=r"is damaged: KeyError: 'name'"):
        read_dataset_info(str(tmp_path))
    (tmp_path / "conversion.json").write_text('{"format_version": 99}')
    with pytest.raises(DatasetError, match="format_version is 99, this version of imagebeam reads"):
        read_dataset_info(str(tmp_path))


@pytest.mark.parametrize("text", ["[]", "null", "3"])
def test_a_conversion_json_that_is_no_object(tmp_path: pathlib.Path, text: str) -> None:
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / "conversion.json").write_text(text)
    with pytest.raises(DatasetError, match="is damaged"):
        read_dataset_info(str(tmp_path))


def test_all_faults_of_shards_are_named(tmp_path: pathlib.Path) -> None:
    write(tmp_path)
    (tmp_path / "faces-train.tfrecord-00000-of-00002").unlink()
    (tmp_path / "faces-train.tfrecord-00001-of-00002").write_bytes(b"1234")
    (tmp_path / "faces-train.tfrecord-00000-of-00001").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(DatasetError) as raised:
        read_dataset_info(str(tmp_path))
    assert str(raised.value).splitlines() == [
        f"{tmp_path} is damaged:",
        "  faces-train.tfrecord-00000-of-00002 is missing (2 records)",
        "  faces-train.tfrecord-00000-of-00001 does not belong to this dataset "
        "(stale or foreign shard)",
        "  faces-train.tfrecord-00001-of-00002 has 4 bytes, expected 3",
    ]


def test_shard_names() -> None:
    name = shard_file_name("faces", "train", 3, 12)
    assert name == "faces-train.tfrecord-00003-of-00012"
    match = SHARD_FILE.fullmatch(name)
    assert match is not None
    assert match.groupdict() == {
        "name": "faces",
        "split": "train",
        "index": "00003",
        "count": "00012",
    }
    assert SHARD_FILE.fullmatch("faces-train.x.tfrecord-00003-of-00012")["split"] == "train.x"  # type: ignore[index]
    assert not SHARD_FILE.fullmatch("faces-train.tfrecord-3-of-12")


def test_the_fingerprint_is_the_data() -> None:
    one, two = ShardInfo("a", 1, 1, "x"), ShardInfo("b", 1, 1, "y")
    assert fingerprint([one, two]) == fingerprint([two, one])
    assert fingerprint([one]) != fingerprint([one, two])
    assert fingerprint([ShardInfo("a", 1, 1, "y")]) != fingerprint([one])
    assert fingerprint([ShardInfo("c", 1, 1, "x")]) != fingerprint([one])


def test_labels_text_is_one_line_a_name(tmp_path: pathlib.Path) -> None:
    labels = ("a", "new\nline", "back\\slash", "\\n", "ü")
    text = labels_text(labels)
    assert len(text.splitlines()) == len(labels)
    path = tmp_path / dataset_info.LABELS_FILE
    path.write_text(text, encoding="utf-8")
    assert read_labels_file(str(path)) == labels


@pytest.mark.parametrize("odd", ["carriage\rreturn", "x\x85y", "x\u2028y", "x\x0by"])
def test_other_line_breaks_in_a_name_come_back(tmp_path: pathlib.Path, odd: str) -> None:
    path = tmp_path / dataset_info.LABELS_FILE
    path.write_bytes(labels_text(("a", odd, "b")).encode())
    assert read_labels_file(str(path)) == ("a", odd, "b")
