"""The reading commands elsewhere: datasets in an object store, another engine, other processes."""

from __future__ import annotations

import json
import pathlib

import pytest

from beam_pipeline.checks.statistics import gather
from beam_pipeline.checks.verify import verify
from beam_pipeline.cli import main
from beam_pipeline.errors import UsageError
from beam_pipeline.random_access import RandomAccessDataset
from tests import conversions, engines, fakes, servers
from tests.datasets_on_disk import edit_bytes, shard


@pytest.fixture
def dataset(tmp_path: pathlib.Path) -> pathlib.Path:
    fakes.class_folders(tmp_path / "images", per_label=4)
    conversions.run(tmp_path / "images", tmp_path / "faces", num_shards=2)
    return tmp_path / "faces"


def test_a_dataset_in_s3(
    dataset: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in servers.S3_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    with servers.s3_server("bucket") as url:
        client = servers.s3_client(url)
        for path in dataset.rglob("*"):
            if path.is_file():
                key = f"data/{path.relative_to(dataset)}"
                client.put_object(Bucket="bucket", Key=key, Body=path.read_bytes())
        reach = [f"--s3_endpoint_url={url}"]
        uri = "s3://bucket/data"
        result = verify(uri, beam_options=reach, threads=1)
        assert result.ok, result.text()
        assert result.tally.records == 12
        assert gather(uri, beam_options=reach, threads=1).total.records == 12
        records = RandomAccessDataset(uri)
        assert records[5]["label_name"] == records.keys()[5].split("/")[0]
        assert main(["preview", uri, *reach]) == 0
        page = client.get_object(Bucket="bucket", Key="data/preview.html")["Body"].read()
        assert page.startswith(b"<!DOCTYPE html>")
        # A fault is found there as well.
        name = shard(dataset, "train").name
        edit_bytes(shard(dataset, "train"), lambda data: data.__setitem__(100, data[100] ^ 1))
        body = shard(dataset, "train").read_bytes()
        client.put_object(Bucket="bucket", Key=f"data/{name}", Body=body)
        result = verify(uri, beam_options=reach, threads=1)
        assert {f.file for f in result.faults if f.kind == "data_crc"} == {name}


def test_worker_processes(dataset: pathlib.Path) -> None:
    options = ["--direct_num_workers=2", "--direct_running_mode=multi_processing"]
    assert verify(str(dataset), beam_options=options).tally.records == 12


@pytest.mark.prism
def test_prism(dataset: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--runner=prism", f"--prism_location={engines.prism_binary()}"]
    edit_bytes(shard(dataset, "train"), lambda data: data.__setitem__(3, data[3] ^ 1))
    here, there = verify(str(dataset), threads=1), verify(str(dataset), beam_options=options)
    assert there.faults == here.faults != []
    assert main(["stats", str(dataset), "--json", "--pixels", "none", *options]) == 1
    assert "checksum of its length is wrong" in capsys.readouterr().err
    edit_bytes(shard(dataset, "train"), lambda data: data.__setitem__(3, data[3] ^ 1))
    assert main(["stats", str(dataset), "--json", "--pixels", "none", *options]) == 0
    assert json.loads(capsys.readouterr().out)["total"]["images"] == 12


def test_an_engine_elsewhere_needs_a_place_for_the_result(dataset: pathlib.Path) -> None:
    with pytest.raises(UsageError, match=r"unknown|temp_location"):
        verify(str(dataset), beam_options=["--runner=nothing.Such"])
