"""Object stores on 127.0.0.1 for tests: S3 (moto), GCS (an emulator), and a proxy that fails."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import http.server
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

# What any client needs to talk to the S3 server; it does not check them.
S3_CREDENTIALS = {"s3_access_key_id": "test", "s3_secret_access_key": "test"}
S3_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
}


def free_port() -> int:
    """A port of 127.0.0.1 on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def _server(module: str, *arguments: str, port: int) -> Iterator[str]:
    """Runs `python -m module` until the block ends; yields its URL once it answers."""
    environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        env=environment,
    )
    try:
        deadline = time.monotonic() + 60
        while True:
            if process.poll() is not None:
                raise RuntimeError(f"{module} ended at once with exit code {process.returncode}")
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{module} does not answer on port {port}") from None
                time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def s3_server(*buckets: str) -> Iterator[str]:
    """An S3 server with `buckets`; yields its endpoint URL."""
    port = free_port()
    with _server("moto.server", "-H", "127.0.0.1", "-p", str(port), port=port) as url:
        client = s3_client(url)
        for bucket in buckets:
            client.create_bucket(Bucket=bucket)
        yield url


def s3_client(url: str) -> Any:
    """A plain boto3 client, to look at the server past the code under test."""
    import boto3

    return boto3.session.Session().client(
        "s3",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )


@contextlib.contextmanager
def gcs_server(*buckets: str) -> Iterator[str]:
    """A GCS server with `buckets`; yields what STORAGE_EMULATOR_HOST must be."""
    port = free_port()
    arguments = ("start", "--host", "127.0.0.1", "--port", str(port), "--in-memory", "--quiet")
    with _server("gcp_storage_emulator", *arguments, port=port) as url:
        for bucket in buckets:
            _request(
                url,
                "POST",
                "/storage/v1/b?project=test",
                {"Content-Type": "application/json"},
                f'{{"name": "{bucket}"}}'.encode(),
            )
        yield url


def _request(url: str, method: str, path: str, headers: dict[str, str], body: bytes = b"") -> None:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    connection.request(method, path, body, headers)
    status = connection.getresponse().status
    connection.close()
    assert status == 200, f"{method} {path}: status {status}"


@dataclasses.dataclass
class Fault:
    """What the proxy does to a request instead of just passing it on.

    Attributes:
      action: "reset" the connection before the request is passed on, "lose" the
        answer to one that was, "cut" the answer's body in the middle by closing
        or by "tear" (a reset), or a status to answer with ("500", "503").
      method: of the requests that it is for, "" for all.
      path: a part of their path and query, "" for all.
      times: how many requests it is for; it is used up then.
      body: of the answer with a status.
    """

    action: str
    method: str = ""
    path: str = ""
    times: int = 1
    body: bytes = b""


SLOW_DOWN = b"""<?xml version="1.0" encoding="UTF-8"?>
<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"""


class FaultProxy:
    """An HTTP proxy in front of a server: `with FaultProxy(url) as proxy: proxy.url`.

    Attributes:
      url: where it listens.
      faults: what goes wrong; the first that fits a request is applied to it.
      requests: "METHOD path" of each request that arrived.
      authorization: header of the last request, None without.
      connections: how many were opened.
    """

    def __init__(self, upstream: str):
        self.faults: list[Fault] = []
        self.requests: list[str] = []
        self.authorization: str | None = None
        self.connections = 0
        self._upstream = urlsplit(upstream).netloc
        self._lock = threading.Lock()
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # Without it, small answers wait 40 ms for the client's acknowledgement.
            disable_nagle_algorithm = True

            def log_message(self, *arguments: object) -> None:
                pass

            def setup(self) -> None:
                super().setup()
                with proxy._lock:
                    proxy.connections += 1

            def handle_one_request(self) -> None:
                with contextlib.suppress(ConnectionError):
                    super().handle_one_request()

            def _handle(self) -> None:
                proxy._handle(self)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do_PATCH = _handle

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> FaultProxy:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def count(self, method: str, path: str = "") -> int:
        """How many such requests arrived."""
        with self._lock:
            return sum(r.startswith(method + " ") and path in r for r in self.requests)

    def clear(self) -> None:
        """Forgets faults and requests."""
        with self._lock:
            self.faults.clear()
            self.requests.clear()

    def _fault(self, method: str, path: str) -> Fault | None:
        with self._lock:
            self.requests.append(f"{method} {path}")
            for fault in self.faults:
                if fault.method in ("", method) and fault.path in path and fault.times > 0:
                    fault.times -= 1
                    return fault
        return None

    def _handle(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        fault = self._fault(handler.command, handler.path)
        self.authorization = handler.headers.get("Authorization")
        action = fault.action if fault else ""
        if action == "reset":
            # In the middle of a body that is being sent, where there is one.
            length = int(handler.headers.get("Content-Length") or 0)
            handler.rfile.read(length // 2)
            _reset(handler)
            return
        body = _body(handler)
        if fault and action.isdigit():
            handler.send_response(int(action))
            handler.send_header("Content-Length", str(len(fault.body)))
            handler.end_headers()
            if handler.command != "HEAD":
                handler.wfile.write(fault.body)
            return
        headers = {
            name: value
            for name, value in handler.headers.items()
            if name.lower() not in ("expect", "transfer-encoding", "connection")
        }
        if body or handler.command in ("PUT", "POST"):
            headers["Content-Length"] = str(len(body))
        connection = http.client.HTTPConnection(self._upstream, timeout=60)
        try:
            connection.putrequest(
                handler.command, handler.path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in headers.items():
                connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            data = answer.read()
        finally:
            connection.close()
        if action == "lose":
            _reset(handler)
            return
        self._answer(handler, answer, data, action)

    @staticmethod
    def _answer(
        handler: http.server.BaseHTTPRequestHandler,
        answer: http.client.HTTPResponse,
        data: bytes,
        action: str,
    ) -> None:
        handler.send_response(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "server", "date"):
                handler.send_header(name, value)
        if answer.getheader("Content-Length") is None and answer.status not in (204, 304):
            handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        if handler.command == "HEAD":
            return
        if action in ("cut", "tear"):
            handler.wfile.write(data[: len(data) // 2])
            handler.wfile.flush()
            if action == "tear":
                _reset(handler)
            handler.close_connection = True
            return
        handler.wfile.write(data)


def _body(handler: http.server.BaseHTTPRequestHandler) -> bytes:
    if "chunked" in (handler.headers.get("Transfer-Encoding") or ""):
        pieces = []
        while size := int(handler.rfile.readline().split(b";")[0], 16):
            pieces.append(handler.rfile.read(size))
            handler.rfile.readline()
        handler.rfile.readline()
        return b"".join(pieces)
    return handler.rfile.read(int(handler.headers.get("Content-Length") or 0))


def _reset(handler: http.server.BaseHTTPRequestHandler) -> None:
    """Ends the connection with a TCP reset instead of an orderly close."""
    handler.close_connection = True
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.shutdown(socket.SHUT_RD)
    os.close(handler.connection.detach())
