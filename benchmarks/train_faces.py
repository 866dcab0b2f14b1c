"""imagebeam train against the script that people write first, on the same real faces.

    python benchmarks/train_faces.py FACES [--epochs N]

FACES is a folder split/class/image (train, validation, test) of 48×48 gray faces. Both
see the same images for the same number of epochs on the same cores, one after the other,
as whole processes. The script: raw bytes in TFRecords, decoded one by one, a plain
convolutional network, Adam, no augmentation. Accuracy is that of the test split; the
script's is its last epoch's, imagebeam's that of the epoch which validation chose.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time

import convert

# The recipe that the README documents for real faces.
RECIPE = (
    *("--augment", "flip,rotate=15,translate=0.1,zoom=0.15,contrast=0.3,erase=0.3,mixup=0.2"),
    *("--dropout", "0.4"),
)


def simple_script(dataset: str, epochs: int) -> None:
    """The script; prints the test accuracy."""
    from training import quiet

    quiet.import_tensorflow()
    import keras
    import tensorflow as tf
    from keras import layers

    def parse(record):  # type: ignore[no-untyped-def]
        spec = {
            "image": tf.io.FixedLenFeature([], tf.string),
            "label": tf.io.FixedLenFeature([], tf.int64),
        }
        features = tf.io.parse_single_example(record, spec)
        image = tf.reshape(tf.io.decode_raw(features["image"], tf.uint8), (48, 48, 1))
        return tf.cast(image, tf.float32) / 255, features["label"]

    def read(split: str):  # type: ignore[no-untyped-def]
        files = tf.io.gfile.glob(f"{dataset}/*-{split}.tfrecord-*")
        return tf.data.TFRecordDataset(files).map(parse)

    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((48, 48, 1))])
    for channels in (32, 64, 128):
        model.add(layers.Conv2D(channels, 3, padding="same", activation="relu"))
        model.add(layers.MaxPooling2D())
    model.add(layers.Flatten())
    model.add(layers.Dense(128, activation="relu"))
    model.add(layers.Dense(7))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="adam", loss=loss, metrics=["accuracy"])
    model.fit(read("train").shuffle(1000).batch(64).prefetch(1), epochs=epochs, verbose=0)
    _, accuracy = model.evaluate(read("test").batch(64), verbose=0)
    print(accuracy)


def run(*command: str) -> tuple[str, float]:
    """(standard output, seconds) of a process."""
    start = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=convert.ROOT)
    return done.stdout, time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("faces", help="folder split/class/image, or a dataset for --script")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--script", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.script:
        simple_script(args.faces, args.epochs)
        return
    dataset, work = convert.DATA / "train-faces", convert.DATA / "train-faces-run"
    command = [sys.executable, "-m", "beam_pipeline"]
    subprocess.run(
        [*command, "convert", "--quiet", "--overwrite", "--input", args.faces, "--output",
         str(dataset), "--encoding", "raw"], check=True, cwd=convert.ROOT,
    )  # fmt: skip
    epochs = str(args.epochs)
    output, seconds = run(sys.executable, __file__, str(dataset), "--script", "--epochs", epochs)
    print(f"script:    {float(output):.1%} of the test split, {seconds:.0f} s", flush=True)
    shutil.rmtree(work, ignore_errors=True)
    _, seconds = run(
        *command, "train", str(dataset), "--workdir", str(work), "--epochs", epochs, *RECIPE
    )
    output, _ = run(*command, "evaluate", str(work), "--split", "test", "--json")
    about = json.loads(output)
    print(
        f"imagebeam: {about['accuracy']:.1%} of the test split, macro-F1 "
        f"{about['macro_f1']:.3f}, {seconds:.0f} s"
    )


if __name__ == "__main__":
    main()
