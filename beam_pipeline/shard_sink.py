"""Beam's TFRecord sink as shards need it: checksums, literal names, steps that may be repeated."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import apache_beam as beam
from apache_beam.io import filebasedsink
from apache_beam.io.filesystem import CompressedFile, CompressionTypes
from apache_beam.io.tfrecordio import _TFRecordSink
from apache_beam.options.value_provider import StaticValueProvider

from beam_pipeline import storage
from beam_pipeline.options import Compression, ConvertOptions

BEAM_COMPRESSION = {
    Compression.NONE: CompressionTypes.UNCOMPRESSED,
    Compression.GZIP: CompressionTypes.GZIP,
}

_RENAME_THREADS = 16


class HashingFile:
    """A writable file that knows the size and the SHA-256 of what went through it."""

    mode = "wb"  # asked for by Beam's compressing file

    def __init__(self, stream: Any):
        self._stream = stream
        self._digest = hashlib.sha256()
        self.bytes = 0

    def write(self, data: bytes) -> None:
        """Writes and hashes `data`."""
        self._digest.update(data)
        self.bytes += len(data)
        self._stream.write(data)

    def tell(self) -> int:
        """Bytes written so far."""
        return self.bytes

    def hexdigest(self) -> str:
        """SHA-256 (hex) of everything written."""
        return self._digest.hexdigest()

    def flush(self) -> None:
        """Flushes the file below."""
        self._stream.flush()

    def close(self) -> None:
        """Closes the file below."""
        self._stream.close()

    @property
    def closed(self) -> bool:
        """Whether the file below is closed."""
        return self._stream.closed

    def readable(self) -> bool:
        """Never."""
        return False

    def writable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Never."""
        return False


class ShardSink(_TFRecordSink):
    """Beam's TFRecord sink with a checksum of every file and safe finalizing.

    Beam's finalize step matches existing files by a glob made of the output path, which
    fails where the path holds `[`, and takes a target of equal size for the same file.
    Here names are literal, and a staged file always wins. Files are opened and renamed
    through our storage, which repeats what an object store refuses for a moment.
    """

    def open(self, temp_path: str) -> Any:
        """Opens a staged file; its checksum is that of the bytes on disk."""
        self.file = HashingFile(storage.open_write(temp_path))
        if self.compression_type == CompressionTypes.UNCOMPRESSED:
            return self.file
        return CompressedFile(self.file, self.compression_type)

    def finalize_write(
        self, init_result: str, writer_results: list[str], unused_pre_finalize: Any
    ) -> Iterator[str]:
        """Renames staged files to their final names, in sorted order; safe to repeat."""
        moves = []
        results = sorted(writer_results)
        for number, source in enumerate(results):
            target = self._get_final_name(number, len(results))
            if storage.exists(source):
                moves.append((source, target))
            elif not storage.exists(target):  # else an earlier attempt renamed it
                raise filebasedsink.BeamIOError(
                    f"neither the staged shard {source} nor its target {target} exists"
                )
        with ThreadPoolExecutor(_RENAME_THREADS) as pool:
            list(pool.map(_replace, moves))
        storage.delete_tree(init_result)
        yield from (target for _, target in moves)


def _replace(move: tuple[str, str]) -> None:
    source, target = move
    if storage.exists(target):
        storage.delete([target])
    storage.rename(source, target)


def sink_for_split(options: ConvertOptions, split: str) -> ShardSink:
    """The sink whose file names are {output}/{name}-{split}.tfrecord-SSSSS-of-NNNNN."""
    prefix = storage.join(options.output.output, f"{options.output.name}-{split}.tfrecord")
    return ShardSink(
        prefix,
        coder=beam.coders.BytesCoder(),
        file_name_suffix="",
        num_shards=0,
        shard_name_template=None,
        compression_type=BEAM_COMPRESSION[options.output.compression],
    )


def finalize_shards(
    options: ConvertOptions, split: str, staging: str, paths: Iterable[str]
) -> list[str]:
    """Renames the staged files of a split, in the order of `paths`, and returns their names.

    Safe to repeat: what an earlier attempt renamed is left alone.
    """
    sink = copy.copy(sink_for_split(options, split))
    assert isinstance(sink.file_path_prefix, StaticValueProvider)
    paths = sorted(paths)
    list(sink.finalize_write(storage.join(staging, "shards", split), paths, None))
    return [sink._get_final_name(number, len(paths)) for number in range(len(paths))]
