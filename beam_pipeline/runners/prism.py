"""Prism, Beam's portable engine for one machine: where its binary is, and its preset."""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Iterator

import apache_beam

from beam_pipeline.errors import UsageError
from beam_pipeline.runners import environment, job_service, network
from beam_pipeline.runners.engine import Engine, Place
from beam_pipeline.runners.flags import Flags

VARIABLE = "IMAGEBEAM_PRISM"
_PACKAGE = "github.com/apache/beam/sdks/v2/go/cmd/prism"
_BUILT = re.compile(rb"mod\tgithub\.com/apache/beam/sdks/v2\t(v[0-9.]+(?:-[\w.]+)?)")
_CACHE = "~/.apache_beam/cache/prism/bin"
# Prism asks a worker for its metrics at least every 30 s, and the time that it has worked is
# among them. A worker that is lost just while it is asked is never noticed (seen about once in
# 90 killed workers, Beam 2.77): the job would wait for it for ever.
SILENCE_SECONDS = 600.0


def install_hint() -> str:
    """How to get a Prism of the installed Beam's version."""
    return f"go install {_PACKAGE}@v{apache_beam.__version__}"


def _places() -> Iterator[str]:
    found = shutil.which("prism")
    if found is not None:
        yield found
    for directory in (
        os.environ.get("GOBIN", ""),
        *(os.path.join(path, "bin") for path in os.environ.get("GOPATH", "").split(os.pathsep)),
        os.path.expanduser("~/go/bin"),
    ):
        if os.path.isabs(directory):
            yield os.path.join(directory, "prism")
    cache = os.path.expanduser(_CACHE)
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    name = f"apache_beam-v{apache_beam.__version__}-prism-{platform.system().lower()}-{machine}"
    yield os.path.join(cache, name)
    yield os.path.join(cache, "prism")


def find_prism() -> str | None:
    """The Prism binary of this machine, or None.

    Looks at IMAGEBEAM_PRISM, PATH, Go's bin directories and Beam's cache.

    Raises:
      UsageError: IMAGEBEAM_PRISM names no executable file.
    """
    named = os.environ.get(VARIABLE)
    if named:
        if not environment.executable(named):
            raise UsageError(f"{VARIABLE} is {named!r}, which is no executable file")
        return named
    return next(filter(environment.executable, _places()), None)


def prism_version(path: str) -> str | None:
    """The version of Beam that a Prism binary was built from, as Go recorded it; else None."""
    try:
        with open(path, "rb") as stream:
            match = _BUILT.search(stream.read())
    except OSError:
        return None
    return None if match is None else match[1].decode()


def preset(flags: Flags, name: str) -> Engine:
    """Prism as our own process, or, with --job_endpoint, one that runs already."""
    flags.refuse_unknown()
    flags.default("job_server_timeout", job_service.JOB_SECONDS)
    endpoint = flags.get("job_endpoint")
    flags.default("environment_type", "LOOPBACK")
    if endpoint:
        here = job_service.check_endpoint(endpoint)
        flags.replace("runner", "PortableRunner")
        lines = [f"engine: Prism at {endpoint}"]
    else:
        here = True
        # Beam shows what Prism says whatever the level of its own log is.
        flags.default("prism_log_level", "error")
        lines = [_choose_binary(flags)]
    place = environment.place_of_workers(flags, engine_here=here)
    lines += environment.check_workers(flags, engine_here=here)
    return Engine(
        name="prism",
        runner="PrismRunner",
        options=flags.options(),
        place=place,
        survives=bool(endpoint) and place is not Place.THIS_PROCESS,
        lines=tuple(lines),
        silence_seconds=SILENCE_SECONDS,
    )


def _choose_binary(flags: Flags) -> str:
    location = flags.get("prism_location")
    if location is None:
        location = find_prism()
        if location is None:
            reason = network.why_no_download("github.com")
            if reason is None:
                return "engine: Prism, which Beam downloads from GitHub"
            raise UsageError(
                f"--runner prism: no Prism binary here, and Beam cannot download it ({reason}). "
                f"Build it with `{install_hint()}`, or name one with --prism_location or "
                f"{VARIABLE}"
            )
        flags.default("prism_location", location)
    elif "://" not in location and not os.path.isfile(location):
        raise UsageError(
            f"--prism_location {location} is no file; `{install_hint()}` builds Prism into Go's "
            "bin directory"
        )
    version = prism_version(location)
    wanted = f"v{apache_beam.__version__}"
    other = f", built from Beam {version} (installed: {wanted})" if version != wanted else ""
    return f"engine: Prism ({location}{other if version is not None else ''})"
