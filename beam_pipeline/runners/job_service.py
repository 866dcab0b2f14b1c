"""Job servers: Beam's front door to Flink, Spark, Prism and others (--job_endpoint)."""

from __future__ import annotations

import os
import shutil

import apache_beam
import grpc
from apache_beam.portability.api import beam_job_api_pb2, beam_job_api_pb2_grpc

from beam_pipeline.errors import ConversionError, UsageError
from beam_pipeline.runners import network
from beam_pipeline.runners.flags import Flags

# Beam applies --job_server_timeout (default: 300 s) to the stream of a job's states as
# well, on servers that know a job before it runs: a longer job would then be taken for
# failed. Whether the server is there at all is found out here, within seconds.
JOB_SECONDS = 30 * 24 * 3600  # 30 days


def check_endpoint(endpoint: str, option: str = "--job_endpoint") -> bool:
    """Makes sure that a job server answers at `endpoint`.

    Returns:
      Whether it is on this machine.

    Raises:
      UsageError: it is no address.
      ConversionError: nobody answers, or something else than a job server.
    """
    if endpoint == "embed":  # Beam's word for a job server inside this process
        return True
    try:
        host, port = network.split_address(endpoint)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from error
    reason = network.why_unreachable(host, port)
    if reason is not None:
        raise ConversionError(f"no job server for {option} {endpoint}: {reason}")
    with grpc.insecure_channel(endpoint, options=[("grpc.enable_http_proxy", 0)]) as channel:
        stub = beam_job_api_pb2_grpc.JobServiceStub(channel)
        try:
            stub.DescribePipelineOptions(
                beam_job_api_pb2.DescribePipelineOptionsRequest(), timeout=20
            )
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.UNIMPLEMENTED or "DescribePipeline" not in str(
                error.details()
            ):
                raise ConversionError(
                    f"{option} {endpoint} is no Beam job server: it answers "
                    f"{error.code().name} ({error.details()})"
                ) from None
    return network.is_this_machine(host)


def check_jar(
    flags: Flags, option: str, artifact: str, variable: str | None = None, version: str = ""
) -> str:
    """Chooses the jar of a job server that Beam will start, and looks for Java.

    Args:
      flags: gets the jar named by `variable`, where none is given.
      option: such as "flink_job_server_jar".
      artifact: what Beam would download, such as "beam-runners-flink-1.20-job-server".
      variable: environment variable that names a jar, or None.
      version: stands for {version} in the variable's value.

    Returns:
      What will be used, for the user.
    """
    jar = flags.get(option)
    source = f"--{option}"
    if jar is None and variable is not None and os.environ.get(variable):
        # One name for the jars of several versions.
        jar = os.environ[variable].replace("{version}", version)
        source = variable
        flags.default(option, jar)
    if jar is not None and "://" not in jar and not os.path.isfile(jar):
        raise UsageError(f"{source} {jar} is no file; expected the jar of Beam's job server")
    java = flags.get("job_server_java_launcher")
    if shutil.which(java) is None:
        raise UsageError(
            f"Beam's job server needs Java, but {java!r} is not found; install a JDK (11 to 17), "
            "name one with --job_server_java_launcher, or give the --job_endpoint of a job server"
        )
    if jar is None and _in_cache(artifact):
        return f"{artifact} from Beam's cache"
    if jar is None:
        reason = network.why_no_download("repo.maven.apache.org")
        if reason is not None:
            raise UsageError(
                f"Beam must download its job server from Maven Central, but {reason}; name a "
                f"local jar with --{option}" + (f" or {variable}" if variable else "")
            )
        return f"{artifact} from Maven Central"
    return f"job server {jar}"


def _in_cache(artifact: str) -> bool:
    name = f"{artifact}-{apache_beam.__version__}.jar"
    return os.path.isfile(os.path.expanduser(f"~/.apache_beam/cache/jars/{name}"))
