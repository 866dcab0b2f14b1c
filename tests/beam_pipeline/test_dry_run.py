"""`--dry_run`: the same plan as the conversion's, and nothing on disk."""

from __future__ import annotations

import pathlib

import pytest

from beam_pipeline import cli
from beam_pipeline.dry_run import make_dry_plan, plan_text
from beam_pipeline.errors import UsageError
from beam_pipeline.options import Encoding, FeatureType
from tests import conversions, fakes


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    root = tmp_path_factory.mktemp("source")
    fakes.class_folders(root)
    fakes.write_tree(root, {"sad/.hidden.jpg": b"x", "sad/notes.txt": b"x"})
    return root


def test_the_text(source: pathlib.Path, tmp_path: pathlib.Path) -> None:
    said: list[str] = []
    options = conversions.make_options(
        source, tmp_path / "out", split={"train": 0.6, "test": 0.4}, num_shards={"train": 3}
    )
    text = plan_text(options, said.append)
    plan, _ = make_dry_plan(options)
    train, test = plan.splits["train"], plan.splits["test"]
    lines = text.splitlines()
    assert lines[0].split() == ["class", "test", "train", "total"]
    for line, label in zip(lines[1:4], ("angry", "happy", "sad"), strict=True):
        counts = [test.classes[label], train.classes[label]]
        assert line.split() == [label, *map(str, counts), "5"]
    assert lines[4].split() == ["all", str(test.records), str(train.records), "15"]
    assert lines[5].split() == ["shards", "1", "3", "4"]
    assert lines[6].startswith("bytes, about")
    assert "15 inputs: 15 to convert, 0 already refused, 0 duplicates" in lines
    assert any(line.startswith("ignored: ") for line in lines)
    assert lines[-1] == "dry run: nothing was read beyond the listing, nothing was written"
    assert said == [f"input: {said[0].removeprefix('input: ')}"]
    assert conversions.names(tmp_path) == []


def test_it_is_the_plan_that_is_carried_out(source: pathlib.Path, tmp_path: pathlib.Path) -> None:
    chosen = {"split": {"a": 0.5, "b": 0.5}, "shard_size": 3000, "seed": 4}
    plan, _ = make_dry_plan(conversions.make_options(source, tmp_path / "out", **chosen))
    info = conversions.run(source, tmp_path / "out", **chosen).info
    assert {name: split.records for name, split in plan.splits.items()} == {
        name: split.records for name, split in info.splits.items()
    }
    assert {name: len(split.bounds) for name, split in plan.splits.items()} == {
        name: len(split.shards) for name, split in info.splits.items()
    }
    assert plan.labels == info.labels
    for name, split in info.splits.items():
        assert plan.splits[name].classes == split.classes
        # An estimate: never too small, and not far off.
        assert split.bytes <= plan.splits[name].bytes <= 1.5 * split.bytes


def test_a_sample_tells_the_size_of_reencoded_images(
    source: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    options = conversions.make_options(
        source, tmp_path / "out", encoding=Encoding.RAW, resize=(64, 64)
    )
    plan, _ = make_dry_plan(options)
    real = 15 * 64 * 64 * 3
    assert real < plan.splits["train"].bytes < 1.2 * real


def test_problems_are_counted(source: pathlib.Path, tmp_path: pathlib.Path) -> None:
    rows = ["path,label", "sad/0.jpg,sad", "./sad/0.jpg,sad", "sad/1.png,", "Sad/x.jpg,Sad"]
    (tmp_path / "m.csv").write_text("\n".join(rows))
    text = plan_text(
        conversions.make_options(tmp_path / "m.csv", tmp_path / "out", image_root=str(source))
    )
    assert "4 inputs: 2 to convert, 1 already refused, 1 duplicates" in text
    (warning,) = [line for line in text.splitlines() if line.startswith("warning: ")]
    assert "'Sad'" in warning
    assert "differ only in case" in warning


def test_wrong_options_are_refused_here_too(source: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (tmp_path / "m.csv").write_text("path,label,width\nsad/0.jpg,sad,1\n")
    with pytest.raises(UsageError, match="--feature width"):
        plan_text(
            conversions.make_options(
                tmp_path / "m.csv", tmp_path / "out", features={"width": FeatureType.INT64}
            )
        )


def test_a_dataset_among_the_images(source: pathlib.Path) -> None:
    with pytest.raises(UsageError, match="lies inside the input folder"):
        plan_text(conversions.make_options(source, source / "out"))


def test_the_command(
    source: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = cli.main(
        ["convert", f"--input={source}", f"--output={tmp_path / 'out'}", "--dry_run", "--quiet"]
    )
    printed = capsys.readouterr()
    assert code == 0
    assert "15 inputs: 15 to convert" in printed.out
    assert printed.err == ""
    assert conversions.names(tmp_path) == []
