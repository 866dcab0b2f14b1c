"""convert(): the ledger, duplicates, limits, overwriting, and what failed runs leave."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import shutil
from typing import Any

import pytest

from beam_pipeline import dataset_info, finalize, naming, storage, tfrecord_writer, worker_pool
from beam_pipeline.dataset_info import read_dataset_info
from beam_pipeline.errors import ConversionError, InputError, OutputError, UsageError
from beam_pipeline.options import FeatureType
from beam_pipeline.output_directory import OutputDirectory
from tests import conversions, fakes


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    root = tmp_path_factory.mktemp("source")
    fakes.class_folders(root)  # 15 images
    return root


def with_bad(source: pathlib.Path, target: pathlib.Path, count: int = 3) -> pathlib.Path:
    """15 good images and some that are refused."""
    fakes.class_folders(target)
    fakes.write_tree(target, {f"sad/bad {i}.jpg": b"" for i in range(count)})
    return target


# ---------------------------------------------------------------- the ledger


def test_duplicates_and_conflicts(source: pathlib.Path, tmp_path: pathlib.Path) -> None:
    rows = [
        "path,label",
        "happy/0.jpg,happy",  # row 1: kept
        "./happy/0.jpg,happy",  # row 2: the same file
        f"{source}/happy/../happy/0.jpg,happy",  # row 3: and again
        "sad/0.jpg,sad",  # rows 4, 5: two labels
        "sad/0.jpg,happy",
        "happy/1.png,happy",  # row 6
        "gone.jpg,happy",  # row 7: no such file
        "happy/3.png,",  # row 8: no label
    ]
    (tmp_path / "m.csv").write_text("\n".join(rows))
    summary = conversions.run(
        tmp_path / "m.csv", tmp_path / "out", image_root=str(source), max_reject_fraction=0.6
    )
    assert summary.info.ledger == {"inputs": 8, "written": 2, "rejected": 4, "duplicates": 2}
    assert summary.info.rejects == {"conflicting_labels": 2, "missing": 1, "no_label": 1}
    outcomes = {
        row["row"]: (row["key"], row["outcome"], row["reason"])
        for row in conversions.index(tmp_path / "out").to_pylist()
    }
    assert outcomes == {
        1: ("happy/0.jpg", "written", None),
        2: ("happy/0.jpg", "duplicate", "row 1"),
        3: ("happy/0.jpg", "duplicate", "row 1"),
        4: ("sad/0.jpg", "rejected", "conflicting_labels"),
        5: ("sad/0.jpg", "rejected", "conflicting_labels"),
        6: ("happy/1.png", "written", None),
        7: ("gone.jpg", "rejected", "missing"),
        8: ("happy/3.png", "rejected", "no_label"),
    }
    assert [(row["row"], row["stage"]) for row in conversions.rejects(tmp_path / "out")] == [
        (7, "read"),
        (8, "list"),
        (4, "list"),
        (5, "list"),
    ]
    text = summary.text()
    assert "8 inputs = 2 written + 4 rejected + 2 duplicates" in text
    # Every image of the class was refused, at the listing already.
    assert "class sad has no image left" in text


def test_the_same_folder_twice(source: pathlib.Path, tmp_path: pathlib.Path) -> None:
    summary = conversions.run([source, source], tmp_path / "out")
    assert summary.info.ledger == {"inputs": 30, "written": 15, "rejected": 0, "duplicates": 15}
    read_dataset_info(str(tmp_path / "out"))


def test_a_lost_input_is_noticed(
    source: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tfrecord_writer.sorted_refs
    monkeypatch.setattr(tfrecord_writer, "sorted_refs", lambda *args: real(*args)[1:])
    with pytest.raises(
        ConversionError,
        match=r"the run does not reconcile: 15 inputs were listed, but 14 written \+ 0 rejected "
        r"\+ 0 duplicates = 14",
    ):
        conversions.run(source, tmp_path / "out")
    assert conversions.names(tmp_path) == []


def change_results(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    """The last step gets what `change` makes of every ShardResult."""
    real = finalize.finalize
    monkeypatch.setattr(
        "beam_pipeline.write_dataset.finalize", lambda *args: real(*args[:4], map(change, args[4]))
    )


def test_a_shard_that_lost_bytes_is_noticed(
    source: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(result: Any) -> Any:
        os.truncate(result.path, result.bytes - 1)
        return result

    change_results(monkeypatch, cut)
    with pytest.raises(ConversionError, match=r"has \d+ bytes, expected \d+: the storage lost"):
        conversions.run(source, tmp_path / "out")
    assert conversions.names(tmp_path) == []


def test_a_writer_that_miscounts_is_noticed(
    source: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_results(monkeypatch, lambda r: dataclasses.replace(r, records=r.records + 1))
    with pytest.raises(ConversionError, match="its index has 15 records, its writer counted 16"):
        conversions.run(source, tmp_path / "out")
    monkeypatch.undo()
    change_results(monkeypatch, lambda r: dataclasses.replace(r, bytes=r.bytes + 1))
    with pytest.raises(ConversionError, match=r"bytes were written, its index ends at"):
        conversions.run(source, tmp_path / "out")


# ---------------------------------------------------------------- limits


def test_too_many_rejects_keep_what_was_learned(
    source: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    bad = with_bad(source, tmp_path / "in")
    with pytest.raises(ConversionError) as raised:
        conversions.run(bad, tmp_path / "out")
    message = str(raised.value)
    assert message.startswith(
        "3 of 18 inputs (16.67%) were rejected (3 empty), more than --max_reject_fraction 0.01 "
        "allows; mend or remove them, or allow them with --max_reject_fraction 0.17\n"
    )
    assert "rejected: 3 empty - the file has no bytes: copy or download it again\n" in message
    assert "    sad/bad 0.jpg: " in message
    assert f"All rejects and the index are kept in {tmp_path}/out.failed" in message
    assert conversions.names(tmp_path) == ["in", "out.failed"]
    assert conversions.names(tmp_path / "out.failed") == [
        "conversion.json",
        "index",
        "rejected.jsonl",
    ]
    assert len(conversions.rejects(tmp_path / "out.failed")) == 3
    assert conversions.index(tmp_path / "out.failed").num_rows == 18
    with pytest.raises(Exception, match="no _SUCCESS"):
        read_dataset_info(str(tmp_path / "out.failed"))
    # What the message proposes works, and the outdated report goes.
    conversions.run(bad, tmp_path / "out", max_reject_fraction=0.17)
    assert conversions.names(tmp_path) == ["in", "out"]


@pytest.mark.parametrize(("limit", "fails"), [(2, True), (3, False)])
def test_max_rejects(source: pathlib.Path, tmp_path: pathlib.Path, limit: int, fails: bool) -> None:
    bad = with_bad(source, tmp_path / "in")
    if not fails:
        conversions.run(bad, tmp_path / "out", max_rejects=limit)  # whatever the fraction
        return
    with pytest.raises(ConversionError, match=r"3 of 18 .* more than --max_rejects 2 allows"):
        conversions.run(bad, tmp_path / "out", max_rejects=limit, max_reject_fraction=1.0)


def test_nothing_could_be_converted(tmp_path: pathlib.Path) -> None:
    fakes.write_tree(tmp_path / "in", {"a/1.jpg": b"", "a/2.jpg": b"text"})
    with pytest.raises(
        ConversionError,
        match=r"no image could be converted: 2 inputs, 2 rejected \(1 empty, 1 not_an_image\)",
    ):
        conversions.run(tmp_path / "in", tmp_path / "out", max_reject_fraction=1.0)
    assert conversions.names(tmp_path) == ["in", "out.failed"]


def test_what_came_out_empty_is_named(tmp_path: pathlib.Path) -> None:
    fakes.write_tree(
        tmp_path / "in",
        {
            "train/happy/1.jpg": fakes.jpeg(1),
            "train/sad/1.jpg": b"",
            "test/happy/1.jpg": b"",
        },
    )
    summary = conversions.run(tmp_path / "in", tmp_path / "out", max_rejects=2)
    text = summary.text()
    assert "warning: split test came out empty" in text
    assert "warning: class sad has no image left" in text
    assert list(summary.info.splits) == ["train"]
    assert summary.info.labels == ("happy", "sad")  # it keeps its id
    assert summary.info.splits["train"].classes == {"happy": 1, "sad": 0}
    read_dataset_info(str(tmp_path / "out"))


@pytest.mark.parametrize("empty", [True, False])
def test_zero_inputs(tmp_path: pathlib.Path, empty: bool) -> None:
    fakes.write_tree(tmp_path / "in", {} if empty else {"a/notes.txt": b"x"})
    (tmp_path / "in").mkdir(exist_ok=True)
    with pytest.raises(InputError):
        conversions.run(tmp_path / "in", tmp_path / "out")
    assert conversions.names(tmp_path) == ["in"]


# ---------------------------------------------------------------- overwriting


@pytest.fixture(scope="module")
def converted(source: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    output = tmp_path_factory.mktemp("converted") / "out"
    conversions.run(source, output, num_shards=3)
    return output


@pytest.fixture
def finished(converted: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """A dataset of three shards that a test may break."""
    return pathlib.Path(shutil.copytree(converted, tmp_path / "out"))


def test_a_finished_dataset_is_not_touched(source: pathlib.Path, finished: pathlib.Path) -> None:
    before = {name: (finished / name).stat().st_mtime_ns for name in conversions.names(finished)}
    with pytest.raises(OutputError, match="holds a finished dataset"):
        conversions.run(source, finished)
    assert before == {
        name: (finished / name).stat().st_mtime_ns for name in conversions.names(finished)
    }


def test_overwrite_leaves_nothing_of_the_old(source: pathlib.Path, finished: pathlib.Path) -> None:
    conversions.run(source, finished, num_shards=2, overwrite=True)
    info = read_dataset_info(str(finished))  # which refuses stale shards
    assert len(info.splits["train"].shards) == 2
    assert conversions.index(finished).num_rows == 15
    # Twice the same, also where sizes agree.
    conversions.run(source, finished, num_shards=2, overwrite=True, seed=5)
    assert read_dataset_info(str(finished)).fingerprint != info.fingerprint


def test_the_old_dataset_stays_until_the_new_one_is_complete(
    source: pathlib.Path, finished: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    before = conversions.checksums(finished)
    bad = with_bad(source, tmp_path / "in")
    with pytest.raises(ConversionError, match="were rejected"):
        conversions.run(bad, finished, overwrite=True)
    assert conversions.checksums(finished) == before
    read_dataset_info(str(finished))


def test_overwrite_refuses_files_of_others(source: pathlib.Path, finished: pathlib.Path) -> None:
    (finished / "thesis.tex").touch()
    with pytest.raises(OutputError, match=r"no part of a dataset: thesis\.tex"):
        conversions.run(source, finished, overwrite=True)
    assert (finished / "_SUCCESS").exists()


def test_a_second_run_is_refused(source: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with OutputDirectory(str(tmp_path / "out")):
        with pytest.raises(OutputError, match="another run is writing into"):
            conversions.run(source, tmp_path / "out", overwrite=True)
        assert len(conversions.names(tmp_path / "out")) == 2


# ---------------------------------------------------------------- the last step, interrupted


LAST_STEP = [
    (finalize, "finalize_shards"),
    (finalize, "_copy_index"),
    (finalize.metadata, "schema_pbtxt"),
    (finalize.metadata, "conversion_json"),
    (finalize.metadata, "tfds_dataset_info"),
    (finalize.dataset_info, "labels_text"),
]


@pytest.mark.parametrize(("module", "name"), LAST_STEP)
def test_a_last_step_that_fails_leaves_nothing(
    module: Any,
    name: str,
    source: pathlib.Path,
    finished: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = getattr(module, name)

    def fail(*args: Any, **kwargs: Any) -> Any:
        real(*args, **kwargs)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(module, name, fail)
        with pytest.raises(ConversionError, match="the conversion stopped: the disk is full"):
            conversions.run(source, finished, overwrite=True, seed=1)
    # The old dataset went when the moves began; nothing looks like one.
    assert not (finished / "_SUCCESS").exists()
    assert conversions.shard_paths(finished) == []
    assert conversions.names(finished) == []
    conversions.run(source, finished)
    read_dataset_info(str(finished))


def test_a_last_step_that_is_repeated_changes_nothing(
    source: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Runners may run it again after it did everything but answer.
    real = finalize.finalize
    seen: list[Any] = []

    def twice(*args: Any) -> Any:
        args = (*args[:4], list(args[4]))
        seen.append(real(*args))
        seen.append(real(*args))
        return seen[-1]

    monkeypatch.setattr("beam_pipeline.write_dataset.finalize", twice)
    conversions.run(source, tmp_path / "out", num_shards=3)
    assert seen[0] == dataclasses.replace(seen[1], directory=seen[0].directory)
    read_dataset_info(str(tmp_path / "out"))


@pytest.mark.parametrize(("module", "name"), LAST_STEP)
def test_a_last_step_that_is_retried_after_a_failure_finishes(
    module: Any,
    name: str,
    source: pathlib.Path,
    finished: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step, real = finalize.finalize, getattr(module, name)
    failures: list[int] = []

    def fail_once(*args: Any, **kwargs: Any) -> Any:
        result = real(*args, **kwargs)
        if not failures:
            failures.append(1)
            raise OSError("the worker died")
        return result

    def retried(*args: Any) -> Any:
        args = (*args[:4], list(args[4]))
        try:
            step(*args)
        except OSError:
            return step(*args)
        raise AssertionError("it was meant to fail")

    monkeypatch.setattr(module, name, fail_once)
    monkeypatch.setattr("beam_pipeline.write_dataset.finalize", retried)
    conversions.run(source, finished, overwrite=True, num_shards=2)
    monkeypatch.undo()
    assert len(read_dataset_info(str(finished)).splits["train"].shards) == 2
    assert conversions.index(finished).num_rows == 15


# ---------------------------------------------------------------- options of the run


def test_without_a_name_it_comes_from_the_output(tmp_path: pathlib.Path) -> None:
    def name_for(output: str) -> str | None:
        return naming.with_name(conversions.make_options("in", output)).output.name

    assert name_for("/data/My Faces-2024/") == "my_faces_2024"
    assert name_for("gs://bucket/faces") == "faces"
    assert name_for("/data/2024") == "images_2024"
    assert name_for("/data/ünï") == "images_n" or name_for("/data/ünï") == "n"
    assert name_for("/data/☃") == "images"
    assert name_for("/data/" + "x" * 255) == "x" * 80
    assert naming.with_name(conversions.make_options("in", "x", name="y")).output.name == "y"


def test_the_longest_names(source: pathlib.Path, tmp_path: pathlib.Path) -> None:
    output = tmp_path / ("o" * 200)
    conversions.run(source, output, split={"s" * 80: 1.0}, seed=-(2**63) + 1)
    (path,) = conversions.shard_paths(output)
    assert os.path.basename(path) == f"{'o' * 80}-{'s' * 80}.tfrecord-00000-of-00001"
    read_dataset_info(str(output))


def test_workers_must_be_positive(source: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with pytest.raises(UsageError, match="workers must be at least 1, got 0"):
        conversions.run(source, tmp_path / "out", workers=0)


def test_a_column_named_like_a_feature(source: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (tmp_path / "m.csv").write_text("path,label,height\nhappy/0.jpg,happy,3\n")
    with pytest.raises(UsageError, match="--feature height: every record has a feature"):
        conversions.run(
            tmp_path / "m.csv",
            tmp_path / "out",
            image_root=str(source),
            features={"height": FeatureType.INT64},
        )
    assert conversions.names(tmp_path) == ["m.csv"]


def test_no_worker_outlives_a_failed_start(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pools: list[worker_pool.WorkerPool] = []
    real = worker_pool.WorkerPool
    monkeypatch.setattr(worker_pool, "WorkerPool", lambda n: pools.append(real(n)) or pools[-1])
    with pytest.raises(InputError):
        conversions.run(tmp_path / "nothing", tmp_path / "out", workers=1)
    assert [p._process.poll() is not None for pool in pools for p in pool._processes] == [True]


def test_it_says_what_it_does(source: pathlib.Path, tmp_path: pathlib.Path) -> None:
    said: list[str] = []
    staging = tmp_path / "out" / ".imagebeam-dead"
    staging.mkdir(parents=True)
    summary = conversions.run(source, tmp_path / "out", announce=said.append)
    assert said[0].startswith("input: folder, root/label/image: 3 labels (angry, happy, sad)")
    assert f"cleared what an interrupted run left: {staging}" in said
    assert summary.seconds > 0
    assert summary.written == 15
    assert summary.info == dataclasses.replace(
        read_dataset_info(str(tmp_path / "out")), directory=summary.info.directory
    )


def test_relative_paths(
    source: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fakes.class_folders("in")
    conversions.run("in", "out")
    read_dataset_info("out")
    os.mkdir("here")
    os.chdir("here")
    conversions.run("../in", ".")
    assert read_dataset_info(".").name == "here"
    assert conversions.names(tmp_path) == ["here", "in", "out"]


@pytest.mark.parametrize("spelling", ["file://{}", "FILE://{}", "{}/", "~/"])
def test_other_spellings_of_a_local_path(
    spelling: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    fakes.class_folders(tmp_path / "in", per_label=1)
    base = spelling.format(tmp_path).rstrip("/")
    conversions.run(f"{base}/in", f"{base}/out")
    assert read_dataset_info(str(tmp_path / "out")).records == 3
    assert conversions.names(tmp_path) == ["in", "out"]


@pytest.mark.parametrize("where", ["out", "happy/out", "../link/out"])
def test_a_dataset_among_the_images(where: str, tmp_path: pathlib.Path) -> None:
    fakes.class_folders(tmp_path / "in", per_label=1)
    (tmp_path / "link").symlink_to("in")
    with pytest.raises(UsageError, match="lies inside the input folder"):
        conversions.run(tmp_path / "in", tmp_path / "in" / where)
    assert conversions.names(tmp_path / "in") == ["angry", "happy", "sad"]
    # Beside a manifest it is no trouble.
    (tmp_path / "in" / "m.csv").write_text("path,label\nsad/0.jpg,sad\n")
    conversions.run(tmp_path / "in" / "m.csv", tmp_path / "in" / "out")


def test_the_stored_options_say_everything(source: pathlib.Path, tmp_path: pathlib.Path) -> None:
    options = conversions.make_options(
        source, tmp_path / "out", split={"a": 1.0}, formats=frozenset({"png", "jpeg"})
    )
    conversions.run(source, tmp_path / "out", split={"a": 1.0}, formats=frozenset({"png", "jpeg"}))
    run = json.loads((tmp_path / "out" / dataset_info.CONVERSION_FILE).read_text())["run"]
    assert set(run["options"]) == {"input", "output", "image"}
    for part, stored in run["options"].items():
        assert set(stored) == {field.name for field in dataclasses.fields(getattr(options, part))}
    assert run["options"]["output"]["split"] == {"a": 1.0}
    assert run["options"]["image"]["formats"] == ["jpeg", "png"]
    assert storage.exists(str(tmp_path / "out"))
