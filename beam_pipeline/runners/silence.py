"""Notices a job in which nothing moves any more, on engines that do not notice it themselves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable

# Equal answers in a row, not a clock: a launcher that was itself stopped for a while
# (Ctrl-Z, a laptop's lid) must not take its own silence for the job's.
_ANSWERS = 20


class SilenceWatch:
    """Asks a job again and again; says once when its answers stay the same for too long.

    Args:
      ask: gives the job's state of work, which differs from answer to answer while any
        worker lives; None when there is none yet. Whatever it raises is not an answer.
      seconds: of equal answers until the job counts as silent.
      on_silence: called once then, in the watch's own thread.

    Attributes:
      silent: whether on_silence was called.
    """

    def __init__(
        self, ask: Callable[[], Hashable], seconds: float, on_silence: Callable[[], object]
    ):
        self.silent = False
        self._ask = ask
        self._pause = seconds / _ANSWERS
        self._on_silence = on_silence
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="silence-watch", daemon=True)

    def __enter__(self) -> SilenceWatch:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()

    def _run(self) -> None:
        last: Hashable = None
        equal = 0
        while not self._stop.wait(self._pause):
            try:
                answer = self._ask()
            except Exception:
                # An engine that is gone ends the wait for its job by itself.
                answer = None
            equal = equal + 1 if answer is not None and answer == last else 0
            last = answer
            if equal >= _ANSWERS:
                self.silent = True
                self._on_silence()
                return
