"""What the README shows is run, so that it stays true."""

from __future__ import annotations

import pathlib
import re

import pytest

from beam_pipeline import cli, read_dataset_info
from beam_pipeline.sample import draw_sample
from tests import fakes

README = pathlib.Path(__file__).parent.parent / "README.md"


def example(name: str) -> str:
    """The code block that follows `<!-- example: name -->`."""
    pattern = rf"<!-- example: {re.escape(name)} -->\n+```python\n(.*?)```"
    found = re.search(pattern, README.read_text(encoding="utf-8"), re.DOTALL)
    assert found, f"README.md has no example {name!r}"
    return found[1]


def test_a_pipeline_of_your_own(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    draw_sample("faces", images=105)
    exec(compile(example("pipeline"), "README", "exec"), {})
    info = read_dataset_info("without_neutral")
    assert info.ledger == {"inputs": 91, "written": 90, "rejected": 1, "duplicates": 0}
    assert "neutral" not in (info.labels or ())


def test_convert_in_a_script(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    draw_sample("faces", images=105)
    exec(compile(example("convert"), "README", "exec"), {})
    assert read_dataset_info("dataset").records == 105


def test_equal_images_are_a_query_over_the_index(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    draw_sample("faces", images=105)
    (tmp_path / "faces" / "sad" / "again.png").write_bytes(fakes.png(1))
    (tmp_path / "faces" / "happy" / "first.png").write_bytes(fakes.png(1))
    convert = ["convert", "--input", "faces", "--output", "dataset", "--quiet"]
    assert cli.main([*convert, "--max_reject_fraction", "0.2"]) == 0
    capsys.readouterr()
    exec(compile(example("equal_images"), "README", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines] == ["key", "happy/first.png", "sad/again.png"]


def test_every_option_of_convert_is_explained() -> None:
    parser = cli.make_parser()
    (subparsers,) = [a for a in parser._actions if a.dest == "command"]
    convert = subparsers.choices["convert"]  # type: ignore[index]
    text = README.read_text(encoding="utf-8")
    missing = [
        option
        for action in convert._actions
        for option in action.option_strings
        if option.startswith("--") and option != "--help" and option not in text
    ]
    assert not missing


@pytest.mark.parametrize(
    "name",
    ["read_tensorflow", "read_tfds", "read_random_access", "read_hugging_face", "read_tfxio"],
)
def test_reading_a_dataset(
    name: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    if name == "read_hugging_face":
        pytest.importorskip("datasets")
    draw_sample("faces", images=105)
    convert = ["convert", "--input", "faces", "--output", "dataset", "--quiet"]
    assert cli.main([*convert, "--max_reject_fraction", "0.2"]) == 0
    scope: dict = {"__name__": "example"}
    exec(compile(example(name), "README", "exec"), scope)
    records = read_dataset_info("dataset").records
    batches = -(-records // 32)
    assert len(list(scope["dataset"])) == (batches if name == "read_tfxio" else records)
