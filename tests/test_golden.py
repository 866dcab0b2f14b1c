"""Golden shards: the bytes that earlier versions wrote are the bytes that this one writes.

tests/golden/images holds small images, the other folders what became of them. A
difference means that every dataset changes when it is converted again. Where that is
meant, raise the version, say so in the change log, and write the shards anew:

    python -m tests.test_golden
"""

from __future__ import annotations

import pathlib
import shutil
import tempfile
from typing import Any

import pytest

from beam_pipeline.options import Encoding, FeatureNames
from tests import conversions, fakes

GOLDEN = pathlib.Path(__file__).parent / "golden"
IMAGES = GOLDEN / "images"

# Only encodings whose bytes depend on nothing but the input: re-encoded PNGs and JPEGs
# change with zlib and libjpeg.
CASES: dict[str, dict[str, Any]] = {
    "default": {"num_shards": 2},
    "slim": {
        "feature_names": FeatureNames.SLIM,
        "split": {"train": 0.5, "validation": 0.25, "test": 0.25},
        "seed": 7,
    },
    "raw": {"encoding": Encoding.RAW, "formats": frozenset({"png"}), "max_reject_fraction": 1.0},
}


def write_golden(directory: pathlib.Path, names: tuple[str, ...] = tuple(CASES)) -> None:
    """Converts the golden images; keeps the shards and the class names."""
    for name in names:
        with tempfile.TemporaryDirectory() as scratch:
            output = pathlib.Path(scratch) / "out"
            conversions.run(IMAGES, output, name="golden", **CASES[name])
            target = directory / name
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir(parents=True)
            for path in conversions.shard_paths(output):
                shutil.copy(path, target)
            shutil.copy(output / "label.labels.txt", target)


def draw_images() -> None:
    """Draws the golden images: only for a start from nothing, their bytes never change."""
    files = {}
    for number, label in enumerate(("glücklich", "sad", "surprise [!]")):
        for index in range(4):
            seed = 10 * number + index
            channels = 1 + 2 * (index // 2)
            pixels = fakes.picture(6 + index, 9 - index, channels=channels, seed=seed)
            kind = ("PNG", "JPEG")[index % 2]
            files[f"{label}/{index}.{kind.lower()}"] = fakes.encode(pixels, kind)
    fakes.write_tree(IMAGES, files)


@pytest.mark.parametrize("name", list(CASES))
def test_shards_are_those_of_earlier_versions(name: str, tmp_path: pathlib.Path) -> None:
    write_golden(tmp_path, (name,))
    expected, found = GOLDEN / name, tmp_path / name
    assert conversions.names(found) == conversions.names(expected)
    for file in conversions.names(expected):
        assert (found / file).read_bytes() == (expected / file).read_bytes(), (
            f"{name}/{file} changed; see the first lines of this file"
        )


def test_the_golden_shards_are_not_empty() -> None:
    # Whatever a careless rewrite leaves behind would compare equal.
    counts = {name: len(conversions.examples(GOLDEN / name)) for name in CASES}
    assert counts == {"default": 12, "slim": 12, "raw": 6}


if __name__ == "__main__":
    if not IMAGES.exists():
        draw_images()
    write_golden(GOLDEN)
