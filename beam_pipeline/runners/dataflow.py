"""The preset for Google Cloud Dataflow."""

from __future__ import annotations

import re
import uuid

from beam_pipeline import storage
from beam_pipeline.errors import StorageError, UsageError
from beam_pipeline.runners.engine import Engine, Place
from beam_pipeline.runners.flags import Flags
from beam_pipeline.version import __version__

# Decoding is the work, so cores are what a worker is bought for; 4 of them with 4 GB
# each leave room for one large picture per thread.
MACHINE_TYPE = "e2-standard-4"
# Nothing but references is shuffled, and shards go straight to their bucket.
DISK_GB = 50
# Dataflow starts one Python process per core. Two threads in each: one decodes while the
# other waits for its images; more would only hold more pictures in memory.
THREADS = 2


def preset(flags: Flags, name: str) -> Engine:
    """Dataflow: what the service needs is asked for now, not after minutes in a queue."""
    flags.refuse_unknown()
    _require(flags, "project", "the Google Cloud project that pays", "--project NAME")
    _require(flags, "region", "where workers run", "--region europe-west4")
    if not flags.get("temp_location"):
        raise UsageError(
            "--runner dataflow needs --temp_location gs://BUCKET/tmp for its own files"
        )
    for option in ("temp_location", "staging_location"):
        value = flags.get(option)
        if value and not str(value).startswith("gs://"):
            raise UsageError(f"--{option} must be a gs:// path, got {value!r}")
    image = flags.get("sdk_container_image")
    setup = flags.get("setup_file")
    if not (image or setup or flags.get("extra_packages") or flags.get("requirements_file")):
        raise UsageError(
            "--runner dataflow: workers start from Beam's own image, which has no imagebeam in "
            "it. Give --sdk_container_image REGISTRY/imagebeam:TAG (built from "
            "deploy/Dockerfile; starts fastest), or --setup_file ./setup.py (installs on every "
            "start of a worker)"
        )
    if image:
        # The image has Beam in it; nothing is staged or installed when a worker starts.
        flags.default("sdk_location", "container")
    if not flags.given("save_main_session"):
        flags.default("no_save_main_session", True)
    flags.default("machine_type", MACHINE_TYPE)
    flags.default("disk_size_gb", DISK_GB)
    flags.default("number_of_worker_harness_threads", THREADS)
    flags.default("job_name", job_name(name))
    flags.add("label", f"imagebeam={__version__.replace('.', '-')}")
    _check_bucket(str(flags.get("temp_location")))
    project, region, job = (flags.get(o) for o in ("project", "region", "job_name"))
    workers = flags.get("max_num_workers")
    limit = f"up to {workers}" if workers else "as many as Dataflow chooses"
    return Engine(
        name="dataflow",
        runner="DataflowRunner",
        options=flags.options(),
        place=Place.ELSEWHERE,
        survives=True,
        lines=(
            f"engine: Dataflow, job {job} in {project}, {region}",
            f"workers: {flags.get('machine_type')}, {limit}, "
            + (f"image {image}" if image else f"installed from {setup or 'packages'}"),
        ),
        status=f"https://console.cloud.google.com/dataflow/jobs/{region}?project={project}",
        job_name=str(job),
    )


def _require(flags: Flags, option: str, what: str, example: str) -> None:
    if not flags.get(option):
        raise UsageError(f"--runner dataflow needs --{option} ({what}), such as {example}")


def job_name(dataset: str) -> str:
    """A job name that Dataflow accepts: lower case, digits and dashes, unique."""
    base = re.sub(r"[^a-z0-9]+", "-", dataset.lower()).strip("-")[:40]
    return f"imagebeam-{base}-{uuid.uuid4().hex[:8]}"


def _check_bucket(location: str) -> None:
    bucket = "gs://" + location.removeprefix("gs://").split("/")[0]
    try:
        storage.stat(location)
    except StorageError as error:
        raise StorageError(
            f"--temp_location {location}: {error}. Dataflow keeps its files in {bucket}; create it "
            "in the region of the job, and log in with `gcloud auth application-default login`"
        ) from error
