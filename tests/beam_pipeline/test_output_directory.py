"""Who may write into a directory, and what dead runs leave to be cleared."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import time

import pytest

from beam_pipeline.errors import OutputError
from beam_pipeline.output_directory import (
    LOCK_FILE,
    MOVES_FILE,
    RUN_FILE,
    SILENT_SECONDS,
    STAGING_PREFIX,
    OutputDirectory,
    failed_directory,
)
from tests import conversions


def test_a_new_directory_is_made_and_claimed(tmp_path: pathlib.Path) -> None:
    target = tmp_path / "a" / "b"
    with OutputDirectory(str(target)) as directory:
        assert sorted(conversions.names(target)) == sorted(
            [LOCK_FILE, STAGING_PREFIX + directory.run_id]
        )
        run = json.loads((pathlib.Path(directory.staging) / RUN_FILE).read_text())
        assert run["run_id"] == directory.run_id
        assert run["pid"] == os.getpid()
        (target / "result").touch()
    assert conversions.names(target) == ["result"]


def test_nothing_is_left_of_a_directory_that_was_not_there(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ZeroDivisionError), OutputDirectory(str(tmp_path / "out")):
        raise ZeroDivisionError
    assert conversions.names(tmp_path) == []


def test_an_empty_directory_of_the_user_stays(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ZeroDivisionError), OutputDirectory(str(tmp_path)):
        raise ZeroDivisionError
    assert tmp_path.is_dir()
    assert conversions.names(tmp_path) == []


def test_a_file_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "out").write_text("x")
    with (
        pytest.raises(OutputError, match=r"out is a file; expected a directory, or nothing yet"),
        OutputDirectory(str(tmp_path / "out")),
    ):
        pass


def test_a_finished_dataset_is_refused(tmp_path: pathlib.Path) -> None:
    for name in ("_SUCCESS", "conversion.json", "d-train.tfrecord-00000-of-00001"):
        (tmp_path / name).touch()
    with (
        pytest.raises(
            OutputError,
            match=r"holds a finished dataset \(_SUCCESS, conversion.json, d-train.*\); "
            r"give another directory, or --overwrite to replace it once",
        ),
        OutputDirectory(str(tmp_path)),
    ):
        pass
    with OutputDirectory(str(tmp_path), overwrite=True) as directory:
        assert directory.replaced == [
            "_SUCCESS",
            "conversion.json",
            "d-train.tfrecord-00000-of-00001",
        ]
    assert len(conversions.names(tmp_path)) == 3


def test_other_files_are_refused_and_never_overwritten(tmp_path: pathlib.Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with (
        pytest.raises(OutputError, match=r"is not empty \(thesis.tex\)"),
        OutputDirectory(str(tmp_path)),
    ):
        pass
    (tmp_path / "_SUCCESS").touch()
    with (
        pytest.raises(
            OutputError, match=r"--overwrite would delete files .* no part of a dataset: thesis.tex"
        ),
        OutputDirectory(str(tmp_path), overwrite=True),
    ):
        pass
    assert conversions.names(tmp_path) == ["_SUCCESS", "thesis.tex"]


@pytest.mark.parametrize(
    "name",
    [
        "faces.tfrecord",
        "faces.tfrecords",
        "faces.tfrecord.gz",
        "faces-train.tfrecord-00000-of-00001",
        "faces-train.tfrecord-00000-of-00001.gz",
        "faces-train.tfrecord-00000-of-00001.idx",
        "label.labels.txt",
        "emotion.labels.txt",
        "README.md",
        "preview.html",
        "index",
    ],
)
def test_what_overwrite_takes_for_a_dataset(tmp_path: pathlib.Path, name: str) -> None:
    (tmp_path / name).touch()
    with OutputDirectory(str(tmp_path), overwrite=True) as directory:
        assert directory.replaced == [name]


def test_a_second_run_in_this_process_is_refused(tmp_path: pathlib.Path) -> None:
    with OutputDirectory(str(tmp_path)) as first:
        with (
            pytest.raises(
                OutputError,
                match=rf"another run is writing into .* \(process {os.getpid()} on .*\); wait for it",
            ),
            OutputDirectory(str(tmp_path), overwrite=True),
        ):
            pass
        assert os.path.isdir(first.staging)  # the first run is not disturbed
        assert (tmp_path / LOCK_FILE).exists()
    with OutputDirectory(str(tmp_path)):
        pass


def test_a_run_that_was_killed_is_cleared(tmp_path: pathlib.Path) -> None:
    script = (
        "import os, sys\n"
        "from beam_pipeline.output_directory import OutputDirectory\n"
        "directory = OutputDirectory(sys.argv[1]).__enter__()\n"
        "open(os.path.join(directory.staging, 'half a shard'), 'w').close()\n"
        "os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    (left,) = [name for name in conversions.names(tmp_path) if name.startswith(STAGING_PREFIX)]
    with OutputDirectory(str(tmp_path)) as directory:
        assert directory.cleared == [str(tmp_path / left)]
    assert conversions.names(tmp_path) == []


def leave_run(root: pathlib.Path, **run: object) -> pathlib.Path:
    staging = root / (STAGING_PREFIX + "20200101-000000-dead")
    staging.mkdir(parents=True)
    details = {"run_id": "dead", "host": os.uname().nodename, "seen": time.time(), **run}
    (staging / RUN_FILE).write_text(json.dumps(details))
    return staging


def test_a_run_that_died_while_it_moved_its_files(tmp_path: pathlib.Path) -> None:
    staging = leave_run(tmp_path)
    moves = {"appear": ["d-train.tfrecord-00000-of-00001", "index"], "disappear": ["old"]}
    (staging / MOVES_FILE).write_text(json.dumps(moves))
    (tmp_path / "d-train.tfrecord-00000-of-00001").touch()
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "train-00000.parquet").touch()
    (tmp_path / "old").touch()  # it was about to be replaced; its marker is gone already
    with OutputDirectory(str(tmp_path)) as directory:
        assert directory.replaced == []
    assert conversions.names(tmp_path) == []


def test_a_run_that_died_after_its_marker_left_a_dataset(tmp_path: pathlib.Path) -> None:
    staging = leave_run(tmp_path)
    (staging / MOVES_FILE).write_text(json.dumps({"appear": ["d"], "disappear": []}))
    (tmp_path / "d").touch()
    (tmp_path / "_SUCCESS").touch()
    with (
        pytest.raises(OutputError, match="holds a finished dataset"),
        OutputDirectory(str(tmp_path)),
    ):
        pass
    assert conversions.names(tmp_path) == ["_SUCCESS", "d"]


def test_a_run_that_died_before_it_said_anything(tmp_path: pathlib.Path) -> None:
    (tmp_path / (STAGING_PREFIX + "x")).mkdir()
    with OutputDirectory(str(tmp_path)) as directory:
        assert len(directory.cleared) == 1


def test_a_run_on_another_machine_may_be_alive(tmp_path: pathlib.Path) -> None:
    staging = leave_run(tmp_path, host="elsewhere")
    with (
        pytest.raises(
            OutputError,
            match=rf"is being written by run dead on elsewhere; wait for it, .* delete {staging}",
        ),
        OutputDirectory(str(tmp_path)),
    ):
        pass
    assert staging.exists()
    silent = time.time() - SILENT_SECONDS - 1
    (staging / RUN_FILE).write_text(json.dumps({"host": "elsewhere", "seen": silent}))
    with OutputDirectory(str(tmp_path)):
        assert not staging.exists()


def test_a_detached_job_is_alive_however_long_it_is_silent(tmp_path: pathlib.Path) -> None:
    leave_run(tmp_path, detached=True, seen=0, job="job-7", runner="DataflowRunner")
    with (
        pytest.raises(OutputError, match="as job job-7 on DataflowRunner; `imagebeam status"),
        OutputDirectory(str(tmp_path)),
    ):
        pass


def test_moves_that_failed_are_undone(tmp_path: pathlib.Path) -> None:
    # The disk is full in the last step: no shards without their dataset stay behind.
    (tmp_path / "mine").mkdir()
    target = tmp_path / "out"

    def move(staging: str) -> None:
        moves = {"appear": ["d-train.tfrecord-00000-of-00001", "index"], "disappear": []}
        (pathlib.Path(staging) / MOVES_FILE).write_text(json.dumps(moves))
        (target / "d-train.tfrecord-00000-of-00001").touch()
        (target / "index").mkdir()
        raise OSError("full")

    with pytest.raises(OSError, match="full"), OutputDirectory(str(target)) as directory:
        move(directory.staging)
    assert conversions.names(tmp_path) == ["mine"]


def test_a_lock_file_without_a_run_is_no_obstacle(tmp_path: pathlib.Path) -> None:
    (tmp_path / LOCK_FILE).write_text("process 1 on nowhere")
    with OutputDirectory(str(tmp_path)):
        pass
    assert conversions.names(tmp_path) == []


def test_a_lock_that_was_removed_meanwhile_does_not_count(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Opened while another run held it, locked after that run removed it: by then a third
    # run may have made, and locked, a new file of this name.
    import fcntl

    flock = fcntl.flock
    calls: list[int] = []

    def late(file: object, how: int) -> None:
        calls.append(how)
        if len(calls) == 1:
            os.unlink(tmp_path / LOCK_FILE)
        flock(file, how)  # type: ignore[arg-type]

    monkeypatch.setattr(fcntl, "flock", late)
    with OutputDirectory(str(tmp_path)):
        assert (tmp_path / LOCK_FILE).exists()
        with (
            pytest.raises(OutputError, match="another run"),
            OutputDirectory(str(tmp_path)),
        ):
            pass


def test_where_a_failed_run_reports(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert failed_directory("/a/b/") == "/a/b.failed"
    assert failed_directory(".") == f"{tmp_path}.failed"
    assert failed_directory("out") == f"{tmp_path}/out.failed"
    assert failed_directory("gs://bucket/out/") == "gs://bucket/out.failed"


def test_a_directory_of_the_user_is_no_report(tmp_path: pathlib.Path) -> None:
    failed = tmp_path / "out.failed"
    failed.mkdir()
    with OutputDirectory(str(tmp_path / "out")):
        pass
    (failed / "thesis.tex").touch()
    with (
        pytest.raises(OutputError, match=r"out\.failed is not the report of a failed run"),
        OutputDirectory(str(tmp_path / "out")),
    ):
        pass
    assert conversions.names(tmp_path) == ["out.failed"]
    (failed / "conversion.json").touch()
    with OutputDirectory(str(tmp_path / "out")):
        pass


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_without_permission(tmp_path: pathlib.Path) -> None:
    tmp_path.chmod(0o500)
    with (
        pytest.raises(OutputError, match=r"cannot write into --output .*: Permission denied"),
        OutputDirectory(str(tmp_path)),
    ):
        pass


def test_a_directory_that_cannot_be_written(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import builtins

    real = builtins.open

    def refuse(path: object, *args: object, **kwargs: object) -> object:
        if str(path).endswith(LOCK_FILE):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *args, **kwargs)  # type: ignore[call-overload]

    monkeypatch.setattr(builtins, "open", refuse)
    with (
        pytest.raises(OutputError, match=r"cannot write into --output .*: Permission denied"),
        OutputDirectory(str(tmp_path / "out")),
    ):
        pass
    assert conversions.names(tmp_path) == []
