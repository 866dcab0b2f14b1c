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

_M_ARENA_MAX = -8  # of glibc's mallopt


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
def fast_imports() -> Iterator[None]:
    """Imports without garbage collection: they make a million objects that all stay.

    Saves a quarter of the time that Beam's import takes.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
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
