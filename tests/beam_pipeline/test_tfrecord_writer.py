"""The writer by shard: a WriteToTFRecord, with its own names, order, checksums and finalizing."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import pathlib
import random
from typing import Any

import apache_beam as beam
import pytest
import tensorflow as tf
from apache_beam.io import filebasedsink
from apache_beam.testing.util import assert_that, equal_to

from beam_pipeline.hashing import order_hash
from beam_pipeline.options import Compression
from beam_pipeline.plan import PlanTally, make_plan
from beam_pipeline.progress import ProgressReporter
from beam_pipeline.references import RefBatch
from beam_pipeline.shard_sink import HashingFile, finalize_shards, sink_for_split
from beam_pipeline.storage import StorageConfig
from beam_pipeline.tfrecord_format import frame
from beam_pipeline.tfrecord_writer import (
    ShardResult,
    WriteShardsToTFRecord,
    rejected_line,
    sorted_refs,
)
from beam_pipeline.types import ImageRef, Outcome, Problem, RejectedImage
from tests import conversions, fakes


def options(output: Any, **fields: Any) -> Any:
    return conversions.make_options("in", output, name="faces", **fields)


def test_it_is_a_write_to_tfrecord() -> None:
    assert issubclass(WriteShardsToTFRecord, beam.io.WriteToTFRecord)


# ---------------------------------------------------------------- order


def test_the_order_of_a_shard_is_that_of_the_hashes() -> None:
    refs = [ImageRef(f"{i}.jpg", "/x") for i in range(100)]
    random.Random(0).shuffle(refs)
    batches = [RefBatch(refs[:30]), RefBatch(refs[30:])]
    assert [ref.key for ref in sorted_refs(batches, 5)] == sorted(
        (ref.key for ref in refs), key=lambda key: order_hash(5, key)
    )


def test_equal_keys_stand_in_one_order_however_they_came() -> None:
    twice = Problem(Outcome.DUPLICATE, "same_path", "row 1")
    refs = [
        ImageRef("a", "/x", "l", row=1),
        ImageRef("a", "/x", "l", row=2, problem=twice),
        ImageRef("a", "/x", "l", row=3, problem=twice),
        ImageRef("a", "/x", "m", row=3, problem=twice),
        ImageRef("a", "/y", "l", row=3, problem=twice),
    ]
    expected = sorted_refs([RefBatch(refs)], 0)
    assert expected[0].problem is None
    for order in itertools.permutations(refs):
        batches = [RefBatch([ref]) for ref in order]
        assert sorted_refs(batches, 0) == expected


# ---------------------------------------------------------------- the transform


def test_one_shard_written_and_one_refused(tmp_path: pathlib.Path) -> None:
    fakes.write_tree(
        tmp_path, {"a.jpg": fakes.jpeg(1), "b.png": fakes.png(2), "bad.jpg": b"", "text.jpg": b"x"}
    )

    def ref(name: str, split: str) -> ImageRef:
        return ImageRef(name, str(tmp_path / name), "l", split, size=100)

    good = [ref("a.jpg", "train"), ref("b.png", "train"), ref("bad.jpg", "train")]
    bad = [ref("text.jpg", "test")]
    chosen = options(tmp_path / "out")
    tally = PlanTally()
    tally.add([*good, *bad], chosen.output)
    plan = make_plan(tally, chosen)
    staging = str(tmp_path / "staging")

    def told(result: ShardResult) -> tuple:
        data = pathlib.Path(result.path).read_bytes() if result.path else b""
        records = list(tf.data.TFRecordDataset(result.path).as_numpy_iterator()) if data else []
        assert frame(records) == data
        assert result.bytes == len(data)
        assert result.sha256 == (hashlib.sha256(data).hexdigest() if data else "")
        keys = [
            tf.train.Example.FromString(r).features.feature["key"].bytes_list.value[0].decode()
            for r in records
        ]
        return (
            (result.split, result.number, result.records, keys),
            (result.counts["outcomes"], result.counts["reasons"], result.input_bytes),
            sorted(reject.key for reject in result.shown),
        )

    size = len(fakes.jpeg(1)) + len(fakes.png(2))
    keys = sorted(("a.jpg", "b.png"), key=lambda key: order_hash(0, key))
    with conversions.local_pipeline() as pipeline:
        side = beam.pvalue.AsSingleton(pipeline | "Plan" >> beam.Create([plan]))
        results = (
            pipeline
            | beam.Create([(("train", 0), [RefBatch(good)]), (("test", 0), [RefBatch(bad)])])
            | WriteShardsToTFRecord(chosen, staging, side, ProgressReporter(None), StorageConfig())
        )
        assert_that(
            results | beam.Map(told),
            equal_to(
                [
                    (
                        ("train", 0, 2, keys),
                        ({"written": 2, "rejected": 1}, {"empty": 1}, size),
                        ["bad.jpg"],
                    ),
                    (
                        ("test", 0, 0, []),
                        ({"rejected": 1}, {"not_an_image": 1}, 1),
                        ["text.jpg"],
                    ),
                ]
            ),
        )
    # A shard without records leaves no file; nothing is final yet.
    assert [path.parent.name for path in pathlib.Path(staging, "shards").rglob("*-*")] == ["train"]
    assert not (tmp_path / "out").exists()


# ---------------------------------------------------------------- sink and finalizing


def stage(chosen: Any, split: str, staging: pathlib.Path, data: list[bytes]) -> list[str]:
    sink = sink_for_split(chosen, split)
    directory = staging / "shards" / split
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, content in enumerate(data):
        writer = sink.open_writer(str(directory), f"{number:05d}-x")
        writer.temp_handle.write(content)
        paths.append(writer.close())
    return paths


@pytest.mark.parametrize("where", ["out", "out [a-z]*?", "ünï {x}"])
def test_finalizing_renames_in_order(tmp_path: pathlib.Path, where: str) -> None:
    chosen = options(tmp_path / where)
    (tmp_path / where).mkdir()
    paths = stage(chosen, "train", tmp_path / "staging", [b"one", b"two"])
    names = finalize_shards(chosen, "train", str(tmp_path / "staging"), reversed(paths))
    assert [pathlib.Path(name).name for name in names] == [
        "faces-train.tfrecord-00000-of-00002",
        "faces-train.tfrecord-00001-of-00002",
    ]
    assert [pathlib.Path(name).read_bytes() for name in names] == [b"one", b"two"]
    # Again, as a runner does that lost the answer.
    assert finalize_shards(chosen, "train", str(tmp_path / "staging"), paths) == names
    assert [pathlib.Path(name).read_bytes() for name in names] == [b"one", b"two"]


def test_a_staged_file_wins_over_one_of_equal_size(tmp_path: pathlib.Path) -> None:
    # Beam takes files of equal size for the same file and would delete the new one.
    chosen = options(tmp_path / "out")
    fakes.write_tree(tmp_path, {"out/faces-train.tfrecord-00000-of-00001": b"old"})
    paths = stage(chosen, "train", tmp_path / "staging", [b"new"])
    (name,) = finalize_shards(chosen, "train", str(tmp_path / "staging"), paths)
    assert pathlib.Path(name).read_bytes() == b"new"


def test_a_lost_file_is_an_error(tmp_path: pathlib.Path) -> None:
    chosen = options(tmp_path / "out")
    (tmp_path / "out").mkdir()
    (path,) = stage(chosen, "train", tmp_path / "staging", [b"x"])
    pathlib.Path(path).unlink()
    with pytest.raises(filebasedsink.BeamIOError, match="neither the staged shard"):
        finalize_shards(chosen, "train", str(tmp_path / "staging"), [path])


def test_splits_that_are_prefixes_do_not_mix(tmp_path: pathlib.Path) -> None:
    chosen = options(tmp_path / "out")
    (tmp_path / "out").mkdir()
    for split in ("train", "train.x", "train_2"):
        paths = stage(chosen, split, tmp_path / "staging", [split.encode()])
        finalize_shards(chosen, split, str(tmp_path / "staging"), paths)
    for split in ("train", "train.x", "train_2"):
        path = tmp_path / "out" / f"faces-{split}.tfrecord-00000-of-00001"
        assert path.read_bytes() == split.encode()


def test_the_checksum_of_a_gzip_file_is_that_of_its_bytes(tmp_path: pathlib.Path) -> None:
    chosen = options(tmp_path / "out", compression=Compression.GZIP)
    sink = sink_for_split(chosen, "train")
    (tmp_path / "s").mkdir()
    writer = sink.open_writer(str(tmp_path / "s"), "x")
    writer.temp_handle.write(b"hello" * 1000)
    data = pathlib.Path(writer.close()).read_bytes()
    assert gzip.decompress(data) == b"hello" * 1000
    assert sink.file.bytes == len(data)
    assert sink.file.hexdigest() == hashlib.sha256(data).hexdigest()


def test_hashing_file() -> None:
    import io

    stream = io.BytesIO()
    file = HashingFile(stream)
    assert (file.readable(), file.writable(), file.seekable()) == (False, True, False)
    file.write(b"ab")
    file.write(b"c")
    file.flush()
    assert (file.tell(), file.bytes, stream.getvalue()) == (3, 3, b"abc")
    assert file.hexdigest() == hashlib.sha256(b"abc").hexdigest()
    file.close()
    assert file.closed


def test_a_line_of_rejects_is_one_line_of_ascii() -> None:
    line = rejected_line(RejectedImage("a\n\u2028ü\x1b", "/x", "read", "missing", "why", None))
    assert line.isascii()
    assert line.count("\n") == 1
    assert line.endswith("}\n")
    assert "\x1b" not in line
