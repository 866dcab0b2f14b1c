"""From a runner's traceback of tracebacks to the sentence for the user."""

from __future__ import annotations

import pytest

from beam_pipeline import errors
from beam_pipeline.errors import (
    ConversionError,
    ImagebeamError,
    ImageRejectedError,
    InputError,
    OutputError,
    StorageError,
)
from beam_pipeline.failures import raise_cause
from beam_pipeline.types import RejectReason

PORTABLE = """Traceback (most recent call last):
  File "apache_beam/runners/common.py", line 1498, in process
    return self.do_fn_invoker.invoke_process(windowed_value)
  File "beam_pipeline/write_dataset.py", line 276, in _make_plan
    raise InputError("labels not in the labels file: 'sad'")
beam_pipeline.errors.InputError: labels not in the labels file: 'sad'. It has 1: 'happy'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "apache_beam/runners/worker/sdk_worker.py", line 311, in _execute
    response = task()
beam_pipeline.errors.InputError: labels not in the labels file: 'sad'. It has 1: 'happy' [while running 'Write/MakePlan']
"""


def cause_of(error: Exception) -> BaseException:
    with pytest.raises(BaseException) as raised:  # noqa: PT011
        raise_cause(error)
    return raised.value


def test_an_error_of_ours_is_itself() -> None:
    error = InputError("x")
    assert cause_of(error) is error


def test_an_error_of_ours_behind_others_is_found() -> None:
    inner = StorageError("no such bucket")
    try:
        try:
            raise inner
        except StorageError as error:
            raise RuntimeError("bundle failed") from error
    except RuntimeError as error:
        outer = RuntimeError("job failed")
        outer.__context__ = error
    assert cause_of(outer) is inner


def test_text_of_a_portable_runner() -> None:
    found = cause_of(RuntimeError(PORTABLE))
    assert type(found) is InputError
    assert str(found) == "labels not in the labels file: 'sad'. It has 1: 'happy'"


@pytest.mark.parametrize(
    "kind",
    [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type)
        and issubclass(kind, ImagebeamError)
        and kind not in (ImagebeamError, ImageRejectedError)
    ],
)
def test_every_error_class_is_known(kind: type[ImagebeamError]) -> None:
    text = f"Job failed:\nbeam_pipeline.errors.{kind.__name__}: what happened [while running 'a']"
    found = cause_of(RuntimeError(text))
    assert type(found) is kind
    assert str(found) == "what happened"


def test_messages_of_several_lines_are_whole() -> None:
    text = (
        "Pipeline job-1 failed: beam_pipeline failed\n"
        "beam_pipeline.errors.OutputError: first line\n  second line [while running 'x']\n"
    )
    assert str(cause_of(RuntimeError(text))) == "first line\n  second line"
    assert isinstance(cause_of(RuntimeError(text)), OutputError)


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (OSError(28, "No space left on device"), "the disk is full"),
        (RuntimeError("x\nOSError: [Errno 28] No space left on device\ny"), "the disk is full"),
        (RuntimeError("OSError: [Errno 122] Disk quota exceeded"), "the disk quota is used up"),
        (PermissionError(13, "Permission denied", "/out/x"), "permission denied"),
        (OSError(30, "Read-only file system", "/out"), "the file system is read-only"),
    ],
)
def test_faults_of_the_environment(error: Exception, meaning: str) -> None:
    found = cause_of(error)
    assert isinstance(found, ConversionError)
    assert str(found).startswith(f"the conversion stopped: {meaning} (")
    assert "\n" not in str(found)
    assert found.__cause__ is error


@pytest.mark.parametrize(
    "error",
    [
        ZeroDivisionError("division by zero"),
        RuntimeError("ValueError: something else [while running 'x']"),
        # Not an error class of ours, though it stands in the module.
        RuntimeError("beam_pipeline.errors.RejectReason: x"),
        RuntimeError("ImageRejectedError: corrupt: x"),
    ],
)
def test_a_bug_stays_what_it_is(error: Exception) -> None:
    assert cause_of(error) is error


@pytest.mark.parametrize(
    "text",
    [
        "KeyboardInterrupt [while running 'Write/WriteShards']",
        'Traceback (most recent call last):\n  File "x"\nKeyboardInterrupt\n',
        "Traceback:\n\nRuntimeError: KeyboardInterrupt [while running 'a']\n",
    ],
)
def test_ctrl_c_stays_ctrl_c(text: str) -> None:
    assert isinstance(cause_of(RuntimeError(text)), KeyboardInterrupt)


def test_a_file_called_like_an_interrupt_is_none() -> None:
    error = RuntimeError("ValueError: no KeyboardInterrupt here [while running 'x']")
    assert cause_of(error) is error


def test_a_reject_that_escaped_is_a_bug() -> None:
    assert cause_of(RuntimeError("x")).args == ("x",)
    assert ImageRejectedError(RejectReason.EMPTY, "d").exit_code == 1
