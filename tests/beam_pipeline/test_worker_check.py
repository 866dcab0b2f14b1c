"""What workers in other processes prove before they work."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import pickle
import threading
import time

import pytest

from beam_pipeline import worker_check
from beam_pipeline.errors import ConversionError
from beam_pipeline.worker_check import WorkerCheck, differences, make_check, versions


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
