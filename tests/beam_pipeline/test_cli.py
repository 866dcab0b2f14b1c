"""The command: exit codes, what goes to which stream, and what stays quiet."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from beam_pipeline import cli
from beam_pipeline.commands import convert as convert_command
from beam_pipeline.version import __version__
from tests import conversions, fakes


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    root = tmp_path_factory.mktemp("source")
    fakes.class_folders(root)
    return root


def command(*arguments: object, **options: object) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "beam_pipeline", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        **options,  # type: ignore[call-overload]
    )


def test_a_conversion(source: pathlib.Path, tmp_path: pathlib.Path) -> None:
    done = command("convert", "--input", source, "--output", tmp_path / "out", "--workers=1")
    assert done.returncode == 0
    # The result goes to stdout, what goes on meanwhile to stderr; Beam says nothing.
    assert "15 inputs = 15 written + 0 rejected + 0 duplicates" in done.stdout
    assert done.stdout.startswith("class  ")
    assert done.stderr.splitlines()[0].startswith("input: folder, root/label/image")
    for noise in ("Warning", "WARNING", "INFO", "apache_beam", "Traceback"):
        assert noise not in done.stderr
    again = command("convert", "--input", source, "--output", tmp_path / "out")
    assert again.returncode == 1
    assert again.stdout == ""
    (message,) = [line for line in again.stderr.splitlines() if line.startswith("imagebeam: ")]
    assert "holds a finished dataset" in message
    assert "Traceback" not in again.stderr


def test_quiet(source: pathlib.Path, tmp_path: pathlib.Path) -> None:
    done = command(
        "convert", "--input", source, "--output", tmp_path / "out", "--workers=1", "--quiet"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "out" / "_SUCCESS").exists()


def test_a_reader_that_goes_away(source: pathlib.Path, tmp_path: pathlib.Path) -> None:
    # imagebeam convert … | true
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "beam_pipeline", "convert", "--workers=1"),
                *("--input", source, "--output", tmp_path / "out"),
            ],
            stdout=write,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(write)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr
    assert (tmp_path / "out" / "_SUCCESS").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "the following arguments are required: COMMAND"),
        (["nothing"], 2, "invalid choice: 'nothing'"),
        (["sample", "dir", "--shards=3"], 2, "unrecognized arguments: --shards=3"),
        (["--help"], 0, ""),
        (["--version"], 0, ""),
    ],
)
def test_usage(
    arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        cli.main(arguments)
    assert raised.value.code == code
    printed = capsys.readouterr()
    assert message in printed.err
    if code == 0:
        assert "Exit codes: 0 done, 1 the run failed, 2 wrong usage" in printed.out or (
            printed.out == f"imagebeam {__version__}\n"
        )


def run_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> int:
    def fail(args: object, rest: object) -> int:
        raise error

    # The parser holds the function; a fresh one holds the patched one.
    monkeypatch.setattr(convert_command, "run", fail)
    return cli.main(["convert", "--input=a", "--output=b"])


def test_exit_codes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from beam_pipeline import errors

    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type)
        and issubclass(kind, errors.ImagebeamError)
        and kind is not errors.ImageRejectedError
    ]
    assert len(kinds) >= 7
    for kind in kinds:
        assert run_with(kind("what and how"), monkeypatch) == (
            2 if kind is errors.UsageError else 1
        )
        assert capsys.readouterr().err == "imagebeam: what and how\n"
    assert run_with(KeyboardInterrupt(), monkeypatch) == 130
    assert capsys.readouterr().err == "imagebeam: interrupted; nothing was kept\n"
    assert run_with(BrokenPipeError(), monkeypatch) == 1
    with pytest.raises(ZeroDivisionError):  # a bug shows its traceback
        run_with(ZeroDivisionError(), monkeypatch)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("nothing", "does not exist"),
        ("empty", "holds no folders and no files"),
    ],
)
def test_zero_inputs(
    what: str, message: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    code = cli.main(
        ["convert", f"--input={tmp_path / what}", f"--output={tmp_path / 'out'}", "--workers=1"]
    )
    assert code == 1
    assert message in capsys.readouterr().err
    assert conversions.names(tmp_path) == ["empty"]


def test_too_many_rejects(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    fakes.write_tree(tmp_path / "in", {"a/1.jpg": b"", "a/2.jpg": fakes.jpeg(1)})
    code = cli.main(
        ["convert", f"--input={tmp_path / 'in'}", f"--output={tmp_path / 'out'}", "--workers=1"]
    )
    printed = capsys.readouterr()
    assert code == 1
    assert printed.out == ""
    assert "imagebeam: 1 of 2 inputs (50.00%) were rejected (1 empty)" in printed.err
    assert conversions.names(tmp_path) == ["in", "out.failed"]
