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

# Of glibc's mallopt.
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

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
    # Arrow's own allocator keeps 60 MB in every process that used a few.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    _free_early()
    os.environ.setdefault("GRPC_VERBOSITY", "INFO" if verbose else "NONE")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "0" if verbose else "3")
    logging.basicConfig(
        level=logging.INFO if verbose else logging.CRITICAL,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    if not verbose:
        warnings.filterwarnings("ignore")


def _free_early() -> None:
    """Lets the C library keep little of what was freed: not some for every thread, no buffers."""
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_ARENA_MAX, 2)
        mallopt(_M_MMAP_THRESHOLD, 128 << 10)  # as at first, but without growing


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
