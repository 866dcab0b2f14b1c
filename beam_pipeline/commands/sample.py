"""`imagebeam sample`: draws a set of image files to try everything with."""

from __future__ import annotations

import argparse
from typing import Any


def add_command(subparsers: Any) -> None:
    """Adds the sub-command."""
    parser = subparsers.add_parser(
        "sample",
        help="draw a sample set of labelled image files",
        description="Draws expression faces in seven class folders, as JPEG and PNG files of "
        "several sizes, with a few difficult and a few broken files among them.",
        allow_abbrev=False,
    )
    parser.add_argument("directory", help="new or empty directory")
    parser.add_argument("--images", type=int, default=700, help="about (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command and returns its exit code."""
    from beam_pipeline.sample import draw_sample

    report = draw_sample(args.directory, images=args.images, seed=args.seed)
    print(f"drew {sum(report.images.values())} faces in {len(report.images)} class folders")
    for title, files in (("difficult, to be converted", report.odd), ("broken", report.broken)):
        print(f"{title}:")
        for name, what in files.items():
            print(f"    {name}: {what}")
    print(f"images: {report.directory}")
    return 0
