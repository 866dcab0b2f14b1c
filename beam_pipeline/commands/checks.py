"""`imagebeam verify`, `stats`, `preview`, `show`, `index`: arguments → one function call."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from typing import Any

from beam_pipeline.errors import UsageError


def add_commands(subparsers: Any) -> None:
    """Adds the commands that read a dataset back; imports nothing heavy."""
    _add_verify(subparsers)
    _add_stats(subparsers)
    _add_preview(subparsers)
    _add_show(subparsers)
    _add_index(subparsers)


def _add_source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", nargs="?", help="a dataset written by imagebeam convert")
    parser.add_argument(
        "--glob",
        action="append",
        default=[],
        metavar="PATTERN",
        help="instead: TFRecord files of any tool, such as 'data/*.tfrecord*'; repeatable",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--verbose", action="store_true", help="print Beam's log too")


def _check_source(args: argparse.Namespace) -> None:
    if (args.directory is None) == (not args.glob):
        raise UsageError("give a dataset directory, or --glob, and not both")


def _prepare(args: argparse.Namespace) -> None:
    from beam_pipeline.engine import prepare_engine

    prepare_engine(verbose=args.verbose)


def _add_verify(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "verify",
        help="check a dataset from the first to the last byte",
        description="Checks every shard, record, checksum, label and count, and reports all that "
        "is wrong. Exit code 1 when anything is. Options that are not listed here go to Apache "
        "Beam (--runner, --temp_location …).",
        allow_abbrev=False,
    )
    _add_source(parser)
    parser.add_argument(
        "--decode", action="store_true", help="also decode every image with TensorFlow"
    )
    parser.add_argument(
        "--max_faults",
        type=int,
        default=100,
        metavar="N",
        help="tell N of each kind and file in full; all are counted (default: %(default)s)",
    )
    parser.add_argument(
        "--workers", type=int, metavar="N", help="shards read side by side (default: one a core)"
    )
    parser.set_defaults(run=_run_verify, takes_beam_options=True)


def _run_verify(args: argparse.Namespace, beam_options: list[str]) -> int:
    _check_source(args)
    if args.max_faults < 1:
        raise UsageError(f"--max_faults must be at least 1, got {args.max_faults}")
    _prepare(args)
    from beam_pipeline.checks.verify import verify

    result = verify(
        args.directory,
        globs=args.glob,
        decode=args.decode,
        keep=args.max_faults,
        beam_options=beam_options,
        threads=args.workers,
    )
    if args.json:
        print(json.dumps(result.to_json(), indent=2))
    else:
        print(result.text(shown=args.max_faults), file=sys.stdout if result.ok else sys.stderr)
    return 0 if result.ok else 1


def _add_stats(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "stats",
        help="count and measure a dataset",
        description="Images, bytes, classes and their balance, sizes, formats, pixel values, "
        "and how splits differ. Options that are not listed here go to Apache Beam.",
        allow_abbrev=False,
    )
    _add_source(parser)
    parser.add_argument(
        "--pixels",
        default="1000",
        metavar="N|all|none",
        help="images to decode for pixel statistics (default: %(default)s)",
    )
    parser.add_argument(
        "--workers", type=int, metavar="N", help="shards read side by side (default: one a core)"
    )
    parser.set_defaults(run=_run_stats, takes_beam_options=True)


def _run_stats(args: argparse.Namespace, beam_options: list[str]) -> int:
    _check_source(args)
    pixels = _parse_pixels(args.pixels)
    _prepare(args)
    from beam_pipeline.checks.statistics import gather
    from beam_pipeline.checks.statistics_text import statistics_text

    statistics = gather(
        args.directory,
        globs=args.glob,
        pixels=pixels,
        beam_options=beam_options,
        threads=args.workers,
    )
    print(json.dumps(statistics.to_json(), indent=2) if args.json else statistics_text(statistics))
    return 0


def _add_preview(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "preview",
        help="make a page to look at a dataset",
        description="Writes one HTML page that needs no network: classes, sizes, random images, "
        "rejects, the conversion. Options that are not listed here go to Apache Beam.",
        allow_abbrev=False,
    )
    _add_source(parser)
    parser.add_argument(
        "--output", metavar="FILE", help="the page (default: preview.html in the dataset)"
    )
    parser.add_argument(
        "--png", metavar="FILE", help="write only the contact sheet, as a PNG image"
    )
    parser.add_argument(
        "--per_class",
        type=int,
        default=12,
        metavar="N",
        help="random images of each class and split (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the choice (default: 0)")
    parser.add_argument(
        "--pixels",
        default="1000",
        metavar="N|all|none",
        help="images to decode for pixel statistics (default: %(default)s)",
    )
    parser.add_argument(
        "--workers", type=int, metavar="N", help="shards read side by side (default: one a core)"
    )
    parser.set_defaults(run=_run_preview, takes_beam_options=True)


def _run_preview(args: argparse.Namespace, beam_options: list[str]) -> int:
    _check_source(args)
    if args.png and args.output:
        raise UsageError("give --output for the page, or --png for the contact sheet alone")
    if args.glob and not (args.output or args.png):
        raise UsageError("--glob needs --output FILE: these files have no directory of their own")
    pixels = 0 if args.png else _parse_pixels(args.pixels)
    _prepare(args)
    from beam_pipeline import dataset_info, storage
    from beam_pipeline.checks import preview

    statistics = preview.gather_preview(
        args.directory,
        globs=args.glob,
        per_class=args.per_class,
        pixels=pixels,
        seed=args.seed,
        beam_options=beam_options,
        threads=args.workers,
    )
    output = args.png or args.output
    if args.png:
        preview.write_sheet(statistics, output)
    else:
        output = output or storage.join(args.directory, dataset_info.PREVIEW_FILE)
        preview.write_page(statistics, output, args.seed)
    if args.json:
        print(json.dumps({"output": output, **statistics.to_json()}, indent=2))
    else:
        print(f"preview: {output}")
    return 0


def _parse_pixels(text: str) -> int | None:
    if text in ("all", "none"):
        return None if text == "all" else 0
    if not text.isdigit():
        raise UsageError(f"--pixels must be a number of images, all or none, got {text!r}")
    return int(text)


def _add_show(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "show",
        help="print one record, show its picture",
        description="Prints the features of one record, and shows its picture in the terminal "
        "or writes it to a file.",
        allow_abbrev=False,
    )
    _add_source(parser)
    parser.add_argument("--key", help="of the image, as in the index")
    parser.add_argument("--split", help="the split that --index counts in (default: all)")
    parser.add_argument("--index", type=int, metavar="N", help="record number, from 0 (default: 0)")
    parser.add_argument("--image", metavar="FILE", help="write the picture to FILE")
    parser.set_defaults(run=_run_show)


def _run_show(args: argparse.Namespace) -> int:
    _check_source(args)
    if args.key is not None and args.index is not None:
        raise UsageError("give --key or --index, not both")
    if args.index is not None and args.index < 0:
        raise UsageError(f"--index must be 0 or more, got {args.index}")
    if args.glob and args.split:
        raise UsageError("--split needs a dataset directory; with --glob name the files")
    from beam_pipeline.checks import show

    shown = show.load_record(
        args.directory, globs=args.glob, key=args.key, split=args.split, number=args.index
    )
    if args.image:
        show.write_picture(shown, args.image)
    if args.json:
        print(json.dumps(shown.to_json(), indent=2))
        return 0
    print(shown.text())
    if args.image:
        print(f"picture: {args.image}")
    elif sys.stdout.isatty():
        columns = shutil.get_terminal_size().columns
        print(show.terminal_picture(show.picture(shown), os.environ, columns), end="")
    return 0


def _add_index(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "index",
        help="write index files for NVIDIA DALI",
        description="Writes one index file per shard in the format of DALI's tfrecord2idx: "
        "offset and size of each record. Shards are not read.",
        allow_abbrev=False,
    )
    parser.add_argument("directory", help="a dataset written by imagebeam convert")
    parser.add_argument(
        "--output", metavar="DIR", help="where the files go (default: dali_index in the dataset)"
    )
    parser.set_defaults(run=_run_index)


def _run_index(args: argparse.Namespace) -> int:
    from beam_pipeline.random_access import write_dali_index

    for path in write_dali_index(args.directory, args.output):
        print(path)
    return 0
