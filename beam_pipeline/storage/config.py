"""Endpoints and credentials of object stores, in a form that travels inside a DoFn."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class StorageConfig:
    """Where object stores answer and who asks; None leaves a value to the environment.

    The environment is what boto3 and google-cloud-storage look at themselves:
    AWS_ENDPOINT_URL, AWS_PROFILE, instance roles …; STORAGE_EMULATOR_HOST,
    GOOGLE_APPLICATION_CREDENTIALS, the metadata server.

    Attributes:
      s3_endpoint_url, s3_region_name: of an S3-compatible server.
      s3_access_key_id, s3_secret_access_key, s3_session_token: credentials.
      s3_verify: False, or a file of CA certificates, for the server's TLS.
      gcs_endpoint: base URL of a GCS server, as in STORAGE_EMULATOR_HOST.
      gcs_project: project that requests are billed to where the bucket asks for it.
      beam: names and values of the Beam options of other file systems (hdfs_host …).
      retry_seconds: how long one request is repeated when the store throttles,
        resets the connection or answers 5xx.
    """

    s3_endpoint_url: str | None = None
    s3_region_name: str | None = None
    s3_access_key_id: str | None = None
    s3_secret_access_key: str | None = dataclasses.field(default=None, repr=False)
    s3_session_token: str | None = dataclasses.field(default=None, repr=False)
    s3_verify: bool | str | None = None
    gcs_endpoint: str | None = None
    gcs_project: str | None = None
    beam: tuple[tuple[str, Any], ...] = dataclasses.field(default=(), repr=False)
    retry_seconds: float = 120.0


_config = StorageConfig()


def configure(config: StorageConfig) -> None:
    """Sets the endpoints and credentials of this process; call it in a DoFn's setup."""
    global _config
    _config = config


def current() -> StorageConfig:
    """What `configure` was last given."""
    return _config
