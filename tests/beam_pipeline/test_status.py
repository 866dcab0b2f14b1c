"""`imagebeam status`: what an output directory tells, whoever wrote into it."""

from __future__ import annotations

import json
import pathlib
import uuid

import pytest

from beam_pipeline.cli import main
from beam_pipeline.errors import ConversionError, OutputError
from beam_pipeline.options import ConvertOptions, InputOptions, OutputOptions
from beam_pipeline.output_directory import OutputDirectory
from beam_pipeline.pipeline import convert
from beam_pipeline.status import read_status
from tests import fakes
from tests.engines import web_server


def _convert(tmp_path: pathlib.Path, **output: object) -> pathlib.Path:
    fakes.class_folders(tmp_path / "in", per_label=2)
    (tmp_path / "in/sad/broken.jpg").write_bytes(b"no image")
    target = tmp_path / "out"
    convert(
        ConvertOptions(InputOptions((str(tmp_path / "in"),)), OutputOptions(str(target), **output)),  # type: ignore[arg-type]
        workers=1,
    )
    return target


def _stage(staging: str, split: str, number: int, size: int = 10) -> None:
    """What an attempt that finished a shard leaves."""
    attempt = f"{number:05d}-{uuid.uuid4()}"
    root = pathlib.Path(staging)
    (root / "shards" / split).mkdir(parents=True, exist_ok=True)
    (root / "index").mkdir(exist_ok=True)
    (root / "shards" / split / attempt).write_bytes(bytes(size))
    (root / "index" / f"{split}-{attempt}.parquet").write_bytes(b"")


def test_a_finished_dataset(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = _convert(tmp_path, max_reject_fraction=0.5)
    assert main(["status", str(output)]) == 0
    text = capsys.readouterr().out
    assert "finished dataset: 6 images in 1 shards, 1 rejected, 0 duplicates" in text


def test_nothing(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", str(tmp_path / "none")]) == 1
    assert "no dataset, and no run writes one" in capsys.readouterr().out


def test_a_run_that_failed_over_its_rejects(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConversionError):
        _convert(tmp_path, max_rejects=0)
    status = read_status(str(tmp_path / "out"))
    assert status.finished is None
    assert status.runs == ()
    assert "more than --max_rejects 0 allows" in str(status.failure)
    assert "out.failed" in status.text()


def test_a_run_at_work_and_after_its_death(tmp_path: pathlib.Path) -> None:
    output = tmp_path / "out"
    directory = OutputDirectory(str(output))
    with directory:
        assert "listing inputs" in read_status(str(output)).text()
        plan = {"inputs": 5000, "shards": 4}
        (pathlib.Path(directory.staging) / "plan.json").write_text(json.dumps(plan))
        _stage(directory.staging, "train", 0)
        _stage(directory.staging, "train", 0)  # a second attempt of the same shard
        _stage(directory.staging, "test", 0, size=100)
        (run,) = read_status(str(output)).runs
        assert (run.alive, run.shards, run.planned_shards, run.bytes) == (True, 2, 4, 120)
        assert "2 of 4 shards complete (120 bytes staged), 5,000 inputs" in run.text()
        directory.detach()  # what a killed process leaves: its staging, and no lock
    (run,) = read_status(str(output)).runs
    assert run.alive is False
    assert "the next conversion into this directory clears it" in run.text()


def test_a_job_that_goes_on_alone(tmp_path: pathlib.Path) -> None:
    """Its launcher is gone; the cluster is asked, and nobody else may write here."""
    output = tmp_path / "out"
    pages = {
        "/config": {"flink-version": "2.2.1"},
        "/overview": {"taskmanagers": 1, "slots-total": 1, "slots-available": 0},
        "/jobs/overview": {"jobs": [{"jid": "1", "name": "imagebeam-x", "state": "RUNNING"}]},
    }
    with web_server(pages) as master:
        with OutputDirectory(str(output)) as directory:
            directory.describe_run(
                detached=True,
                runner="flink",
                job="job_1",
                job_name="imagebeam-x",
                status=f"http://{master}",
            )
            directory.detach()
        (run,) = read_status(str(output)).runs
        assert (run.alive, run.job_state) == (None, "RUNNING")
        assert "job job_1 on flink" in run.text()
        pages["/jobs/overview"] = {"jobs": []}
        (run,) = read_status(str(output)).runs
        assert run.job_state == "it knows no job imagebeam-x"
        with pytest.raises(OutputError, match="job job_1 on flink; `imagebeam status"):
            OutputDirectory(str(output)).__enter__()
    (run,) = read_status(str(output)).runs
    assert "nothing (no Flink cluster" in str(run.job_state)


def test_a_new_run_beside_a_finished_dataset(tmp_path: pathlib.Path) -> None:
    output = _convert(tmp_path, max_reject_fraction=0.5)
    with OutputDirectory(str(output), overwrite=True):
        status = read_status(str(output))
        assert status.finished is not None
        assert len(status.runs) == 1
        assert main(["status", str(output)]) == 1
    assert main(["status", str(output)]) == 0
