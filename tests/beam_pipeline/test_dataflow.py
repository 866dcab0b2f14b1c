"""Dataflow, up to the service's door: what is asked for, and that the uploaded pipeline works."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from beam_pipeline import storage
from beam_pipeline.errors import ConversionError, OutputError, StorageError, UsageError
from beam_pipeline.options import ConvertOptions, InputOptions, OutputOptions
from beam_pipeline.pipeline import convert
from beam_pipeline.runners import DetachedJob
from tests import engines, fake_dataflow, fakes, servers
from tests.fake_dataflow import FakeDataflow

IMAGE = "europe-docker.pkg.dev/my-project/images/imagebeam:1"
BASIC = (
    "--runner=dataflow",
    "--project=my-project",
    "--region=europe-west4",
    "--temp_location=gs://bucket/tmp",
)


@pytest.fixture(scope="module")
def gcs() -> Iterator[str]:
    """A GCS server with a bucket; this process and its children use it."""
    with servers.gcs_server("bucket") as url, pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", url)
        patch.setenv("GOOGLE_CLOUD_PROJECT", "my-project")
        patch.setenv("no_proxy", "localhost,127.0.0.1")
        storage.configure(storage.StorageConfig())
        yield url
    storage.configure(storage.StorageConfig())


@pytest.fixture(scope="module")
def images(gcs: str, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Images on local disk, and the same under gs://bucket/in."""
    root = tmp_path_factory.mktemp("dataflow")
    files = fakes.class_folders(root, per_label=4)
    broken = {"sad/broken.jpg": b"no image"}
    fakes.write_tree(root, broken)
    for name, data in {**files, **broken}.items():
        storage.write_bytes(f"gs://bucket/in/{name}", data)
    return root


def _options(output: str, source: str = "gs://bucket/in", **more: Any) -> ConvertOptions:
    return ConvertOptions(
        InputOptions((source,)),
        OutputOptions(output, name="faces", max_reject_fraction=0.5, **more),
    )


def _submit(service: FakeDataflow, options: ConvertOptions, *beam_options: str) -> Any:
    return convert(
        options,
        beam_options=[
            *BASIC,
            f"--dataflow_endpoint={service.endpoint}",
            "--no_auth",
            *beam_options,
        ],
        wait=False,
    )


def test_the_request(gcs: str, images: pathlib.Path) -> None:
    """Everything that the preset decides."""
    with fake_dataflow.dataflow(gcs, run=False) as service:
        job = _submit(service, _options("gs://bucket/request"), f"--sdk_container_image={IMAGE}")
    (request,) = service.requests
    assert request["name"].startswith("imagebeam-faces-")
    assert request["labels"] == {"imagebeam": "0-1-0"}
    environment = request["environment"]
    assert environment["version"]["job_type"] == "FNAPI_BATCH"
    assert environment["tempStoragePrefix"].startswith("storage.googleapis.com/bucket/tmp/")
    (pool,) = environment["workerPools"]
    assert pool["workerHarnessContainerImage"] == IMAGE
    assert [image["containerImage"] for image in pool["sdkHarnessContainerImages"]] == [IMAGE]
    assert pool["machineType"] == "e2-standard-4"
    assert pool["diskSizeGb"] == 50
    assert pool["numThreadsPerWorker"] == 2
    # One Python process per core.
    assert pool["sdkHarnessContainerImages"][0]["useSingleCorePerContainer"] is True
    assert "network" not in pool
    assert "subnetwork" not in pool
    assert "ipConfiguration" not in pool
    options = environment["sdkPipelineOptions"]["options"]
    assert options["streaming"] is False
    assert options["save_main_session"] is False
    assert options["sdk_location"] == "container"
    # No SDK, no session and no package travels with a job whose image has them.
    assert [package["name"] for package in pool["packages"]] == [
        "submission_environment_dependencies.txt"
    ]
    assert b"GoogleDataflow" not in service.pipelines[0]
    # The user is told where to look; the job has the directory until it is over.
    assert isinstance(job, DetachedJob)
    assert job.job == "2026-01-01_1"
    assert "imagebeam status gs://bucket/request" in job.text()
    assert "console.cloud.google.com/dataflow/jobs/europe-west4" in job.text()
    with pytest.raises(OutputError, match=r"job 2026-01-01_1 on dataflow; `imagebeam status gs:"):
        convert(_options("gs://bucket/request"))


def test_what_the_user_gives_wins(gcs: str, images: pathlib.Path) -> None:
    with fake_dataflow.dataflow(gcs, run=False) as service:
        _submit(
            service,
            _options("gs://bucket/given"),
            *("--setup_file", str(engines.ROOT / "setup.py"), "--job_name=mine"),
            *("--machine_type=n2-standard-8", "--disk_size_gb=30", "--num_workers=3"),
            *("--max_num_workers=9", "--number_of_worker_harness_threads=1"),
            *("--subnetwork=regions/europe-west4/subnetworks/inner", "--no_use_public_ips"),
            *("--label=team=vision", "--service_account_email=worker@my-project.example"),
        )
    (request,) = service.requests
    assert request["name"] == "mine"
    assert request["labels"] == {"imagebeam": "0-1-0", "team": "vision"}
    environment = request["environment"]
    assert environment["serviceAccountEmail"] == "worker@my-project.example"
    (pool,) = environment["workerPools"]
    assert pool["machineType"] == "n2-standard-8"
    assert pool["diskSizeGb"] == 30
    assert pool["numWorkers"] == 3
    assert pool["autoscalingSettings"]["maxNumWorkers"] == 9
    assert pool["numThreadsPerWorker"] == 1
    assert pool["subnetwork"] == "regions/europe-west4/subnetworks/inner"
    assert pool["ipConfiguration"] == "WORKER_IP_PRIVATE" or pool["ipConfiguration"] == 2
    # The second way to get imagebeam onto workers: its source is installed there.
    names = {package["name"] for package in pool["packages"]}
    assert "workflow.tar.gz" in names
    assert "pickled_main_session" not in names


def test_the_request_does_not_grow_with_the_manifest(
    gcs: str, images: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    names = [path.relative_to(images) for path in sorted(images.glob("*/*.jpg"))]
    sizes = []
    with fake_dataflow.dataflow(gcs, run=False) as service:
        for rows in (10, 20_000):
            manifest = "path,label\n" + "".join(
                f"gs://bucket/in/{names[row % len(names)]}?{row},x\n" for row in range(rows)
            )
            source = f"gs://bucket/{rows}.csv"
            storage.write_bytes(source, manifest.encode())
            _submit(
                service,
                _options(f"gs://bucket/out-{rows}", source),
                f"--sdk_container_image={IMAGE}",
            )
            sizes.append(service.request_bytes[-1] + len(service.pipelines[-1]))
    assert sizes[1] - sizes[0] < 500
    assert max(sizes) < 200_000  # Dataflow's limit is 20 MB


def test_the_uploaded_pipeline_writes_the_same_dataset(
    gcs: str, images: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    expected = tmp_path / "expected"
    convert(_options(str(expected), str(images), num_shards=2))
    with fake_dataflow.dataflow(gcs) as service:
        outcome = convert(
            _options("gs://bucket/done", num_shards=2),
            beam_options=[
                *BASIC,
                f"--dataflow_endpoint={service.endpoint}",
                "--no_auth",
                f"--sdk_container_image={IMAGE}",
            ],
        )
    assert not isinstance(outcome, DetachedJob)
    assert (outcome.written, outcome.rejected) == (12, 1)
    found = tmp_path / "found"
    for entry in storage.walk("gs://bucket/done"):
        if entry.kind == "file":
            target = found / entry.path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(storage.read_bytes(f"gs://bucket/done/{entry.path}"))
    same = engines.contents(expected)
    rejected = same.pop("rejected.jsonl")  # it names where each image lies
    index = {name for name in same if name.startswith("index/")}
    there = engines.contents(found)
    assert there.pop("rejected.jsonl") != rejected
    assert {name: there[name] for name in same if name not in index} == {
        name: same[name] for name in same if name not in index
    }
    assert set(there) == set(same)


def test_a_job_that_fails_says_why(gcs: str, images: pathlib.Path) -> None:
    with fake_dataflow.dataflow(gcs) as service:
        options = _options("gs://bucket/strict", max_rejects=0)
        with pytest.raises(ConversionError, match="more than --max_rejects 0 allows"):
            convert(
                options,
                beam_options=[
                    *BASIC,
                    f"--dataflow_endpoint={service.endpoint}",
                    "--no_auth",
                    f"--sdk_container_image={IMAGE}",
                ],
            )
    assert storage.exists("gs://bucket/strict.failed/rejected.jsonl")
    assert not storage.exists("gs://bucket/strict/_SUCCESS")


def test_ctrl_c_cancels_the_job(gcs: str, images: pathlib.Path, tmp_path: pathlib.Path) -> None:
    log = tmp_path / "log"
    with fake_dataflow.dataflow(gcs, run=False) as service:
        with open(log, "wb") as stream:
            launcher = subprocess.Popen(
                [
                    *(sys.executable, "-m", "beam_pipeline", "convert", "--input=gs://bucket/in"),
                    *("--output=gs://bucket/stopped", *BASIC, "--no_auth"),
                    f"--dataflow_endpoint={service.endpoint}",
                    f"--sdk_container_image={IMAGE}",
                ],
                stdout=stream,
                stderr=stream,
                env={**os.environ, "PYTHONPATH": str(engines.ROOT)},
            )
        try:
            engines.wait_until(lambda: service.requests or launcher.poll() is not None, 60, "a job")
            time.sleep(2)  # it waits for the job now
            launcher.send_signal(signal.SIGINT)
            code = launcher.wait(timeout=60)
        finally:
            launcher.kill()
            launcher.wait()
    assert code == 130, log.read_text()
    assert service.cancelled == ["2026-01-01_1"]
    assert not list(storage.glob("gs://bucket/stopped/**"))


@pytest.mark.parametrize(
    ("left_out", "message"),
    [
        ("--project", r"needs --project .* such as --project NAME"),
        ("--region", r"needs --region .* such as --region europe-west4"),
        ("--temp_location", r"needs --temp_location gs://BUCKET/tmp"),
        ("--sdk_container_image", r"no imagebeam in it\. Give --sdk_container_image .*setup_file"),
    ],
)
def test_what_is_missing_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch, left_out: str, message: str
) -> None:
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT", raising=False)
    given = [
        option
        for option in (*BASIC, f"--sdk_container_image={IMAGE}")
        if not option.startswith(left_out)
    ]
    with pytest.raises(UsageError, match=message):
        convert(_options("gs://bucket/out"), beam_options=given)


def test_a_bucket_that_does_not_exist(gcs: str) -> None:
    given = [option.replace("//bucket", "//no-such-bucket") for option in BASIC]
    started = time.monotonic()
    with pytest.raises(StorageError, match=r"gs://no-such-bucket; create it in the region"):
        convert(
            _options("gs://bucket/out"), beam_options=[*given, f"--sdk_container_image={IMAGE}"]
        )
    assert time.monotonic() - started < 20


def test_local_paths_are_refused(gcs: str, tmp_path: pathlib.Path) -> None:
    given = [*BASIC, f"--sdk_container_image={IMAGE}"]
    with pytest.raises(UsageError, match="Dataflow's workers share no file system"):
        convert(_options(str(tmp_path / "out")), beam_options=given, shared_filesystem=True)
    with pytest.raises(UsageError, match="--temp_location must be a gs:// path"):
        convert(_options("gs://bucket/o"), beam_options=[*given, "--temp_location=/tmp/x"])
