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


def _run_pool(args: argparse.Namespace) -> int:
    from beam_pipeline.external_pool import serve

    return serve(args.listen)
