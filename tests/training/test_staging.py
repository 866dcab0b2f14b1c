import os
import socket

import boto3
import pytest
from moto.server import ThreadedMotoServer

from beam_pipeline.errors import DatasetError, StorageError
from tests.training.datasets import write_dataset
from training import staging
from training.input_pipeline import read_split
from training.shards import open_dataset

SHARD = "faces-train.tfrecord-00000-of-00002"
URL = "s3://bucket/data set/faces"


@pytest.fixture(scope="module")
def server():
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(server, monkeypatch, tmp_path):
    """An S3 bucket that holds the dataset of tmp_path/data below URL."""
    for name, value in {
        "AWS_ENDPOINT_URL": server,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3")
    client.create_bucket(Bucket="bucket")
    data = write_dataset(tmp_path / "data", splits={"train": 24, "test": 6})
    for file in data.iterdir():
        client.upload_file(str(file), "bucket", f"data set/faces/{file.name}")
    return client


def test_a_remote_split_is_staged_and_read(bucket, tmp_path):
    info = open_dataset(URL, splits=["train"], cache_dir=str(tmp_path / "cache"))
    assert sum(len(labels) for _, labels in read_split(info, "train", batch_size=5)) == 24
    staged = {path.name for path in (tmp_path / "cache").rglob("*.tfrecord-?????-of-?????")}
    assert staged == {SHARD, SHARD.replace("00000-of", "00001-of")}  # and not the test split


def test_staging_goes_on_where_it_stopped(bucket, tmp_path, monkeypatch):
    cache = str(tmp_path / "cache")
    whole = (tmp_path / "data" / SHARD).read_bytes()
    info = open_dataset(URL, cache_dir=cache)
    path = tmp_path / "cache" / info.directory / SHARD
    path.rename(f"{path}.part")
    with open(f"{path}.part", "r+b") as stream:
        stream.truncate(len(whole) - 100)
    read = []
    monkeypatch.setattr(staging, "_CHUNK", 64)
    original = staging._download

    def counting(store, source, part, size):
        read.append(size - os.path.getsize(part))
        original(store, source, part, size)

    monkeypatch.setattr(staging, "_download", counting)
    open_dataset(URL, cache_dir=cache)
    assert read == [100]
    assert path.read_bytes() == whole


def test_a_bad_part_is_thrown_away_once(bucket, tmp_path):
    cache = str(tmp_path / "cache")
    info = open_dataset(URL, cache_dir=cache)
    path = tmp_path / "cache" / info.directory / SHARD
    whole = path.read_bytes()
    path.unlink()
    with open(f"{path}.part", "wb") as stream:
        stream.write(b"\0" * 50)
    open_dataset(URL, cache_dir=cache)
    assert path.read_bytes() == whole


def test_a_changed_remote_shard_is_named(bucket, tmp_path):
    data = bytearray((tmp_path / "data" / SHARD).read_bytes())
    data[100] ^= 1
    bucket.put_object(Bucket="bucket", Key=f"data set/faces/{SHARD}", Body=bytes(data))
    with pytest.raises(DatasetError, match=f"{SHARD} has SHA-256 .*the remote file was changed"):
        open_dataset(URL, cache_dir=str(tmp_path / "cache"))
    bucket.put_object(Bucket="bucket", Key=f"data set/faces/{SHARD}", Body=b"short")
    with pytest.raises(DatasetError, match=f"{SHARD} has 5 bytes, expected"):
        open_dataset(URL, cache_dir=str(tmp_path / "cache"))


def test_an_unfinished_or_missing_remote_dataset_is_refused(bucket, tmp_path, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    bucket.delete_object(Bucket="bucket", Key="data set/faces/_SUCCESS")
    with pytest.raises(DatasetError, match="not a finished dataset"):
        open_dataset(URL, cache_dir=str(tmp_path / "cache"))
    bucket.put_object(Bucket="bucket", Key="data set/faces/_SUCCESS", Body=b"")
    bucket.delete_object(Bucket="bucket", Key=f"data set/faces/{SHARD}")
    with pytest.raises(StorageError, match="not found"):
        open_dataset(URL, cache_dir=str(tmp_path / "cache"))
    with pytest.raises((DatasetError, StorageError)):
        open_dataset("s3://no-such-bucket/x", cache_dir=str(tmp_path / "cache"))


def test_a_cache_that_cannot_be_written_is_named(bucket, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot keep s3://bucket"):
        open_dataset(URL, cache_dir=str(tmp_path / "file" / "below"))


def test_google_storage_is_staged_through_its_emulator(tmp_path, monkeypatch):
    from gcp_storage_emulator.server import create_server
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    emulator = create_server("127.0.0.1", port, in_memory=True, default_bucket="bucket")
    emulator.start()
    try:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
        data = write_dataset(tmp_path / "data")
        client = storage.Client("project", AnonymousCredentials())
        for file in data.iterdir():
            client.bucket("bucket").blob(f"faces/{file.name}").upload_from_filename(str(file))
        info = open_dataset("gs://bucket/faces", cache_dir=str(tmp_path / "cache"))
        assert sum(len(labels) for _, labels in read_split(info, "train", batch_size=5)) == 24
    finally:
        emulator.stop()
