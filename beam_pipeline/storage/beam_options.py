"""Carries endpoints and credentials between Beam's options, StorageConfig and Beam's own I/O."""

from __future__ import annotations

import os
from typing import Any

from beam_pipeline.storage.config import StorageConfig

_OTHERS = ("hdfs_", "azure_", "blob_")  # how the options of other file systems start


def config_from_options(options: Any) -> StorageConfig:
    """What Beam's own options say about object stores, for this process and its workers.

    Endpoints and region are also taken from the environment here, so that workers
    elsewhere ask the same servers. Credentials are not: those of the environment
    must be in the workers' environment too.

    Args:
      options: apache_beam PipelineOptions; of its S3 options (--s3_endpoint_url …)
        and those of hdfs:// and azfs:// what is given is taken. GCS has none but
        STORAGE_EMULATOR_HOST.
    """
    from apache_beam.options.pipeline_options import S3Options

    s3 = options.view_as(S3Options)
    given = options.get_all_options(drop_default=True)
    others = {name: given[name] for name in sorted(given) if name.startswith(_OTHERS)}
    return StorageConfig(
        s3_endpoint_url=s3.s3_endpoint_url
        or _environment("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
        s3_region_name=s3.s3_region_name or _environment("AWS_REGION", "AWS_DEFAULT_REGION"),
        s3_access_key_id=s3.s3_access_key_id,
        s3_secret_access_key=s3.s3_secret_access_key,
        s3_session_token=s3.s3_session_token,
        s3_verify=_verify(s3.s3_verify),
        gcs_endpoint=_environment("STORAGE_EMULATOR_HOST"),
        beam=tuple(others.items()),
    )


def _environment(*names: str) -> str | None:
    return next((os.environ[name] for name in names if os.environ.get(name)), None)


def _verify(value: str | bool | None) -> str | bool | None:
    # boto3 would take the text "false" for the name of a certificate file.
    words = {"false": False, "0": False, "no": False, "true": None, "1": None, "yes": None}
    return words.get(value.lower(), value) if isinstance(value, str) else value


def beam_options(config: StorageConfig) -> Any:
    """PipelineOptions that make Beam's own file systems use the same endpoints."""
    from apache_beam.options.pipeline_options import PipelineOptions, S3Options

    values: dict[str, Any] = {
        **dict(config.beam),
        "s3_endpoint_url": config.s3_endpoint_url,
        "s3_region_name": config.s3_region_name,
        "s3_access_key_id": config.s3_access_key_id,
        "s3_secret_access_key": config.s3_secret_access_key,
        "s3_session_token": config.s3_session_token,
    }
    given = {name: value for name, value in values.items() if value is not None}
    options = PipelineOptions.from_dictionary(given)
    # Not among the values: from_dictionary leaves out False.
    options.view_as(S3Options).s3_verify = config.s3_verify
    return options


def configure_beam(config: StorageConfig) -> None:
    """Makes Beam's FileSystems usable in a worker that got no pipeline options.

    Only `--writer beam` and other transforms of Beam's own need it. Options that
    the runner did hand to this process stay.
    """
    from apache_beam.io.filesystems import FileSystems
    from apache_beam.options.value_provider import RuntimeValueProvider

    if config.gcs_endpoint:
        os.environ.setdefault("STORAGE_EMULATOR_HOST", config.gcs_endpoint)
    if FileSystems._pipeline_options is None and RuntimeValueProvider.runtime_options is None:
        FileSystems.set_options(beam_options(config))
