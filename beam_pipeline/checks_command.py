"""`imagebeam verify`, `stats`, `preview`, `show`, `index`: arguments → one function call."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from beam_pipeline.errors import UsageError


def add_commands(subparsers: Any) -> None:
    """Adds the commands that read a dataset back; imports nothing heavy."""
    _add_verify(subparsers)


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
