"""What a reading command reads: the shards of a dataset directory, or foreign TFRecord files."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tensorflow_metadata.proto.v0 import schema_pb2
from tfx_bsl.coders.example_coder import ExamplesToRecordBatchDecoder

from beam_pipeline import dataset_info, storage
from beam_pipeline.checks import framing
from beam_pipeline.checks.wire import Feature, WireError, parse_example
from beam_pipeline.dataset_info import DatasetInfo, ShardInfo
from beam_pipeline.errors import DatasetError, InputError
from beam_pipeline.examples import FEATURE_NAMES, FeatureSpec, Role

# Any "…-00003-of-00010", with or without an ending, as most tools name shards.
_NUMBERED = re.compile(r"(?P<stem>.+?)[-_.](?P<index>\d{3,})-of-(?P<count>\d{3,})(?P<suffix>\D.*)?")
_SPLIT_WORDS = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "eval": "validation",
    "test": "test",
}
_TEXT_ROLES = (Role.LABEL_NAME, Role.KEY, Role.FORMAT, Role.SHA256, Role.DTYPE)
_TYPES = {
    "int64": schema_pb2.INT,
    "float": schema_pb2.FLOAT,
    "bytes": schema_pb2.BYTES,
    "text": schema_pb2.BYTES,
}


class ShardTask(NamedTuple):
    """One shard file to read.

    Attributes:
      file: its name in the directory, or of a foreign file its path.
      uri: where it is.
      split, number: what its name says; a foreign file's split may be "".
      expected: what conversion.json says of it, or None.
      size: of the file in bytes, or -1.
    """

    file: str
    uri: str
    split: str
    number: int
    expected: ShardInfo | None
    size: int


def load_info(directory: str) -> DatasetInfo:
    """conversion.json of a finished dataset, local or remote; shards are not looked at.

    Raises:
      DatasetError: it does not exist, is unfinished, or is damaged.
    """
    entry = storage.stat(directory)
    if entry is None or entry.kind != "directory":
        raise DatasetError(f"{directory} is not a directory; expected a dataset directory")
    for name, meaning in (
        (dataset_info.SUCCESS_FILE, "is not a finished dataset: the conversion did not end"),
        (dataset_info.CONVERSION_FILE, "was not written by imagebeam convert"),
    ):
        if not storage.exists(storage.join(directory, name)):
            raise DatasetError(
                f"{directory} {meaning} (no {name}). Convert again, or for TFRecord files of "
                f"other tools give --glob, such as --glob '{storage.join(directory, '*.tfrecord*')}'"
            )
    return parse_info(directory)


def parse_info(directory: str) -> DatasetInfo:
    """conversion.json; DatasetError when it is damaged."""
    path = storage.join(directory, dataset_info.CONVERSION_FILE)
    try:
        data = json.loads(storage.read_bytes(path))
        if not isinstance(data, dict):
            raise ValueError("not a JSON object")
    except ValueError as error:
        raise DatasetError(f"{path} is damaged: {error}") from error
    return DatasetInfo.from_json(directory, data)


def dataset_tasks(info: DatasetInfo) -> list[ShardTask]:
    """All shards of a dataset, as conversion.json names them."""
    return [
        ShardTask(
            shard.file,
            storage.join(info.directory, shard.file),
            split.name,
            number,
            shard,
            shard.bytes,
        )
        for split in info.splits.values()
        for number, shard in enumerate(split.shards)
    ]


def foreign_tasks(patterns: Sequence[str]) -> list[ShardTask]:
    """The files that match globs, sorted by name; their split is guessed from the name.

    Raises:
      InputError: nothing matches.
    """
    found: dict[str, storage.Entry] = {}
    for pattern in patterns:
        matches = [entry for entry in storage.glob(pattern) if entry.kind == "file"]
        if not matches:
            raise InputError(f"--glob {pattern!r} matches no file")
        found.update((entry.uri, entry) for entry in matches)
    tasks = []
    for uri, entry in sorted(found.items()):
        name = storage.basename(uri)
        numbered = _NUMBERED.fullmatch(name)
        number = int(numbered["index"]) if numbered else 0
        size = entry.size
        if size < 0:
            stat = storage.stat(uri)
            size = -1 if stat is None else stat.size
        tasks.append(ShardTask(uri, uri, _guessed_split(name), number, None, size))
    return tasks


def _guessed_split(name: str) -> str:
    words = re.split(r"[^A-Za-z]+", name.lower())
    return next((_SPLIT_WORDS[word] for word in words if word in _SPLIT_WORDS), "")


def missing_numbers(tasks: Sequence[ShardTask]) -> Iterator[tuple[str, str]]:
    """(file, sentence) for files that a "-SSSSS-of-NNNNN" name promises and nobody has."""
    groups: dict[tuple[str, str, int], set[int]] = {}
    example: dict[tuple[str, str, int], str] = {}
    for task in tasks:
        match = _NUMBERED.fullmatch(storage.basename(task.uri))
        if match is None:
            continue
        group = (
            storage.join(storage.parent(task.uri), match["stem"]),
            match["suffix"] or "",
            int(match["count"]),
        )
        groups.setdefault(group, set()).add(int(match["index"]))
        example[group] = task.file
    for group, numbers in groups.items():
        missing = sorted(set(range(group[2])) - numbers)
        if missing:
            listed = ", ".join(map(str, missing[:10])) + (" …" if len(missing) > 10 else "")
            yield (
                example[group],
                f"its name says {group[2]} shards; missing: {len(missing)} (number {listed})",
            )


@contextlib.contextmanager
def open_shard(task: ShardTask, digest: Any = None) -> Iterator[tuple[Any, Any, bool]]:
    """Opens a shard: gives (raw HashedReader, uncompressed reader, whether it is gzip)."""
    with storage.open_read(task.uri) as stream:
        compressed = stream.read(2) == framing.GZIP_MAGIC
        stream.seek(0)
        raw = framing.HashedReader(stream, digest)
        yield raw, framing.GzipReader(raw) if compressed else raw, compressed


def read_windows(task: ShardTask) -> Iterator[framing.Window]:
    """The records of a shard for commands that only read; data CRCs are not compared.

    Raises:
      DatasetError: the file cannot be read to its end; `imagebeam verify` tells more.
    """
    try:
        with open_shard(task) as (_, stream, compressed):
            for window in framing.scan(stream, check=False):
                if window.damage:
                    damage = window.damage[0]
                    raise DatasetError(
                        f"{task.file}, record {damage.record} (byte {damage.offset}): "
                        f"{damage.detail}. `imagebeam verify` lists all that is wrong"
                    )
                yield window
            if compressed and stream.error:
                raise DatasetError(f"{task.file}: {stream.error}")
    except OSError as error:
        raise DatasetError(f"{task.file} cannot be read: {error}") from error


def metadata_decoder(specs: Sequence[FeatureSpec]) -> ExamplesToRecordBatchDecoder:
    """A decoder of all features but the image: pixels are skipped, not copied."""
    schema = schema_pb2.Schema()
    for spec in specs:
        if spec.role is not Role.IMAGE:
            schema.feature.add(name=spec.name, type=_TYPES[spec.type])
    return ExamplesToRecordBatchDecoder(schema.SerializeToString())


def guess_specs(record: bytes) -> tuple[FeatureSpec, ...]:
    """The features of a foreign dataset, from one of its records.

    Names are known from imagebeam's own two conventions (the second is that of
    TensorFlow's slim and Model Garden); a feature with another name is kept as it is.
    """
    features = parse_example(record)
    names: dict[str, Role] = {}
    for known in FEATURE_NAMES.values():
        for role, name in known.items():
            names.setdefault(name, role)
    specs = []
    for name, feature in sorted(features.items()):
        role = names.get(name, Role.EXTRA)
        if role is Role.IMAGE and feature.kind != "bytes":
            role = Role.EXTRA
        if role in (Role.LABEL, Role.HEIGHT, Role.WIDTH, Role.CHANNELS) and feature.kind != "int64":
            role = Role.EXTRA
        if role in _TEXT_ROLES and feature.kind != "bytes":
            role = Role.EXTRA
        if feature.kind:
            # Other records may have any number of values where only this one was seen.
            kind = "text" if role in _TEXT_ROLES else feature.kind
            specs.append(FeatureSpec(name, role, kind, role is Role.EXTRA))
    if not any(spec.role is Role.IMAGE for spec in specs):
        specs = _largest_is_image(specs, features)
    return tuple(specs)


def _largest_is_image(specs: list[FeatureSpec], features: dict[str, Feature]) -> list[FeatureSpec]:
    """Takes a bytes feature that starts like an image file for the image."""
    starts = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"RIFF", b"BM")
    for i, spec in enumerate(specs):
        values = features[spec.name].values
        if spec.type == "bytes" and len(values) == 1 and values[0].startswith(starts):
            return [
                *specs[:i],
                dataclasses.replace(spec, role=Role.IMAGE, repeated=False),
                *specs[i + 1 :],
            ]
    return specs


def foreign_specs(tasks: Sequence[ShardTask]) -> tuple[FeatureSpec, ...]:
    """guess_specs on the first record that can be read in any of the files."""
    for task in tasks:
        with contextlib.suppress(OSError, WireError), open_shard(task) as (_, stream, _gzip):
            for window in framing.scan(stream):
                for record in window.records:
                    with contextlib.suppress(WireError):
                        specs = guess_specs(record)
                        if specs:
                            return specs
                break
    return ()
