"""Where the workers of a portable engine run, and whether they are fit to work."""

from __future__ import annotations

import json
import os

from beam_pipeline import worker_check
from beam_pipeline.errors import ConversionError, UsageError
from beam_pipeline.runners import network
from beam_pipeline.runners.engine import Place
from beam_pipeline.runners.flags import Flags

_URN = "beam:env:"
TYPES = ("LOOPBACK", "EXTERNAL", "PROCESS", "DOCKER")


def environment_type(flags: Flags) -> str | None:
    """LOOPBACK, EXTERNAL, PROCESS or DOCKER as given; None where nothing is said."""
    given = flags.get("environment_type")
    if given is None:
        image = flags.get("sdk_container_image") or flags.get("environment_config")
        return "DOCKER" if image else None
    name = str(given)
    if name.startswith(_URN):
        name = name.removeprefix(_URN).split(":")[0]
    name = name.upper()
    if name not in TYPES:
        raise UsageError(f"--environment_type must be one of {', '.join(TYPES)}, got {given!r}")
    return name


def pool_address(flags: Flags) -> str:
    """HOST:PORT of the worker pool of an EXTERNAL environment.

    Raises:
      UsageError: none is given, or it is no address.
    """
    address = flags.get("environment_config")
    if address and address.lstrip().startswith("{"):
        try:
            address = json.loads(address).get("url")
        except ValueError as error:
            raise UsageError(f"--environment_config is not JSON: {error}") from error
    for option in flags.get("environment_options") or ():
        if not address and option.startswith("external_service_address="):
            address = option.split("=", 1)[1]
    if not address:
        raise UsageError(
            "--environment_type EXTERNAL needs the address of a worker pool: "
            "--environment_config HOST:PORT"
        )
    try:
        network.split_address(address)
    except ValueError as error:
        raise UsageError(f"--environment_config: {error}") from error
    return str(address)


def place_of_workers(flags: Flags, *, engine_here: bool) -> Place:
    """Where images are decoded.

    Args:
      flags: with an environment type.
      engine_here: the engine itself runs on this machine.
    """
    kind = environment_type(flags)
    if kind == "LOOPBACK":
        return Place.THIS_PROCESS
    if kind == "PROCESS" and engine_here:
        return Place.THIS_MACHINE
    if kind == "EXTERNAL" and engine_here:
        host, _ = network.split_address(pool_address(flags))
        if network.is_this_machine(host):
            return Place.THIS_MACHINE
    return Place.ELSEWHERE


def check_workers(flags: Flags, *, engine_here: bool) -> list[str]:
    """Looks at the workers before a job is sent to them.

    A pool that only the engine can reach is left to the engine: every worker compares
    versions again when the job runs.

    Returns:
      Lines for the user.

    Raises:
      UsageError, ConversionError: no pool is there, or its workers have other versions.
    """
    kind = environment_type(flags)
    if kind == "LOOPBACK":
        return ["workers: this process (LOOPBACK)"]
    if kind == "PROCESS":
        return ["workers: processes that the engine starts"]
    if kind == "DOCKER":
        image = flags.get("sdk_container_image") or flags.get("environment_config")
        if not image:
            for option in flags.get("environment_options") or ():
                if option.startswith("docker_container_image="):
                    image = option.split("=", 1)[1]
        return [f"workers: containers of {image}"] if image else ["workers: containers"]
    from beam_pipeline.runners.pool_probe import ask_pool

    address = pool_address(flags)
    host, _ = network.split_address(address)
    if not network.resolves(host) or (network.is_this_machine(host) and not engine_here):
        return [f"workers: pool {address}, which only the engine can reach (not checked from here)"]
    found = ask_pool(address)
    wrong = worker_check.differences(worker_check.versions(), found)
    if wrong:
        raise ConversionError(
            f"the workers of the pool at {address} have {', '.join(wrong)} (this process). They "
            f"run {found['executable']} on {found['host']}; start the pool with the same versions"
        )
    return [f"workers: pool {address}, {found['executable']} on {found['host']}"]


def needs_environment(name: str, why: str) -> UsageError:
    """The error for an engine whose workers were not named."""
    return UsageError(
        f"--runner {name}: {why}, so its workers must be told where imagebeam is. Give one of "
        "--environment_type EXTERNAL --environment_config HOST:PORT (a worker pool beside each "
        "of the engine's machines), --environment_type DOCKER --environment_config IMAGE (see "
        "deploy/Dockerfile), or --environment_type PROCESS"
    )


def executable(path: str) -> bool:
    """Whether `path` is a file that can be run."""
    return os.path.isfile(path) and os.access(path, os.X_OK)
