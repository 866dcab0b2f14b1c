"""What a finished dataset directory holds; read and written here, nowhere else.

    {name}-{split}.tfrecord-00000-of-00008   shards
    conversion.json                          everything about the conversion
    dataset_info.json, features.json         the same for TFDS
    label.labels.txt                         one class name per line, line number = id
    schema.pbtxt                             tensorflow_metadata Schema
    index/*.parquet                          one row per input
    rejected.jsonl                           one line per refused input
    _SUCCESS                                 written last

This module needs neither Beam nor TensorFlow: training imports it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence

from beam_pipeline.errors import DatasetError
from beam_pipeline.examples import FeatureSpec, Role

FORMAT_VERSION = 1

CONVERSION_FILE = "conversion.json"
DATASET_INFO_FILE = "dataset_info.json"
FEATURES_FILE = "features.json"
LABELS_FILE = "label.labels.txt"
SCHEMA_FILE = "schema.pbtxt"
INDEX_DIRECTORY = "index"
REJECTED_FILE = "rejected.jsonl"
SUCCESS_FILE = "_SUCCESS"
CARD_FILE = "README.md"
PREVIEW_FILE = "preview.html"
DALI_INDEX_DIRECTORY = "dali_index"

SHARD_FILE = re.compile(
    r"(?P<name>[A-Za-z]\w*)-(?P<split>[^-/]+)\.tfrecord"
    r"-(?P<index>\d{5,})-of-(?P<count>\d{5,})"
)


@dataclasses.dataclass(frozen=True)
class ShardInfo:
    """One shard file: its name in the directory, records, bytes and SHA-256 (hex)."""

    file: str
    records: int
    bytes: int
    sha256: str


@dataclasses.dataclass(frozen=True)
class SplitInfo:
    """One split: its shards in order, and its images per class name (every class is named)."""

    name: str
    shards: tuple[ShardInfo, ...]
    classes: Mapping[str, int]

    @property
    def records(self) -> int:
        """Images of the split."""
        return sum(shard.records for shard in self.shards)

    @property
    def bytes(self) -> int:
        """Bytes of all its shard files."""
        return sum(shard.bytes for shard in self.shards)


@dataclasses.dataclass(frozen=True)
class DatasetInfo:
    """A finished dataset, as conversion.json tells it.

    Attributes:
      directory: where it lies; not stored.
      name: first part of every shard name.
      splits: by name, in order.
      labels: class names by id, or None without labels.
      features: the features of every Example.
      encoding: "passthrough", "jpeg", "png" or "raw".
      feature_names: "default" or "slim".
      compression: "none" or "gzip", of the shard files.
      formats: stored formats → images.
      channels: 1 or 3 when all images agree, else None.
      size: (height, width) when all images agree, else None.
      ledger: inputs, written, rejected, duplicates.
      rejects: reason → inputs.
      fingerprint: SHA-256 over all shard checksums: the identity of the data.
      run: what else is worth knowing (options, command, versions, times); free form.
    """

    directory: str
    name: str
    splits: Mapping[str, SplitInfo]
    labels: tuple[str, ...] | None
    features: tuple[FeatureSpec, ...]
    encoding: str
    feature_names: str
    compression: str
    formats: Mapping[str, int]
    channels: int | None
    size: tuple[int, int] | None
    ledger: Mapping[str, int]
    rejects: Mapping[str, int]
    fingerprint: str
    run: Mapping[str, object] = dataclasses.field(default_factory=dict)

    def feature(self, role: Role) -> str | None:
        """The name of the feature with this role, or None where it is absent."""
        return next((spec.name for spec in self.features if spec.role is role), None)

    def split(self, name: str) -> SplitInfo:
        """The split `name`; DatasetError names the splits there are."""
        try:
            return self.splits[name]
        except KeyError:
            raise DatasetError(
                f"{self.directory} has no split {name!r}; it has {', '.join(self.splits)}"
            ) from None

    @property
    def records(self) -> int:
        """Images of all splits."""
        return sum(split.records for split in self.splits.values())

    def to_json(self) -> dict[str, object]:
        """conversion.json as a dict."""
        return {
            "format_version": FORMAT_VERSION,
            "name": self.name,
            "fingerprint": self.fingerprint,
            "ledger": dict(self.ledger),
            "rejects": dict(self.rejects),
            "labels": None if self.labels is None else list(self.labels),
            "encoding": self.encoding,
            "feature_names": self.feature_names,
            "compression": self.compression,
            "formats": dict(self.formats),
            "channels": self.channels,
            "size": None if self.size is None else list(self.size),
            "features": [
                {**dataclasses.asdict(spec), "role": spec.role.value} for spec in self.features
            ],
            "splits": {
                split.name: {
                    "records": split.records,
                    "bytes": split.bytes,
                    "classes": dict(split.classes),
                    "shards": [dataclasses.asdict(shard) for shard in split.shards],
                }
                for split in self.splits.values()
            },
            "run": dict(self.run),
        }

    @classmethod
    def from_json(cls, directory: str, data: Mapping) -> DatasetInfo:  # type: ignore[type-arg]
        """The opposite of to_json; DatasetError when `data` is something else."""
        if not isinstance(data, Mapping):
            raise DatasetError(
                f"{directory}/{CONVERSION_FILE} is damaged: expected an object, "
                f"found {type(data).__name__}"
            )
        version = data.get("format_version")
        if version != FORMAT_VERSION:
            raise DatasetError(
                f"{directory}/{CONVERSION_FILE}: format_version is {version!r}, "
                f"this version of imagebeam reads {FORMAT_VERSION}"
            )
        try:
            return cls(
                directory=directory,
                name=data["name"],
                splits={
                    name: SplitInfo(
                        name,
                        tuple(ShardInfo(**shard) for shard in split["shards"]),
                        dict(split["classes"]),
                    )
                    for name, split in data["splits"].items()
                },
                labels=None if data["labels"] is None else tuple(data["labels"]),
                features=tuple(
                    FeatureSpec(**{**spec, "role": Role(spec["role"])}) for spec in data["features"]
                ),
                encoding=data["encoding"],
                feature_names=data["feature_names"],
                compression=data["compression"],
                formats=dict(data["formats"]),
                channels=data["channels"],
                size=None if data["size"] is None else (data["size"][0], data["size"][1]),
                ledger=dict(data["ledger"]),
                rejects=dict(data["rejects"]),
                fingerprint=data["fingerprint"],
                run=dict(data["run"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DatasetError(
                f"{directory}/{CONVERSION_FILE} is damaged: {type(error).__name__}: {error}"
            ) from error


def fingerprint(shards: Iterable[ShardInfo]) -> str:
    """SHA-256 (hex) over the names and checksums of all shards, sorted by name."""
    import hashlib

    digest = hashlib.sha256()
    for shard in sorted(shards, key=lambda shard: shard.file):
        digest.update(f"{shard.file} {shard.sha256}\n".encode())
    return digest.hexdigest()


def shard_file_name(name: str, split: str, index: int, count: int) -> str:
    """The TFDS name of a shard; gzip does not show in it (readers look at the bytes)."""
    return f"{name}-{split}.tfrecord-{index:05d}-of-{count:05d}"


def read_dataset_info(directory: str) -> DatasetInfo:
    """Reads a finished local dataset directory and checks what can be checked without reading it.

    Raises:
      DatasetError: it does not exist, is unfinished (no _SUCCESS), was written by
        another version, misses a shard, has a shard of the wrong size, or has a
        stale extra shard. All faults are named, not only the first.
    """
    path = os.path.abspath(directory)
    if not os.path.isdir(path):
        raise DatasetError(f"{directory} is not a directory; expected a dataset directory")
    names = set(os.listdir(path))
    if SUCCESS_FILE not in names:
        hint = (
            "the conversion that wrote it did not finish; run it again"
            if names
            else "the directory is empty"
        )
        raise DatasetError(f"{directory} is not a finished dataset (no {SUCCESS_FILE}): {hint}")
    if CONVERSION_FILE not in names:
        raise DatasetError(
            f"{directory} has no {CONVERSION_FILE}; it was not written by imagebeam convert"
        )
    with open(os.path.join(path, CONVERSION_FILE), encoding="utf-8") as stream:
        try:
            data = json.load(stream)
        except ValueError as error:
            raise DatasetError(f"{directory}/{CONVERSION_FILE} is damaged: {error}") from error
    info = DatasetInfo.from_json(path, data)
    faults = list(shard_faults(info, names))
    if faults:
        raise DatasetError(f"{directory} is damaged:\n  " + "\n  ".join(faults))
    return info


def shard_faults(info: DatasetInfo, names: Iterable[str]) -> Iterable[str]:
    """What is wrong with the shard files of a local directory, judged by name and size."""
    present = {name for name in names if SHARD_FILE.fullmatch(name)}
    expected = {shard.file: shard for split in info.splits.values() for shard in split.shards}
    for file in sorted(expected.keys() - present):
        yield f"{file} is missing ({expected[file].records} records)"
    for file in sorted(present - expected.keys()):
        yield f"{file} does not belong to this dataset (stale or foreign shard)"
    for file in sorted(present & expected.keys()):
        size = os.path.getsize(os.path.join(info.directory, file))
        if size != expected[file].bytes:
            yield f"{file} has {size} bytes, expected {expected[file].bytes}"


def labels_text(labels: Sequence[str]) -> str:
    """label.labels.txt: one name per line (a newline inside a name is escaped)."""
    return "".join(label.replace("\\", "\\\\").replace("\n", "\\n") + "\n" for label in labels)
