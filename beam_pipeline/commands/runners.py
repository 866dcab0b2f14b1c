"""`imagebeam doctor`, `imagebeam status` and `imagebeam worker_pool`: arguments → one call."""

from __future__ import annotations

import argparse
from typing import Any


def add_commands(subparsers: Any) -> None:
    """Adds the sub-commands."""
    parser = subparsers.add_parser(
        "worker_pool",
        help="start workers for an engine (EXTERNAL)",
        description="Serves a Beam worker pool: an engine whose jobs say --environment_type "
        "EXTERNAL asks it for workers. Give every TaskManager a pool of its own.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--listen",
        required=True,
        metavar="HOST:PORT",
        help="address, such as 127.0.0.1:50000 (whoever reaches it can run code here)",
    )
    parser.set_defaults(run=_run_pool)
    parser = subparsers.add_parser(
        "status",
        help="how far the run is that writes a directory",
        description="Tells from an output directory, on disk or in an object store, what is "
        "done. Exit code 0: it holds a finished dataset and nobody writes into it.",
        allow_abbrev=False,
    )
    parser.add_argument("directory", metavar="DIR", help="--output of the conversion")
    parser.set_defaults(run=_run_status)
    parser = subparsers.add_parser(
        "doctor",
        help="look at this installation: engine, codecs, encoder, TensorFlow, paths",
        description="Says what a conversion here would use, and what is missing. Exit code 1: "
        "something is broken.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "path",
        nargs="*",
        metavar="PATH",
        help="an input or output to reach: a local path, gs:// or s3://",
    )
    parser.add_argument("--worker_pool", metavar="HOST:PORT", help="ask its workers for versions")
    parser.add_argument("--flink_master", metavar="HOST:PORT", help="ask a Flink cluster")
    parser.set_defaults(run=_run_doctor)


def _run_pool(args: argparse.Namespace) -> int:
    from beam_pipeline.external_pool import serve

    return serve(args.listen)


def _run_status(args: argparse.Namespace) -> int:
    from beam_pipeline.status import read_status

    status = read_status(args.directory)
    print(status.text())
    return 0 if status.finished is not None and not status.runs else 1


def _run_doctor(args: argparse.Namespace) -> int:
    from beam_pipeline.engine import prepare_engine

    prepare_engine(verbose=False)
    from beam_pipeline.doctor import examine

    report = examine(paths=args.path, worker_pool=args.worker_pool, flink_master=args.flink_master)
    print(report.text())
    return 0 if report.ok else 1
