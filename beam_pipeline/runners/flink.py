"""The preset for Apache Flink: what its cluster says of itself decides the rest."""

from __future__ import annotations

import re
import uuid
from typing import Any, NamedTuple

from apache_beam.options.pipeline_options import FlinkRunnerOptions

from beam_pipeline.errors import ConversionError, UsageError
from beam_pipeline.runners import environment, job_service, network
from beam_pipeline.runners.engine import Engine, Place
from beam_pipeline.runners.flags import Flags

JAR_VARIABLE = "IMAGEBEAM_FLINK_JOB_SERVER_JAR"
EMBEDDED = ("[auto]", "[local]")

# A lost TaskManager is noticed after a heartbeat timeout (50 s unless configured); the
# attempts must outlast it, or the job fails before its slots are free again.
RESTARTS = 10
RESTART_DELAY = 3000  # ms
# Python workers stay between the stages of a job.
ENVIRONMENT_CACHE = 60_000  # ms


class Cluster(NamedTuple):
    """What a Flink cluster's REST API says: version such as "1.20.1", and its size."""

    version: str
    taskmanagers: int
    slots: int
    free_slots: int

    @property
    def beam_version(self) -> str:
        """major.minor, as --flink_version names it."""
        match = re.match(r"\d+\.\d+", self.version)
        return match[0] if match else self.version


def ask_cluster(master: str) -> Cluster:
    """Asks a Flink cluster for its version and slots.

    Args:
      master: HOST:PORT or URL of the REST API.

    Raises:
      UsageError: `master` is no address.
      ConversionError: nobody answers, or it is not Flink.
    """
    url = rest_url(master)
    try:
        host, port = network.split_address(url, 443 if url.startswith("https:") else 80)
    except ValueError as error:
        raise UsageError(f"--flink_master: {error}") from error
    reason = network.why_unreachable(host, port)
    if reason is not None:
        raise ConversionError(
            f"no Flink cluster for --flink_master {master}: {reason}. Expected the address of "
            "the JobManager's REST API (rest.port, 8081 unless configured)"
        )
    try:
        config = network.get_json(f"{url}/config")
        overview = network.get_json(f"{url}/overview")
        return Cluster(
            version=str(config["flink-version"]),
            taskmanagers=int(overview["taskmanagers"]),
            slots=int(overview["slots-total"]),
            free_slots=int(overview["slots-available"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConversionError(
            f"--flink_master {master} answers, but not as Flink's REST API does: "
            f"{type(error).__name__}: {error}"
        ) from error


def rest_url(master: str) -> str:
    """The base URL of a cluster's REST API."""
    master = master.strip().rstrip("/")
    return master if re.match(r"https?://", master) else f"http://{master}"


def preset(flags: Flags, name: str) -> Engine:
    """Flink on a cluster (--flink_master), behind a job server, or inside Beam's job server."""
    flags.default("job_server_timeout", job_service.JOB_SECONDS)
    flags.default("environment_cache_millis", ENVIRONMENT_CACHE)
    flags.default("job_name", job_name(name))
    flags.default("number_of_execution_retries", RESTARTS)
    flags.default("execution_retry_delay", RESTART_DELAY)
    master = str(flags.get("flink_master"))
    endpoint = flags.get("job_endpoint")
    lines = []
    status = None
    here = True
    if master not in EMBEDDED:
        cluster = ask_cluster(master)
        _match_version(flags, cluster, master)
        lines.append(_fit_to_slots(flags, cluster, master))
        status = rest_url(master)
        here = _is_here(status)
    if flags.get("flink_version").startswith("1."):
        # Stages are kept on disk, so that a lost TaskManager costs its own stage alone.
        # From 2.0 on Flink runs batch jobs so by itself.
        flags.default("execution_mode_for_batch", "BATCH_FORCED")
    if endpoint:
        here = job_service.check_endpoint(endpoint) and here
        lines.append(f"job server: {endpoint}")
    else:
        version = str(flags.get("flink_version"))
        jar = job_service.check_jar(
            flags,
            "flink_job_server_jar",
            f"beam-runners-flink-{version}-job-server",
            JAR_VARIABLE,
            version,
        )
        lines.append(jar)
    if master in EMBEDDED and not endpoint:
        lines.insert(0, "engine: Flink inside Beam's job server on this machine")
        flags.default("environment_type", "LOOPBACK")
    if environment.environment_type(flags) is None:
        raise environment.needs_environment(
            "flink", "the cluster's machines know Beam's own image, without imagebeam, at best"
        )
    place = environment.place_of_workers(flags, engine_here=here)
    lines += environment.check_workers(flags, engine_here=here)
    return Engine(
        name="flink",
        runner="FlinkRunner",
        options=flags.options(),
        place=place,
        survives=place is not Place.THIS_PROCESS and master not in EMBEDDED,
        lines=tuple(lines),
        status=status,
        job_name=str(flags.get("job_name")),
    )


def job_name(dataset: str) -> str:
    """A name by which the job is found among the jobs of a cluster."""
    return f"imagebeam-{dataset}-{uuid.uuid4().hex[:8]}"


def _is_here(url: str) -> bool:
    """Whether the cluster's TaskManagers run on this machine.

    A REST API at localhost may be a forwarded port of a cluster that is far away.
    """
    if not network.is_this_machine(network.split_address(url, 80)[0]):
        return False
    try:
        # An id is "host:port-suffix".
        managers = network.get_json(f"{url}/taskmanagers")["taskmanagers"]
        hosts = {str(manager["id"]).split(":", 1)[0] for manager in managers}
    except (OSError, ValueError, KeyError, TypeError):
        return True
    return all(map(network.is_this_machine, hosts))


def _match_version(flags: Flags, cluster: Cluster, master: str) -> None:
    published = FlinkRunnerOptions.PUBLISHED_FLINK_VERSIONS
    if cluster.beam_version not in published:
        raise ConversionError(
            f"the cluster at {master} runs Flink {cluster.version}; Beam has runners for Flink "
            f"{', '.join(published)}"
        )
    if not flags.default("flink_version", cluster.beam_version):
        wanted = flags.get("flink_version")
        if wanted != cluster.beam_version:
            raise UsageError(
                f"--flink_version is {wanted}, but the cluster at {master} runs Flink "
                f"{cluster.version}; leave the option out, or give {cluster.beam_version}"
            )


def _fit_to_slots(flags: Flags, cluster: Cluster, master: str) -> str:
    line = (
        f"engine: Flink {cluster.version} at {master}, {cluster.taskmanagers} TaskManagers, "
        f"{cluster.free_slots} of {cluster.slots} slots free"
    )
    if not cluster.slots:
        # Clusters on Kubernetes or YARN may start TaskManagers for a job.
        return line + "; the job waits until the cluster has some"
    flags.default("parallelism", cluster.slots)
    parallelism = int(flags.get("parallelism"))
    if parallelism > cluster.slots:
        return line + f"; --parallelism {parallelism} waits until the cluster has as many"
    return line + f"; parallelism {parallelism}" if parallelism > 0 else line


# ---------------------------------------------------------------- jobs, for status


def job_state(master: str, job_name_or_id: str) -> str | None:
    """The state of a job such as RUNNING or FAILED; None where the cluster does not know it.

    Raises:
      ConversionError: the cluster cannot be asked.
    """
    ask_cluster(master)
    try:
        jobs: list[dict[str, Any]] = network.get_json(f"{rest_url(master)}/jobs/overview")["jobs"]
    except (OSError, ValueError, KeyError) as error:
        raise ConversionError(f"{master} does not list its jobs: {error}") from error
    for job in jobs:
        if job_name_or_id in (job.get("jid"), job.get("name")):
            return str(job["state"])
    return None
