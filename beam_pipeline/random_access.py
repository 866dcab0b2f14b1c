"""Any record of a dataset by its place or key, without TensorFlow: a map-style dataset.

`RandomAccessDataset` has `__len__` and `__getitem__`, which is what torch's DataLoader, Grain
and others ask of a dataset. Records are found through the Parquet index by their offsets;
nothing is read in advance but the index.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_pipeline import dataset_info, index, storage
from beam_pipeline.checks.shards import load_info
from beam_pipeline.checks.wire import Feature, WireError, parse_example
from beam_pipeline.dataset_info import DatasetInfo
from beam_pipeline.errors import DatasetError
from beam_pipeline.examples import FeatureSpec
from beam_pipeline.tfrecord_format import masked_crc

_COLUMNS = ("key", "outcome", "split", "shard", "position", "offset", "bytes")


class RandomAccessDataset(Sequence):
    """The records of one split, or of all, in stored order (which is a shuffled order).

    Picklable, and safe to use in forked workers: no file stays open between reads.

    Attributes:
      info: the dataset.
    """

    def __init__(self, directory: str, split: str | None = None):
        """Reads the index.

        Args:
          directory: a finished dataset, local or remote.
          split: one split; None for all, in the order of their names.

        Raises:
          DatasetError: there is none, it is compressed, or the split is unknown.
        """
        self.info = load_info(directory)
        if self.info.compression != "none":
            raise DatasetError(
                f"{directory} has {self.info.compression}-compressed shards, in which nothing "
                "can be read at an offset; convert without --compression for random access"
            )
        if split is not None:
            self.info.split(split)  # refuses unknown names
        table = read_index_table(self.info, _COLUMNS)
        table = table.filter(pc.equal(table["outcome"], "written"))
        if split is not None:
            table = table.filter(pc.equal(table["split"], split))
        self._rows = table.sort_by(
            [(name, "ascending") for name in ("split", "shard", "position")]
        ).combine_chunks()
        self._specs = {spec.name: spec for spec in self.info.features}

    def __len__(self) -> int:
        return self._rows.num_rows

    def __getitem__(self, number: Any) -> Any:
        """The features of record `number`: name → value (text as str, lists as lists)."""
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(len(self)))]
        if number < 0:
            number += len(self)
        if not 0 <= number < len(self):
            raise IndexError(f"record {number} of {len(self)}")
        try:
            features = parse_example(self.record(int(number)))
        except WireError as error:
            raise DatasetError(f"{self.place(number)}: not a tf.train.Example: {error}") from error
        return plain_features(features, self._specs)

    def record(self, number: int) -> bytes:
        """The serialized tf.train.Example of record `number`; both checksums are checked."""
        row = self._row(number)
        file = self.info.split(row["split"]).shards[row["shard"]].file
        uri = storage.join(self.info.directory, file)
        data = storage.read_bytes(uri, (row["offset"], row["bytes"]))
        length, length_crc = struct.unpack_from("<QI", data)
        record = data[12:-4]
        (data_crc,) = struct.unpack("<I", data[-4:])
        if (
            length != len(record)
            or masked_crc(data[:8]) != length_crc
            or masked_crc(record) != data_crc
        ):
            raise DatasetError(
                f"{self.place(number)} is damaged: a checksum is wrong. `imagebeam verify "
                f"{self.info.directory}` lists all that is wrong"
            )
        return record

    def place(self, number: int) -> str:
        """Where record `number` lies, for messages."""
        row = self._row(number)
        file = self.info.split(row["split"]).shards[row["shard"]].file
        return f"{file}, record {row['position']:,} (byte {row['offset']:,}, key {row['key']!r})"

    def keys(self) -> list[str]:
        """The keys, in the order of the records."""
        return self._rows["key"].to_pylist()

    def find(self, key: str) -> int:
        """The number of the record with this key; DatasetError names similar keys."""
        found = np.flatnonzero(pc.equal(self._rows["key"], key).to_numpy())
        if len(found):
            return int(found[0])
        import difflib

        close = difflib.get_close_matches(key, self.keys()[:100_000], n=3)
        hint = f"; similar: {', '.join(map(repr, close))}" if close else ""
        raise DatasetError(f"{self.info.directory} has no image with key {key!r}{hint}")

    def _row(self, number: int) -> dict[str, Any]:
        return {name: self._rows[name][number].as_py() for name in _COLUMNS}


def read_index_table(info: DatasetInfo, columns: Sequence[str]) -> pa.Table:
    """All rows of the index of a dataset.

    Raises:
      DatasetError: the index is missing or damaged.
    """
    directory = storage.join(info.directory, dataset_info.INDEX_DIRECTORY)
    try:
        files = [e.uri for e in storage.list_directory(directory) if e.path.endswith(".parquet")]
        schema = pa.schema([index.INDEX_SCHEMA.field(name) for name in columns])
        tables = [index.read_index(storage.read_bytes(u), columns).cast(schema) for u in files]
    except (OSError, ValueError, pa.ArrowException) as error:
        raise DatasetError(f"{directory} cannot be read: {error}") from error
    if not tables:
        raise DatasetError(f"{directory} holds no index file")
    return pa.concat_tables(tables)


def plain_features(
    features: Mapping[str, Feature], specs: Mapping[str, FeatureSpec]
) -> dict[str, Any]:
    """Parsed features as plain values; features without a spec stay lists."""
    plain: dict[str, Any] = {}
    for name, feature in sorted(features.items()):
        spec = specs.get(name)
        values: list[Any] = feature.values
        if spec is not None and spec.type == "text":
            values = [value.decode("utf-8", "replace") for value in values]
        single = spec is not None and not spec.repeated and len(values) == 1
        plain[name] = values[0] if single else values
    return plain


def write_dali_index(directory: str, output: str | None = None) -> list[str]:
    """Writes an index file for every shard, as NVIDIA DALI's tfrecord2idx does.

    A line is the offset of a record and its bytes with framing. The files are made from the
    Parquet index: shards are not read.

    Args:
      directory: a finished dataset with uncompressed shards.
      output: where the files go; None: `dali_index` in the dataset (not beside the shards,
        where a pattern such as `*.tfrecord-*` would take them for shards).

    Returns:
      Their paths, in the order of splits and shards.
    """
    dataset = RandomAccessDataset(directory)
    target = output or storage.join(directory, dataset_info.DALI_INDEX_DIRECTORY)
    rows = dataset._rows
    paths = []
    for split in dataset.info.splits.values():
        of_split = rows.filter(pc.equal(rows["split"], split.name))
        for number, shard in enumerate(split.shards):
            of_shard = of_split.filter(pc.equal(of_split["shard"], number))
            lines = [
                f"{offset} {size}\n"
                for offset, size in zip(
                    of_shard["offset"].to_pylist(), of_shard["bytes"].to_pylist(), strict=True
                )
            ]
            path = storage.join(target, f"{shard.file}.idx")
            storage.write_bytes(path, "".join(lines).encode())
            paths.append(path)
    return paths
