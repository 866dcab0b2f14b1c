"""Imports without the optional packages that libraries load wherever they are installed."""

from __future__ import annotations

import contextlib
import importlib.abc
import sys
from collections.abc import Iterator


class _Absent(importlib.abc.MetaPathFinder):
    """Makes some packages look as if they were not installed."""

    def __init__(self, names: frozenset[str]):
        self._names = names

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        if name in self._names:
            raise ModuleNotFoundError(f"{name} is left out of this import", name=name)


@contextlib.contextmanager
def without(*names: str) -> Iterator[None]:
    """Inside, the modules of these full names cannot be imported; those already loaded can."""
    absent = _Absent(frozenset(names))
    sys.meta_path.insert(0, absent)
    try:
        yield
    finally:
        sys.meta_path.remove(absent)


def load_arrow() -> None:
    """Loads Arrow and settles for it, once and for all, that there is no pandas.

    With its first array Arrow looks for pandas, whose import takes 0.15 s and 30 MB.
    """
    with without("pandas"):
        import numpy as np
        import pyarrow as pa

        pa.array([])  # looks for pandas
        pa.array(np.arange(1))  # loads what NumPy loads late
