"""What imagebeam convert writes is what training reads: the real conversion, end to end."""

import contextlib
import io
import json
import os
import pathlib

import numpy as np
import pytest

from beam_pipeline.cli import main
from tests import fakes
from training.input_pipeline import read_split

CORPUS = pathlib.Path(
    os.environ.get("IMAGEBEAM_CORPUS") or pathlib.Path(__file__).parents[3] / "shared" / "corpus"
)


def run(*arguments) -> str:
    """Runs a command that must succeed; returns its standard output."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        code = main([str(argument) for argument in arguments])
    assert code == 0, (arguments, output.getvalue())
    return output.getvalue()


@pytest.mark.parametrize("encoding", ["passthrough", "jpeg", "png", "raw"])
@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("names", ["default", "slim"])
def test_every_way_to_convert_can_be_read(tmp_path, encoding, compression, names):
    files = fakes.class_folders(tmp_path / "images")
    run(
        "convert", "--input", tmp_path / "images", "--output", tmp_path / "data",
        "--encoding", encoding, "--compression", compression, "--feature_names", names,
        "--num_shards", "2",
    )  # fmt: skip
    seen = []
    for images, labels in read_split(str(tmp_path / "data"), "train", batch_size=4, training=True):
        assert images.shape[1:] == (24, 32, 3)
        assert images.numpy().std() > 20
        seen += labels.numpy().tolist()
    assert sorted(seen) == sorted([0, 1, 2] * (len(files) // 3))


def test_the_drawn_faces_are_learned_and_predicted(tmp_path):
    sample, data, work = tmp_path / "images", tmp_path / "data", tmp_path / "run"
    run("sample", sample)
    run(
        "convert", "--input", sample, "--output", data, "--resize", "48x48", "--channels", "1",
        "--split", "train=0.7,validation=0.15,test=0.15", "--max_reject_fraction", "0.1",
    )  # fmt: skip
    run("train", data, "--workdir", work, "--epochs", "16", "--batch_size", "32", "--quiet")
    about = json.loads(run("evaluate", work, "--json"))
    assert about["examples"] > 60
    assert about["accuracy"] >= 0.9
    run("export", work, "--output", tmp_path / "model")
    pictures = sorted(str(path) for path in sample.rglob("*0.jpg") if path.stat().st_size > 2000)
    lines = run("predict", tmp_path / "model", *pictures, "--json").splitlines()
    right = []
    for line in lines:
        answer = json.loads(line)
        best = next(iter(answer["probabilities"]))
        right.append(best == pathlib.Path(answer["path"]).parent.name)
    assert len(right) >= 20
    assert np.mean(right) >= 0.9


@pytest.mark.corpus
@pytest.mark.skipif(not CORPUS.is_dir(), reason="the public image corpus is not beside us")
def test_real_faces_are_learned_better_than_by_chance(tmp_path):
    data, work = tmp_path / "data", tmp_path / "run"
    run("convert", "--input", CORPUS / "faces_fer", "--output", data)
    run("train", data, "--workdir", work, "--epochs", "6", "--width", "0.5", "--quiet")
    about = json.loads(run("evaluate", work, "--json"))
    assert about["examples"] == 350
    assert about["accuracy"] > 0.25  # chance is 0.14
