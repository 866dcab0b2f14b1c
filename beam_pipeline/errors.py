"""Every exception that imagebeam raises on purpose.

    ImagebeamError               base: the message is meant for the user
    ├── UsageError               an option or argument is wrong          (exit code 2)
    ├── InputError               inputs cannot be listed or understood   (exit code 1)
    ├── OutputError              the output directory cannot be used     (exit code 1)
    ├── StorageError             a file or object store failed           (exit code 1)
    ├── DatasetError             a dataset directory is damaged          (exit code 1)
    ├── ConversionError          a conversion could not be completed     (exit code 1)
    ├── TrainingError            a training run had to stop              (exit code 1)
    └── ImageRejectedError       one input is refused; the job goes on

Only ImageRejectedError turns into a RejectedImage. Any other exception is a
bug or a fault of the environment and stops the job with its cause.
"""

from __future__ import annotations

from beam_pipeline.types import RejectReason


class ImagebeamError(Exception):
    """Base of all errors whose message is written for the user."""

    exit_code = 1


class UsageError(ImagebeamError):
    """An option or a combination of options is wrong."""

    exit_code = 2


class InputError(ImagebeamError):
    """The inputs cannot be listed or understood (empty folder, bad manifest row)."""


class OutputError(ImagebeamError):
    """The output directory cannot be used (finished, foreign, busy, not writable)."""


class StorageError(ImagebeamError):
    """A file system or object store refused or failed, with the path and the cause."""


class DatasetError(ImagebeamError):
    """A dataset directory is missing, unfinished, damaged or of another format."""


class ConversionError(ImagebeamError):
    """A conversion ended without a dataset (does not reconcile, too many rejects, …)."""


class TrainingError(ImagebeamError):
    """A training run had to stop (loss is not a number, no usable checkpoint, …)."""


class ImageRejectedError(ImagebeamError):
    """One input is refused.

    Attributes:
      reason: why, from the fixed enum.
      detail: one readable sentence: what was found, what was expected.
    """

    def __init__(self, reason: RejectReason, detail: str):
        super().__init__(f"{reason.value}: {detail}")
        self.reason = reason
        self.detail = detail

    def __reduce__(self):  # type: ignore[no-untyped-def]
        return (type(self), (self.reason, self.detail))
