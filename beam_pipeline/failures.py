"""From what a runner raises to what the user needs to know.

Runners report a failed DoFn as text: a traceback of a traceback. Errors that were written
for the user are found in it again and raised as what they were.
"""

from __future__ import annotations

import re
from typing import NoReturn

from beam_pipeline import errors
from beam_pipeline.errors import ConversionError, ImagebeamError

# Also matches names of the same classes inside a traceback's last line.
_OWN_ERROR = re.compile(
    r"^(?:beam_pipeline\.errors\.)?(?P<kind>[A-Z]\w+Error): (?P<message>.+?)"
    r"(?= \[while running|\n\s*(?:Traceback|During|The above|File|\[while)|\n\n|\Z)",
    re.MULTILINE | re.DOTALL,
)
# Beam's own way to pass on a Ctrl-C that reached the process while a DoFn ran in it.
_INTERRUPTED = re.compile(
    r"^(?:RuntimeError: )?KeyboardInterrupt(?: \[while running|\s*\Z)", re.MULTILINE
)
_ENVIRONMENT = {
    "No space left on device": "the disk is full",
    "Disk quota exceeded": "the disk quota is used up",
    "Permission denied": "permission denied",
    "Read-only file system": "the file system is read-only",
}


def raise_cause(error: Exception) -> NoReturn:
    """Raises the user's error that is behind `error`, or `error` itself when it is a bug.

    Raises:
      KeyboardInterrupt: Ctrl-C is what ended the job.
    """
    if _INTERRUPTED.search(str(error)):
        raise KeyboardInterrupt from error
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, ImagebeamError):
            raise seen
        seen = seen.__cause__ or seen.__context__
    text = str(error)
    found: ImagebeamError | None = None
    for match in _OWN_ERROR.finditer(text):
        kind = getattr(errors, match["kind"], None)
        if isinstance(kind, type) and issubclass(kind, ImagebeamError):
            message = match["message"].strip()
            found = kind(message) if kind is not errors.ImageRejectedError else None
    if found is not None:
        raise found from error
    for sign, meaning in _ENVIRONMENT.items():
        if sign in text or sign in repr(error):
            line = next(line for line in (text or repr(error)).splitlines() if sign in line)
            raise ConversionError(
                f"the conversion stopped: {meaning} ({line.strip()}). Nothing was kept"
            ) from error
    raise error
