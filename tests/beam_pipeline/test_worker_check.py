"""What workers in other processes prove before they work."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import pickle
import threading
import time
from typing import Any

import pytest

from beam_pipeline import pipeline, runners, worker_check
from beam_pipeline.errors import ConversionError, UsageError
from beam_pipeline.options import ConvertOptions, InputOptions, OutputOptions
from beam_pipeline.worker_check import WorkerCheck, differences, make_check, versions
from tests import fakes


@pytest.fixture(autouse=True)
def nothing_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_check, "_passed", set())


def _run_file(directory: pathlib.Path, run_id: str = "r1") -> str:
    path = directory / "run.json"
    path.write_text(json.dumps({"run_id": run_id}))
    return str(path)


def test_versions_of_this_process() -> None:
    found = versions()
    assert set(found) == {"python", "imagebeam", "apache-beam", "pillow", "tfx-bsl"}
    assert "not installed" not in found.values()
    assert differences(found, found) == []
    assert differences(found, {**found, "pillow": "1.0"}) == [
        f"pillow 1.0 instead of {found['pillow']}"
    ]
    assert differences({"python": "3.11"}, {}) == ["python not installed instead of 3.11"]


def test_a_worker_that_sees_everything(tmp_path: pathlib.Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "list.csv").write_text("path,label\n")
    check = make_check(
        run_id="r1",
        run_file=_run_file(tmp_path),
        inputs=[str(tmp_path / "in"), str(tmp_path / "list.csv"), str(tmp_path / "in/*.jpg")],
    )
    assert [kind for _, kind, _ in check.paths] == ["directory", "file", "directory"]
    pickle.loads(pickle.dumps(check)).check()


def test_object_stores_are_not_looked_for() -> None:
    check = make_check(run_id="r1", run_file="gs://b/out/run.json", inputs=["gs://b/in"])
    assert (check.run_file, check.paths) == (None, ())
    check.check()


def test_another_version(tmp_path: pathlib.Path) -> None:
    check = make_check(run_id="r1", run_file=None, inputs=[])
    other = dataclasses.replace(check, versions={**check.versions, "tfx-bsl": "0.1"})
    with pytest.raises(ConversionError, match=r"tfx-bsl .* instead of 0\.1"):
        other.check()


def test_an_output_that_is_not_shared(tmp_path: pathlib.Path) -> None:
    check = WorkerCheck({}, "launcher", str(tmp_path / "none/run.json"), "r1", patience=0.0)
    with pytest.raises(ConversionError, match=r"does not see .*launcher wrote: --output must be"):
        check.check()


def test_another_disk_under_the_same_path(tmp_path: pathlib.Path) -> None:
    check = WorkerCheck({}, "launcher", _run_file(tmp_path, "r0"), "r1")
    with pytest.raises(ConversionError, match="run r0 instead of r1"):
        check.check()


def test_a_file_that_appears_late(tmp_path: pathlib.Path) -> None:
    """Network file systems remember for a while that a name was not there."""
    check = WorkerCheck({}, "launcher", str(tmp_path / "run.json"), "r1", patience=30.0)
    threading.Timer(0.7, lambda: _run_file(tmp_path)).start()
    started = time.monotonic()
    check.check()
    assert 0.5 < time.monotonic() - started < 10


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: path.unlink(), "does not see it"),
        (lambda path: path.write_text("other"), "sees a file of 5 bytes"),
        (lambda path: (path.unlink(), path.mkdir()), "sees a directory"),
    ],
)
def test_an_input_that_is_not_shared(tmp_path: pathlib.Path, change, message: str) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "list.csv"
    path.write_text("path,label\n")
    check = make_check(run_id="r1", run_file=None, inputs=[str(path)])
    change(path)
    with pytest.raises(ConversionError, match=message):
        check.check()


def test_a_check_is_passed_once(tmp_path: pathlib.Path) -> None:
    """DoFns are set up for every bundle on some engines."""
    path = _run_file(tmp_path)
    check = WorkerCheck({}, "launcher", path, "r1", patience=0.0)
    check.check()
    pathlib.Path(path).unlink()
    check.check()


@pytest.mark.parametrize("missing", ["output", "versions"])
def test_an_unfit_worker_stops_the_job(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    """On an engine whose workers are elsewhere; here it is played by the local one."""
    engine = dataclasses.replace(runners.choose_engine([]), place=runners.Place.ELSEWHERE)
    monkeypatch.setattr(runners, "choose_engine", lambda *args: engine)
    real = pipeline.make_check

    def unfit(**arguments: Any) -> WorkerCheck:
        check = real(**arguments)
        assert check.versions == versions()
        assert str(check.run_file).startswith(str(tmp_path / "out"))
        if missing == "versions":
            return dataclasses.replace(check, versions={"pillow": "0.1"})
        return dataclasses.replace(check, run_file=f"{check.run_file}.no", patience=0.0)

    monkeypatch.setattr(pipeline, "make_check", unfit)
    fakes.class_folders(tmp_path / "in", per_label=1)
    options = ConvertOptions(
        InputOptions((str(tmp_path / "in"),)), OutputOptions(str(tmp_path / "out"))
    )
    with pytest.raises(UsageError, match="--shared_filesystem"):
        pipeline.convert(options)
    message = "pillow .* instead of 0.1" if missing == "versions" else "--output must be on a file"
    with pytest.raises(ConversionError, match=message):
        pipeline.convert(options, shared_filesystem=True)
    assert not (tmp_path / "out").exists()
    # The same engine with workers that are fit.
    monkeypatch.setattr(pipeline, "make_check", real)
    outcome = pipeline.convert(options, shared_filesystem=True)
    assert outcome.written == 3
