"""`imagebeam doctor`: every finding is looked at for real."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from beam_pipeline import doctor
from beam_pipeline.cli import main
from beam_pipeline.doctor import Finding, Level, Report, examine
from tests import engines
from tests.engines import web_server


def _by_topic(report: Report) -> dict[str, Finding]:
    return {finding.topic: finding for finding in report.findings}


def test_this_installation_is_sound(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.csv").write_text("x")
    code = main(["doctor", str(tmp_path), str(tmp_path / "a.csv"), str(tmp_path / "new/out")])
    text = capsys.readouterr().out
    assert code == 0, text
    assert "FnApiRunner in this process" in text
    assert "google_crc32c" in text
    assert "reads JPEG, PNG" in text
    assert "C++ encoder works" in text
    assert "devices: CPU:0" in text
    assert "a directory with 1 entries, writable" in text
    assert "a file of 1 bytes" in text
    assert "nothing there yet, writable" in text


def test_tensorflow_is_not_loaded_into_this_process() -> None:
    """A crash or a hang of it must be a finding, not the end of the doctor."""
    script = (
        "import sys; from beam_pipeline.doctor import examine; examine(); "
        "assert not any(name.split('.')[0] == 'tensorflow' for name in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(engines.ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_tensorflow_that_does_not_load_is_a_note(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "tensorflow.py").write_text("raise ImportError('libcudart is missing')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (finding,) = doctor._tensorflow()
    assert finding.level is Level.NOTE
    assert "libcudart is missing" in finding.text
    (tmp_path / "tensorflow.py").write_text("import time; time.sleep(60)")
    monkeypatch.setattr(doctor, "TENSORFLOW_SECONDS", 1)
    (finding,) = doctor._tensorflow()
    assert "does not load within 1 s" in finding.text


def test_no_crc32c_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    from apache_beam.io import tfrecordio

    def missing(data: bytes) -> int:
        raise RuntimeError("Could not find python-snappy")

    monkeypatch.setattr(tfrecordio, "_default_crc32c_fn", missing)
    (finding,) = doctor._crc32c()
    assert finding.level is Level.BROKEN
    assert "TFRecords cannot be written" in finding.text
    monkeypatch.setattr(tfrecordio, "_default_crc32c_fn", lambda data: 0)
    (finding,) = doctor._crc32c()
    assert finding.level is Level.BROKEN


def test_a_pillow_without_jpeg_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import features

    monkeypatch.setattr(features, "check", lambda name: name not in ("jpg", "avif"))
    finding = next(iter(doctor._pillow()))
    assert finding.level is Level.BROKEN
    assert "not JPEG, AVIF" in finding.text


def test_a_check_that_fails_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def explode() -> list[Finding]:
        raise OSError("no such luck")

    for name in ("_tensorflow", "_other_engines", "_encoder"):
        monkeypatch.setattr(doctor, name, lambda: iter(()))
    monkeypatch.setattr(doctor, "_crc32c", explode)
    report = examine()
    assert not report.ok
    assert "BROKEN" in report.text()
    assert "OSError: no such luck" in report.text()


def test_paths_and_servers_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_tensorflow", "_encoder", "_other_engines"):
        monkeypatch.setattr(doctor, name, lambda: iter(()))
    port = engines.free_port()
    report = examine(worker_pool=f"localhost:{port}", flink_master=f"localhost:{port}")
    found = _by_topic(report)
    assert not report.ok
    assert "no worker pool: nothing listens" in found[f"pool localhost:{port}"].text
    assert "no Flink cluster" in found[f"flink localhost:{port}"].text
    pages = {
        "/config": {"flink-version": "1.16.3"},
        "/overview": {"taskmanagers": 1, "slots-total": 2, "slots-available": 2},
    }
    with web_server(pages) as master:
        (finding,) = doctor._flink(master)
        assert finding.level is Level.BROKEN
        assert "Flink 1.16.3, 1 TaskManagers, 2 of 2 slots free; Beam has runners" in finding.text
        pages["/config"] = {"flink-version": "2.2.1"}
        (finding,) = doctor._flink(master)
        assert finding.level is Level.OK


def test_workers_of_a_pool(tmp_path: pathlib.Path) -> None:
    with engines.worker_pool(tmp_path) as (address, _):
        (finding,) = doctor._pool(address)
    assert finding.level is Level.OK
    assert "same versions as here" in finding.text
