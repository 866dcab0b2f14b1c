"""Copies remote shards to a local cache: shard by shard, resumable, checked by checksum."""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import shutil
import time
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import pyarrow.fs

from beam_pipeline.dataset_info import CONVERSION_FILE, SUCCESS_FILE, DatasetInfo, ShardInfo
from beam_pipeline.errors import DatasetError, StorageError
from training.stores import ArrowStore, GoogleStore, Store

logger = logging.getLogger(__name__)

_CHUNK = 8 << 20  # 8 MiB
_TRIES = 4
_T = TypeVar("_T")


def is_remote(path: str) -> bool:
    """Whether `path` is a URL of an object store or of HDFS."""
    return "://" in path and not path.startswith("file://")


def default_cache_dir() -> str:
    """~/.cache/imagebeam, or what XDG_CACHE_HOME says."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "imagebeam")


def stage_dataset(
    url: str, *, splits: Sequence[str] | None = None, cache_dir: str | None = None
) -> DatasetInfo:
    """Brings the shards of `splits` (None: all) onto this machine.

    A shard is downloaded into a `.part` file, which a later call goes on with, and gets
    its name only once its SHA-256 agrees. Processes on one machine may share the cache.

    Returns:
      The dataset's description, with `directory` in the cache.

    Raises:
      DatasetError: the remote dataset is unfinished, or a shard's bytes are not those
        that conversion.json lists.
      StorageError: the store refused or failed, after retries.
    """
    store, root = _open_store(url)
    if not _retry(lambda: store.exists(f"{root}/{SUCCESS_FILE}"), f"{url}: listing"):
        raise DatasetError(
            f"{url} is not a finished dataset (no {SUCCESS_FILE}): give the directory that "
            "imagebeam convert wrote, or run the conversion again"
        )
    text = _retry(lambda: store.read(f"{root}/{CONVERSION_FILE}"), f"{url}: reading")
    try:
        info = DatasetInfo.from_json(url, json.loads(text))
    except ValueError as error:
        raise DatasetError(f"{url}/{CONVERSION_FILE} is damaged: {error}") from error
    directory = os.path.join(
        cache_dir or default_cache_dir(), f"{info.name}-{info.fingerprint[:16]}"
    )
    wanted = [shard for name in (splits or info.splits) for shard in info.split(name).shards]
    try:
        os.makedirs(directory, exist_ok=True)
        missing = [shard for shard in wanted if not _is_staged(directory, shard)]
        _check_room(directory, missing)
        for shard in missing:
            _stage_shard(store, root, url, directory, shard)
    except OSError as error:
        raise StorageError(f"cannot keep {url} in {directory}: {error}") from error
    return DatasetInfo.from_json(directory, json.loads(text))


def _stage_shard(store: Store, root: str, url: str, directory: str, shard: ShardInfo) -> None:
    path = os.path.join(directory, shard.file)
    part = f"{path}.part"
    with _locked(f"{path}.lock"):
        if _is_staged(directory, shard):  # another process was faster
            return
        for attempt in range(2):
            _retry(
                lambda: _download(store, f"{root}/{shard.file}", part, shard.bytes),
                f"{url}/{shard.file}",
            )
            found = file_sha256(part)
            if found == shard.sha256:
                os.replace(part, path)
                logger.info("staged %s (%d bytes)", shard.file, shard.bytes)
                return
            os.unlink(part)
            if attempt == 0:  # perhaps the part was an old one: once more, from the start
                logger.warning("%s: checksum does not agree, downloading it again", shard.file)
    raise DatasetError(
        f"{url}/{shard.file} has SHA-256 {found[:16]}…, conversion.json says "
        f"{shard.sha256[:16]}…: the remote file was changed; convert again"
    )


def _download(store: Store, source: str, part: str, size: int) -> None:
    """Appends to `part` what it still lacks of `source`."""
    found = store.size(source)
    if found != size:
        raise DatasetError(f"{source} has {found} bytes, expected {size}: it was changed")
    with open(part, "ab") as output:
        if output.tell() > size:
            output.truncate(0)
            output.seek(0)
        while (position := output.tell()) < size:
            chunk = store.read(source, position, min(_CHUNK, size - position))
            if not chunk:
                raise OSError(f"{source} ended at byte {position} of {size}")
            output.write(chunk)


def _is_staged(directory: str, shard: ShardInfo) -> bool:
    path = os.path.join(directory, shard.file)
    return os.path.isfile(path) and os.path.getsize(path) == shard.bytes


def _check_room(directory: str, shards: Sequence[ShardInfo]) -> None:
    parts = [os.path.join(directory, f"{shard.file}.part") for shard in shards]
    needed = sum(shard.bytes for shard in shards)
    needed -= sum(os.path.getsize(part) for part in parts if os.path.exists(part))
    free = shutil.disk_usage(directory).free
    if needed > free:
        raise StorageError(
            f"{directory} has {free >> 20} MiB free, the shards need {needed >> 20} MiB: "
            "make room or give another --cache_dir"
        )


@contextmanager
def _locked(path: str) -> Iterator[None]:
    with open(path, "w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def file_sha256(path: str) -> str:
    """SHA-256 (hex) of a local file."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _open_store(url: str) -> tuple[Store, str]:
    """The store of `url` and the path in it, without a trailing slash."""
    parts = urllib.parse.urlsplit(url)
    path = f"{parts.netloc}{parts.path}".rstrip("/")
    try:
        if parts.scheme == "gs":
            return GoogleStore(), path
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        if parts.scheme == "s3" and endpoint:
            return ArrowStore(pyarrow.fs.S3FileSystem(endpoint_override=endpoint)), path
        filesystem, path = pyarrow.fs.FileSystem.from_uri(url)
        return ArrowStore(filesystem), path.rstrip("/")
    except (ValueError, OSError, NotImplementedError) as error:
        raise StorageError(f"cannot read from {url}: {error}") from error


def _retry(action: Callable[[], _T], what: str) -> _T:
    """Calls `action`, again after growing pauses when the store fails."""
    for attempt in range(_TRIES):
        try:
            return action()
        except FileNotFoundError as error:
            raise StorageError(f"{what}: not found: {error}") from error
        except OSError as error:
            if attempt == _TRIES - 1:
                raise StorageError(f"{what} failed {_TRIES} times: {error}") from error
            time.sleep(0.5 * 2**attempt)
    raise AssertionError("unreachable")
