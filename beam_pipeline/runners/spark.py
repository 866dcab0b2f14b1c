"""The preset for Apache Spark. Its checks are tested; on a cluster it has not been run."""

from __future__ import annotations

import re

from beam_pipeline.errors import ConversionError, UsageError
from beam_pipeline.runners import environment, job_service, network
from beam_pipeline.runners.engine import Engine, Place
from beam_pipeline.runners.flags import Flags

JAR_VARIABLE = "IMAGEBEAM_SPARK_JOB_SERVER_JAR"
ARTIFACT = "beam-runners-spark-3-job-server"


def preset(flags: Flags, name: str) -> Engine:
    """Spark on a cluster (--spark_master_url), behind a job server, or inside Beam's."""
    flags.default("job_server_timeout", job_service.JOB_SECONDS)
    master = str(flags.get("spark_master_url"))
    endpoint = flags.get("job_endpoint")
    embedded = master.startswith("local")
    here = True
    if not embedded:
        here = _check_master(master)
    lines = ["Spark: untested on a cluster; please report what you see"]
    if endpoint:
        here = job_service.check_endpoint(endpoint) and here
        lines.append(f"job server: {endpoint}")
    elif flags.get("spark_submit_uber_jar"):
        rest = flags.get("spark_rest_url")
        if not rest:
            raise UsageError("--spark_submit_uber_jar needs --spark_rest_url http://HOST:6066")
        reason = network.why_unreachable(*network.split_address(rest, 6066))
        if reason is not None:
            raise ConversionError(f"no Spark for --spark_rest_url {rest}: {reason}")
    else:
        lines.append(job_service.check_jar(flags, "spark_job_server_jar", ARTIFACT, JAR_VARIABLE))
    if embedded and not endpoint:
        lines.insert(0, f"engine: Spark {master} inside Beam's job server on this machine")
        flags.default("environment_type", "LOOPBACK")
    else:
        lines.insert(0, f"engine: Spark at {master if not embedded else endpoint}")
    if environment.environment_type(flags) is None:
        raise environment.needs_environment(
            "spark", "the cluster's machines know Beam's own image, without imagebeam, at best"
        )
    place = environment.place_of_workers(flags, engine_here=here)
    lines += environment.check_workers(flags, engine_here=here)
    return Engine(
        name="spark",
        runner="SparkRunner",
        options=flags.options(),
        place=place,
        survives=place is not Place.THIS_PROCESS and bool(endpoint),
        lines=tuple(lines),
    )


def _check_master(master: str) -> bool:
    """Makes sure that a Spark master answers; returns whether it is on this machine."""
    match = re.fullmatch(r"spark://(.+)", master)
    if match is None:
        if master in ("yarn",) or master.startswith(("k8s://", "mesos://")):
            return False  # found through the cluster's own configuration
        raise UsageError(
            f"--spark_master_url must be spark://HOST:PORT, local[N] or yarn, got {master!r}"
        )
    try:
        host, port = network.split_address(match[1].split(",")[0], 7077)
    except ValueError as error:
        raise UsageError(f"--spark_master_url: {error}") from error
    reason = network.why_unreachable(host, port)
    if reason is not None:
        raise ConversionError(f"no Spark master for --spark_master_url {master}: {reason}")
    return network.is_this_machine(host)
