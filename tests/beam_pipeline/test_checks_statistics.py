"""imagebeam stats: the numbers are those of the images, whatever the shards."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest

from beam_pipeline.checks.accumulator import SplitAccumulator, bin_start, size_bin
from beam_pipeline.checks.statistics import Statistics, gather
from beam_pipeline.checks.statistics_text import statistics_text
from beam_pipeline.cli import main
from beam_pipeline.options import Encoding
from tests import conversions, fakes
from tests.datasets_on_disk import edit_example, read_records, shard, write_records


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """Key → pixels; PNG, so that decoding gives them back exactly."""
    result = {}
    for split, label, count in (("train", "a", 9), ("train", "b", 3), ("test", "a", 4)):
        for i in range(count):
            size = (20 + i, 30 + 2 * i)
            channels = 1 if i % 3 == 0 else 3
            seed = len(result)
            result[f"{split}/{label}/{i}.png"] = fakes.picture(*size, channels=channels, seed=seed)
    result["train/b/flat.png"] = np.full((10, 10, 3), 77, np.uint8)
    return result


@pytest.fixture(scope="module")
def dataset(
    pictures: dict[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory
) -> pathlib.Path:
    root = tmp_path_factory.mktemp("stats")
    files = {key: fakes.encode(pixels, "PNG") for key, pixels in pictures.items()}
    fakes.write_tree(root / "images", files)
    conversions.run(root / "images", root / "out", num_shards={"train": 3, "test": 1})
    return root / "out"


@pytest.fixture(scope="module")
def statistics(dataset: pathlib.Path) -> Statistics:
    return gather(str(dataset), pixels=None, threads=1)


def test_counts(statistics: Statistics, pictures: dict[str, np.ndarray]) -> None:
    train, test, total = statistics.splits["train"], statistics.splits["test"], statistics.total
    assert (train.records, test.records, total.records) == (13, 4, 17)
    assert (train.shards, test.shards) == (3, 1)
    assert train.classes == {"a": 9, "b": 4}
    assert test.classes == {"a": 4}
    assert train.imbalance() == 9 / 4
    assert test.imbalance() is None
    assert total.formats == {"png": 17}
    gray = sum(pixels.ndim == 2 for pixels in pictures.values())
    assert total.channels == {1: gray, 3: 17 - gray}
    assert total.distinct == 17


def test_sizes(statistics: Statistics, pictures: dict[str, np.ndarray]) -> None:
    total = statistics.total
    areas = sorted(pixels.shape[0] * pixels.shape[1] for pixels in pictures.values())
    assert total.smallest[0] == (100, "train/b/flat.png", 10, 10)
    assert [entry[0] for entry in total.largest] == areas[::-1][:5]
    widths = sorted(pixels.shape[1] for pixels in pictures.values())
    quantiles = total.quantiles("width")
    assert len(quantiles) == 21
    assert (quantiles[0], quantiles[-1]) == (widths[0], widths[-1])
    assert abs(quantiles[10] - np.median(widths)) <= 2
    assert total.sizes[30, 20] == 3
    assert sum(total.bins.values()) == 17


def test_pixels(statistics: Statistics, pictures: dict[str, np.ndarray]) -> None:
    color = [p.reshape(-1, 3) for p in pictures.values() if p.ndim == 3]
    expected = np.concatenate(color) / 255
    sums = statistics.total.color
    assert sums.images == len(color)
    assert np.allclose(sums.mean(), expected.mean(axis=0))
    assert np.allclose(sums.deviation(), expected.std(axis=0))
    gray = np.concatenate([p.ravel() for p in pictures.values() if p.ndim == 2]) / 255
    assert np.allclose(statistics.total.gray.mean(), gray.mean())
    assert statistics.total.flat == ["train/b/flat.png"]


def test_raw_pixels_and_a_sample(
    dataset: pathlib.Path, pictures: dict[str, np.ndarray], tmp_path: pathlib.Path
) -> None:
    conversions.run(dataset.parent / "images", tmp_path / "raw", encoding=Encoding.RAW)
    raw = gather(str(tmp_path / "raw"), pixels=None, threads=1).total
    color = [p.reshape(-1, 3) for p in pictures.values() if p.ndim == 3]
    assert np.allclose(raw.color.mean(), np.concatenate(color).mean(axis=0) / 255)
    assert 1 <= gather(str(dataset), pixels=5, threads=1).total.decoded < 17
    assert gather(str(dataset), pixels=0, threads=1).total.decoded == 0


def test_text_and_notes(statistics: Statistics) -> None:
    text = statistics_text(statistics)
    assert "split test has no image of 1 of 2 classes: 'b'" in text
    assert "1 of 17 images looked at are nearly of one colour: train/b/flat.png" in text
    assert "17 png" in text
    assert "smallest: train/b/flat.png 10 x 10" in text


def test_drift_is_told_when_it_is_no_chance() -> None:
    def split(a: int, b: int) -> SplitAccumulator:
        accumulator = SplitAccumulator()
        accumulator.records = a + b
        accumulator.classes.update({"a": a, "b": b})
        return accumulator

    def drift(first: SplitAccumulator, second: SplitAccumulator) -> list[str]:
        splits = {"train": first, "test": second}
        return Statistics("x", None, ("a", "b"), splits, {}).drift()

    assert drift(split(500, 500), split(50, 50)) == []
    assert drift(split(500, 500), split(58, 42)) == []  # may well be chance
    assert drift(split(5000, 5000), split(800, 200)) == [
        "class 'a' is 50.0% of train, but 80.0% of test",
        "class 'b' is 50.0% of train, but 20.0% of test",
    ]
    assert drift(split(0, 0), split(5, 5)) == []


def test_merging_is_adding() -> None:
    generator = np.random.default_rng(0)
    width, height = generator.integers(1, 3000, (2, 1000))
    keys = [str(i) for i in range(1000)]
    whole, first, second = SplitAccumulator(), SplitAccumulator(), SplitAccumulator()
    whole.add_sizes(width, height, keys)
    first.add_sizes(width[:300], height[:300], keys[:300])
    second.add_sizes(width[300:], height[300:], keys[300:])
    first.merge(second)
    for accumulator in (whole, first):
        accumulator.records = 1000
    assert first.sizes == whole.sizes
    assert first.bins == whole.bins
    assert first.smallest == whole.smallest
    ties = SplitAccumulator()
    ones = np.ones(9, np.int64)
    for i in reversed(range(9)):
        ties.add_sizes(ones[:1], ones[:1], [str(i)])
    assert [key for _, key, _, _ in ties.smallest] == ["0", "1", "2", "3", "4"]
    assert first.largest == whole.largest
    assert np.allclose(first.quantiles("width"), np.quantile(width, np.arange(21) / 20), atol=15)


@pytest.mark.parametrize("side", [1, 2, 3, 47, 48, 1000, 65535])
def test_bins_hold_what_they_say(side: int) -> None:
    number = size_bin(side)
    assert bin_start(number) <= side * (1 + 1e-9)
    assert side < bin_start(number + 1) * (1 + 1e-9)


def test_foreign_files_without_sizes(dataset: pathlib.Path, tmp_path: pathlib.Path) -> None:
    records, _ = read_records(shard(dataset, "test"))
    bare = dict.fromkeys(("height", "width", "channels", "format", "sha256", "key", "label_name"))  # fmt: skip
    write_records(tmp_path / "valid.tfrecord", [edit_example(r, bare) for r in records])
    result = gather(globs=[str(tmp_path / "*.tfrecord")], pixels=None, threads=1)
    split = result.splits["validation"]  # the file's name says so
    assert split.classes == {"0": 4}
    assert split.sizes[30, 20] == 1
    assert split.formats == {"png": 4}
    assert split.decoded == 4


def test_command(dataset: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", str(dataset), "--json", "--pixels", "none"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["total"]["images"] == 17
    assert found["splits"]["train"]["classes"] == {"a": 9, "b": 4}
    assert found["total"]["pixels"] == {}
    assert main(["stats", str(dataset), "--pixels", "many"]) == 2
    assert main(["stats", str(dataset / "index")]) == 1
    assert "is not a finished dataset" in capsys.readouterr().err


def test_damage_is_an_error_that_names_verify(
    dataset: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.tfrecord"
    path.write_bytes(shard(dataset, "train").read_bytes()[:-10])
    assert main(["stats", "--glob", str(path)]) == 1
    text = capsys.readouterr().err
    assert "it was cut" in text
    assert "imagebeam verify" in text
