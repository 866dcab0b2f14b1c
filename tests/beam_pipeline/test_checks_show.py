"""imagebeam show and random access: one record by key or number, its features and picture."""

from __future__ import annotations

import json
import pathlib
import pickle

import numpy as np
import pytest
from PIL import Image

from beam_pipeline.checks.show import half_blocks, load_record, terminal_picture
from beam_pipeline.cli import main
from beam_pipeline.errors import DatasetError
from beam_pipeline.options import Compression, Encoding
from beam_pipeline.random_access import RandomAccessDataset
from tests import conversions, fakes
from tests.datasets_on_disk import edit_bytes, read_records, shard


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    root = tmp_path_factory.mktemp("show") / "images"
    fakes.class_folders(root, per_label=6)
    return root


@pytest.fixture(scope="module")
def dataset(source: pathlib.Path) -> pathlib.Path:
    output = source.parent / "faces"
    conversions.run(source, output, split={"train": 0.5, "test": 0.5}, num_shards=2)
    return output


def test_every_record_by_number_and_key(dataset: pathlib.Path, source: pathlib.Path) -> None:
    records = RandomAccessDataset(str(dataset))
    assert len(records) == 18
    for number in range(-18, 18):
        features = records[number]
        key = features["key"]
        assert features["image"] == (source / key).read_bytes()
        assert features["label_name"] == key.split("/")[0]
        assert records.find(key) == number % 18
    with pytest.raises(IndexError):
        records[18]


def test_order_is_that_of_the_shards(dataset: pathlib.Path) -> None:
    records = RandomAccessDataset(str(dataset), "train")
    stored = [r for n in range(2) for r in read_records(shard(dataset, "train", n))[0]]
    assert [records.record(i) for i in range(len(records))] == stored


def test_a_dataset_travels_to_workers(dataset: pathlib.Path) -> None:
    records = pickle.loads(pickle.dumps(RandomAccessDataset(str(dataset), "test")))
    assert records[0]["key"] in records.keys()  # noqa: SIM118


def test_unknown_split_key_and_number(dataset: pathlib.Path) -> None:
    with pytest.raises(DatasetError, match="it has test, train"):
        RandomAccessDataset(str(dataset), "dev")
    with pytest.raises(DatasetError, match=r"no image with key 'happy/0\.jpeg'; similar: 'happy/0"):
        load_record(str(dataset), key="happy/0.jpeg")
    with pytest.raises(DatasetError, match="there is no number 99"):
        load_record(str(dataset), split="train", number=99)


def test_a_damaged_record_is_refused(source: pathlib.Path, tmp_path: pathlib.Path) -> None:
    conversions.run(source, tmp_path / "out")
    path = shard(tmp_path / "out", "train")
    _, offsets = read_records(path)

    def flip(data: bytearray) -> None:
        data[offsets[3] + 60] ^= 1

    edit_bytes(path, flip)
    records = RandomAccessDataset(str(tmp_path / "out"))
    assert records[2]
    with pytest.raises(DatasetError, match=r"record 3 .* is damaged"):
        records[3]


def test_gzip_has_no_random_access_but_can_be_shown(
    source: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    conversions.run(source, tmp_path / "out", compression=Compression.GZIP)
    with pytest.raises(DatasetError, match="gzip-compressed"):
        RandomAccessDataset(str(tmp_path / "out"))
    shown = load_record(str(tmp_path / "out"), key="sad/3.png")
    assert shown.features["label_name"].values == [b"sad"]


def test_command(
    dataset: pathlib.Path,
    source: pathlib.Path,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    picture = tmp_path / "x.jpg"
    assert main(["show", str(dataset), "--key", "happy/2.jpg", "--image", str(picture)]) == 0
    text = capsys.readouterr().out
    assert "label_name  bytes  'happy'" in text
    assert "height      int64  24" in text
    assert picture.read_bytes() == (source / "happy/2.jpg").read_bytes()
    # Another ending converts.
    converted = tmp_path / "x.png"
    assert main(["show", str(dataset), "--key", "happy/2.jpg", "--image", str(converted)]) == 0
    with Image.open(converted) as image:
        assert (image.format, image.size) == ("PNG", (32, 24))
    capsys.readouterr()
    assert main(["show", str(dataset), "--split", "test", "--index", "1", "--json"]) == 0
    features = json.loads(capsys.readouterr().out)["features"]
    assert features["image"]["sha256"] == features["sha256"]
    assert main(["show", "--glob", f"{dataset}/*.tfrecord-*", "--index", "17"]) == 0
    assert "record" in capsys.readouterr().out
    assert main(["show", str(dataset), "--image", str(tmp_path / "x.nothing")]) == 2
    assert main(["show", str(dataset), "--key", "a", "--index", "1"]) == 2
    assert main(["show", str(tmp_path)]) == 1


def test_raw_pixels_are_shown(source: pathlib.Path, tmp_path: pathlib.Path) -> None:
    conversions.run(source, tmp_path / "out", encoding=Encoding.RAW)
    path = tmp_path / "x.png"
    assert main(["show", str(tmp_path / "out"), "--key", "sad/1.png", "--image", str(path)]) == 0
    with Image.open(path) as found, Image.open(source / "sad/1.png") as expected:
        assert np.array_equal(np.asarray(found), np.asarray(expected))


def test_ways_of_terminals() -> None:
    image = Image.fromarray(fakes.picture(10, 12))
    assert terminal_picture(image, {"TERM": "xterm-kitty"}, 80).startswith("\x1b_Ga=T,f=100,")
    assert "\x1b]1337;File=" in terminal_picture(image, {"TERM_PROGRAM": "iTerm.app"}, 80)
    inside_tmux = {"TERM": "xterm-kitty", "TMUX": "1", "COLORTERM": "truecolor"}
    assert "38;2;" in terminal_picture(image, inside_tmux, 80)
    assert "38;5;" in terminal_picture(image, {"TERM": "xterm-256color"}, 80)


def test_half_blocks_are_the_pixels() -> None:
    pixels = np.array([[[1, 2, 3], [4, 5, 6]], [[7, 8, 9], [10, 11, 12]]], np.uint8)
    assert half_blocks(Image.fromarray(pixels), 80, true_colour=True) == (
        "\x1b[38;2;1;2;3;48;2;7;8;9m▀\x1b[38;2;4;5;6;48;2;10;11;12m▀\x1b[0m\n"
    )
