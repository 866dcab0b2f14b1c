"""What training does with a GPU: precision, XLA, prefetch to the device, wait for input.

    python benchmarks/gpu.py [--model NAME] [--batch_size N] [--epochs N]

Without a GPU it says so and ends with exit code 2: nothing was checked then. With one, it
checks that batches arrive on the device and that "auto" chooses mixed precision and XLA
as the device allows, and trains with each to show images/s and the share of time spent
waiting for input.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys

import convert

from training import quiet

quiet.import_tensorflow()

import tensorflow as tf  # noqa: E402

from training.config import TrainConfig  # noqa: E402
from training.devices import choose_precision, choose_xla, set_up  # noqa: E402
from training.feeding import Feed  # noqa: E402
from training.read_options import ReadOptions  # noqa: E402
from training.shards import open_dataset  # noqa: E402
from training.target import target_for  # noqa: E402
from training.train import train_and_evaluate  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        print("no GPU: TensorFlow sees none on this machine, so nothing was checked")
        print("with an NVIDIA GPU: pip install 'imagebeam[gpu]', then run this again")
        return 2
    for gpu in gpus:
        print(gpu.name, tf.config.experimental.get_device_details(gpu))
    hardware, strategy = set_up()
    precision, xla = choose_precision("auto", hardware), choose_xla("auto", hardware)
    print(f"auto: {precision}, XLA {'on' if xla else 'off'}, {', '.join(hardware.devices)}")
    dataset = convert.DATA / "read-photos256"
    if not (dataset / "_SUCCESS").exists():
        command = convert.convert_command(
            convert.make_photos(), dataset, "--encoding", "jpeg", "--resize", "256x256"
        )
        subprocess.run(command, check=True, cwd=convert.ROOT)
    info = open_dataset(str(dataset))
    feed = Feed(
        info,
        "train",
        target_for(info, image_size=(224, 224)),
        batch_size=args.batch_size,
        seed=0,
        options=ReadOptions(),
        hardware=hardware,
        strategy=strategy,
    )
    batch = next(feed.training(0, 1, 0))
    image = strategy.experimental_local_results(batch["image"])[0]
    on_device = "GPU" in image.device
    print(f"batches arrive on {image.device}: {'ok' if on_device else 'NOT on the GPU'}")
    variants = {"float32, no XLA": ("float32", "off"), "float32, XLA": ("float32", "on")}
    variants[f"{precision}, no XLA"] = (precision, "off")
    variants[f"{precision}, XLA (auto)"] = ("auto", "auto")
    print(f"{args.model}, batches of {args.batch_size}, 224×224:")
    for number, (name, (policy, compile_)) in enumerate(variants.items()):
        work = convert.DATA / f"gpu-{number}"
        shutil.rmtree(work, ignore_errors=True)
        config = TrainConfig(
            str(dataset),
            model=args.model,
            image_size=(224, 224),
            batch_size=args.batch_size,
            epochs=args.epochs,
            precision=policy,
            xla=compile_,
            validation_split="none",
            tensorboard=False,
        )
        row = train_and_evaluate(config, str(work), quiet=True).log[-1]
        print(
            f"  {name:28} {row['images_per_s']:8,.0f} images/s, "
            f"waiting for input {row['input_wait']:.1%}, loss {row['loss']:.3f}",
            flush=True,
        )
    return 0 if on_device else 1


if __name__ == "__main__":
    sys.exit(main())
