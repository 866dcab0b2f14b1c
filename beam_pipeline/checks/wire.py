"""Serialized tf.train.Examples without TensorFlow: one record readably, one feature fast."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class WireError(ValueError):
    """The bytes are not a tf.train.Example; the message says where they stop being one."""


class Feature(NamedTuple):
    """One feature of an Example.

    Attributes:
      kind: "bytes", "float", "int64", or "" where the feature holds no list.
      values: its values: bytes, float or int.
    """

    kind: str
    values: list


_KINDS = {1: "bytes", 2: "float", 3: "int64"}


def parse_example(data: bytes) -> dict[str, Feature]:
    """The features of a serialized Example; for few records, tens of microseconds each.

    Raises:
      WireError: `data` is no Example.
    """
    features: dict[str, Feature] = {}
    for number, payload in _fields(data, "Example"):
        if number != 1:
            continue
        for entry_number, entry in _fields(_message(payload, "features"), "Features"):
            if entry_number != 1:
                continue
            name, value = b"", b""
            for part_number, part in _fields(_message(entry, "feature entry"), "feature entry"):
                if part_number == 1:
                    name = bytes(_message(part, "feature name"))
                elif part_number == 2:
                    value = bytes(_message(part, "feature"))
            try:
                features[name.decode()] = _parse_feature(value)
            except UnicodeDecodeError as error:
                raise WireError(f"the feature name {name[:40]!r} is not UTF-8") from error
    return features


def _parse_feature(data: bytes) -> Feature:
    feature = Feature("", [])
    for number, payload in _fields(data, "Feature"):
        if number not in _KINDS:
            continue
        kind = _KINDS[number]
        values: list = []
        for value_number, value in _fields(_message(payload, "value list"), f"{kind} list"):
            if value_number != 1:
                continue
            if kind == "bytes":
                values.append(bytes(_message(value, "bytes value")))
            elif kind == "float":
                raw = value if isinstance(value, (bytes, memoryview)) else b""
                if not raw or len(raw) % 4:
                    raise WireError("a float list whose length is no multiple of 4")
                values += struct.unpack(f"<{len(raw) // 4}f", raw)
            elif isinstance(value, int):
                values.append(_signed(value))
            else:
                position, raw = 0, bytes(value)
                while position < len(raw):
                    item, position = read_varint(raw, position)
                    values.append(_signed(item))
        feature = Feature(kind, values)
    return feature


def _fields(data: bytes | memoryview, what: str) -> Iterator[tuple[int, int | memoryview]]:
    """(field number, varint or payload) of a message; fixed fields come as their bytes."""
    view = memoryview(data)
    position = 0
    while position < len(view):
        tag, position = read_varint(view, position, what)
        wire_type = tag & 7
        if tag >> 3 == 0:
            raise WireError(f"field number 0 in the {what}")
        if wire_type == _VARINT:
            value, position = read_varint(view, position, what)
            yield tag >> 3, value
            continue
        if wire_type == _BYTES:
            length, position = read_varint(view, position, what)
        elif wire_type in (_FIXED64, _FIXED32):
            length = 8 if wire_type == _FIXED64 else 4
        else:
            raise WireError(f"wire type {wire_type} in the {what}")
        if position + length > len(view):
            raise WireError(f"the {what} ends too early")
        yield tag >> 3, view[position : position + length]
        position += length


def _message(payload: int | memoryview, what: str) -> memoryview:
    if isinstance(payload, int):
        raise WireError(f"the {what} is a number, expected bytes")
    return payload


def read_varint(data: bytes | memoryview, position: int, what: str = "message") -> tuple[int, int]:
    """The varint at `position`, and where it ends."""
    result = shift = 0
    while True:
        if position >= len(data) or shift > 63:
            raise WireError(f"the {what} ends in a broken number")
        byte = data[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, position
        shift += 7


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


class BytesFeatureFinder:
    """Finds the one value of a bytes feature in serialized Examples, in about a microsecond.

    It looks for the feature's name and trusts the lengths behind it. A name that stands by
    chance in other data gives a wrong answer, so callers check what they get (by its
    SHA-256) and fall back to parse_example.
    """

    def __init__(self, name: str):
        encoded = name.encode()
        self._needle = b"\x0a" + _varint(len(encoded)) + encoded + b"\x12"

    def find(self, record: bytes) -> tuple[int, int] | None:
        """(start, end) of the value in `record`, or None where it is not found at once."""
        position = record.find(self._needle)
        if position < 0:
            return None
        position += len(self._needle)
        size = len(record)
        try:
            # Length of the feature, tag and length of its bytes list, of its value.
            for tag in (None, 0x0A, 0x0A):
                if tag is not None:
                    if record[position] != tag:
                        return None
                    position += 1
                length = shift = 0
                while True:
                    byte = record[position]
                    position += 1
                    length |= (byte & 0x7F) << shift
                    if byte < 0x80:
                        break
                    shift += 7
        except IndexError:
            return None
        end = position + length
        return (position, end) if end <= size else None

    def without(self, record: bytes, end: int) -> bytes:
        """The Example without this feature, whose value ends at `end`: far less to parse.

        Messages of one field merge, so what stands before and behind the feature becomes
        two messages. Gives `record` itself where it is not laid out as expected.
        """
        name = record.find(self._needle)
        entry = b"\x0a" + _varint(end - name)
        start = name - len(entry)
        size = len(record)
        outer = b"\x0a" + _varint(size)
        inner = size - len(outer)
        outer = b"\x0a" + _varint(inner)
        if len(outer) + inner != size:  # the length of the length depends on it
            outer = b"\x0a" + _varint(inner + 1)
        if start < len(outer) or record[start:name] != entry or not record.startswith(outer):
            return record
        before, behind = record[len(outer) : start], record[end:]
        return b"".join(
            (b"\x0a", _varint(len(before)), before, b"\x0a", _varint(len(behind)), behind)
        )


def _varint(number: int) -> bytes:
    if number < 0x80:
        return _ONE_BYTE[number]
    if number < 0x4000:
        return bytes((number & 0x7F | 0x80, number >> 7))
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


_ONE_BYTE = [bytes([number]) for number in range(0x80)]
