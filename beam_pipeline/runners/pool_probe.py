"""Asks a worker pool (EXTERNAL environment) for one worker, and the worker for its versions.

A pool starts whatever `python` it finds first; a wrong one makes an engine wait for
minutes without a word. So the launcher plays the engine for a few seconds: it serves
Beam's control protocol, lets the pool start a worker, and sends it one bundle whose
function is made from source text. Making the function raises an exception that carries
the worker's versions; nothing of it depends on the worker's Python, Beam or imagebeam.
"""

from __future__ import annotations

import contextlib
import json
import queue
import re
import socket
import time
import uuid
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
from apache_beam.internal import pickler
from apache_beam.portability import common_urns, python_urns
from apache_beam.portability.api import (
    beam_fn_api_pb2,
    beam_fn_api_pb2_grpc,
    beam_provision_api_pb2,
    beam_provision_api_pb2_grpc,
    beam_runner_api_pb2,
    endpoints_pb2,
)

from beam_pipeline.errors import ConversionError
from beam_pipeline.runners import network

PROBE_SECONDS = 30.0
_MARK = "imagebeam asks a worker for its versions (this error is the answer): "

# Runs in the worker, in whatever Python it has; collects what worker_check.versions does.
_QUESTION = f"""
import json, platform, sys
found = {{"python": "%d.%d" % sys.version_info[:2], "executable": sys.executable,
          "host": platform.node()}}
try:
    from importlib.metadata import version
except ImportError:
    version = None
for package in ("imagebeam", "apache-beam", "pillow", "tfx-bsl"):
    try:
        found[package] = version(package)
    except Exception:
        found[package] = "not installed"
try:
    from beam_pipeline.version import __version__
    found["imagebeam"] = __version__
except Exception:
    found["imagebeam"] = "not installed"
raise RuntimeError({_MARK!r} + json.dumps(found))
"""


class _Question:
    """Pickles as "run this text", by names that every Python has."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (_QUESTION, {})


def ask_pool(address: str, seconds: float = PROBE_SECONDS) -> dict[str, str]:
    """Versions of a worker that the pool at `address` starts.

    Args:
      address: HOST:PORT of the pool.
      seconds: to wait for the worker.

    Returns:
      What worker_check.versions gives, and "executable" and "host" of the worker.

    Raises:
      ConversionError: nobody listens there, it is no worker pool, or its worker does
        not come up; the message says which.
    """
    host, port = network.split_address(address)
    reason = network.why_unreachable(host, port)
    if reason is not None:
        raise ConversionError(f"no worker pool: {reason}")
    probe = _Probe(_own_address_towards(host, port))
    try:
        return probe.ask(f"{host}:{port}" if ":" not in host else f"[{host}]:{port}", seconds)
    finally:
        probe.close()


def _own_address_towards(host: str, port: int) -> str:
    """The address of this machine as `host` sees it."""
    with socket.create_connection((host, port), timeout=network.CONNECT_SECONDS) as connection:
        own = str(connection.getsockname()[0])
    return f"[{own}]" if ":" in own else own


class _Probe(
    beam_fn_api_pb2_grpc.BeamFnControlServicer,
    beam_fn_api_pb2_grpc.BeamFnLoggingServicer,
    beam_provision_api_pb2_grpc.ProvisionServiceServicer,
):
    """A server that a worker takes for its engine, for the length of one question."""

    def __init__(self, own_host: str):
        self._answers: queue.Queue[str] = queue.Queue()
        self._connected = False
        self._server = grpc.server(futures.ThreadPoolExecutor(8, thread_name_prefix="probe"))
        beam_fn_api_pb2_grpc.add_BeamFnControlServicer_to_server(self, self._server)
        beam_fn_api_pb2_grpc.add_BeamFnLoggingServicer_to_server(self, self._server)
        beam_provision_api_pb2_grpc.add_ProvisionServiceServicer_to_server(self, self._server)
        loopback = network.is_this_machine(own_host.strip("[]"))
        port = self._server.add_insecure_port(f"{own_host if loopback else '[::]'}:0")
        self._endpoint = endpoints_pb2.ApiServiceDescriptor(url=f"{own_host}:{port}")
        self._server.start()

    def close(self) -> None:
        self._server.stop(grace=None)

    def ask(self, pool: str, seconds: float) -> dict[str, str]:
        deadline = time.monotonic() + seconds
        worker = f"imagebeam-probe-{uuid.uuid4().hex[:8]}"
        # A proxy named in the environment is for the way out, not for a pool.
        options = [("grpc.enable_http_proxy", 0)]
        with grpc.insecure_channel(pool, options=options) as channel:
            stub = beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolStub(channel)
            try:
                started = stub.StartWorker(
                    beam_fn_api_pb2.StartWorkerRequest(
                        worker_id=worker,
                        control_endpoint=self._endpoint,
                        logging_endpoint=self._endpoint,
                        provision_endpoint=self._endpoint,
                        artifact_endpoint=self._endpoint,
                    ),
                    timeout=seconds,
                )
            except grpc.RpcError as error:
                raise ConversionError(
                    f"{pool} is no Beam worker pool: it answers {error.code().name} "
                    f"({error.details()})"
                ) from None
            if started.error:
                raise ConversionError(
                    f"the worker pool at {pool} cannot start a worker: {started.error.strip()}"
                )
            try:
                text = self._answers.get(timeout=max(0.1, deadline - time.monotonic()))
            except queue.Empty:
                raise ConversionError(self._silence(pool, seconds)) from None
            finally:
                # An older pool does not know how; its worker ends with the control stream.
                with contextlib.suppress(grpc.RpcError):
                    stub.StopWorker(beam_fn_api_pb2.StopWorkerRequest(worker_id=worker), timeout=5)
        match = re.search(re.escape(_MARK) + r"(\{.*\})", text)
        if match is None:
            raise ConversionError(
                f"a worker of the pool at {pool} cannot work: {text.strip().splitlines()[-1]}"
            )
        return json.loads(match[1])

    def _silence(self, pool: str, seconds: float) -> str:
        if self._connected:
            return f"a worker of the pool at {pool} came up but did not answer in {seconds:g} s"
        return (
            f"the worker pool at {pool} started a worker, but none reported back within "
            f"{seconds:g} s. Beam's pool starts `python` from its PATH: it must be the "
            "interpreter that has apache-beam and imagebeam; its log tells what went wrong"
        )

    # ------------------------------------------------- what the worker calls

    def Control(self, request_iterator: Any, context: Any) -> Iterator[Any]:
        """Sends two instructions and waits for the answer to the second."""
        self._connected = True
        yield beam_fn_api_pb2.InstructionRequest(
            instruction_id="register",
            register=beam_fn_api_pb2.RegisterRequest(process_bundle_descriptor=[_descriptor()]),
        )
        yield beam_fn_api_pb2.InstructionRequest(
            instruction_id="ask",
            process_bundle=beam_fn_api_pb2.ProcessBundleRequest(
                process_bundle_descriptor_id="probe"
            ),
        )
        for answer in request_iterator:
            if answer.instruction_id == "ask" or answer.error:
                self._answers.put(answer.error or "it ran a bundle that must fail")
                return

    def Logging(self, request_iterator: Any, context: Any) -> Iterator[Any]:
        """Swallows the worker's log."""
        for _ in request_iterator:
            pass
        yield from ()

    def GetProvisionInfo(self, request: Any, context: Any) -> Any:
        """What the boot program of a worker image asks first."""
        return beam_provision_api_pb2.GetProvisionInfoResponse(
            info=beam_provision_api_pb2.ProvisionInfo(
                control_endpoint=self._endpoint,
                logging_endpoint=self._endpoint,
                artifact_endpoint=self._endpoint,
            )
        )


def _descriptor() -> Any:
    """A bundle of one step, whose function asks the question when it is unpickled."""
    function = beam_runner_api_pb2.FunctionSpec(
        urn=python_urns.PICKLED_DOFN_INFO, payload=pickler.dumps(_Question())
    )
    step = beam_runner_api_pb2.PTransform(
        unique_name="probe",
        spec=beam_runner_api_pb2.FunctionSpec(
            urn=common_urns.primitives.PAR_DO.urn,
            payload=beam_runner_api_pb2.ParDoPayload(do_fn=function).SerializeToString(),
        ),
        inputs={"in": "nothing"},
    )
    return beam_fn_api_pb2.ProcessBundleDescriptor(
        id="probe",
        transforms={"probe": step},
        pcollections={"nothing": beam_runner_api_pb2.PCollection(unique_name="nothing")},
    )
