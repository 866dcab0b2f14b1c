"""ImageRecords → serialized tf.train.Example, and the names and types of its features.

Serialization goes through tfx-bsl's C++ encoder, which needs no TensorFlow. That
encoder writes the features of an Example in an order that differs from record to
record (they are a protobuf map), so every column is encoded on its own and the
entries are joined in a fixed order: the same record always gives the same bytes.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
from tfx_bsl.coders.example_coder import RecordBatchToExamplesEncoder

from beam_pipeline.errors import UsageError
from beam_pipeline.options import Encoding, FeatureNames, FeatureType
from beam_pipeline.types import ImageRecord


class Role(str, enum.Enum):
    """What a feature means, whatever it is called."""

    IMAGE = "image"  # bytes: the stored image
    LABEL = "label"  # int64: class id
    LABEL_NAME = "label_name"  # bytes: UTF-8 class name
    KEY = "key"  # bytes: UTF-8
    HEIGHT = "height"  # int64, pixels
    WIDTH = "width"  # int64, pixels
    CHANNELS = "channels"  # int64: 1 or 3
    FORMAT = "format"  # bytes: "jpeg", "png" or "raw"
    SHA256 = "sha256"  # bytes: hex, of the stored image bytes
    DTYPE = "dtype"  # bytes: "uint8", with raw only
    EXTRA = "extra"  # a manifest column kept with --feature


FEATURE_NAMES: dict[FeatureNames, dict[Role, str]] = {
    FeatureNames.DEFAULT: {
        Role.IMAGE: "image",
        Role.LABEL: "label",
        Role.LABEL_NAME: "label_name",
        Role.KEY: "key",
        Role.HEIGHT: "height",
        Role.WIDTH: "width",
        Role.CHANNELS: "channels",
        Role.FORMAT: "format",
        Role.SHA256: "sha256",
        Role.DTYPE: "dtype",
    },
    FeatureNames.SLIM: {
        Role.IMAGE: "image/encoded",
        Role.LABEL: "image/class/label",
        Role.LABEL_NAME: "image/class/text",
        Role.KEY: "image/filename",
        Role.HEIGHT: "image/height",
        Role.WIDTH: "image/width",
        Role.CHANNELS: "image/channels",
        Role.FORMAT: "image/format",
        Role.SHA256: "image/key/sha256",
        Role.DTYPE: "image/dtype",
    },
}

_INT_ROLES = frozenset({Role.LABEL, Role.HEIGHT, Role.WIDTH, Role.CHANNELS})
_LABEL_ROLES = (Role.LABEL, Role.LABEL_NAME)
# Few values stand for many records: each is encoded once.
_REPEATING_ROLES = _INT_ROLES | {Role.LABEL_NAME, Role.FORMAT, Role.DTYPE}

# Examples encoded in one call. Beyond half a megabyte the encoder's buffers leave
# the allocator's free lists and every page is faulted in anew: 10× slower, measured.
_ENCODE_BYTES = 1 << 19  # 512 KiB


@dataclasses.dataclass(frozen=True)
class FeatureSpec:
    """One feature of every Example of a dataset.

    Attributes:
      name: as it stands in the Example.
      role: what it means.
      type: "int64", "float", "bytes" (any) or "text" (UTF-8 bytes).
      repeated: True for a variable-length list, False for exactly one value.
    """

    name: str
    role: Role
    type: str
    repeated: bool = False


def feature_specs(
    names: FeatureNames,
    *,
    labelled: bool,
    encoding: Encoding,
    extra: Mapping[str, tuple[FeatureType, bool]] | None = None,
) -> tuple[FeatureSpec, ...]:
    """The features that a dataset's Examples have, in their stored order (by name).

    Args:
      names: default or slim.
      labelled: whether the dataset has labels; without, the label features are absent.
      encoding: raw adds the dtype.
      extra: further features: name → (type, repeated).
    """
    specs = []
    for role, name in FEATURE_NAMES[names].items():
        if role in _LABEL_ROLES and not labelled:
            continue
        if role is Role.DTYPE and encoding is not Encoding.RAW:
            continue
        kind = "int64" if role in _INT_ROLES else "bytes" if role is Role.IMAGE else "text"
        specs.append(FeatureSpec(name, role, kind))
    for name, (feature_type, repeated) in (extra or {}).items():
        specs.append(FeatureSpec(name, Role.EXTRA, feature_type.value, repeated))
    return tuple(sorted(specs, key=lambda spec: spec.name))


def check_feature_names(names: FeatureNames, extra: Iterable[str]) -> None:
    """Raises UsageError where a kept column has the name of a feature that is written anyway."""
    taken = set(FEATURE_NAMES[names].values()) & set(extra)
    for name in sorted(taken):
        raise UsageError(
            f"--feature {name}: every record has a feature of this name already; rename the "
            "column (the names that are taken: "
            f"{', '.join(sorted(FEATURE_NAMES[names].values()))})"
        )


class ExampleEncoder:
    """Encodes ImageRecords as canonical serialized Examples (features ordered by name)."""

    def __init__(self, specs: Sequence[FeatureSpec]):
        self._specs = tuple(sorted(specs, key=lambda spec: spec.name))
        self._encoder = RecordBatchToExamplesEncoder()

    def encode(self, records: Sequence[ImageRecord]) -> list[bytes]:
        """Serializes `records`, one bytes object each, in their order."""
        if not records:
            return []
        columns = [self._column_entries(spec, records) for spec in self._specs]
        return [
            b"".join((b"\x0a", _varint(sum(map(len, entries))), *entries))
            for entries in zip(*columns, strict=True)
        ]

    def _column_entries(
        self, spec: FeatureSpec, records: Sequence[ImageRecord]
    ) -> Iterator[memoryview]:
        """The `feature` map entry of one column for each record, batch by batch."""
        values = [_feature_value(spec, record) for record in records]
        if spec.role in _REPEATING_ROLES:
            distinct = list(dict.fromkeys(values))
            entries = dict(zip(distinct, self._entries(spec, distinct), strict=True))
            return map(entries.__getitem__, values)
        return self._entries(spec, values)

    def _entries(self, spec: FeatureSpec, values: list) -> Iterator[memoryview]:  # type: ignore[type-arg]
        arrow_type = {"int64": pa.int64(), "float": pa.float32()}.get(spec.type, pa.binary())
        for batch in _encoded_together(values):
            if spec.repeated:
                column = pa.array(batch, pa.list_(arrow_type))
            else:
                column = pa.ListArray.from_arrays(
                    pa.array(np.arange(len(batch) + 1, dtype=np.int32)),
                    pa.array(batch, arrow_type),
                )
            encoded = self._encoder.encode(pa.RecordBatch.from_arrays([column], [spec.name]))
            # An Example with one feature is 0x0a, the length of Features, the map entry.
            for example in encoded:
                yield memoryview(example)[1 + _varint_size(len(example)) :]


def _encoded_together(values: list) -> Iterator[list]:  # type: ignore[type-arg]
    """Cuts a column into batches of bounded bytes.

    A call of the encoder costs as much as encoding many small values, so these go into
    few batches; see _ENCODE_BYTES for the large ones.
    """
    start = size = 0
    for number, value in enumerate(values):
        added = _size(value)
        if number > start and size + added > _ENCODE_BYTES:
            yield values[start:number]
            start, size = number, 0
        size += added
    yield values[start:]


def _size(value: object) -> int:
    if isinstance(value, bytes):
        return len(value)
    return sum(map(_size, value)) if isinstance(value, list) else 8


def _feature_value(spec: FeatureSpec, record: ImageRecord):  # type: ignore[no-untyped-def]
    image = record.image
    match spec.role:
        case Role.IMAGE:
            return image.data
        case Role.LABEL:
            return record.label
        case Role.LABEL_NAME:
            return (record.label_name or "").encode()
        case Role.KEY:
            return record.key.encode()
        case Role.HEIGHT:
            return image.height
        case Role.WIDTH:
            return image.width
        case Role.CHANNELS:
            return image.channels
        case Role.FORMAT:
            return image.format.encode()
        case Role.SHA256:
            return record.sha256.encode()
        case Role.DTYPE:
            return b"uint8"
    value = (record.features or {}).get(spec.name)
    if spec.repeated:
        return [_as_stored(item) for item in value] if isinstance(value, list) else []
    return _as_stored(value)


def _as_stored(value):  # type: ignore[no-untyped-def]
    return value.encode() if isinstance(value, str) else value


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _varint_size(total: int) -> int:
    """Bytes of the length prefix in a message of `total` bytes: tag, length, payload."""
    size = 1
    while total - 1 - size >= 1 << (7 * size):
        size += 1
    return size
