"""One input, one output: the same bytes with any number of workers, and in every mode.

Other engines: tests/beam_pipeline/test_runners_pool.py, test_prism.py.
"""

from __future__ import annotations

import os
import pathlib
import random
from typing import Any

import pytest

from beam_pipeline.options import Compression, Encoding
from tests import conversions, fakes

SHARED: dict[str, Any] = {
    "num_shards": {"train": 3, "test": 2},
    "split": {"train": 0.7, "test": 0.3},
    "max_reject_fraction": 0.5,
    "name": "faces",
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    root = tmp_path_factory.mktemp("source")
    fakes.class_folders(root, per_label=30)
    fakes.write_tree(root, {f"sad/bad {i}.jpg": b"" for i in range(4)})
    return root


@pytest.fixture(scope="module")
def expected(source: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Checksums of a run in this process alone."""
    output = tmp_path_factory.mktemp("expected") / "out"
    conversions.run(source, output, **SHARED)
    found = conversions.checksums(output)
    assert len(found) == 5 + 4 + 1
    return found


@pytest.mark.parametrize("workers", [1, 3])
def test_worker_processes(
    workers: int, source: pathlib.Path, tmp_path: pathlib.Path, expected: dict[str, str]
) -> None:
    conversions.run(source, tmp_path / "out", workers=workers, **SHARED)
    assert conversions.checksums(tmp_path / "out") == expected


@pytest.mark.parametrize(
    "flags",
    [
        ["--direct_running_mode=multi_threading", "--direct_num_workers=3"],
        ["--direct_running_mode=multi_processing", "--direct_num_workers=2"],
    ],
)
def test_modes_of_the_local_engine(
    flags: list[str], source: pathlib.Path, tmp_path: pathlib.Path, expected: dict[str, str]
) -> None:
    conversions.run(source, tmp_path / "out", beam_options=flags, **SHARED)
    assert conversions.checksums(tmp_path / "out") == expected


def test_gzip_holds_no_time_and_no_name(source: pathlib.Path, tmp_path: pathlib.Path) -> None:
    for name in ("a", "b"):
        conversions.run(source, tmp_path / name, compression=Compression.GZIP, **SHARED)
    assert conversions.checksums(tmp_path / "a") == conversions.checksums(tmp_path / "b")
    for path in conversions.shard_paths(tmp_path / "a"):
        assert pathlib.Path(path).read_bytes()[3:8] == bytes(5)  # no flags, time 0


def test_where_the_images_lie_does_not_matter(
    source: pathlib.Path, tmp_path: pathlib.Path, expected: dict[str, str]
) -> None:
    # Another root, and files made in another order.
    paths = sorted(path for path in source.rglob("*") if path.is_file())
    random.Random(0).shuffle(paths)
    for path in paths:
        fakes.write_tree(
            tmp_path / "moved", {os.fspath(path.relative_to(source)): path.read_bytes()}
        )
    conversions.run(tmp_path / "moved", tmp_path / "out", **SHARED)
    found = conversions.checksums(tmp_path / "out")
    assert found.pop("rejected.jsonl") != expected["rejected.jsonl"]  # it names full paths
    assert found == {name: sum_ for name, sum_ in expected.items() if name != "rejected.jsonl"}


def test_the_order_of_a_manifest_does_not_matter(
    source: pathlib.Path, tmp_path: pathlib.Path, expected: dict[str, str]
) -> None:
    keys = sorted(os.fspath(p.relative_to(source)) for p in source.rglob("*") if p.is_file())
    random.Random(1).shuffle(keys)
    rows = ["path,label", *(f"{key},{key.split('/')[0]}" for key in keys)]
    (tmp_path / "m.csv").write_text("\n".join(rows))
    conversions.run(tmp_path / "m.csv", tmp_path / "out", image_root=str(source), **SHARED)
    found = conversions.checksums(tmp_path / "out")
    shards = {name for name in expected if ".tfrecord-" in name}
    assert {name: found[name] for name in shards} == {name: expected[name] for name in shards}


@pytest.mark.parametrize(
    ("changed", "same"),
    [({"seed": 1}, False), ({"encoding": Encoding.RAW}, False), ({"shard_size": 1 << 30}, True)],
)
def test_what_decides_the_bytes(
    changed: dict[str, Any],
    same: bool,
    source: pathlib.Path,
    tmp_path: pathlib.Path,
    expected: dict[str, str],
) -> None:
    conversions.run(source, tmp_path / "out", **{**SHARED, **changed})
    found = conversions.checksums(tmp_path / "out")
    shards = sorted(name for name in expected if ".tfrecord-" in name)
    assert sorted(name for name in found if ".tfrecord-" in name) == shards
    assert all((found[name] == expected[name]) is same for name in shards)
