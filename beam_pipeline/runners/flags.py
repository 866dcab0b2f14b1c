"""Beam's options with defaults of our own under them: what the user gave always wins."""

from __future__ import annotations

import contextlib
import difflib
import io
from collections.abc import Sequence
from typing import Any

from apache_beam.options import pipeline_options
from apache_beam.options.pipeline_options import PipelineOptions

from beam_pipeline.errors import UsageError


class Flags:
    """Options for Beam, as given, to which a preset adds what is missing.

    Args:
      given: Beam's options, as on the command line or as an object.

    Raises:
      UsageError: Beam refuses a value.
    """

    def __init__(self, given: Sequence[str] | PipelineOptions):
        if isinstance(given, PipelineOptions):
            self._flags = list(given._flags or ())
            self._overrides = _quietly(
                lambda: given.get_all_options(drop_default=True, retain_unknown_options=True)
            )
        else:
            self._flags = list(given)
            self._overrides = {}
        self._given = {
            flag[2:].split("=", 1)[0].replace("-", "_")
            for flag in self._flags
            if flag.startswith("--")
        } | set(self._overrides)
        # Options that go by several names are known by their destination.
        self._given |= set(_quietly(lambda: self.options().get_all_options(drop_default=True)))

    def given(self, name: str) -> bool:
        """Whether the user, or an earlier default, has set the option `name`."""
        return name in self._given

    def get(self, name: str) -> Any:
        """The value of an option that Beam's Python SDK knows."""
        return _quietly(lambda: self.options().get_all_options())[name]

    def default(self, name: str, value: str | int | bool) -> bool:
        """Sets the option `name` unless it is set; True where it did.

        The option may be one that only a job server knows. True stands for a flag
        without a value.
        """
        if self.given(name):
            return False
        self._set(name, value)
        return True

    def add(self, name: str, value: str) -> None:
        """Adds to a repeatable option, whatever is there already."""
        self._set(name, value)

    def replace(self, name: str, value: str) -> None:
        """Sets an option anew: for another spelling of what was given."""
        self._overrides.pop(name, None)
        self._set(name, value)  # the last of several wins

    def _set(self, name: str, value: str | int | bool) -> None:
        self._given.add(name)
        self._flags.append(f"--{name}" if value is True else f"--{name}={value}")

    def options(self) -> PipelineOptions:
        """Everything together."""
        return PipelineOptions(list(self._flags), **self._overrides)

    def refuse_unknown(self) -> None:
        """Raises UsageError for options that neither imagebeam nor Beam knows.

        Beam drops them with a warning. Job servers know more options than the Python
        SDK, so this is for engines that have none.
        """
        parser = pipeline_options._BeamArgumentParser(allow_abbrev=False)
        for cls in {str(cls): cls for cls in PipelineOptions.__subclasses__()}.values():
            cls._add_argparse_args(parser)
        _, unknown = parser.parse_known_args(self._flags)
        if not unknown:
            return
        name = unknown[0].split("=", 1)[0]
        known = [option for action in parser._actions for option in action.option_strings]
        close = difflib.get_close_matches(name, [*known, *_own_options()], n=1)
        raise UsageError(
            f"{unknown[0]} is an option of neither imagebeam nor Apache Beam"
            + (f"; did you mean {close[0]}?" if close else "")
        )


def _own_options() -> list[str]:
    from beam_pipeline.cli import make_parser

    subparsers = next(a for a in make_parser()._actions if a.dest == "command")
    assert subparsers.choices is not None
    convert = subparsers.choices["convert"]  # type: ignore[call-overload, index]
    return [option for action in convert._actions for option in action.option_strings]


def _quietly(parse: Any) -> Any:
    """The result of `parse`; what argparse prints before it exits becomes a UsageError."""
    text = io.StringIO()
    try:
        with contextlib.redirect_stderr(text):
            return parse()
    except SystemExit:
        message = text.getvalue().strip().splitlines()[-1]
        raise UsageError(f"Apache Beam refuses an option: {message.split('error: ')[-1]}") from None
