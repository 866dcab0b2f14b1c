"""Keeps the libraries below quiet: Beam's and gRPC's chatter is not for the user."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from typing import NoReturn

from beam_pipeline.lean_imports import load_arrow, without

_M_ARENA_MAX = -8  # of glibc's mallopt

# What Beam imports where it is there, for DataFrames and for stores and databases; those that
# imagebeam itself reads, it reads with modules of its own.
_EXTRAS = (
    *("google.api_core", "google.auth", "google.cloud", "apitools", "oauth2client"),
    *("boto3", "pandas", "pymongo"),
)


def prepare_engine(*, verbose: bool) -> None:
    """Sets logging before Beam is imported; with `verbose` Beam's log is shown."""
    # NumPy's linear algebra would start a thread a core, and is not used.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Arrow's own allocator keeps 60 MB in every process that used a few, and the C library's
    # keeps some for every thread.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    _limit_arenas()
    os.environ.setdefault("GRPC_VERBOSITY", "INFO" if verbose else "NONE")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "0" if verbose else "3")
    logging.basicConfig(
        level=logging.INFO if verbose else logging.CRITICAL,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    if not verbose:
        warnings.filterwarnings("ignore")


def _limit_arenas() -> None:
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)


@contextlib.contextmanager
def fast_imports(*, extras: bool = True) -> Iterator[None]:
    """Makes the import of Beam fast.

    Nothing is collected meanwhile: imports make a million objects that all stay. That
    saves a quarter of the time. Without `extras` half of the rest, and 75 MB, are saved:
    Beam finds none of the packages that it uses where they are installed, as after
    `pip install apache-beam` alone.

    Args:
      extras: whether anything but local files may be read through Beam.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        if extras:
            yield
        else:
            load_arrow()
            with without(*_EXTRAS):
                yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


def leave(code: int) -> NoReturn:
    """Ends the process at once: taking Beam's modules apart would cost another 0.2 s."""
    # Prism and job servers that Beam started are stopped by its exit handlers.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
