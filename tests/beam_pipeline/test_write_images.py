"""The writer of convert inside somebody else's pipeline."""

from __future__ import annotations

import pathlib

import apache_beam as beam
import pytest
from apache_beam.testing.test_pipeline import TestPipeline
from apache_beam.testing.util import assert_that, equal_to

import beam_pipeline as ib
from beam_pipeline.errors import ConversionError, OutputError
from tests import fakes


def shards(directory: pathlib.Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.glob("*.tfrecord-*"))}


def test_the_same_bytes_as_convert(tmp_path: pathlib.Path) -> None:
    fakes.class_folders(tmp_path / "in")
    (tmp_path / "in" / "sad" / "broken.jpg").write_bytes(b"")
    source = ib.InputOptions(inputs=(str(tmp_path / "in"),))

    def output(directory: str) -> ib.OutputOptions:
        return ib.OutputOptions(
            str(tmp_path / directory),
            name="faces",
            split={"train": 0.7, "test": 0.3},
            num_shards=2,
            max_reject_fraction=0.5,
        )

    with TestPipeline(runner="FnApiRunner") as pipeline:
        written = pipeline | ib.ListImages(source) | ib.WriteImages(output("mine"))
        ledger = written | beam.Map(lambda info: info.ledger)
        assert_that(
            ledger, equal_to([{"inputs": 16, "written": 15, "rejected": 1, "duplicates": 0}])
        )
    ib.convert(ib.ConvertOptions(source, output("theirs")), workers=1)
    assert shards(tmp_path / "mine") == shards(tmp_path / "theirs")
    assert ib.read_dataset_info(str(tmp_path / "mine")).labels == ("angry", "happy", "sad")
    assert not list((tmp_path / "mine").glob(".*"))


def test_given_labels_fix_the_ids(tmp_path: pathlib.Path) -> None:
    fakes.class_folders(tmp_path / "in", labels=("b", "a"), per_label=2)
    with TestPipeline(runner="FnApiRunner") as pipeline:
        refs = pipeline | ib.ListImages(ib.InputOptions(inputs=(str(tmp_path / "in"),)))
        _ = refs | ib.WriteImages(ib.OutputOptions(str(tmp_path / "out")), labels=("z", "b", "a"))
    info = ib.read_dataset_info(str(tmp_path / "out"))
    assert info.labels == ("z", "b", "a")
    assert info.splits["train"].classes == {"z": 0, "b": 2, "a": 2}


def test_too_many_rejects_fail_the_pipeline(tmp_path: pathlib.Path) -> None:
    fakes.write_tree(tmp_path / "in", {"a/1.jpg": b"", "a/2.jpg": fakes.jpeg()})
    source = ib.InputOptions(inputs=(str(tmp_path / "in"),))
    with (
        pytest.raises(ConversionError, match="1 of 2 inputs"),
        TestPipeline(runner="FnApiRunner") as pipeline,
    ):
        _ = (
            pipeline
            | ib.ListImages(source)
            | ib.WriteImages(ib.OutputOptions(str(tmp_path / "out")))
        )
    assert not (tmp_path / "out" / "_SUCCESS").exists()
    assert (tmp_path / "out.failed" / "rejected.jsonl").exists()


def test_a_directory_is_claimed_once(tmp_path: pathlib.Path) -> None:
    fakes.class_folders(tmp_path / "in", per_label=1)
    output = ib.OutputOptions(str(tmp_path / "out"))
    with TestPipeline(runner="FnApiRunner") as pipeline:
        refs = pipeline | ib.ListImages(ib.InputOptions(inputs=(str(tmp_path / "in"),)))
        _ = refs | "First" >> ib.WriteImages(output)
        with pytest.raises(OutputError, match="is being written by run"):
            _ = refs | "Second" >> ib.WriteImages(output)
