"""TFRecord framing, held against TensorFlow's own writer and reader."""

from __future__ import annotations

import pathlib

import pytest
import tensorflow as tf

from beam_pipeline.tfrecord_format import FRAMING_BYTES, frame

RECORDS = [b"", b"x", b"123456789", bytes(range(256)) * 300]


def test_tensorflow_writes_the_same(tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "theirs")
    with tf.io.TFRecordWriter(path) as writer:
        for record in RECORDS:
            writer.write(record)
    assert frame(RECORDS) == pathlib.Path(path).read_bytes()
    assert len(frame(RECORDS)) == sum(map(len, RECORDS)) + FRAMING_BYTES * len(RECORDS)


def test_nothing_is_nothing() -> None:
    assert frame([]) == b""


@pytest.mark.parametrize("position", [3, 9, 14, -1])
def test_a_flipped_bit_is_noticed(tmp_path: pathlib.Path, position: int) -> None:
    data = bytearray(frame([b"some record"]))
    data[position] ^= 1
    path = tmp_path / "damaged"
    path.write_bytes(data)
    with pytest.raises(tf.errors.DataLossError):
        list(tf.data.TFRecordDataset(str(path)))
