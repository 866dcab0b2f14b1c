import gzip
import os
import shutil

import pytest
import tensorflow as tf

from beam_pipeline.errors import DatasetError, UsageError
from tests.training.datasets import describe_shard, write_dataset, write_shard
from training.faults import explain_reading_error, find_fault
from training.input_pipeline import read_split
from training.shards import open_dataset, read_records, worker_part

SHARD = "faces-train.tfrecord-00001-of-00002"


def cut_in_the_middle(path):
    path.write_bytes(path.read_bytes()[:-20])


def cut_on_a_boundary(path):
    (*_, (offset, _)) = read_records(str(path))
    path.write_bytes(path.read_bytes()[:offset])


def flip_a_byte(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def flip_a_length(path):
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)


def compress(path):
    path.write_bytes(gzip.compress(path.read_bytes()))


def take_another(path):
    other = path.with_name(SHARD.replace("00001-of", "00000-of"))
    shutil.copy(other, path)


def write_other_records(path):
    records = [record for _, record in read_records(str(path))]
    write_shard(path, records[::-1])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut_in_the_middle, "the file ends inside record 11 .*it was cut"),
        (cut_on_a_boundary, "ends cleanly after 11 records, expected 12"),
        (flip_a_byte, r"record \d+ \(byte \d+\): the checksum of its data is wrong"),
        (flip_a_length, r"record 0 \(byte 0\): the checksum of its length is wrong"),
        (compress, "it is gzip-compressed, but .* compression 'none'"),
        (take_another, "its records are intact, but they are not those"),
        (write_other_records, "its records are intact, but they are not those"),
        (os.unlink, r"is missing \(12 records\)"),
    ],
)
def test_a_damaged_shard_is_named_before_anything_is_read(tmp_path, damage, message):
    # Equal record sizes, so that another shard has the same size, too.
    write_dataset(tmp_path, encoding="raw", splits={"train": 24})
    damage(tmp_path / SHARD)
    with pytest.raises(DatasetError, match=message) as caught:
        read_split(str(tmp_path), "train", batch_size=4)
    assert SHARD in str(caught.value)


def test_every_damaged_shard_is_named(tmp_path):
    write_dataset(tmp_path, shards=3)
    for number in (0, 2):
        flip_a_byte(tmp_path / f"faces-train.tfrecord-0000{number}-of-00003")
    with pytest.raises(DatasetError) as caught:
        open_dataset(str(tmp_path))
    assert "00000-of" in str(caught.value)
    assert "00001-of" not in str(caught.value)
    assert "00002-of" in str(caught.value)


def test_a_stale_shard_is_named(tmp_path):
    write_dataset(tmp_path)
    shutil.copy(tmp_path / SHARD, tmp_path / "faces-train.tfrecord-00002-of-00003")
    with pytest.raises(DatasetError, match="00002-of-00003 does not belong to this dataset"):
        open_dataset(str(tmp_path))


def test_an_uncompressed_shard_in_a_compressed_dataset_is_named(tmp_path):
    write_dataset(tmp_path, compressed=True)
    path = tmp_path / SHARD
    path.write_bytes(gzip.decompress(path.read_bytes()))
    with pytest.raises(DatasetError, match=r"is not compressed, but .* compression 'gzip'"):
        open_dataset(str(tmp_path))


def test_a_cut_gzip_stream_is_explained(tmp_path):
    write_dataset(tmp_path, compressed=True)
    cut_in_the_middle(tmp_path / SHARD)
    with pytest.raises(DatasetError, match=r"the gzip stream breaks in record \d+"):
        open_dataset(str(tmp_path))


def test_an_unfinished_dataset_is_refused(tmp_path):
    write_dataset(tmp_path)
    (tmp_path / "_SUCCESS").unlink()
    with pytest.raises(DatasetError, match="not a finished dataset"):
        open_dataset(str(tmp_path))


def test_only_the_splits_that_are_read_are_checked_in_full(tmp_path):
    write_dataset(tmp_path, splits={"train": 12, "test": 12})
    flip_a_byte(tmp_path / "faces-test.tfrecord-00000-of-00002")
    open_dataset(str(tmp_path), splits=["train"])
    open_dataset(str(tmp_path), check="size")
    with pytest.raises(DatasetError, match="faces-test"):
        open_dataset(str(tmp_path))
    with pytest.raises(UsageError, match="check must be one of full, size"):
        open_dataset(str(tmp_path), check="none")


@pytest.mark.parametrize(("shards", "workers"), [(1, 4), (2, 2), (5, 2), (7, 7), (3, 5)])
def test_every_worker_gets_its_share(tmp_path, shards, workers):
    write_dataset(tmp_path, splits={"train": 50}, shards=shards)
    info = open_dataset(str(tmp_path))
    parts = [worker_part(info, "train", worker, workers) for worker in range(workers)]
    assert sum(part.records for part in parts) == 50
    assert {part.longest for part in parts} == {max(part.records for part in parts)}
    assert max(part.records for part in parts) <= 1.02 * 50 / workers + 1


def example(**features):
    return tf.train.Example(features=tf.train.Features(feature=features))


def int64(*values):
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def text(*values):
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


def change(example, name, feature):
    if feature is None:
        del example.features.feature[name]
    else:
        example.features.feature[name].CopyFrom(feature)


@pytest.mark.parametrize(
    ("name", "feature", "message"),
    [
        ("label", int64(3), "record 5: feature 'label' .key 'train/.*: wanted .* 0 to 2, found 3"),
        ("label", text(b"x"), "feature 'label' .*: wanted one int64, found 1 of bytes"),
        ("label", int64(), "feature 'label' .*: wanted one int64, found 0 of int64"),
        (
            "label",
            None,
            "feature 'label' .*: wanted one int64, found no such feature among channels",
        ),
        ("image", text(b"not an image"), "feature 'image' .*: TensorFlow cannot decode it"),
        ("image", text(), "feature 'image' .*: wanted one bytes, found 0 of bytes"),
    ],
)
def test_a_reading_error_names_shard_record_and_feature(tmp_path, name, feature, message):
    # A dataset whose checksums agree with what is wrong in it: only reading shows it.
    write_dataset(tmp_path)
    path = tmp_path / SHARD
    examples = [tf.train.Example.FromString(record) for _, record in read_records(str(path))]
    change(examples[5], name, feature)
    before = describe_shard(path, 12)
    write_shard(path, [example.SerializeToString() for example in examples])
    after = describe_shard(path, 12)
    conversion = tmp_path / "conversion.json"
    changed = conversion.read_text().replace(before.sha256, after.sha256)
    conversion.write_text(changed.replace(f'"bytes": {before.bytes},', f'"bytes": {after.bytes},'))
    info = open_dataset(str(tmp_path))
    with pytest.raises(tf.errors.OpError) as caught:
        list(read_split(info, "train", batch_size=24))
    explained = explain_reading_error(caught.value, info, "train")
    assert isinstance(explained, DatasetError)
    with pytest.raises(DatasetError, match=message):
        raise explained
    assert SHARD in str(explained)


def test_a_healthy_split_has_no_fault(tmp_path):
    write_dataset(tmp_path, compressed=True)
    assert find_fault(open_dataset(str(tmp_path)), "train") is None
