"""Checks the files of a dataset directory against each other, before any shard is read."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2

from beam_pipeline import dataset_info, metadata, storage
from beam_pipeline.checks.faults import FaultKind, FaultList
from beam_pipeline.checks.shards import ShardTask, dataset_tasks, parse_info
from beam_pipeline.dataset_info import SHARD_FILE, DatasetInfo
from beam_pipeline.errors import DatasetError


def check_directory(
    directory: str, faults: FaultList
) -> tuple[DatasetInfo | None, list[ShardTask], list[str]]:
    """Looks at everything but the content of shards and index.

    Returns:
      (the dataset or None where conversion.json cannot be read, the shard files that are
      there, the URIs of the index files).

    Raises:
      DatasetError: there is no such directory, or nothing in it is of a dataset.
    """
    entry = storage.stat(directory)
    if entry is None or entry.kind != "directory":
        raise DatasetError(f"{directory} is not a directory; expected a dataset directory")
    entries = {entry.path: entry for entry in storage.list_directory(directory)}
    shards = {name for name in entries if SHARD_FILE.fullmatch(name)}
    if not shards and dataset_info.CONVERSION_FILE not in entries:
        raise DatasetError(
            f"{directory} holds no dataset: no {dataset_info.CONVERSION_FILE}, no shard named "
            "NAME-SPLIT.tfrecord-SSSSS-of-NNNNN. For TFRecord files of other tools give --glob"
        )
    if dataset_info.SUCCESS_FILE not in entries:
        faults.add(
            FaultKind.UNFINISHED,
            dataset_info.SUCCESS_FILE,
            "it is missing: the conversion did not end, or the copy is incomplete",
        )
    info = _read_info(directory, entries, faults)
    tasks: list[ShardTask] = []
    if info is not None:
        _check_info(info, faults)
        _check_files(info, entries, faults)
        for task in dataset_tasks(info):
            if task.file in shards:
                tasks.append(task._replace(size=entries[task.file].size))
            else:
                assert task.expected is not None
                faults.add(
                    FaultKind.SHARD_MISSING,
                    task.file,
                    f"it is missing ({task.expected.records:,} records)",
                )
        shards -= {task.file for task in tasks}
    for file in sorted(shards):
        match = SHARD_FILE.fullmatch(file)
        assert match is not None
        uri = storage.join(directory, file)
        tasks.append(
            ShardTask(file, uri, match["split"], int(match["index"]), None, entries[file].size)
        )
    index = []
    if dataset_info.INDEX_DIRECTORY in entries:
        index_directory = storage.join(directory, dataset_info.INDEX_DIRECTORY)
        index = [e.uri for e in storage.list_directory(index_directory) if e.kind == "file"]
    return info, tasks, index


def _read_info(
    directory: str, entries: dict[str, storage.Entry], faults: FaultList
) -> DatasetInfo | None:
    name = dataset_info.CONVERSION_FILE
    if name not in entries:
        faults.add(
            FaultKind.METADATA_MISSING, name, "it is missing: nothing tells what should be here"
        )
        return None
    try:
        return parse_info(directory)
    except DatasetError as error:
        faults.add(FaultKind.METADATA_DAMAGED, name, str(error))
        return None


def _check_info(info: DatasetInfo, faults: FaultList) -> None:
    """conversion.json against itself."""

    def wrong(what: str, found: object, expected: object) -> None:
        if found != expected:
            faults.add(
                FaultKind.METADATA_WRONG,
                dataset_info.CONVERSION_FILE,
                f"{what} is {found!r}, expected {expected!r}",
            )

    shards = [shard for split in info.splits.values() for shard in split.shards]
    wrong("fingerprint", info.fingerprint, dataset_info.fingerprint(shards))
    ledger = info.ledger
    total = sum(ledger.get(name, 0) for name in ("written", "rejected", "duplicates"))
    wrong("ledger: inputs", ledger.get("inputs"), total)
    wrong("ledger: written", ledger.get("written"), info.records)
    wrong("rejects: sum of all reasons", sum(info.rejects.values()), ledger.get("rejected"))
    wrong("formats: sum of all", sum(info.formats.values()), info.records)
    for split in info.splits.values():
        if info.labels is not None:
            wrong(f"classes of {split.name}: their names", [*split.classes], [*info.labels])
            total = sum(split.classes.values())
            wrong(f"classes of {split.name}: sum", total, split.records)
        for number, shard in enumerate(split.shards):
            expected = dataset_info.shard_file_name(
                info.name, split.name, number, len(split.shards)
            )
            wrong(f"name of shard {number} of {split.name}", shard.file, expected)


def _check_files(info: DatasetInfo, entries: dict[str, storage.Entry], faults: FaultList) -> None:
    """The files that other tools read, against conversion.json."""
    checks: dict[str, Callable[[bytes, DatasetInfo], Iterator[str]]] = {
        dataset_info.DATASET_INFO_FILE: _tfds_info_faults,
        dataset_info.FEATURES_FILE: _tfds_features_faults,
        dataset_info.SCHEMA_FILE: _schema_faults,
        dataset_info.REJECTED_FILE: _rejected_faults,
    }
    if info.labels is not None:
        checks[dataset_info.LABELS_FILE] = _labels_faults
    for name, check in checks.items():
        if name not in entries:
            faults.add(FaultKind.METADATA_MISSING, name, "it is missing")
            continue
        data = storage.read_bytes(storage.join(info.directory, name))
        try:
            for detail in check(data, info):
                faults.add(FaultKind.METADATA_WRONG, name, detail)
        except (ValueError, KeyError, TypeError, AttributeError, text_format.ParseError) as error:
            detail = f"it cannot be read: {type(error).__name__}: {error}"
            faults.add(FaultKind.METADATA_DAMAGED, name, detail)
    if dataset_info.INDEX_DIRECTORY not in entries:
        faults.add(FaultKind.METADATA_MISSING, dataset_info.INDEX_DIRECTORY, "it is missing")


def _tfds_info_faults(data: bytes, info: DatasetInfo) -> Iterator[str]:
    found, expected = json.loads(data), json.loads(metadata.tfds_dataset_info(info))
    yield from _differences(
        {key: found.get(key) for key in ("name", "splits", "supervisedKeys", "fileFormat")},
        {key: expected.get(key) for key in ("name", "splits", "supervisedKeys", "fileFormat")},
    )


def _tfds_features_faults(data: bytes, info: DatasetInfo) -> Iterator[str]:
    yield from _differences(json.loads(data), json.loads(metadata.tfds_features(info)))


def _differences(found: Any, expected: Any, where: str = "") -> Iterator[str]:
    """Sentences on where two JSON values differ."""
    if isinstance(found, dict) and isinstance(expected, dict):
        for key in sorted({*found, *expected}):
            path = f"{where}.{key}" if where else key
            if key not in expected:
                yield f"{path} is there, expected nothing"
            elif key not in found:
                yield f"{path} is missing"
            else:
                yield from _differences(found[key], expected[key], path)
    elif isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        for i, (a, b) in enumerate(zip(found, expected, strict=True)):
            yield from _differences(a, b, f"{where}[{i}]")
    elif found != expected:
        yield f"{where} is {_cut(found)}, expected {_cut(expected)}"


def _cut(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:79] + "…"


def _schema_faults(data: bytes, info: DatasetInfo) -> Iterator[str]:
    found = text_format.Parse(data.decode(), schema_pb2.Schema())
    expected = metadata.schema(info)
    by_name = {feature.name: feature for feature in found.feature}
    for feature in expected.feature:
        other = by_name.pop(feature.name, None)
        if other is None:
            yield f"feature {feature.name!r} is missing"
        elif other != feature:
            fields = [
                field.name
                for field in feature.DESCRIPTOR.fields
                if getattr(feature, field.name) != getattr(other, field.name)
            ]
            yield f"feature {feature.name!r} differs in {', '.join(fields) or 'its fields'}"
    for name in by_name:
        yield f"feature {name!r} is no feature of this dataset"


def _labels_faults(data: bytes, info: DatasetInfo) -> Iterator[str]:
    expected = dataset_info.labels_text(info.labels or ()).split("\n")
    found = data.decode().split("\n")
    for number, (a, b) in enumerate(zip(found, expected, strict=False), 1):
        if a != b:
            yield f"line {number} is {a!r}, expected {b!r}"
    if len(found) != len(expected):
        yield f"it has {len(found) - 1} names, expected {len(expected) - 1}"


def _rejected_faults(data: bytes, info: DatasetInfo) -> Iterator[str]:
    reasons: Counter[str] = Counter()
    for number, line in enumerate(data.decode().splitlines(), 1):
        try:
            reasons[json.loads(line)["reason"]] += 1
        except (ValueError, KeyError, TypeError) as error:
            yield f"line {number} is no reject: {error}"
    if reasons != Counter(info.rejects):
        yield f"its reasons are {dict(reasons)}, expected {dict(info.rejects)}"
