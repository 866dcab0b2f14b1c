"""The imagebeam command: arguments → options → one function call; exit codes.

Exit codes: 0 done, 1 the run failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from beam_pipeline.errors import ImagebeamError, UsageError
from beam_pipeline.version import __version__

EXIT_INTERRUPTED = 130


def make_parser() -> argparse.ArgumentParser:
    """The argument parser with all sub-commands; imports nothing heavy."""
    from beam_pipeline.commands import checks, convert, runners, sample
    from training import cli as training_cli

    parser = argparse.ArgumentParser(
        prog="imagebeam",
        description="Labelled images → sharded TFRecords → a trained classifier.",
        epilog="Exit codes: 0 done, 1 the run failed, 2 wrong usage, 130 interrupted.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"imagebeam {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    convert.add_command(subparsers)
    sample.add_command(subparsers)
    checks.add_commands(subparsers)
    runners.add_commands(subparsers)
    training_cli.add_commands(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
      argv: arguments without the program's name; None: the process's.

    Returns:
      The exit code.
    """
    parser = make_parser()
    args, rest = parser.parse_known_args(argv)
    takes_beam_options = getattr(args, "takes_beam_options", False)
    if rest and not takes_beam_options:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        return args.run(args, rest) if takes_beam_options else args.run(args)
    except UsageError as error:
        print(f"imagebeam: {error}", file=sys.stderr)
        return error.exit_code
    except ImagebeamError as error:
        print(f"imagebeam: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("imagebeam: interrupted; nothing was kept", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return 1  # the reader of our output went away (imagebeam … | head)


def console() -> None:
    """The entry point of the installed command."""
    from beam_pipeline.engine import leave

    code = main()
    if sys.argv[1:2] == ["convert"]:
        leave(code)
    sys.exit(code)
