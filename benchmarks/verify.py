"""How fast one core verifies and reads shards, and what the time goes to.

    python benchmarks/verify.py [--megabytes 500] [--image_bytes 46000]

Makes one shard of records with random image bytes in a temporary directory,
then times each step alone on a single thread, after the file is in the page cache.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import tempfile
import time
from collections.abc import Callable

import pyarrow as pa

from beam_pipeline.checks import framing
from beam_pipeline.checks.columns import MetadataReader
from beam_pipeline.checks.shard_check import check_shard
from beam_pipeline.checks.shard_reader import ShardReader, StatisticsRequest
from beam_pipeline.checks.shard_records import ShardCheck
from beam_pipeline.checks.shards import ShardTask
from beam_pipeline.checks.wire import BytesFeatureFinder
from beam_pipeline.dataset_info import ShardInfo
from beam_pipeline.examples import ExampleEncoder, feature_specs
from beam_pipeline.options import Encoding, FeatureNames
from beam_pipeline.tfrecord_format import frame
from beam_pipeline.types import ImageRecord, PreparedImage

INDEX_COLUMNS = (
    "key", "position", "offset", "bytes", "sha256", "label",
    "height", "width", "channels", "format",
)  # fmt: skip


def make_shard(path: str, total: int, image_bytes: int) -> tuple[ShardTask, ShardCheck, pa.Table]:
    """Writes a shard of `total` bytes; gives what check_shard takes."""
    specs = feature_specs(FeatureNames.DEFAULT, labelled=True, encoding=Encoding.PASSTHROUGH)
    encoder = ExampleEncoder(specs)
    rows: dict[str, list] = {name: [] for name in INDEX_COLUMNS}
    digest = hashlib.sha256()
    records = 0
    with open(path, "wb") as stream:
        while stream.tell() < total:
            batch = []
            for number in range(records, records + 64):
                data = b"\xff\xd8\xff" + os.urandom(image_bytes - 3)
                image = PreparedImage(data, "jpeg", 375, 500, 3, "jpeg")
                sha256, key = hashlib.sha256(data).hexdigest(), f"train/happy/{number:08d}.jpg"
                batch.append(ImageRecord(key, image, sha256, number % 7, f"class{number % 7}"))
            for number, data in enumerate(encoder.encode(batch), records):
                record, framed = batch[number - records], frame([data])
                place = (number, stream.tell(), len(framed))
                values = (record.key, *place, record.sha256, record.label_name, 375, 500, 3, "jpeg")
                for column, value in zip(rows.values(), values, strict=True):
                    column.append(value)
                digest.update(framed)
                stream.write(framed)
            records += 64
        size = stream.tell()
    name = "bench-train.tfrecord-00000-of-00001"
    shard = ShardInfo(name, records, size, digest.hexdigest())
    task = ShardTask(name, path, "train", 0, shard, size)
    labels = tuple(f"class{number}" for number in range(7))
    check = ShardCheck(specs, labels, "none", {shard.sha256: name}, keep=10)
    return task, check, pa.table(rows)


def timed(what: str, size: int, records: int, step: Callable[[], object]) -> None:
    step()
    start = time.process_time()
    step()
    seconds = time.process_time() - start
    print(
        f"{what:44} {size / seconds / 1e9:6.2f} GB/s {seconds / records * 1e6:8.1f} µs a record",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--image_bytes", type=int, default=46_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "shard")
        task, check, index = make_shard(path, args.megabytes * 1_000_000, args.image_bytes)
        assert task.expected is not None
        size, records = task.size, task.expected.records
        print(f"{size / 1e6:,.0f} MB, {records:,} records, images of {args.image_bytes:,} bytes")

        def read(step: Callable[[bytes], object] | None = None) -> None:
            with open(path, "rb") as stream:
                while data := stream.read(2 << 20):
                    if step is not None:
                        step(data)

        def scan(check_data: bool, step: Callable[[list[bytes]], object] | None = None) -> None:
            with open(path, "rb") as stream:
                for window in framing.scan(stream, check=check_data):
                    if step is not None:
                        step(window.records)

        find = BytesFeatureFinder("image").find

        def hash_images(batch: list[bytes]) -> None:
            for record in batch:
                start, end = find(record) or (0, 0)
                hashlib.sha256(memoryview(record)[start:end]).hexdigest()

        def read_metadata() -> None:
            slim: list[bytes] = []
            scan(False, lambda batch: slim.extend(map(reader.slim, batch)))
            for start in range(0, len(slim), 2048):
                reader.read(slim[start : start + 2048])

        digest = hashlib.sha256()
        reader = MetadataReader(check.specs)
        timed("read", size, records, read)
        timed("read, SHA-256 of the file", size, records, lambda: read(digest.update))
        timed("read, framing (lengths only)", size, records, lambda: scan(False))
        timed("read, framing, CRC32C of all data", size, records, lambda: scan(True))
        timed("read, framing, metadata columns", size, records, read_metadata)
        timed("read, framing, SHA-256 of images", size, records, lambda: scan(False, hash_images))
        timed("verify: all of these, compared with the index", size, records,
              lambda: check_shard(task, check, index))  # fmt: skip
        request = StatisticsRequest(check.specs, check.labels)
        timed("stats --pixels none", size, records, lambda: ShardReader(task, request).run())
        report = check_shard(task, check, index)
        assert report.faults.total == 0, report.faults.kept[:3]


if __name__ == "__main__":
    main()
