"""The same inputs on an object store: every kind is found out and listed over S3."""

import dataclasses

import pytest

from beam_pipeline import storage
from beam_pipeline.errors import InputError
from beam_pipeline.inputs import declared_labels
from tests.beam_pipeline.test_inputs_class_folder import listed, resolve
from tests.beam_pipeline.test_inputs_fer2013 import pixels, read, text
from tests.servers import S3_CREDENTIALS, s3_server

pytest.importorskip("boto3")
pytest.importorskip("moto")

FILES = {
    "faces/train/happy/1.jpg": b"x",
    "faces/train/happy/deep/2.PNG": b"xy",
    "faces/train/happy/notes.txt": b"x",
    "faces/test/sad/.DS_Store": b"x",
    "faces/test/sad/[1-3] ü.jpg": b"x",
    "faces/test/__MACOSX/x.jpg": b"x",
    "lists/m.csv": b"path,label\n../faces/train/happy/1.jpg,happy\ns3://data/a.jpg,sad\nb.jpg,x\n",
    "lists/fer.csv": f"emotion,pixels,Usage\n3,{text(1)},Training\n".encode(),
    "flat/1.jpg": b"x",
}


@pytest.fixture(scope="module")
def bucket():
    with s3_server("data") as url:
        before = storage.config.current()
        config = dataclasses.replace(before, s3_endpoint_url=url, **S3_CREDENTIALS)
        storage.configure(config)
        for name, data in FILES.items():
            storage.write_bytes(f"s3://data/{name}", data)
        yield "s3://data"
        storage.configure(before)


def test_folder(bucket):
    plan, refs, report = listed(f"{bucket}/faces/")
    assert plan.announcement == (
        "folder, root/split/label/image: 2 splits (test, train), 2 labels (happy, sad)"
    )
    assert declared_labels(plan) == ("happy", "sad")
    assert [(ref.key, ref.label, ref.split, ref.size) for ref in refs] == [
        ("test/sad/[1-3] ü.jpg", "sad", "test", 1),
        ("train/happy/1.jpg", "happy", "train", 1),
        ("train/happy/deep/2.PNG", "happy", "train", 2),
    ]
    assert refs[0].uri == "s3://data/faces/test/sad/[1-3] ü.jpg"
    assert storage.read_bytes(refs[0].uri) == b"x"
    assert sum(report.ignored.values()) == 3


def test_glob(bucket):
    _, refs, _ = listed(f"{bucket}/faces/*/happy/*.jpg")
    assert [(ref.key, ref.label) for ref in refs] == [("train/happy/1.jpg", "happy")]
    _, refs, _ = listed(f"{bucket}/faces/test/sad/[1-3] ü.jpg")
    assert [(ref.key, ref.label) for ref in refs] == [("[1-3] ü.jpg", "sad")]


def test_manifest(bucket, tmp_path):
    plan, refs, _ = listed(f"{bucket}/lists/m.csv")
    assert plan.kind == "manifest"
    assert [(ref.key, ref.uri) for ref in refs] == [
        ("../faces/train/happy/1.jpg", "s3://data/faces/train/happy/1.jpg"),
        ("data/a.jpg", "s3://data/a.jpg"),
        ("b.jpg", "s3://data/lists/b.jpg"),
    ]
    assert storage.read_bytes(refs[0].uri) == b"x"
    # A local list of remote images.
    (tmp_path / "m.csv").write_text("path\ntrain/happy/1.jpg\ns3://data/faces/train/happy/1.jpg\n")
    plan, refs, _ = listed(tmp_path / "m.csv", image_root=f"{bucket}/faces/")
    assert {ref.key for ref in refs} == {"train/happy/1.jpg"}
    assert {ref.uri for ref in refs} == {"s3://data/faces/train/happy/1.jpg"}
    assert plan.warnings == ()


def test_fer2013(bucket):
    plan, (ref,), _ = listed(f"{bucket}/lists/fer.csv")
    assert plan.kind == "fer2013"
    assert (ref.label, ref.split) == ("happy", "train")
    assert (read(ref) == pixels(1)).all()


def test_mistakes(bucket):
    with pytest.raises(InputError, match=r"images? lies? directly in s3://data/flat "):
        resolve(f"{bucket}/flat")
    with pytest.raises(InputError, match=r"s3://data/nothing does not exist"):
        resolve(f"{bucket}/nothing")
    with pytest.raises(InputError, match=r"no images found in s3://data/flat/\*.gif"):
        resolve(f"{bucket}/flat/*.gif")
