"""S3 and servers that speak its protocol: one boto3 client a process, single requests."""

from __future__ import annotations

import os
from typing import Any

from beam_pipeline.errors import StorageError
from beam_pipeline.storage.config import StorageConfig
from beam_pipeline.storage.local import too_many_bytes
from beam_pipeline.storage.object_store import Head, Listed, ObjectStore
from beam_pipeline.storage.retry import Fault, Kind

_MAX_CONNECTIONS = 64  # at least the number of threads that read at the same time
_CONNECT_TIMEOUT = 5  # seconds
_READ_TIMEOUT = 60  # seconds between two packets
_COPY_PART = 512 << 20  # 512 MiB; one request copies at most 5 GiB

_CREDENTIALS = "give --s3_access_key_id and --s3_secret_access_key, or set AWS_ACCESS_KEY_ID and \
AWS_SECRET_ACCESS_KEY or AWS_PROFILE, on the workers too"
_CODES = {
    "NoSuchKey": Kind.MISSING,
    "NoSuchUpload": Kind.MISSING,
    "NotFound": Kind.MISSING,
    "404": Kind.MISSING,
    "KeyTooLongError": Kind.MISSING,
    "NoSuchBucket": Kind.NO_BUCKET,
    "AccessDenied": Kind.DENIED,
    "403": Kind.DENIED,
    "Forbidden": Kind.DENIED,
    "AllAccessDisabled": Kind.DENIED,
    "InvalidObjectState": Kind.DENIED,  # archived
    "InvalidAccessKeyId": Kind.CREDENTIALS,
    "SignatureDoesNotMatch": Kind.CREDENTIALS,
    "ExpiredToken": Kind.CREDENTIALS,
    "InvalidToken": Kind.CREDENTIALS,
    "RequestTimeTooSkewed": Kind.CREDENTIALS,
    "PreconditionFailed": Kind.CHANGED,
    "412": Kind.CHANGED,
    "InvalidRange": Kind.RANGE,
    "416": Kind.RANGE,
    "SlowDown": Kind.TRANSIENT,
    "Throttling": Kind.TRANSIENT,
    "RequestTimeout": Kind.TRANSIENT,
    "RequestLimitExceeded": Kind.TRANSIENT,
    "InternalError": Kind.TRANSIENT,
    "OperationAborted": Kind.TRANSIENT,
    "BadDigest": Kind.TRANSIENT,
    "IncompleteBody": Kind.TRANSIENT,
    "XAmzContentSHA256Mismatch": Kind.TRANSIENT,
    "XAmzContentChecksumMismatch": Kind.TRANSIENT,
}
_MEND = {
    Kind.NO_BUCKET: "check its name, the endpoint and the region, or make it",
    Kind.CREDENTIALS: _CREDENTIALS,
    Kind.DENIED: "the credentials in use lack the permission, or the object is archived",
    Kind.UNREACHABLE: "check --s3_endpoint_url or AWS_ENDPOINT_URL, and the network",
    Kind.CHANGED: "it was replaced while it was read; run again",
}


class _KeyError(Exception):
    """A batch deletion failed for one key."""

    def __init__(self, code: str, message: str):
        super().__init__(f"{code}: {message}")
        self.code = code


class S3Store(ObjectStore):
    """s3://BUCKET/KEY."""

    scheme = "s3"

    def __init__(self, config: StorageConfig):
        super().__init__(config.retry_seconds)
        try:
            self.client = make_client(config)
        except ImportError as error:
            raise StorageError(
                "cannot use s3://: boto3 is not installed (pip install 'imagebeam[s3]')"
            ) from error
        except ValueError as error:  # a malformed endpoint
            raise StorageError(
                f"cannot use s3://: {error} (check --s3_endpoint_url and AWS_ENDPOINT_URL)"
            ) from error

    def classify(self, error: Exception) -> Fault | None:
        """See ObjectStore."""
        import boto3.exceptions
        import botocore.exceptions as aws
        import urllib3.exceptions

        if isinstance(error, _KeyError):
            kind = _CODES.get(error.code, Kind.OTHER)
        elif isinstance(error, aws.ClientError):
            kind = _kind_of_answer(error.response)
        elif isinstance(error, boto3.exceptions.S3UploadFailedError):
            kind = Kind.OTHER
        elif isinstance(
            error,
            aws.NoCredentialsError
            | aws.PartialCredentialsError
            | aws.ProfileNotFound
            | aws.CredentialRetrievalError
            | aws.TokenRetrievalError
            | aws.SSOError,
        ):
            kind = Kind.CREDENTIALS
        elif isinstance(
            error, aws.EndpointConnectionError | aws.ConnectTimeoutError | aws.ProxyConnectionError
        ):
            kind = Kind.UNREACHABLE
        elif isinstance(error, aws.SSLError):
            kind = Kind.OTHER
        elif (
            isinstance(
                error,
                aws.HTTPClientError
                | aws.IncompleteReadError
                | aws.ResponseStreamingError
                | aws.FlexibleChecksumError
                | urllib3.exceptions.HTTPError,
            )
            or type(error).__name__ == "ResponseParserError"
        ):
            kind = Kind.TRANSIENT
        elif isinstance(error, aws.BotoCoreError | UnicodeError):
            kind = Kind.OTHER
        elif isinstance(error, OSError):
            kind = Kind.TRANSIENT
        else:
            return None
        return Fault(kind, _plain(error), _MEND.get(kind, ""))

    def _list_page(
        self, bucket: str, prefix: str, delimiter: str, token: str | None, limit: int
    ) -> tuple[list[Listed], str | None]:
        arguments: dict[str, Any] = {"Bucket": bucket, "Prefix": prefix, "MaxKeys": limit}
        if delimiter:
            arguments["Delimiter"] = delimiter
        if token:
            arguments["ContinuationToken"] = token
        answer = self.client.list_objects_v2(**arguments)
        page = [Listed(item["Key"], item["Size"]) for item in answer.get("Contents", ())]
        page += [Listed(item["Prefix"], None) for item in answer.get("CommonPrefixes", ())]
        return page, answer["NextContinuationToken"] if answer.get("IsTruncated") else None

    def _head(self, bucket: str, key: str) -> Head:
        answer = self.client.head_object(Bucket=bucket, Key=key)
        return Head(answer["ContentLength"], answer["ETag"])

    def _get(
        self,
        bucket: str,
        key: str,
        byte_range: tuple[int, int] | None,
        max_bytes: int | None,
        version: str | None,
    ) -> bytes:
        arguments: dict[str, str] = {"Bucket": bucket, "Key": key}
        if byte_range is not None:
            arguments["Range"] = f"bytes={byte_range[0]}-{byte_range[0] + byte_range[1] - 1}"
        if version is not None:
            arguments["IfMatch"] = version
        answer = self.client.get_object(**arguments)
        size = answer["ContentLength"]
        body = answer["Body"]
        if max_bytes is not None and size > max_bytes:
            body.close()  # drops the connection instead of reading on
            raise too_many_bytes(key, size, max_bytes)
        data = body.read()
        if len(data) != size:
            raise OSError(f"the connection ended after {len(data)} of {size} bytes")
        return data

    def _put(self, bucket: str, key: str, data: bytes) -> None:
        self.client.put_object(Bucket=bucket, Key=key, Body=data)

    def _start_upload(self, bucket: str, key: str) -> dict[str, Any]:
        answer = self.client.create_multipart_upload(Bucket=bucket, Key=key)
        names = {"Bucket": bucket, "Key": key, "UploadId": answer["UploadId"]}
        return {"names": names, "tags": [], "size": 0}

    def _send_part(self, upload: dict[str, Any], data: bytes, last: bool) -> None:
        # A number that is sent twice replaces its first part.
        number = len(upload["tags"]) + 1
        answer = self.client.upload_part(**upload["names"], PartNumber=number, Body=data)
        upload["tags"].append(answer["ETag"])
        upload["size"] += len(data)

    def _finish_upload(self, upload: dict[str, Any]) -> None:
        import botocore.exceptions

        parts = [
            {"ETag": tag, "PartNumber": number} for number, tag in enumerate(upload["tags"], 1)
        ]
        try:
            self.client.complete_multipart_upload(
                **upload["names"], MultipartUpload={"Parts": parts}
            )
        except botocore.exceptions.ClientError as error:
            if error.response["Error"].get("Code") != "NoSuchUpload":
                raise
            # An earlier attempt may have worked although its answer was lost.
            head = self._head(upload["names"]["Bucket"], upload["names"]["Key"])
            if head.size != upload["size"] or f"-{len(parts)}" not in head.version:
                raise

    def _abort_upload(self, upload: dict[str, Any]) -> None:
        self.client.abort_multipart_upload(**upload["names"])

    def _copy(self, bucket: str, key: str, target_bucket: str, target_key: str) -> None:
        from boto3.s3.transfer import TransferConfig

        self.client.copy(
            {"Bucket": bucket, "Key": key},
            target_bucket,
            target_key,
            Config=TransferConfig(
                multipart_threshold=4 * _COPY_PART,
                multipart_chunksize=_COPY_PART,
                use_threads=False,
            ),
        )

    def _delete(self, bucket: str, keys: list[str]) -> None:
        for start in range(0, len(keys), 1000):  # the protocol's limit
            objects = [{"Key": key} for key in keys[start : start + 1000]]
            answer = self.client.delete_objects(
                Bucket=bucket, Delete={"Objects": objects, "Quiet": True}
            )
            for error in answer.get("Errors", ()):
                if error.get("Code") != "NoSuchKey":
                    raise _KeyError(
                        error.get("Code", ""), f"{error.get('Key')!r}: {error.get('Message', '')}"
                    )


def make_client(config: StorageConfig) -> Any:
    """A thread-safe boto3 client that repeats nothing by itself."""
    import boto3
    import botocore.config

    # A session of its own: boto3's default session is not thread-safe.
    session = boto3.session.Session()
    custom_endpoint = bool(
        config.s3_endpoint_url
        or os.environ.get("AWS_ENDPOINT_URL_S3")
        or os.environ.get("AWS_ENDPOINT_URL")
    )
    options: dict[str, Any] = {}
    if custom_endpoint:
        # Other servers are seldom reachable as bucket.host, and older ones refuse
        # the checksum headers that AWS understands.
        style = session._session.get_scoped_config().get("s3") or {}
        options["s3"] = {"addressing_style": style.get("addressing_style", "path")}
        if "AWS_REQUEST_CHECKSUM_CALCULATION" not in os.environ:
            options["request_checksum_calculation"] = "when_required"
    return session.client(
        "s3",
        endpoint_url=config.s3_endpoint_url,
        region_name=config.s3_region_name or (None if session.region_name else "us-east-1"),
        aws_access_key_id=config.s3_access_key_id,
        aws_secret_access_key=config.s3_secret_access_key,
        aws_session_token=config.s3_session_token,
        verify=config.s3_verify,
        config=botocore.config.Config(
            connect_timeout=_CONNECT_TIMEOUT,
            read_timeout=_READ_TIMEOUT,
            max_pool_connections=_MAX_CONNECTIONS,
            retries={"total_max_attempts": 1, "mode": "standard"},
            **options,
        ),
    )


def _kind_of_answer(response: dict[str, Any]) -> Kind:
    code = str(response.get("Error", {}).get("Code", ""))
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code in _CODES:
        return _CODES[code]
    if status >= 500 or status in (408, 429):
        return Kind.TRANSIENT
    return {401: Kind.CREDENTIALS, 403: Kind.DENIED, 404: Kind.MISSING}.get(status, Kind.OTHER)


def _plain(error: Exception) -> str:
    """The cause in the server's words, without boto3's."""
    response = getattr(error, "response", None)
    if isinstance(response, dict) and "Error" in response:
        details = response["Error"]
        return f"{details.get('Message') or 'no explanation'} ({details.get('Code')})"
    text = " ".join(str(error).split()) or type(error).__name__
    return text.split(": Bucket name must match")[0]  # a screen full of patterns follows
