"""Repeats requests to object stores: exponential back-off with jitter, bounded in time."""

from __future__ import annotations

import enum
import random
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from beam_pipeline.errors import ImagebeamError, StorageError

T = TypeVar("T")

UNREACHABLE_SECONDS = 3.0  # how long an endpoint that never answered is tried
FIRST_DELAY = 0.1  # seconds
LONGEST_DELAY = 10.0  # seconds


class Kind(enum.Enum):
    """What a failed request means for the one who asked."""

    TRANSIENT = "transient"  # throttled, connection reset, 5xx: repeat it
    UNREACHABLE = "unreachable"  # no connection, no such host
    MISSING = "missing"  # no such object (or bucket, where the answer does not tell)
    NO_BUCKET = "no_bucket"
    DENIED = "denied"  # this object may not be read or written
    CREDENTIALS = "credentials"  # none, wrong ones, or expired
    CHANGED = "changed"  # the object was replaced while it was read
    RANGE = "range"  # the object ends before the bytes asked for
    OTHER = "other"


class Fault(NamedTuple):
    """A failed request, understood.

    Attributes:
      kind: what it means.
      cause: what the server or the network said, one line.
      mend: how to mend it, or "".
    """

    kind: Kind
    cause: str
    mend: str = ""


class ObjectStoreError(StorageError):
    """A request to an object store that failed for good; `kind` says in which way."""

    kind: Kind = Kind.OTHER


def failure(action: str, uri: str, fault: Fault, attempts: int = 1) -> ObjectStoreError:
    """The error for the user: what was tried, where, why it failed, how to mend it."""
    tried = f" after {attempts} attempts" if attempts > 1 else ""
    mend = f" ({fault.mend})" if fault.mend else ""
    error = ObjectStoreError(f"cannot {action} {uri!r}{tried}: {fault.cause}{mend}")
    error.kind = fault.kind
    return error


class Retrier:
    """Runs requests of one store.

    A transient fault is repeated for `seconds`. An endpoint that cannot be
    connected to gets the same patience once it has answered this process;
    before that it is more likely a wrong address, and is given up quickly.

    Args:
      classify: the meaning of an exception; None for one that is no fault of
        storage (a bug), which is then raised as it is.
      seconds: how long one request may be repeated.
    """

    def __init__(self, classify: Callable[[Exception], Fault | None], seconds: float):
        self._classify = classify
        self._seconds = seconds
        self._answered = False

    def call(self, action: str, uri: str, request: Callable[[], T]) -> T:
        """The result of `request()`, which must be safe to repeat.

        Args:
          action: for the message: "read", "list", …
          uri: for the message.

        Raises:
          ObjectStoreError: it failed for good, or too often.
        """
        start = time.monotonic()
        delay = FIRST_DELAY
        attempts = 0
        while True:
            attempts += 1
            try:
                result = request()
            except ImagebeamError:
                raise
            except Exception as error:
                fault = self._classify(error)
                if fault is None:
                    raise
                patience = 0.0
                if fault.kind is Kind.UNREACHABLE and not self._answered:
                    patience = min(UNREACHABLE_SECONDS, self._seconds)
                elif fault.kind in (Kind.TRANSIENT, Kind.UNREACHABLE):
                    patience = self._seconds
                if fault.kind not in (Kind.UNREACHABLE, Kind.CREDENTIALS, Kind.OTHER):
                    self._answered = True
                # Jitter, so that many workers do not come back all at once.
                pause = delay * random.uniform(0.5, 1.0)
                if time.monotonic() - start + pause > patience:
                    raise failure(action, uri, fault, attempts) from error
            else:
                self._answered = True
                return result
            time.sleep(pause)
            delay = min(2 * delay, LONGEST_DELAY)
