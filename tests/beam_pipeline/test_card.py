"""The dataset card: true, escaped, and its examples run."""

from __future__ import annotations

import os
import pathlib
import re
from typing import Any

import pytest

from beam_pipeline.card import dataset_card
from beam_pipeline.dataset_info import read_dataset_info
from beam_pipeline.options import Compression, Encoding, FeatureNames
from tests import conversions, fakes


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    root = tmp_path_factory.mktemp("card") / "images"
    fakes.class_folders(root, per_label=4)
    return root


def convert(source: pathlib.Path, output: pathlib.Path, **options: Any) -> str:
    conversions.run(source, output, **options)
    return (output / "README.md").read_text()


def test_what_it_says(source: pathlib.Path, tmp_path: pathlib.Path) -> None:
    card = convert(source, tmp_path / "faces", license="cc-by-4.0", split={"train": 0.5, "b": 0.5})
    info = read_dataset_info(str(tmp_path / "faces"))
    assert 'license: "cc-by-4.0"' in card
    assert "12 images of 3 classes in 2 splits" in card
    assert f"`{info.fingerprint}`" in card
    counts = [info.splits[name].classes["happy"] for name in info.splits]
    assert f"| 1 | `happy` | {counts[0]} | {counts[1]} | 4 |" in card
    assert "12 inputs = 12 written + 0 rejected + 0 duplicates" in card
    assert "imagebeam convert" in card
    assert "apache-beam" in card
    assert dataset_card(info) == card


def test_no_license_is_no_license(source: pathlib.Path, tmp_path: pathlib.Path) -> None:
    card = convert(source, tmp_path / "faces")
    assert 'license: "unknown"' in card
    assert "Not stated" in card


@pytest.mark.parametrize("names", list(FeatureNames))
def test_examples_run(
    source: pathlib.Path,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    names: FeatureNames,
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    card = convert(source, tmp_path / "faces", feature_names=names)
    monkeypatch.chdir(tmp_path / "faces")
    examples = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    assert len(examples) == (4 if names is FeatureNames.DEFAULT else 3)
    for code in examples:
        if "import datasets" in code:
            pytest.importorskip("datasets")
        scope: dict[str, Any] = {}
        exec(compile(code, "README.md", "exec"), scope)
        assert len(list(scope["dataset"])) == 12


def test_gzip_example_runs(
    source: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = convert(source, tmp_path / "faces", compression=Compression.GZIP)
    monkeypatch.chdir(tmp_path / "faces")
    (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    scope: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), scope)
    assert len(list(scope["dataset"])) == 12
    assert "cannot read gzip-compressed shards" in card


def test_raw_is_told(source: pathlib.Path, tmp_path: pathlib.Path) -> None:
    card = convert(source, tmp_path / "faces", encoding=Encoding.RAW)
    assert "pixels, uint8 [height, width, channels]" in card


def test_names_are_no_markup(tmp_path: pathlib.Path) -> None:
    evil = ["<script>alert(1)<", "a`b``c", "x|y", "# [l](http:)"]
    for i, name in enumerate(evil):
        folder = os.path.join(str(tmp_path), "images", name.replace("/", ":"))
        os.makedirs(folder)
        pathlib.Path(folder, f"{i}.jpg").write_bytes(fakes.jpeg(i))
    card = convert(tmp_path / "images", tmp_path / "out")
    rows = [line for line in card.splitlines() if re.match(r"\| \d", line)]
    assert len(rows) == 4
    assert "`<script>alert(1)<`" in card
    assert "``` a`b``c ```" in card
    assert "`x\\|y`" in card
