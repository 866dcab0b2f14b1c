"""What people write by hand today; each is run as a process of its own by convert.py.

python benchmarks/baselines.py script  SOURCE OUT [PART PARTS]
python benchmarks/baselines.py decode  SOURCE PARTS
python benchmarks/baselines.py tfrecord SOURCE OUT PARTS
"""

from __future__ import annotations

import io
import multiprocessing
import os
import pathlib
import sys

from PIL import Image


def list_images(source: str) -> list[pathlib.Path]:
    return sorted(path for path in pathlib.Path(source).rglob("*") if path.is_file())


def script(source: str, out: str, part: str = "0", parts: str = "1") -> None:
    """The usual script: Pillow checks, tf.train.Example, tf.io.TFRecordWriter."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf

    labels = {name: number for number, name in enumerate(sorted(os.listdir(source)))}
    path = f"{out}-{int(part):05d}-of-{int(parts):05d}"
    with tf.io.TFRecordWriter(path) as writer:
        for image in list_images(source)[int(part) :: int(parts)]:
            data = image.read_bytes()
            picture = Image.open(io.BytesIO(data))
            picture.load()
            features = {
                "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[data])),
                "label": tf.train.Feature(
                    int64_list=tf.train.Int64List(value=[labels[image.parent.name]])
                ),
                "height": tf.train.Feature(int64_list=tf.train.Int64List(value=[picture.height])),
                "width": tf.train.Feature(int64_list=tf.train.Int64List(value=[picture.width])),
            }
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())


def _load(path: pathlib.Path) -> None:
    with Image.open(path) as picture:
        picture.load()


def decode(source: str, parts: str) -> None:
    """The floor: a bare pool that only decodes with Pillow."""
    with multiprocessing.Pool(int(parts)) as pool:
        for _ in pool.imap_unordered(_load, list_images(source), chunksize=64):
            pass


def _write_part(work: tuple[str, str, int, int]) -> None:
    import tfrecord

    source, out, part, parts = work
    labels = {name: number for number, name in enumerate(sorted(os.listdir(source)))}
    writer = tfrecord.TFRecordWriter(f"{out}-{part:05d}-of-{parts:05d}")
    for image in list_images(source)[part::parts]:
        data = image.read_bytes()
        picture = Image.open(io.BytesIO(data))
        picture.load()
        writer.write(
            {
                "image": (data, "byte"),
                "label": (labels[image.parent.name], "int"),
                "height": (picture.height, "int"),
                "width": (picture.width, "int"),
            }
        )
    writer.close()


def tfrecord(source: str, out: str, parts: str) -> None:
    """A script without TensorFlow: the tfrecord package, one process a shard."""
    count = int(parts)
    with multiprocessing.Pool(count) as pool:
        pool.map(_write_part, [(source, out, part, count) for part in range(count)])


if __name__ == "__main__":
    {"script": script, "decode": decode, "tfrecord": tfrecord}[sys.argv[1]](*sys.argv[2:])
