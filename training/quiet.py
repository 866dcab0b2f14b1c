"""Imports TensorFlow without its start-up chatter."""

from __future__ import annotations

import contextlib
import glob
import os
import sys
from collections.abc import Iterator


def import_tensorflow() -> None:
    """Imports TensorFlow; what it only remarks does not appear on standard error.

    What it prints while being imported comes before its own log level counts, so standard
    error is closed to it for that time (exceptions still come through).
    """
    # Without a GPU, failing to find one is told as an error.
    level = "2" if glob.glob("/dev/nvidia*") else "3"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", level)
    if "tensorflow" in sys.modules or os.environ["TF_CPP_MIN_LOG_LEVEL"] < "2":
        return
    with _standard_error_closed():
        import tensorflow as tf

        tf.get_logger().setLevel("ERROR")


@contextlib.contextmanager
def _standard_error_closed() -> Iterator[None]:
    sys.stderr.flush()
    kept = os.dup(2)
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)
