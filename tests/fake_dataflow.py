"""A Dataflow service on 127.0.0.1: takes job requests as the real one does, and runs them here.

What the launcher uploads (the pipeline as a protocol buffer) is what is run, on Beam's
in-process engine: nothing of the launcher's memory takes part.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import re
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

_JOBS = re.compile(
    r"/v1b3/projects/(?P<project>[^/]+)/locations/(?P<region>[^/]+)/jobs"
    r"(?:/(?P<job>[^/?]+)(?P<rest>/\w+)?)?"
)


class FakeDataflow:
    """The service.

    Attributes:
      endpoint: for --dataflow_endpoint.
      requests: the jobs that were asked for, as JSON.
      request_bytes: their sizes.
      cancelled: ids of jobs that the launcher cancelled.
      pipelines: the uploaded pipelines, as bytes.
    """

    def __init__(self, storage_url: str, *, run: bool):
        self.endpoint = ""
        self.requests: list[dict[str, Any]] = []
        self.request_bytes: list[int] = []
        self.cancelled: list[str] = []
        self.pipelines: list[bytes] = []
        self._storage_url = storage_url
        self._run = run
        self._states: dict[str, str] = {}
        self._errors: dict[str, str] = {}

    def create(self, body: bytes) -> dict[str, Any]:
        """A job is asked for."""
        job = json.loads(body)
        self.requests.append(job)
        self.request_bytes.append(len(body))
        url = job["environment"]["sdkPipelineOptions"]["options"]["pipelineUrl"]
        self.pipelines.append(self._download(url))
        job["id"] = f"2026-01-01_{len(self.requests)}"
        self._states[job["id"]] = "JOB_STATE_RUNNING"
        if self._run:
            threading.Thread(target=self._work, args=(job["id"], self.pipelines[-1])).start()
        return self.get(job["id"])

    def get(self, job: str) -> dict[str, Any]:
        """How a job is."""
        request = self.requests[int(job.rpartition("_")[2]) - 1]
        return {
            "id": job,
            "name": request["name"],
            "clientRequestId": request["clientRequestId"],
            "type": "JOB_TYPE_BATCH",
            "currentState": self._states[job],
            "currentStateTime": "2026-01-01T00:00:00Z",
        }

    def update(self, job: str, body: bytes) -> dict[str, Any]:
        """A job is cancelled."""
        assert json.loads(body)["requestedState"] in ("JOB_STATE_CANCELLED", 5)
        self.cancelled.append(job)
        self._states[job] = "JOB_STATE_CANCELLED"
        return self.get(job)

    def messages(self, job: str) -> dict[str, Any]:
        """What a job has to say: why it failed."""
        if job not in self._errors:
            return {}
        message = {
            "id": "1",
            "time": "2026-01-01T00:00:01Z",
            "messageText": self._errors[job],
            "messageImportance": "JOB_MESSAGE_ERROR",
        }
        return {"jobMessages": [message]}

    def _download(self, url: str) -> bytes:
        bucket, _, name = url.removeprefix("gs://").partition("/")
        quoted = urllib.parse.quote(name, safe="")
        path = f"{self._storage_url}/storage/v1/b/{bucket}/o/{quoted}?alt=media"
        with urllib.request.urlopen(path) as answer:
            return answer.read()

    def _work(self, job: str, pipeline: bytes) -> None:
        from apache_beam.internal.gcp import auth
        from apache_beam.options.pipeline_options import PipelineOptions
        from apache_beam.portability import python_urns
        from apache_beam.portability.api import beam_runner_api_pb2
        from apache_beam.runners.portability.fn_api_runner import fn_runner

        proto = beam_runner_api_pb2.Pipeline.FromString(pipeline)
        for environment in proto.components.environments.values():
            # A container of the worker image, as far as one can have it here.
            environment.urn = python_urns.EMBEDDED_PYTHON
            environment.payload = b""
            del environment.dependencies[:]
        options = PipelineOptions(["--no_auth"])
        # There are no credentials here, and Beam would look for them for half a minute.
        auth._Credentials._credentials_init = True
        try:
            fn_runner.FnApiRunner().run_via_runner_api(proto, options)
            self._states[job] = "JOB_STATE_DONE"
        except Exception as error:
            self._errors[job] = str(error)
            self._states[job] = "JOB_STATE_FAILED"


@contextlib.contextmanager
def dataflow(storage_url: str, *, run: bool = True) -> Iterator[FakeDataflow]:
    """The service at work.

    Args:
      storage_url: of the GCS server that the launcher uploads to.
      run: False leaves jobs RUNNING for ever.
    """
    service = FakeDataflow(storage_url, run=run)

    class Handler(http.server.BaseHTTPRequestHandler):
        def _serve(self) -> None:
            match = _JOBS.match(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            answer: dict[str, Any] = {}
            if match is None:
                self.send_error(404)
                return
            if self.command == "POST":
                answer = service.create(body)
            elif self.command == "PUT":
                answer = service.update(match["job"], body)
            elif match["rest"] is None:
                answer = service.get(match["job"])
            elif match["rest"] == "/messages":
                answer = service.messages(match["job"])
            text = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PUT = _serve

        def log_message(self, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    service.endpoint = f"http://localhost:{server.server_port}"
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()
