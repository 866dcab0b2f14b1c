"""`imagebeam worker_pool`: Beam's worker pool (EXTERNAL), on one address and with this Python.

Beam's own `worker_pool_main` listens on all addresses and starts whatever `python` comes
first in PATH. Two pools on one machine then share a port without an error, and a pool
with the wrong Python keeps an engine waiting for minutes. This one does the same work on
the address it is given, with the interpreter that runs it, and takes its workers with it
when it is told to stop.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import threading
from types import FrameType

import grpc
from apache_beam.portability.api import beam_fn_api_pb2_grpc
from apache_beam.runners.worker import worker_pool_main
from apache_beam.utils import thread_pool_executor

from beam_pipeline.errors import ConversionError, UsageError
from beam_pipeline.runners import network

# An engine may ping idle connections as often as it likes.
_CHANNEL_OPTIONS = (
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.max_ping_strikes", 0),
    # A second pool on the same port must be an error, not a partner.
    ("grpc.so_reuseport", 0),
)


def serve(address: str) -> int:
    """Serves a worker pool at HOST:PORT until the process gets SIGTERM or SIGINT.

    Returns:
      The exit code.

    Raises:
      UsageError: `address` is no address.
      ConversionError: it cannot be listened on.
    """
    try:
        network.split_address(address)
    except ValueError as error:
        raise UsageError(f"--listen: {error}") from error
    stop = threading.Event()

    def request_stop(number: int, frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, request_stop)
    with tempfile.TemporaryDirectory(prefix="imagebeam-pool-") as directory:
        _put_python_first(directory)
        servicer = worker_pool_main.BeamFnExternalWorkerPoolServicer(use_process=True)
        server = grpc.server(
            thread_pool_executor.shared_unbounded_instance(), options=_CHANNEL_OPTIONS
        )
        beam_fn_api_pb2_grpc.add_BeamFnExternalWorkerPoolServicer_to_server(servicer, server)
        try:
            port = server.add_insecure_port(address)
        except RuntimeError as error:
            raise ConversionError(
                f"cannot listen on {address}: is another worker pool there? ({error})"
            ) from error
        server.start()
        host = address.rpartition(":")[0]
        print(f"worker pool at {host}:{port}, workers: {sys.executable}", flush=True)
        stop.wait()
        server.stop(grace=None)
        for process in list(servicer._worker_processes.values()):
            with contextlib.suppress(ProcessLookupError):
                worker_pool_main.kill_process_gracefully(process)
    return 0


def _put_python_first(directory: str) -> None:
    """Makes `python` mean this interpreter, virtual environment included, and import this package."""
    script = os.path.join(directory, "python")
    with open(script, "w") as stream:
        stream.write(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    os.chmod(script, 0o755)
    os.environ["PATH"] = directory + os.pathsep + os.environ.get("PATH", "")
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
