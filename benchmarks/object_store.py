"""Images a second from S3 and GCS: read_bytes against Beam's FileSystems.open.

    python benchmarks/object_store.py [--images N] [--bytes N]

Starts an S3 server (moto) and a GCS server (gcp-storage-emulator) on 127.0.0.1 and puts
images there. The ways to read them take turns image by image, so that a noisy machine
disturbs all alike; quote the ratios. Both servers take most of the time themselves, on the
same cores, and have no distance: threads gain far more from a real store.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import logging
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Callable

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from beam_pipeline import storage
from tests import servers

BUCKET = "images"
THREADS = 8


def ways_to_read(scheme: str, url: str) -> dict[str, Callable[[str], bytes]]:
    """Name → function from a URI to its bytes; all but the first reuse one client."""
    from apache_beam.io.filesystem import CompressionTypes
    from apache_beam.io.filesystems import FileSystems

    def beam(uri: str) -> bytes:
        with FileSystems.open(uri, compression_type=CompressionTypes.UNCOMPRESSED) as stream:
            return stream.read()

    if scheme == "s3":
        client = servers.s3_client(url)

        def library(uri: str) -> bytes:
            key = uri.removeprefix(f"s3://{BUCKET}/")
            return client.get_object(Bucket=BUCKET, Key=key)["Body"].read()

    else:
        from google.cloud.storage import Client

        bucket = Client.create_anonymous_client().bucket(BUCKET)

        def library(uri: str) -> bytes:
            return bucket.blob(uri.removeprefix(f"gs://{BUCKET}/")).download_as_bytes()

    return {
        "FileSystems.open": beam,
        "the vendor's client": library,
        "storage.read_bytes": storage.read_bytes,
    }


def timed(read: Callable[[str], bytes], uri: str, size: int) -> float:
    """Seconds that one image takes; fails when its bytes are not all there."""
    start = time.perf_counter()
    data = read(uri)
    seconds = time.perf_counter() - start
    assert len(data) == size
    return seconds


def compare(scheme: str, url: str, images: int, size: int) -> None:
    """Prints a table for one store."""
    uris = [f"{scheme}://{BUCKET}/{number // 100}/{number}.jpg" for number in range(images)]
    data = os.urandom(size)
    for uri in uris:
        storage.write_bytes(uri, data)
    ways = ways_to_read(scheme, url)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number, uri in enumerate(uris):
        for name, read in ways.items():
            if name != "FileSystems.open" or number % 10 == 0:  # slow: a part of them will do
                seconds[name].append(timed(read, uri, size))
    start = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        assert [len(data) for data in pool.map(storage.read_bytes, uris)] == [size] * images
    threaded = images / (time.perf_counter() - start)
    rates = {name: 1 / statistics.median(found) for name, found in seconds.items()}
    rates[f"storage.read_bytes, {THREADS} threads"] = threaded
    print(f"\n{scheme}://  {images} images of {size:,} bytes, from the median of their times")
    for name, rate in rates.items():
        print(f"  {name:32} {rate:8.0f} images/s  {rate / rates['FileSystems.open']:6.1f}×")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--bytes", type=int, default=46_000)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)

    from apache_beam.io.filesystems import FileSystems
    from apache_beam.options.pipeline_options import GoogleCloudOptions

    with servers.s3_server(BUCKET) as s3, servers.gcs_server(BUCKET) as gcs:
        os.environ["STORAGE_EMULATOR_HOST"] = gcs
        config = storage.StorageConfig(
            s3_endpoint_url=s3, gcs_endpoint=gcs, **servers.S3_CREDENTIALS
        )
        storage.configure(config)
        options = storage.beam_options(config)
        options.view_as(GoogleCloudOptions).no_auth = True  # else it waits for credentials
        FileSystems.set_options(options)
        for scheme, url in (("s3", s3), ("gs", gcs)):
            compare(scheme, url, arguments.images, arguments.bytes)


if __name__ == "__main__":
    main()
