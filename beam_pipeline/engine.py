"""Keeps the libraries below quiet: Beam's and gRPC's chatter is not for the user."""

from __future__ import annotations

import logging
import os
import warnings


def prepare_engine(*, verbose: bool) -> None:
    """Sets logging before Beam is imported; with `verbose` Beam's log is shown."""
    os.environ.setdefault("GRPC_VERBOSITY", "INFO" if verbose else "NONE")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "0" if verbose else "3")
    logging.basicConfig(
        level=logging.INFO if verbose else logging.CRITICAL,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    if not verbose:
        warnings.filterwarnings("ignore")
