"""`imagebeam train`, `evaluate`, `export`, `predict`, `bench-input`: arguments → one call.

Adding the commands imports no TensorFlow; running one does.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from beam_pipeline.errors import UsageError
from training import quiet
from training.cli_options import add_dataset_options, add_image_options, add_reading_options
from training.config import CLASS_WEIGHTS, MONITORS, PRECISIONS, XLA, TrainConfig, read_config

EXIT_INTERRUPTED = 130


def add_commands(subparsers: Any) -> None:
    """Adds the five commands to argparse sub-parsers."""
    _add_bench(subparsers)
    _add_train(subparsers)
    _add_evaluate(subparsers)
    _add_export(subparsers)
    _add_predict(subparsers)


def _add_parser(
    subparsers: Any, name: str, run: Callable[[argparse.Namespace], int], text: str, more: str
) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        name, help=text, description=f"{text[0].upper()}{text[1:]}. {more}", allow_abbrev=False
    )
    parser.set_defaults(run=run)
    return parser


# Options of `train` that are fields of TrainConfig: name → (type, choices, help).
_TRAIN_OPTIONS: dict[str, tuple[Any, tuple[str, ...] | None, str]] = {
    "train_split": (str, None, "split to train on"),
    "validation_split": (str, None, "auto: validation, else test; none: train without"),
    "model": (str, None, "auto, small_cnn, or a Keras application such as resnet50"),
    "weights": (str, None, "a local weights file to start from"),
    "width": (float, None, "multiplies the channels of small_cnn"),
    "dropout": (float, None, "before the classifier"),
    "augment": (str, None, "auto, none, or names with strengths: flip,rotate=15,mixup=0.2"),
    "batch_size": (int, None, "images per step, over all devices"),
    "epochs": (int, None, "at most"),
    "optimizer": (str, None, "adam, adamw, lion, rmsprop or sgd"),
    "learning_rate": (float, None, "peak (default: the optimizer's usual one)"),
    "weight_decay": (float, None, "decoupled; not for biases and normalization"),
    "warmup_epochs": (float, None, "linear warm-up, then a cosine to zero"),
    "clip_norm": (float, None, "largest gradient norm; 0: no bound"),
    "label_smoothing": (float, None, "0 to under 1"),
    "class_weights": (str, CLASS_WEIGHTS, "balanced: by the stored counts"),
    "ema": (float, None, "decay of the averaged weights that are kept; 0: none"),
    "precision": (str, PRECISIONS, "auto: mixed on a GPU that gains by it"),
    "xla": (str, XLA, "compile the step; auto: on a GPU"),
    "seed": (int, None, "decides weights, order, crops, augmentation, dropout"),
    "monitor": (str, MONITORS, "what the best epoch is judged by"),
    "patience": (int, None, "stop after so many epochs without improvement; 0: never"),
    "checkpoint_steps": (int, None, "also save every so many steps; 0: after epochs only"),
    "cache": (str, ("auto", "none", "memory", "file"), "keep decoded images"),
}


def _add_train(subparsers: Any) -> None:
    parser = _add_parser(
        subparsers,
        "train",
        _run_train,
        "train a classifier on a dataset that imagebeam convert wrote",
        "Killed at any moment and started again with the same command, it goes on from the last "
        "finished epoch.",
    )
    parser.add_argument("dataset", metavar="DATASET", help="dataset directory, local or remote")
    parser.add_argument(
        "--workdir", required=True, metavar="DIR", help="checkpoints, logs and the best weights"
    )
    defaults = {field.name: field.default for field in dataclasses.fields(TrainConfig)}
    for name, (kind, choices, text) in _TRAIN_OPTIONS.items():
        default = defaults[name]
        if default is not None and "default" not in text:
            text += " (default: %(default)s)"
        parser.add_argument(
            f"--{name}", type=kind, choices=choices, default=default, help=text,
            metavar=None if choices else name.upper(),
        )  # fmt: skip
    parser.add_argument(
        "--deterministic", action="store_true", help="equal bits on every run (slower)"
    )
    parser.add_argument(
        "--devices",
        default="",
        metavar="NAMES",
        help="such as GPU:0,GPU:1 or CPU:0 (default: all GPUs, else the CPU)",
    )
    parser.add_argument(
        "--no_tensorboard", dest="tensorboard", action="store_false", help="write no event files"
    )
    parser.add_argument("--quiet", action="store_true", help="print the result only")
    add_image_options(parser)
    add_reading_options(parser)
    add_dataset_options(parser)


def _run_train(args: argparse.Namespace) -> int:
    names = {field.name for field in dataclasses.fields(TrainConfig)}
    values = {name: value for name, value in vars(args).items() if name in names}
    values["devices"] = tuple(name.strip() for name in args.devices.split(",") if name.strip())
    config = TrainConfig(**values)
    quiet.import_tensorflow()
    from training.train import train_and_evaluate

    try:
        result = train_and_evaluate(config, args.workdir, quiet=args.quiet)
    except KeyboardInterrupt:
        print(
            f"\nimagebeam: interrupted; the same command goes on from the last checkpoint in "
            f"{args.workdir}",
            file=sys.stderr,
        )
        return EXIT_INTERRUPTED
    text = f"trained {result.epochs} epochs; best epoch {result.best_epoch}"
    if result.validation:
        text += (
            f": validation accuracy {result.validation['accuracy']:.1%}, macro-F1 "
            f"{result.validation['macro_f1']:.3f}, loss {result.validation['loss']:.4f}"
        )
    print(text)
    print(
        f"next: imagebeam evaluate {args.workdir}    imagebeam export {args.workdir} --output DIR"
    )
    return 0


def _add_evaluate(subparsers: Any) -> None:
    parser = _add_parser(
        subparsers,
        "evaluate",
        _run_evaluate,
        "score a trained model on a split, and show its mistakes",
        "Writes report.json, predictions.csv, report.png and mistakes.png (pictures need the "
        "extra `report`).",
    )
    parser.add_argument("workdir", metavar="WORKDIR", help="the --workdir of imagebeam train")
    parser.add_argument(
        "--dataset",
        metavar="DATASET",
        help="another dataset with the same labels (default: its own)",
    )
    parser.add_argument(
        "--split", help="split to score (default: test, else the one it was validated on)"
    )
    parser.add_argument(
        "--output", metavar="DIR", help="where the report goes (default: WORKDIR/evaluation-SPLIT)"
    )
    parser.add_argument("--batch_size", type=int, default=64, metavar="N")
    parser.add_argument(
        "--mistakes", type=int, default=32, metavar="N", help="on the contact sheet"
    )
    parser.add_argument("--json", action="store_true", help="print report.json")
    add_dataset_options(parser)


def _run_evaluate(args: argparse.Namespace) -> int:
    quiet.import_tensorflow()
    from training.evaluate import evaluate
    from training.report import can_draw
    from training.shards import open_dataset

    config = read_config(args.workdir)
    dataset = args.dataset or config.dataset
    split = args.split
    if split is None:
        splits = open_dataset(dataset, splits=[], check="size", cache_dir=args.cache_dir).splits
        order = ("test", config.validation_split, "validation")
        split = next((name for name in order if name in splits), None)
        if split is None:
            raise UsageError(f"give --split: {dataset} has {', '.join(splits)}")
    output = args.output or os.path.join(args.workdir, f"evaluation-{split}")
    result = evaluate(
        args.workdir,
        dataset,
        split,
        output,
        batch_size=args.batch_size,
        mistakes=args.mistakes,
        check=args.check,
        cache_dir=args.cache_dir,
    )
    if args.json:
        with open(result.files[0], encoding="utf-8") as stream:
            print(stream.read(), end="")
        return 0
    with open(result.files[0], encoding="utf-8") as stream:
        about = json.load(stream)
    print(
        f"split {split}: {about['accuracy']:.1%} of {about['examples']:,} right, macro-F1 "
        f"{about['macro_f1']:.3f}, loss {about['loss']:.4f}"
    )
    wide = max(len("class"), *(len(label) for label in about["labels"]))
    print(f"{'class':{wide}}  precision  recall     F1  images")
    for label, row in about["classes"].items():
        print(
            f"{label:{wide}}  {row['precision']:9.3f}  {row['recall']:6.3f}  {row['f1']:5.3f}  "
            f"{row['examples']:6,}"
        )
    print("written: " + ", ".join(result.files))
    if not can_draw():
        print("no pictures: pip install 'imagebeam[report]' brings matplotlib")
    return 0


def _add_export(subparsers: Any) -> None:
    parser = _add_parser(
        subparsers,
        "export",
        _run_export,
        "write a trained model as SavedModel and .keras, with labels and preprocessing inside",
        "The serving signature takes encoded images of any size.",
    )
    parser.add_argument("workdir", metavar="WORKDIR", help="the --workdir of imagebeam train")
    parser.add_argument("--output", required=True, metavar="DIR", help="where the model goes")
    parser.add_argument("--overwrite", action="store_true", help="replace what is there")


def _run_export(args: argparse.Namespace) -> int:
    quiet.import_tensorflow()
    from training.export import KERAS_FILE, SAVED_MODEL, export

    path = export(args.workdir, args.output, overwrite=args.overwrite)
    print(f"written: {path}/{SAVED_MODEL}, {path}/{KERAS_FILE}")
    print(f"next: imagebeam predict {path} IMAGE …")
    return 0


def _add_predict(subparsers: Any) -> None:
    parser = _add_parser(
        subparsers,
        "predict",
        _run_predict,
        "classify image files",
        "Files go through the same checks as in imagebeam convert. Exit code 1 when one is "
        "refused.",
    )
    parser.add_argument("model", metavar="MODEL", help="what export or train wrote")
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="image files")
    parser.add_argument("--top", type=int, default=3, metavar="N", help="classes to print")
    parser.add_argument("--json", action="store_true", help="one JSON object per file")


def _run_predict(args: argparse.Namespace) -> int:
    if args.top < 1:
        raise UsageError(f"top must be at least 1, got {args.top}")
    quiet.import_tensorflow()
    from training.predict import Predictor

    refused = 0
    for prediction in Predictor(args.model).predict(args.images):
        path = prediction.path.encode("utf-8", "backslashreplace").decode()
        refused += prediction.refused is not None
        if args.json:
            print(json.dumps({**dataclasses.asdict(prediction), "path": path}))
        elif prediction.refused is not None:
            print(f"{path}: refused: {prediction.refused}", file=sys.stderr)
        else:
            top = list(prediction.probabilities.items())[: args.top]
            print(f"{path}: " + ", ".join(f"{label} {value:.1%}" for label, value in top))
    return 1 if refused else 0


def _add_bench(subparsers: Any) -> None:
    parser = _add_parser(
        subparsers,
        "bench-input",
        _run_bench,
        "measure how fast a dataset is read, without training",
        "Compares with the floor (decode only, from memory) and with a naive reader, in turns.",
    )
    parser.add_argument("dataset", metavar="DATASET", help="dataset directory")
    parser.add_argument("--split", default="train", help="(default: %(default)s)")
    parser.add_argument("--batch_size", type=int, default=64, metavar="N")
    parser.add_argument(
        "--seconds", type=float, default=3.0, metavar="S", help="of a turn (default: %(default)s)"
    )
    parser.add_argument(
        "--rounds", type=int, default=5, metavar="N", help="turns of each (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    add_image_options(parser)
    add_reading_options(parser)
    add_dataset_options(parser)


def _run_bench(args: argparse.Namespace) -> int:
    if args.seconds <= 0 or args.rounds < 1:
        raise UsageError("seconds must be over 0, and rounds at least 1")
    quiet.import_tensorflow()
    from training.benchmark_input import benchmark_input
    from training.read_options import ReadOptions
    from training.shards import open_dataset

    info = open_dataset(
        args.dataset, splits=[args.split], check=args.check, cache_dir=args.cache_dir
    )
    rates = benchmark_input(
        info,
        args.split,
        batch_size=args.batch_size,
        image_size=args.image_size,
        channels=args.channels,
        random_crop=args.random_crop,
        resize_mode=args.resize_mode,
        options=ReadOptions(deterministic=False, threads=args.threads, ram_budget=args.ram_budget),
        seconds=args.seconds,
        rounds=args.rounds,
    )
    if args.json:
        print(json.dumps(rates.to_json(), indent=1))
        return 0
    print(
        f"split {args.split}: {info.split(args.split).records:,} images to "
        f"{'×'.join(map(str, rates.target.shape))}, batches of {rates.batch_size}; median of "
        f"{rates.rounds} turns"
    )
    rows = [
        ("imagebeam", rates.reading),
        ("imagebeam, cached in memory", rates.cached),
        ("floor: decode only, from memory", rates.floor),
        ("naive: map, shuffle, batch", rates.naive),
    ]
    for name, value in rows:
        if value is not None:
            print(f"{name:32} {value:12,.0f} images/s  {rates.reading / value:6.2f}")
    print("last column: imagebeam's reading divided by that row")
    return 0
