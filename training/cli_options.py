"""Arguments that several training commands share, and how their values are parsed."""

from __future__ import annotations

import argparse
import re


def image_size(text: str) -> tuple[int, int]:
    """ "224x224" or "224" → (224, 224)."""
    match = re.fullmatch(r"(\d+)(?:[xX×](\d+))?", text)
    if match is None or int(match[1]) < 1 or int(match[2] or 1) < 1:
        raise argparse.ArgumentTypeError(f"must be HEIGHTxWIDTH, such as 224x224, got {text!r}")
    return int(match[1]), int(match[2] or match[1])


def byte_count(text: str) -> int:
    """ "2GiB", "512MiB" or a plain number of bytes → bytes."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])i?B?|B)?", text, re.IGNORECASE)
    if match is None:
        raise argparse.ArgumentTypeError(f"must be a size such as 512MiB or 2GiB, got {text!r}")
    power = " KMGT".index((match[2] or " ").upper())
    return int(float(match[1]) * 1024**power)


def add_dataset_options(parser: argparse.ArgumentParser) -> None:
    """How the dataset is checked and where remote shards go."""
    parser.add_argument(
        "--check",
        default="full",
        choices=("full", "size"),
        help="full: checksum of every shard before the first step; size: names and sizes only",
    )
    parser.add_argument(
        "--cache_dir",
        metavar="DIR",
        help="where remote shards and file caches are kept (default: ~/.cache/imagebeam)",
    )


def add_image_options(parser: argparse.ArgumentParser) -> None:
    """What images become."""
    parser.add_argument(
        "--image_size",
        type=image_size,
        metavar="HxW",
        help="size to bring images to (default: as stored)",
    )
    parser.add_argument(
        "--channels", type=int, choices=(1, 3), help="gray or colour (default: as stored)"
    )
    parser.add_argument(
        "--resize_mode",
        default="stretch",
        choices=("stretch", "crop", "cut"),
        help="crop keeps the aspect ratio and cuts the edges; cut takes the middle, unscaled, of "
        "images that were all converted to one size (default: %(default)s)",
    )
    parser.add_argument(
        "--random_crop",
        action="store_true",
        help="random-resized-crop, or with --resize_mode cut a random place; of JPEGs only the "
        "crop is decoded",
    )


def add_reading_options(parser: argparse.ArgumentParser) -> None:
    """Threads and memory."""
    parser.add_argument("--threads", type=int, metavar="N", help="decoding threads (default: all)")
    parser.add_argument(
        "--ram_budget",
        type=byte_count,
        metavar="SIZE",
        help="memory for buffers, batches in flight and caches, such as 2GiB",
    )
