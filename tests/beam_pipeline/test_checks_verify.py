"""imagebeam verify: every kind of fault is planted, found, and told with its place."""

from __future__ import annotations

import gzip
import json
import pathlib
import shutil
from typing import Any

import pyarrow.parquet as pq
import pytest

from beam_pipeline.checks.directory_check import check_directory
from beam_pipeline.checks.faults import FaultList
from beam_pipeline.checks.verify import Verification, verify
from beam_pipeline.cli import main
from beam_pipeline.options import Compression, Encoding
from tests import conversions, fakes
from tests.datasets_on_disk import (
    edit_bytes,
    edit_example,
    edit_json,
    edit_record,
    read_records,
    shard,
    write_records,
)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Three classes, two splits, four shards, one reject."""
    root = tmp_path_factory.mktemp("verify")
    fakes.class_folders(root / "images", per_label=10)
    fakes.write_tree(root / "images", {"sad/broken.jpg": fakes.jpeg(1)[:300]})
    conversions.run(
        root / "images",
        root / "faces",
        split={"train": 0.7, "test": 0.3},
        num_shards={"train": 3, "test": 1},
        max_rejects=1,
        max_reject_fraction=0.5,
    )
    return root / "faces"


@pytest.fixture
def dataset(original: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    return pathlib.Path(shutil.copytree(original, tmp_path / "faces"))


def check(directory: pathlib.Path, **options: Any) -> Verification:
    return verify(str(directory), threads=1, **options)


def kinds(result: Verification) -> set[str]:
    return {fault.kind for fault in result.faults}


def test_an_intact_dataset_has_no_fault(dataset: pathlib.Path) -> None:
    result = check(dataset)
    assert result.ok, result.text()
    assert result.tally.records == 30
    assert result.tally.shards == 4
    assert "nothing is wrong" in result.text()


def test_same_images_and_groups_in_two_splits_are_worth_a_warning(tmp_path: pathlib.Path) -> None:
    same, rows = fakes.jpeg(0), []
    for i, (split, group) in enumerate([("train", "g"), ("test", "g"), ("train", "h")]):
        fakes.write_tree(tmp_path, {f"{i}.jpg": same if i != 1 else fakes.jpeg(1)})
        rows.append(f"{i}.jpg,a,{split},{group}")
    fakes.write_tree(tmp_path, {"3.jpg": same})
    rows.append("3.jpg,a,test,i")
    (tmp_path / "m.csv").write_text("path,label,split,group\n" + "\n".join(rows) + "\n")
    conversions.run(tmp_path / "m.csv", tmp_path / "out", group_column="group")
    result = check(tmp_path / "out")
    assert result.ok  # the input may want it so
    leak, repeat, group_warning = result.warnings()
    assert leak.startswith("1 image in both test and train with the same bytes")
    assert "3.jpg and" in leak
    assert repeat.startswith("1 image with the bytes of another")
    assert group_warning == "1 group in more than one split"


# ---------------------------------------------------------------- faults in shards

CHANGED = {"shard_changed"}
LOST = {"record_count", "count_wrong"}


def test_flipped_byte_in_data(dataset: pathlib.Path) -> None:
    path = shard(dataset, "train")
    records, offsets = read_records(path)
    key = key_of(records[2])
    edit_bytes(path, flip(offsets[2] + 12 + len(records[2]) // 2))
    result = check(dataset)
    assert kinds(result) == {"data_crc", *CHANGED, *LOST}
    (fault,) = [fault for fault in result.faults if fault.kind == "data_crc"]
    assert (fault.file, fault.record, fault.offset) == (path.name, 2, offsets[2])
    assert fault.key == key


def test_flipped_byte_in_the_checksum_of_the_data(dataset: pathlib.Path) -> None:
    path = shard(dataset, "train")
    _, offsets = read_records(path)
    edit_bytes(path, flip(offsets[1] - 1))
    result = check(dataset)
    assert kinds(result) == {"data_crc", *CHANGED, *LOST}
    assert [f.record for f in result.faults if f.kind == "data_crc"] == [0]


@pytest.mark.parametrize("byte", [0, 3, 7, 8, 11])  # of the length, and of its checksum
def test_flipped_byte_in_a_length(dataset: pathlib.Path, byte: int) -> None:
    path = shard(dataset, "train", 1)
    records, offsets = read_records(path)
    edit_bytes(path, flip(offsets[3] + byte))
    result = check(dataset)
    # Only the one record is lost: reading goes on behind it.
    assert kinds(result) == {"length_crc", *CHANGED, *LOST}
    (fault,) = [fault for fault in result.faults if fault.kind == "length_crc"]
    assert (fault.file, fault.record, fault.offset) == (path.name, 3, offsets[3])
    assert fault.key == key_of(records[3])
    assert result.tally.records == 29


def test_two_damaged_records_are_both_told(dataset: pathlib.Path) -> None:
    first, second = shard(dataset, "train"), shard(dataset, "test")
    for path, number in ((first, 0), (second, 4)):
        _, offsets = read_records(path)
        edit_bytes(path, flip(offsets[number] + 40))
    result = check(dataset)
    found = {(f.file, f.record) for f in result.faults if f.kind == "data_crc"}
    assert found == {(first.name, 0), (second.name, 4)}


def test_cut_inside_a_record(dataset: pathlib.Path) -> None:
    path = shard(dataset, "test")
    records, offsets = read_records(path)
    edit_bytes(path, lambda data: data.__delitem__(slice(offsets[-1] + 100, None)))
    result = check(dataset)
    assert kinds(result) == {"truncated", "shard_size", *CHANGED, *LOST}
    (fault,) = [fault for fault in result.faults if fault.kind == "truncated"]
    assert (fault.record, fault.offset) == (len(records) - 1, offsets[-1])
    assert fault.key == key_of(records[-1])


def test_cut_inside_a_length(dataset: pathlib.Path) -> None:
    path = shard(dataset, "test")
    _, offsets = read_records(path)
    edit_bytes(path, lambda data: data.__delitem__(slice(offsets[-1] + 5, None)))
    assert kinds(check(dataset)) == {"truncated", "shard_size", *CHANGED, *LOST}


def test_cut_on_a_record_boundary_names_what_is_lost(dataset: pathlib.Path) -> None:
    path = shard(dataset, "train", 2)
    records, offsets = read_records(path)
    edit_bytes(path, lambda data: data.__delitem__(slice(offsets[-2], None)))
    result = check(dataset)
    assert kinds(result) == {"record_lost", "shard_size", *CHANGED, *LOST}
    lost = [fault for fault in result.faults if fault.kind == "record_lost"]
    assert [(f.key, f.offset) for f in lost] == [
        (key_of(records[-2]), offsets[-2]),
        (key_of(records[-1]), offsets[-1]),
    ]


def test_bytes_behind_the_last_record(dataset: pathlib.Path) -> None:
    edit_bytes(shard(dataset, "train"), lambda data: data.extend(b"\0" * 100))
    assert kinds(check(dataset)) == {"length_crc", "shard_size", *CHANGED}


def test_a_record_too_many(dataset: pathlib.Path) -> None:
    path = shard(dataset, "train")
    records, _ = read_records(path)
    write_records(path, [*records, edit_example(records[0], {"key": ["new"]})])
    result = check(dataset)
    assert kinds(result) == {
        "record_foreign",
        "record_count",
        "count_wrong",
        "shard_size",
        *CHANGED,
    }
    assert [f.key for f in result.faults if f.kind == "record_foreign"] == ["new"]


def test_two_records_exchanged(dataset: pathlib.Path) -> None:
    path = shard(dataset, "train")
    records, _ = read_records(path)
    write_records(path, [records[1], records[0], *records[2:]])
    assert kinds(check(dataset)) >= {"index_wrong", *CHANGED}


def test_zero_byte_shard(dataset: pathlib.Path) -> None:
    path = shard(dataset, "train", 1)
    path.write_bytes(b"")
    result = check(dataset)
    assert kinds(result) == {"shard_empty", "count_wrong"}
    assert [f.file for f in result.faults if f.kind == "shard_empty"] == [path.name]


def test_missing_shard(dataset: pathlib.Path) -> None:
    path = shard(dataset, "train", 1)
    path.unlink()
    result = check(dataset)
    assert kinds(result) == {"shard_missing", "count_wrong"}
    assert [f.file for f in result.faults if f.kind == "shard_missing"] == [path.name]


def test_extra_shard(dataset: pathlib.Path) -> None:
    extra = dataset / "faces-train.tfrecord-00003-of-00004"
    records, _ = read_records(shard(dataset, "train"))
    write_records(extra, [edit_example(records[0], {"key": ["x"]})])
    result = check(dataset)
    assert kinds(result) == {"shard_foreign"}
    assert [f.file for f in result.faults] == [extra.name]


def test_swapped_shards_are_told_as_such(dataset: pathlib.Path) -> None:
    first, second = shard(dataset, "train", 0), shard(dataset, "train", 2)
    first_data = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(first_data)
    result = check(dataset)
    assert kinds(result) == {"shard_swapped"}
    assert [fault.file for fault in result.faults] == [first.name, second.name]
    assert second.name in result.faults[0].detail


def test_a_shard_copied_over_another(dataset: pathlib.Path) -> None:
    shard(dataset, "test").write_bytes(shard(dataset, "train").read_bytes())
    assert kinds(check(dataset)) == {"shard_swapped", "count_wrong", "splits_overlap"}


def test_renamed_shard(dataset: pathlib.Path) -> None:
    path = shard(dataset, "train", 1)
    path.rename(dataset / "faces-train.tfrecord-00007-of-00009")
    result = check(dataset)
    assert kinds(result) == {"shard_missing", "shard_foreign", "count_wrong"}
    (foreign,) = [fault for fault in result.faults if fault.kind == "shard_foreign"]
    assert path.name in foreign.detail


def test_gzip_under_the_wrong_name(dataset: pathlib.Path) -> None:
    path = shard(dataset, "train")
    path.write_bytes(gzip.compress(path.read_bytes()))
    result = check(dataset)
    # What is inside is intact, and none of it is reported.
    assert kinds(result) == {"compression", "shard_size", *CHANGED}


def test_a_directory_under_the_name_of_a_shard(dataset: pathlib.Path) -> None:
    path = shard(dataset, "train")
    path.unlink()
    path.mkdir()
    result = check(dataset)
    assert kinds(result) == {"unreadable", "count_wrong"}


# ---------------------------------------------------------------- faults in records


def test_wrong_label_id(dataset: pathlib.Path) -> None:
    path = shard(dataset, "train")
    records, offsets = read_records(path)
    old = feature(records[1], "label")
    edit_record(path, 1, {"label": [(old + 1) % 3]})
    result = check(dataset)
    assert kinds(result) >= {"label_wrong", "count_wrong", *CHANGED}
    (fault,) = [fault for fault in result.faults if fault.kind == "label_wrong"]
    assert (fault.file, fault.record, fault.key) == (path.name, 1, key_of(records[1]))
    assert fault.offset == offsets[1]


def test_wrong_label_id_and_name(dataset: pathlib.Path) -> None:
    path = shard(dataset, "train")
    records, _ = read_records(path)
    new = (feature(records[1], "label") + 1) % 3
    name = ["angry", "happy", "sad"][new]
    edit_record(path, 1, {"label": [new], "label_name": [name]})
    result = check(dataset)
    assert "label_wrong" not in kinds(result)
    details = [f.detail for f in result.faults if f.kind == "index_wrong" and f.record == 1]
    assert any("label" in detail and name in detail for detail in details)


def test_label_out_of_range(dataset: pathlib.Path) -> None:
    path = shard(dataset, "test")
    edit_record(path, 0, {"label": [3]})
    result = check(dataset)
    (fault,) = [fault for fault in result.faults if fault.kind == "label_range"]
    assert "expected 0 to 2" in fault.detail


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"image": None}, "feature_wrong", "'image'"),
        ({"image": [b"a", b"b"]}, "feature_wrong", "found 2 of bytes"),
        ({"height": None}, "feature_wrong", "'height' is missing"),
        ({"width": [1, 2]}, "feature_wrong", "has 2 values"),
        ({"label": ["0"]}, "feature_wrong", "'label' is bytes, expected int64"),
        ({"channels": [3.0]}, "feature_wrong", "'channels' is float"),
        ({"image": [b"\xff\xd8\xff other"]}, "sha256_wrong", "has SHA-256"),
        ({"sha256": ["0" * 64]}, "sha256_wrong", "000000"),
        ({"surprise": [1]}, "feature_unknown", "surprise"),
    ],
)
def test_changed_example(
    dataset: pathlib.Path, changes: dict[str, Any], kind: str, words: str
) -> None:
    path = shard(dataset, "train")
    records, offsets = read_records(path)
    edit_record(path, 2, changes)
    result = check(dataset)
    (fault,) = [fault for fault in result.faults if fault.kind == kind]
    assert (fault.file, fault.record, fault.offset) == (path.name, 2, offsets[2])
    assert fault.key == key_of(records[2])
    assert words in fault.detail
    assert "shard_changed" in kinds(result)


def test_not_an_example(dataset: pathlib.Path) -> None:
    path = shard(dataset, "train")
    records, _ = read_records(path)
    records[1] = b"\x0a\xff\xff\xff\x7f nonsense"
    write_records(path, records)
    result = check(dataset)
    (fault,) = [fault for fault in result.faults if fault.kind == "not_an_example"]
    assert fault.record == 1


def test_key_that_looks_like_an_image_feature(tmp_path: pathlib.Path) -> None:
    # The name of the image feature, as it is serialized, stands in the key.
    folder = tmp_path / "images" / "a" / "\x0a\x05image\x12\x07\x0a\x05\x0a\x03"
    folder.mkdir(parents=True)
    (folder / "x.jpg").write_bytes(fakes.jpeg(0))
    (tmp_path / "images" / "b").mkdir()
    (tmp_path / "images" / "b" / "y.jpg").write_bytes(fakes.jpeg(1))
    conversions.run(tmp_path / "images", tmp_path / "out")
    result = check(tmp_path / "out")
    assert result.ok, result.text()
    assert result.tally.records == 2


def test_key_twice_and_splits_overlap(dataset: pathlib.Path) -> None:
    train, test = shard(dataset, "train"), shard(dataset, "test")
    records, _ = read_records(train)
    key = key_of(records[0])
    edit_record(train, 1, {"key": [key]})
    edit_record(test, 0, {"key": [key]})
    result = check(dataset)
    assert [(f.file, f.record, f.key) for f in result.faults if f.kind == "key_twice"] == [
        (train.name, 1, key)
    ]
    assert [f.key for f in result.faults if f.kind == "splits_overlap"] == [key]


def test_decode_finds_what_checksums_cannot(dataset: pathlib.Path) -> None:
    import hashlib

    path = shard(dataset, "train")
    fake = b"\xff\xd8\xff\xe0 this is no JPEG"
    edit_record(path, 0, {"image": [fake], "sha256": [hashlib.sha256(fake).hexdigest()]})
    edit_record(path, 1, {"height": [25]})
    result = check(dataset, decode=True)
    wrong = {f.record: f.detail for f in result.faults if f.kind == "image_wrong"}
    assert wrong.keys() == {0, 1}
    assert "TensorFlow cannot decode it" in wrong[0]
    assert "it decodes to 24 x 32 x 3, its record says 25 x 32 x 3" in wrong[1]
    assert result.tally.decoded == 30


def test_raw_pixels_fill_their_shape(tmp_path: pathlib.Path) -> None:
    fakes.class_folders(tmp_path / "images", per_label=2)
    conversions.run(tmp_path / "images", tmp_path / "out", encoding=Encoding.RAW)
    assert check(tmp_path / "out", decode=True).ok
    edit_record(shard(tmp_path / "out", "train"), 0, {"width": [31]})
    result = check(tmp_path / "out")
    assert [f.record for f in result.faults if f.kind == "image_wrong"] == [0]


# ---------------------------------------------------------------- faults beside the shards


@pytest.mark.parametrize(
    "name", ["_SUCCESS", "conversion.json", "dataset_info.json", "features.json", "schema.pbtxt",
             "label.labels.txt", "rejected.jsonl", "index"],
)  # fmt: skip
def test_missing_file(dataset: pathlib.Path, name: str) -> None:
    path = dataset / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    result = check(dataset)
    expected = "unfinished" if name == "_SUCCESS" else "metadata_missing"
    assert (name, expected) in {(fault.file, fault.kind) for fault in result.faults}
    assert result.tally.shards == 4  # all that can be read is read nevertheless


def _first_shard(data: Any) -> Any:
    return data["splits"]["train"]["shards"][0]


@pytest.mark.parametrize(
    ("name", "change", "kinds_found"),
    [
        ("conversion.json", lambda d: d["ledger"].update(written=31), {"metadata_wrong", "count_wrong"}),
        ("conversion.json", lambda d: d["labels"].reverse(), {"metadata_wrong", "label_wrong"}),
        ("conversion.json", lambda d: d["splits"]["train"]["classes"].update(happy=1), {"metadata_wrong", "count_wrong"}),
        ("conversion.json", lambda d: _first_shard(d).update(records=99), {"record_count", "count_wrong"}),
        ("conversion.json", lambda d: _first_shard(d).update(sha256="0" * 64), {"metadata_wrong", "shard_changed"}),
        ("conversion.json", lambda d: d.update(fingerprint="0" * 64), {"metadata_wrong"}),
        ("conversion.json", lambda d: d.update(rejects={}), {"metadata_wrong"}),
        ("conversion.json", lambda d: d.pop("labels"), {"metadata_damaged"}),
        ("conversion.json", lambda d: d.update(format_version=99), {"metadata_damaged"}),
        ("dataset_info.json", lambda d: d["splits"][0]["shardLengths"].append("1"), {"metadata_wrong"}),
        ("dataset_info.json", lambda d: d.pop("name"), {"metadata_wrong"}),
        ("features.json", lambda d: d["featuresDict"]["features"].pop("image"), {"metadata_wrong"}),
    ],
)  # fmt: skip
def test_edited_info(dataset: pathlib.Path, name: str, change: Any, kinds_found: set[str]) -> None:
    edit_json(dataset / name, change)
    result = check(dataset)
    assert kinds_found <= kinds(result), result.text()
    assert name in {fault.file for fault in result.faults}


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("conversion.json", "{", "metadata_damaged"),
        ("conversion.json", "[]", "metadata_damaged"),
        ("dataset_info.json", "[1]", "metadata_damaged"),
        ("features.json", "nonsense", "metadata_damaged"),
        ("schema.pbtxt", 'feature { name: "image" }', "metadata_wrong"),
        ("schema.pbtxt", "}{", "metadata_damaged"),
        ("label.labels.txt", "angry\nsad\nhappy\n", "metadata_wrong"),
        ("label.labels.txt", "angry\nhappy\n", "metadata_wrong"),
        ("rejected.jsonl", "", "metadata_wrong"),
        ("rejected.jsonl", "no json\n", "metadata_wrong"),
    ],
)
def test_replaced_file(dataset: pathlib.Path, name: str, text: str, kind: str) -> None:
    (dataset / name).write_text(text)
    faults = FaultList(keep=100)
    check_directory(str(dataset), faults)  # what needs no shard is a function of its own
    assert {(fault.file, fault.kind) for fault in faults.kept} == {(name, kind)}


def test_damaged_and_edited_index(dataset: pathlib.Path) -> None:
    files = sorted((dataset / "index").iterdir())
    edit_bytes(files[0], flip(-5))
    table = pq.read_table(files[1])
    keys = table["key"].to_pylist()
    keys[0] = "somebody else"
    pq.write_table(table.set_column(0, "key", [keys]), files[1])
    result = check(dataset)
    damaged = [f.file for f in result.faults if f.kind == "metadata_damaged"]
    assert damaged == [f"index/{files[0].name}"]
    wrong = [f.detail for f in result.faults if f.kind == "index_wrong"]
    assert len(wrong) == 1
    assert "somebody else" in wrong[0]


# ---------------------------------------------------------------- foreign files, the command


def test_foreign_files(dataset: pathlib.Path, tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "foreign"
    folder.mkdir()
    records, _ = read_records(shard(dataset, "train"))
    write_records(folder / "train-00000-of-00003.tfrecord", records[:3])
    write_records(folder / "train-00001-of-00003.tfrecord", records[3:5])
    result = verify(globs=[f"{folder}/*"], threads=1)
    assert kinds(result) == {"shard_missing"}
    assert "missing: 1 (number 2)" in result.faults[0].detail
    write_records(folder / "train-00002-of-00003.tfrecord", records[5:])
    result = verify(globs=[f"{folder}/*"], threads=1, decode=True)
    assert result.ok, result.text()
    assert result.tally.records == result.tally.decoded == len(records)


def test_faults_of_foreign_files(dataset: pathlib.Path, tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "foreign"
    folder.mkdir()
    records, _ = read_records(shard(dataset, "train"))
    write_records(folder / "a.tfrecord", [records[0], edit_example(records[1], {"label": ["x"]})])
    write_records(folder / "b.tfrecord", [records[2], records[0]])
    edit_bytes(folder / "b.tfrecord", flip(5))
    (folder / "c.tfrecord").write_bytes(b"")
    (folder / "d.tfrecord").write_bytes(gzip.compress((folder / "a.tfrecord").read_bytes()[:-20]))
    result = verify(globs=[f"{folder}/*.tfrecord"], threads=1)
    found = {(pathlib.Path(fault.file).name, fault.kind) for fault in result.faults}
    assert found == {
        ("a.tfrecord", "feature_wrong"),
        ("b.tfrecord", "length_crc"),
        ("b.tfrecord", "key_twice"),
        ("c.tfrecord", "shard_empty"),
        ("d.tfrecord", "compression"),
        ("d.tfrecord", "truncated"),
        ("d.tfrecord", "key_twice"),
    }


def test_gzip_dataset_whole_and_cut(tmp_path: pathlib.Path) -> None:
    fakes.class_folders(tmp_path / "images", per_label=4)
    conversions.run(tmp_path / "images", tmp_path / "out", compression=Compression.GZIP)
    assert check(tmp_path / "out").ok
    path = shard(tmp_path / "out", "train")
    edit_bytes(path, lambda data: data.__delitem__(slice(len(data) // 2, None)))
    assert {"gzip_damaged", "shard_size"} <= kinds(check(tmp_path / "out"))


def test_command(
    dataset: pathlib.Path, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    assert main(["verify", str(dataset), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True
    path = shard(dataset, "train")
    edit_bytes(path, flip(100))
    assert main(["verify", str(dataset)]) == 1
    text = capsys.readouterr().err
    assert f"{path.name}, record 0 (byte 0): key" in text
    assert "FAILED" in text
    assert main(["verify", str(tmp_path)]) == 1  # no dataset at all
    assert "holds no dataset" in capsys.readouterr().err
    assert main(["verify"]) == 2
    assert main(["verify", "--glob", str(tmp_path / "*.nothing")]) == 1


# ---------------------------------------------------------------- helpers


def flip(position: int) -> Any:
    def change(data: bytearray) -> None:
        data[position] ^= 0x10

    return change


def feature(record: bytes, name: str) -> Any:
    from beam_pipeline.checks.wire import parse_example

    return parse_example(record)[name].values[0]


def key_of(record: bytes) -> str:
    return feature(record, "key").decode()
