"""Is somebody there? Short questions to servers that a job will need."""

from __future__ import annotations

import ipaddress
import json
import re
import socket
import urllib.request
from typing import Any

CONNECT_SECONDS = 5.0


def split_address(address: str, default_port: int | None = None) -> tuple[str, int]:
    """(host, port) of `host:port`, `[ipv6]:port` or `http://host:port/…`.

    Raises:
      ValueError: no port is given and there is no default.
    """
    rest = re.sub(r"^\w+://", "", address.strip()).split("/", 1)[0]
    match = re.fullmatch(
        r"(?:\[(?P<six>[0-9a-fA-F:.]+)\]|(?P<host>[^:\[\]]+))(?::(?P<port>\d+))?", rest
    )
    if match is None or (match["port"] is None and default_port is None):
        raise ValueError(f"expected HOST:PORT, got {address!r}")
    return match["six"] or match["host"], int(match["port"] or default_port or 0)


def is_this_machine(host: str) -> bool:
    """Whether `host` is a loopback address, or a name for one."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        pass
    try:
        found = {info[4][0] for info in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return all(ipaddress.ip_address(str(item).split("%")[0]).is_loopback for item in found)


def resolves(host: str) -> bool:
    """Whether this machine knows the name `host`."""
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        return False
    return True


def why_unreachable(host: str, port: int, seconds: float = CONNECT_SECONDS) -> str | None:
    """None where something listens at host:port, else why it cannot be reached."""
    try:
        with socket.create_connection((host, port), timeout=seconds):
            return None
    except socket.gaierror:
        return f"this machine cannot resolve the name {host!r}"
    except ConnectionRefusedError:
        return f"nothing listens at {host}:{port} (connection refused)"
    except TimeoutError:
        return f"{host}:{port} does not answer within {seconds:g} s (firewall? wrong address?)"
    except OSError as error:
        return f"{host}:{port} cannot be reached: {error.strerror or error}"


def why_no_download(host: str) -> str | None:
    """None where https://host can be reached, directly or through the configured proxy."""
    proxy = urllib.request.getproxies().get("https")
    if proxy and not urllib.request.proxy_bypass(host):
        return why_unreachable(*split_address(proxy, 3128))
    return why_unreachable(host, 443)


def get_json(url: str, seconds: float = CONNECT_SECONDS) -> Any:
    """The JSON document at an http(s) URL.

    Raises:
      OSError: no answer, or an error status.
      ValueError: the answer is not JSON.
    """
    with urllib.request.urlopen(url, timeout=seconds) as answer:
        return json.loads(answer.read())
