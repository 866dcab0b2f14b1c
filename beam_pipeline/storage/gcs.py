"""Google Cloud Storage over its JSON API: one authorized session a process, single requests."""

from __future__ import annotations

import base64
import json
import os
import uuid
from typing import Any
from urllib.parse import quote

from beam_pipeline.errors import StorageError
from beam_pipeline.storage.config import StorageConfig
from beam_pipeline.storage.gcs_session import MEND_CREDENTIALS, make_session
from beam_pipeline.storage.local import too_many_bytes
from beam_pipeline.storage.object_store import Head, Listed, ObjectStore
from beam_pipeline.storage.retry import Fault, Kind

_ENDPOINT = "https://storage.googleapis.com"
_TIMEOUT = (5, 60)  # seconds to connect, seconds between two packets
_QUANTUM = 256 << 10  # 256 KiB: pieces of a large upload are multiples of this
_TRANSIENT = (408, 429, 500, 502, 503, 504)

_MEND = {
    Kind.NO_BUCKET: "check its name, or make it",
    Kind.CREDENTIALS: MEND_CREDENTIALS,
    Kind.DENIED: "the account in use lacks the permission",
    Kind.UNREACHABLE: "check the network, and STORAGE_EMULATOR_HOST if it is set",
    Kind.CHANGED: "it was replaced while it was read; run again",
}


class _AnswerError(Exception):
    """The server answered with an error status."""

    def __init__(self, status: int, reason: str, message: str):
        super().__init__(f"{status} {message}")
        self.status = status
        self.reason = reason


class _DamagedError(Exception):
    """The bytes that arrived are not those that were sent."""


class GcsStore(ObjectStore):
    """gs://BUCKET/KEY."""

    scheme = "gs"

    def __init__(self, config: StorageConfig):
        super().__init__(config.retry_seconds)
        endpoint = config.gcs_endpoint or os.environ.get("STORAGE_EMULATOR_HOST")
        if endpoint and "://" not in endpoint:
            endpoint = "http://" + endpoint
        self._endpoint = (endpoint or _ENDPOINT).rstrip("/")
        self._project = config.gcs_project
        try:
            self._session, self._anonymous = make_session(bool(endpoint))
        except ImportError as error:
            raise StorageError(
                "cannot use gs://: google-auth is not installed (pip install 'apache-beam[gcp]')"
            ) from error

    def classify(self, error: Exception) -> Fault | None:
        """See ObjectStore."""
        import google.auth.exceptions
        import requests.exceptions as http
        import urllib3.exceptions

        cause = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, _AnswerError):
            kind = _kind_of_answer(error)
            if kind in (Kind.CREDENTIALS, Kind.DENIED) and self._anonymous:
                kind = Kind.CREDENTIALS
                cause = f"no Google credentials were found, and without them the answer is {cause}"
        elif isinstance(error, _DamagedError):
            kind = Kind.TRANSIENT
        elif isinstance(error, google.auth.exceptions.TransportError):
            kind = Kind.UNREACHABLE
        elif isinstance(error, google.auth.exceptions.GoogleAuthError):
            kind = Kind.TRANSIENT if error.retryable else Kind.CREDENTIALS
        elif isinstance(error, http.SSLError | http.InvalidURL | http.InvalidSchema):
            kind = Kind.OTHER
        elif isinstance(error, http.ConnectTimeout | http.ProxyError) or (
            isinstance(error, http.ConnectionError) and _never_connected(error)
        ):
            kind = Kind.UNREACHABLE
            cause = f"no connection to {self._endpoint}: {_innermost(error)}"
        elif isinstance(error, http.RequestException | urllib3.exceptions.HTTPError | OSError):
            kind = Kind.TRANSIENT
        elif isinstance(error, json.JSONDecodeError):
            kind = Kind.TRANSIENT  # an answer that was cut
        elif isinstance(error, UnicodeError):
            kind = Kind.OTHER
        else:
            return None
        return Fault(kind, cause, _MEND.get(kind, ""))

    def _request(self, method: str, path: str, **arguments: Any) -> Any:
        """One request; raises _AnswerError for an error status."""
        if self._project:
            arguments.setdefault("params", {})["userProject"] = self._project
        url = path if "://" in path else self._endpoint + path
        response = self._session.request(method, url, timeout=_TIMEOUT, **arguments)
        if response.status_code >= 400:
            raise _answer_error(response)
        return response

    @staticmethod
    def _path(bucket: str, key: str | None = None) -> str:
        path = f"/storage/v1/b/{quote(bucket, safe='')}/o"
        return path if key is None else f"{path}/{quote(key, safe='')}"

    def _list_page(
        self, bucket: str, prefix: str, delimiter: str, token: str | None, limit: int
    ) -> tuple[list[Listed], str | None]:
        parameters = {
            "prefix": prefix,
            "maxResults": str(limit),
            "fields": "items(name,size),prefixes,nextPageToken",
        }
        if delimiter:
            parameters["delimiter"] = delimiter
        if token:
            parameters["pageToken"] = token
        answer = self._request("GET", self._path(bucket), params=parameters).json()
        page = [Listed(item["name"], int(item["size"])) for item in answer.get("items", ())]
        page += [Listed(name, None) for name in answer.get("prefixes", ())]
        return page, answer.get("nextPageToken")

    def _head(self, bucket: str, key: str) -> Head:
        parameters = {"fields": "size,generation"}
        answer = self._request("GET", self._path(bucket, key), params=parameters).json()
        return Head(int(answer["size"]), answer["generation"])

    def _get(
        self,
        bucket: str,
        key: str,
        byte_range: tuple[int, int] | None,
        max_bytes: int | None,
        version: str | None,
    ) -> bytes:
        parameters = {"alt": "media"}
        if version is not None:
            parameters["ifGenerationMatch"] = version
        # gzip: an object that is stored compressed comes as it is stored.
        headers = {"Accept-Encoding": "gzip"}
        if byte_range is not None:
            headers["Range"] = f"bytes={byte_range[0]}-{byte_range[0] + byte_range[1] - 1}"
        response = self._request(
            "GET", self._path(bucket, key), params=parameters, headers=headers, stream=True
        )
        # Closing it would end the connection; one that was read to its end is kept.
        try:
            size = int(response.headers.get("Content-Length", -1))
            if max_bytes is not None and size > max_bytes:
                raise too_many_bytes(key, size, max_bytes)
            data = response.raw.read(decode_content=False)
        except BaseException:
            response.close()
            raise
        response.raw.release_conn()
        if size >= 0 and len(data) != size:
            raise _DamagedError(f"the connection ended after {len(data)} of {size} bytes")
        wanted = response.headers.get("X-Goog-Hash", "")
        if byte_range is None and (crc := _crc32c(data)) not in wanted and "crc32c=" in wanted:
            raise _DamagedError(f"checksum {crc} of what arrived differs from the sent {wanted}")
        return data

    def _put(self, bucket: str, key: str, data: bytes) -> None:
        # Description and content in one request, so that the server checks the
        # checksum before the object appears.
        description = json.dumps({"name": key, "crc32c": _crc32c(data)}).encode()
        boundary = uuid.uuid4().hex.encode()
        body = b"".join(
            [
                b"--%b\r\nContent-Type: application/json\r\n\r\n%b\r\n" % (boundary, description),
                b"--%b\r\nContent-Type: application/octet-stream\r\n\r\n" % boundary,
                data,
                b"\r\n--%b--\r\n" % boundary,
            ]
        )
        answer = self._request(
            "POST",
            f"/upload{self._path(bucket)}",
            params={"uploadType": "multipart"},
            data=body,
            headers={"Content-Type": f"multipart/related; boundary={boundary.decode()}"},
        ).json()
        _check_stored(answer, _crc32c(data), len(data))

    def _start_upload(self, bucket: str, key: str) -> dict[str, Any]:
        import google_crc32c

        response = self._request(
            "POST",
            f"/upload{self._path(bucket)}",
            params={"uploadType": "resumable", "name": key},
            data=b"{}",
            headers={
                "Content-Type": "application/json",
                "X-Upload-Content-Type": "application/octet-stream",
            },
        )
        return {
            "bucket": bucket,
            "key": key,
            "url": response.headers["Location"],
            "offset": 0,  # of the first byte of the part that is being sent
            "failed": False,
            "answer": None,
            "crc": google_crc32c.Checksum(),
        }

    def _send_part(self, upload: dict[str, Any], data: bytes, last: bool) -> None:
        total = str(upload["offset"] + len(data)) if last else "*"
        start = 0
        if upload["failed"]:  # how much of it did arrive before?
            start = self._resume(upload, total) - upload["offset"]
        upload["failed"] = True
        while upload["answer"] is None and start < len(data):
            first = upload["offset"] + start
            piece = data[start:] if start else data
            response = self._upload_request(
                upload, piece, f"bytes {first}-{first + len(piece) - 1}/{total}"
            )
            following = _stored(upload, response) - upload["offset"]
            if following <= start and upload["answer"] is None:
                raise _DamagedError("the server took nothing of what was sent")
            start = following
        upload["failed"] = False
        upload["offset"] += len(data)
        upload["crc"].update(data)

    def _resume(self, upload: dict[str, Any], total: str) -> int:
        """Asks how many bytes the server has; the last answer may have been lost."""
        try:
            return _stored(upload, self._upload_request(upload, b"", f"bytes */{total}"))
        except _AnswerError as error:
            if error.status not in (404, 410) or total == "*":
                raise
            # The upload is over: either complete, which its checksum will tell, or lost.
            path = self._path(upload["bucket"], upload["key"])
            upload["answer"] = self._request("GET", path).json()
            return upload["offset"]

    def _upload_request(self, upload: dict[str, Any], data: bytes, content_range: str) -> Any:
        return self._request(
            "PUT",
            upload["url"],
            data=data,
            headers={"Content-Range": content_range, "Content-Length": str(len(data))},
            allow_redirects=False,  # 308 says "go on", not "go elsewhere"
        )

    def _finish_upload(self, upload: dict[str, Any]) -> None:
        crc = base64.b64encode(upload["crc"].digest()).decode()
        _check_stored(upload["answer"] or {}, crc, upload["offset"])

    def _abort_upload(self, upload: dict[str, Any]) -> None:
        response = self._session.delete(upload["url"], timeout=_TIMEOUT)
        # 499 is the success status here; 404 says that there is nothing left.
        if response.status_code >= 500:
            raise _answer_error(response)

    def _copy(self, bucket: str, key: str, target_bucket: str, target_key: str) -> None:
        path = self._path(bucket, key) + "/rewriteTo" + self._path(target_bucket, target_key)[11:]
        parameters: dict[str, str] = {}
        while True:  # a large object, or another region, takes several requests
            answer = self._request("POST", path, params=dict(parameters)).json()
            if answer.get("done"):
                return
            parameters["rewriteToken"] = answer["rewriteToken"]

    def _delete(self, bucket: str, keys: list[str]) -> None:
        self._parallel(lambda key: self._delete_one(bucket, key), keys)

    def _delete_one(self, bucket: str, key: str) -> None:
        def request() -> None:
            try:
                self._request("DELETE", self._path(bucket, key))
            except _AnswerError as error:
                if error.status != 404:
                    raise

        self._retrier.call("delete", self._uri(bucket, key), request)


def _stored(upload: dict[str, Any], response: Any) -> int:
    """How many bytes of the object the server has, as a multiple of 256 KiB or all."""
    if response.status_code in (200, 201):
        upload["answer"] = response.json()
        return upload["offset"]
    held = response.headers.get("Range", "")  # "bytes=0-524287", absent for nothing
    end = int(held.rpartition("-")[2]) + 1 if held else 0
    # Bytes that are sent twice are ignored, so rounding down is safe.
    return max(upload["offset"], end // _QUANTUM * _QUANTUM)


def _check_stored(answer: dict[str, Any], crc: str, size: int) -> None:
    if int(answer.get("size", -1)) != size or answer.get("crc32c", crc) != crc:
        raise _DamagedError(
            f"{size} bytes with checksum {crc} were sent, stored were {answer.get('size')} "
            f"with {answer.get('crc32c')}"
        )


def _crc32c(data: bytes) -> str:
    import google_crc32c

    return base64.b64encode(google_crc32c.value(data).to_bytes(4, "big")).decode()


def _innermost(error: BaseException) -> str:
    """The network's own words, without those of the layers above it."""
    while (deeper := getattr(error, "reason", None) or error.__cause__ or error.__context__) and (
        isinstance(deeper, Exception)
    ):
        error = deeper
    return " ".join(str(error).split()) or type(error).__name__


def _never_connected(error: BaseException) -> bool:
    """Whether a connection error came before there was a connection."""
    import urllib3.exceptions

    reason = error.args[0] if error.args else None
    reason = getattr(reason, "reason", reason)
    return isinstance(
        reason, urllib3.exceptions.NewConnectionError | urllib3.exceptions.ConnectTimeoutError
    )


def _answer_error(response: Any) -> _AnswerError:
    reason, message = "", ""
    try:
        answer = response.json()["error"]
        message = answer.get("message") or ""
        reason = (answer.get("errors") or [{}])[0].get("reason", "")
    except (ValueError, KeyError, TypeError, AttributeError):
        message = " ".join(response.text[:200].split())
    return _AnswerError(response.status_code, reason, message or response.reason)


def _kind_of_answer(error: _AnswerError) -> Kind:
    if error.status in _TRANSIENT or "ateLimitExceeded" in error.reason:
        return Kind.TRANSIENT
    if error.status == 404:
        return Kind.NO_BUCKET if "specified bucket" in str(error) else Kind.MISSING
    return {
        401: Kind.CREDENTIALS,
        403: Kind.DENIED,
        412: Kind.CHANGED,
        416: Kind.RANGE,
    }.get(error.status, Kind.OTHER)
