"""Opens a dataset directory for training: every shard is checked before the first step."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import gzip
import json
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import google_crc32c

from beam_pipeline.dataset_info import (
    CONVERSION_FILE,
    SUCCESS_FILE,
    DatasetInfo,
    ShardInfo,
    read_dataset_info,
)
from beam_pipeline.errors import DatasetError, UsageError
from training import staging

GZIP_MAGIC = b"\x1f\x8b"
CHECKS = ("full", "size")


def open_dataset(
    dataset: str,
    *,
    splits: Sequence[str] | None = None,
    check: str = "full",
    cache_dir: str | None = None,
) -> DatasetInfo:
    """Opens a finished dataset and checks the shards that will be read.

    Args:
      dataset: a dataset directory; a remote one (`gs://`, `s3://`, `hdfs://`) is
        copied to a local cache first.
      splits: the splits that will be read; None for all.
      check: "full" recomputes the SHA-256 of every shard of `splits`, with all
        cores; "size" trusts names and sizes.
      cache_dir: where remote shards are kept; None for ~/.cache/imagebeam.

    Returns:
      The dataset's description; its `directory` is local.

    Raises:
      DatasetError: unfinished, or a shard is missing, cut, changed, compressed
        against what is stored, or foreign. Every faulty shard is named.
    """
    if check not in CHECKS:
        raise UsageError(f"check must be one of {', '.join(CHECKS)}, got {check!r}")
    if staging.is_remote(dataset):
        info = staging.stage_dataset(dataset, splits=splits, cache_dir=cache_dir)
    else:
        try:
            info = read_dataset_info(dataset)
        except DatasetError as error:
            causes = _explain_sizes(dataset)
            if not causes:
                raise
            raise DatasetError("\n  ".join([str(error), *causes])) from error
    shards = [
        shard for name in (splits or info.splits) for shard in info.split(name).shards
    ]  # split() refuses unknown names, whatever `check` is
    if check == "full":
        check_shards(info, shards)
    return info


def check_shards(info: DatasetInfo, shards: Sequence[ShardInfo]) -> None:
    """Recomputes the checksum of `shards`, in parallel; DatasetError names every bad one."""

    def fault(shard: ShardInfo) -> str | None:
        path = os.path.join(info.directory, shard.file)
        if staging.file_sha256(path) == shard.sha256:
            return None
        return f"{shard.file}: {explain_shard(path, shard, info.compression)}"

    # hashlib frees the interpreter lock, so threads are enough.
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        faults = [text for text in pool.map(fault, shards) if text]
    if faults:
        raise DatasetError(
            f"{info.directory} is damaged; convert again, or copy these files again:\n  "
            + "\n  ".join(faults)
        )


def is_gzip(path: str) -> bool:
    """Whether a local file is gzip-compressed, judged by its first bytes."""
    with open(path, "rb") as stream:
        return stream.read(2) == GZIP_MAGIC


class DamagedRecordError(Exception):
    """A TFRecord file cannot be read on; `args[0]` says where and why."""


def read_records(path: str) -> Iterator[tuple[int, bytes]]:
    """Yields (byte offset, record) of a TFRecord file and checks both checksums.

    Offsets count uncompressed bytes. Slow and exact: it serves explanations, not training.

    Raises:
      DamagedRecordError: with the number of the record and what is wrong with it.
    """
    with gzip.open(path) if is_gzip(path) else open(path, "rb") as stream:
        number = offset = 0
        try:
            while head := stream.read(12):
                record = _read_record(stream, head, number, offset)
                yield offset, record
                offset += 16 + len(record)
                number += 1
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise DamagedRecordError(
                f"the gzip stream breaks in record {number} ({error}): cut or changed"
            ) from error


def _read_record(stream: BinaryIO | gzip.GzipFile, head: bytes, number: int, offset: int) -> bytes:
    where = f"record {number} (byte {offset})"
    if len(head) < 12:
        raise DamagedRecordError(f"the file ends inside {where}: it was cut")
    length, length_crc = struct.unpack("<QI", head)
    if _masked_crc(head[:8]) != length_crc:
        raise DamagedRecordError(f"{where}: the checksum of its length is wrong: bytes changed")
    body = stream.read(length + 4)
    if len(body) < length + 4:
        raise DamagedRecordError(f"the file ends inside {where}: it was cut")
    record = body[:-4]
    if _masked_crc(record) != struct.unpack("<I", body[-4:])[0]:
        raise DamagedRecordError(f"{where}: the checksum of its data is wrong: bytes changed")
    return record


def _masked_crc(data: bytes) -> int:
    crc = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def explain_shard(path: str, shard: ShardInfo, compression: str) -> str:
    """One sentence on what is wrong with a shard whose size or checksum does not agree."""
    if is_gzip(path) != (compression == "gzip"):
        found = "gzip-compressed" if is_gzip(path) else "not compressed"
        return f"it is {found}, but the dataset was written with compression {compression!r}"
    records = 0
    try:
        for _ in read_records(path):
            records += 1
    except DamagedRecordError as error:
        return str(error)
    if records != shard.records:
        return f"it ends cleanly after {records} records, expected {shard.records}"
    return "its records are intact, but they are not those that were converted (another file)"


def _explain_sizes(directory: str) -> list[str]:
    """Why shards of the wrong size have it; empty where that cannot be told."""
    names = set(os.listdir(directory)) if os.path.isdir(directory) else set()
    if not {SUCCESS_FILE, CONVERSION_FILE} <= names:
        return []
    try:
        with open(os.path.join(directory, CONVERSION_FILE), encoding="utf-8") as stream:
            info = DatasetInfo.from_json(directory, json.load(stream))
    except (ValueError, DatasetError):
        return []
    causes = []
    for split in info.splits.values():
        for shard in split.shards:
            path = os.path.join(directory, shard.file)
            if shard.file in names and os.path.getsize(path) != shard.bytes:
                causes.append(f"{shard.file}: {explain_shard(path, shard, info.compression)}")
    return causes


@dataclasses.dataclass(frozen=True)
class WorkerPart:
    """What one of several workers reads of a split.

    Attributes:
      files: shard files (local paths) that it opens, in stored order.
      every: it keeps each `every`-th record of the sequence of all files' records …
      first: … starting with this one (0-based).
      records: examples it will see.
      longest: the largest `records` of all workers; every worker takes the
        steps that the longest part needs.
    """

    files: tuple[str, ...]
    every: int
    first: int
    records: int
    longest: int


# Whole shards are dealt only while the fullest worker has at most this much more than the mean.
_BALANCE = 1.02


def worker_part(info: DatasetInfo, split: str, worker: int = 0, workers: int = 1) -> WorkerPart:
    """Deals the shards of a split to `workers`, or their records where shards do not go round.

    Each record belongs to exactly one worker. Whole shards are dealt (largest first, to
    the emptiest worker) when that is even within 2%; otherwise every worker reads all
    shards and keeps every `workers`-th record.
    """
    if not 0 <= worker < workers:
        raise UsageError(f"worker must be 0 to {workers - 1}, got {worker}")
    shards = info.split(split).shards
    paths = {shard.file: os.path.join(info.directory, shard.file) for shard in shards}
    total = sum(shard.records for shard in shards)
    loads = [0] * workers
    dealt: list[list[str]] = [[] for _ in range(workers)]
    for shard in sorted(shards, key=lambda shard: (-shard.records, shard.file)):
        emptiest = loads.index(min(loads))
        loads[emptiest] += shard.records
        dealt[emptiest].append(shard.file)
    if max(loads) <= _BALANCE * total / workers:
        files = tuple(paths[file] for file in sorted(dealt[worker]))
        return WorkerPart(files, 1, 0, loads[worker], max(loads))
    counts = [len(range(first, total, workers)) for first in range(workers)]
    return WorkerPart(tuple(paths.values()), workers, worker, counts[worker], counts[0])
