"""`imagebeam convert`: what arguments become, and every message about a wrong one."""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
from typing import Any

import pytest

from beam_pipeline import cli
from beam_pipeline.commands import convert as convert_command
from beam_pipeline.commands.convert import parse_options
from beam_pipeline.commands.values import parse_size
from beam_pipeline.errors import UsageError
from beam_pipeline.options import (
    ColorProfile,
    Compression,
    ConvertOptions,
    Encoding,
    EqualImages,
    FeatureNames,
    FeatureType,
    ImageOptions,
    InputLayout,
    InputOptions,
    OutputOptions,
    ResizeMode,
    Writer,
)


def parse(*arguments: str) -> ConvertOptions:
    args, rest = cli.make_parser().parse_known_args(
        ["convert", "--input=in", "--output=out", *arguments]
    )
    assert rest == []
    return parse_options(args)


def test_defaults_are_those_of_the_library() -> None:
    assert parse() == ConvertOptions(InputOptions(("in",)), OutputOptions("out"), ImageOptions())


@pytest.mark.parametrize(
    ("arguments", "part", "expected"),
    [
        (["--input=b"], "input", {"inputs": ("in", "b")}),
        (["--input_kind=fer2013"], "input", {"kind": "fer2013"}),
        (["--input_layout=split_label"], "input", {"layout": InputLayout.SPLIT_LABEL}),
        (["--label_from=none"], "input", {"label_from": "none"}),
        (["--labels_file=l.txt"], "input", {"labels_file": "l.txt"}),
        (["--path_column=p"], "input", {"path_column": "p"}),
        (["--label_column=l"], "input", {"label_column": "l"}),
        (["--split_column=s"], "input", {"split_column": "s"}),
        (["--group_column=g"], "input", {"group_column": "g"}),
        (["--delimiter=;"], "input", {"delimiter": ";"}),
        (["--delimiter=tab"], "input", {"delimiter": "\t"}),
        (["--delimiter=\\t"], "input", {"delimiter": "\t"}),
        (["--image_root=/r"], "input", {"image_root": "/r"}),
        (
            ["--feature=age:int64", "--feature=a:b:text"],
            "input",
            {"features": {"age": FeatureType.INT64, "a:b": FeatureType.TEXT}},
        ),
        (["--encoding=raw"], "image", {"encoding": Encoding.RAW}),
        (["--resize=480x640"], "image", {"resize": (480, 640)}),
        (["--resize=8X9"], "image", {"resize": (8, 9)}),
        (["--resize_mode=pad"], "image", {"resize_mode": ResizeMode.PAD}),
        (["--channels=1"], "image", {"channels": 1}),
        (["--channels=keep"], "image", {"channels": None}),
        (["--jpeg_quality=80"], "image", {"jpeg_quality": 80}),
        (["--background=white"], "image", {"background": (255, 255, 255)}),
        (["--background=Gray"], "image", {"background": (128, 128, 128)}),
        (["--background=#0a0B0c"], "image", {"background": (10, 11, 12)}),
        (["--background=1,2,255"], "image", {"background": (1, 2, 255)}),
        (["--max_pixels=10"], "image", {"max_pixels": 10}),
        (["--max_bytes=1.5MB"], "image", {"max_bytes": 1_500_000}),
        (["--color_profile=srgb"], "image", {"color_profile": ColorProfile.SRGB}),
        (
            ["--formats=JPG, png,tif"],
            "image",
            {"formats": frozenset({"jpeg", "png", "tiff"})},
        ),
        (["--image_timeout=2.5"], "image", {"image_timeout": 2.5}),
        (["--name=faces"], "output", {"name": "faces"}),
        (
            ["--split=train=0.8, validation=0.1,test=0.1"],
            "output",
            {"split": {"train": 0.8, "validation": 0.1, "test": 0.1}},
        ),
        (["--shard_size=100MiB"], "output", {"shard_size": 100 << 20}),
        (["--num_shards=8"], "output", {"num_shards": 8}),
        (["--num_shards=train=16,test=2"], "output", {"num_shards": {"train": 16, "test": 2}}),
        (["--compression=gzip"], "output", {"compression": Compression.GZIP}),
        (["--feature_names=slim"], "output", {"feature_names": FeatureNames.SLIM}),
        (["--writer=beam"], "output", {"writer": Writer.BEAM}),
        (["--seed=7"], "output", {"seed": 7}),
        (["--overwrite"], "output", {"overwrite": True}),
        (["--max_reject_fraction=0.5"], "output", {"max_reject_fraction": 0.5}),
        (["--license=cc0-1.0"], "output", {"license": "cc0-1.0"}),
        (["--equal_images=drop"], "output", {"equal_images": EqualImages.DROP}),
        (["--max_rejects=3"], "output", {"max_rejects": 3}),
    ],
)
def test_every_option_reaches_its_field(
    arguments: list[str], part: str, expected: dict[str, Any]
) -> None:
    default = parse()
    wanted = dataclasses.replace(
        default, **{part: dataclasses.replace(getattr(default, part), **expected)}
    )
    assert parse(*arguments) == wanted


def test_no_field_is_out_of_reach() -> None:
    # Every field of the options stands in the table above, by its changed value.
    (marker,) = test_every_option_reaches_its_field.pytestmark  # type: ignore[attr-defined]
    reached = {(part, name) for _, part, fields in marker.args[1] for name in fields}
    fields = {
        (part, field.name)
        for part, kind in (
            ("input", InputOptions),
            ("image", ImageOptions),
            ("output", OutputOptions),
        )
        for field in dataclasses.fields(kind)
    }
    assert fields - reached == {("output", "output")}


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--resize=224", "--resize must be HxW in pixels, such as 224x224, got '224'"),
        ("--resize=-1x5", "--resize must be HxW in pixels, such as 224x224, got '-1x5'"),
        ("--resize=0x5", r"resize must be (height, width), each 1 to 65500, got (0, 5)"),
        ("--jpeg_quality=0", "jpeg_quality must be 1 to 100, got 0"),
        (
            "--background=red",
            "--background must be black, white, gray, #rrggbb or R,G,B (0 to 255), got 'red'",
        ),
        ("--background=1,2,256", "background must be three values 0 to 255, got (1, 2, 256)"),
        ("--max_pixels=0", "max_pixels must be at least 1, got 0"),
        ("--max_bytes=0", "max_bytes must be 1 to 2 GiB, got 0"),
        ("--max_bytes=big", "--max_bytes must be a size such as 256MiB, 1.5GB or 4096, got 'big'"),
        ("--shard_size=", "--shard_size must be a size such as 256MiB, 1.5GB or 4096, got ''"),
        (
            "--shard_size=1QB",
            "--shard_size must be a size such as 256MiB, 1.5GB or 4096, got '1QB'",
        ),
        ("--shard_size=-1", "--shard_size must be a size such as 256MiB, 1.5GB or 4096, got '-1'"),
        ("--shard_size=0", "shard_size must be at least 1 byte, got 0"),
        ("--formats=,", "--formats must be a list such as jpeg,png, got ','"),
        ("--image_timeout=-1", "image_timeout must be 0 or more seconds, got -1.0"),
        ("--image_timeout=nan", "image_timeout must be 0 or more seconds, got nan"),
        (
            "--feature=age",
            "--feature must be NAME:TYPE with TYPE in int64, float, bytes, text, got 'age'",
        ),
        (
            "--feature=age:int",
            "--feature must be NAME:TYPE with TYPE in int64, float, bytes, text, got 'age:int'",
        ),
        ("--split=train", "--split must be like train=0.8,test=0.2, got 'train'"),
        ("--split=train=x", "--split must be like train=0.8,test=0.2, got 'train=x'"),
        ("--split=", "--split must be like train=0.8,test=0.2, got ''"),
        ("--split=a=0.5,a=0.5", "--split names 'a' twice: 'a=0.5,a=0.5'"),
        ("--split=a=0.5,b=0.4", "the fractions of --split must add up to 1, got 0.9"),
        ("--split=a=0,b=1", "fraction of split 'a' must be over 0 to 1, got 0.0"),
        ("--split=a=nan,b=1", "fraction of split 'a' must be over 0 to 1, got nan"),
        (
            "--split=a-b=1",
            "a split name must be at most 80 letters, digits, _ and ., starting with a letter or "
            "digit, got 'a-b'",
        ),
        ("--num_shards=0", "num_shards must be 1 to 99999, got 0"),
        ("--num_shards=many", "--num_shards must be like 8 or train=16,test=2, got 'many'"),
        (
            "--num_shards=train=1.5",
            "--num_shards must be like 8 or train=16,test=2, got 'train=1.5'",
        ),
        ("--num_shards=train=0", "num_shards must be 1 to 99999, got 0"),
        ("--num_shards=train=1,train=2", "--num_shards names 'train' twice: 'train=1,train=2'"),
        (
            "--name=my faces",
            "name must be letters, digits and _, starting with a letter, got 'my faces'",
        ),
        (
            f"--name={'x' * 81}",
            f"name must have at most 80 characters, got '{'x' * 81}'",
        ),
        (
            f"--split={'x' * 81}=1",
            "a split name must be at most 80 letters, digits, _ and ., starting with a letter or "
            f"digit, got '{'x' * 81}'",
        ),
        ("--seed=9223372036854775808", "seed must be a 64-bit integer, got 9223372036854775808"),
        ("--max_reject_fraction=2", "max_reject_fraction must be 0 to 1, got 2.0"),
        ("--max_reject_fraction=nan", "max_reject_fraction must be 0 to 1, got nan"),
        ("--max_rejects=-1", "max_rejects must be 0 or more, got -1"),
        ("--label_from=folder", "label_from must be parent, none or regex:…, got 'folder'"),
        (
            "--label_from=regex:(",
            "label_from: 'regex:(' is not a regular expression: missing ), unterminated "
            "subpattern at position 0",
        ),
        (
            "--label_from=regex:x",
            "label_from regex must have a named group (?P<label>…), got 'regex:x'",
        ),
        ("--output=", "output must name a directory, got ''"),
    ],
)
def test_wrong_values(argument: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["convert", "--input=in", "--output=out", argument]) == 2
    assert capsys.readouterr().err == f"imagebeam: {message}\n"


def test_a_feature_given_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="--feature names 'age' twice"):
        parse("--feature=age:int64", "--feature=age:float")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--output=o"], "the following arguments are required: --input"),
        (["--input=i"], "the following arguments are required: --output"),
        (["--input=i", "--output=o", "--encoding=webp"], "invalid choice: 'webp'"),
        (["--input=i", "--output=o", "--seed=x"], "argument --seed: invalid int value: 'x'"),
        (["--input=i", "--output=o", "--channels=2"], "invalid choice: '2'"),
    ],
)
def test_what_argparse_refuses(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        cli.main(["convert", *arguments])
    assert raised.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        ("0", 0),
        ("7B", 7),
        ("1k", 1024),
        ("2KiB", 2048),
        ("1.5GB", 1_500_000_000),
        (" 3 MiB ", 3 << 20),
        ("1TiB", 1 << 40),
        ("1tb", 10**12),
    ],
)
def test_parse_size(text: str, size: int) -> None:
    assert parse_size("--x", text) == size


def test_two_gib_is_the_most_that_one_input_may_have() -> None:
    assert parse("--max_bytes=5GiB").image.max_bytes == (1 << 31) - 1


class Called(Exception):
    pass


def call_with(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The arguments with which convert() would have been called."""
    from beam_pipeline import pipeline

    seen: dict[str, Any] = {}

    def convert(options: ConvertOptions, **rest: Any) -> None:
        seen.update(rest, options=options)
        raise Called

    monkeypatch.setattr(pipeline, "convert", convert)
    args, rest = cli.make_parser().parse_known_args(
        ["convert", "--input=in", "--output=out", *arguments]
    )
    with pytest.raises(Called):
        convert_command.run(args, rest)
    return seen


def test_what_is_not_ours_goes_to_beam(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = call_with(
        ["--runner=flink", "--direct_num_workers", "2", "--quiet", "--workers=3"], monkeypatch
    )
    assert list(seen["beam_options"]) == ["--runner=flink", "--direct_num_workers", "2"]
    assert seen["workers"] == 3
    assert seen["progress"] is False


def test_abbreviations_are_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    # --num_shard must not silently become --num_shards, nor --project ours.
    seen = call_with(["--num_shard=8"], monkeypatch)
    assert seen["options"].output.num_shards is None
    assert list(seen["beam_options"]) == ["--num_shard=8"]


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["convert", "--help"])
    text = capsys.readouterr().out
    subparsers = argparse.ArgumentParser().add_subparsers()
    convert_command.add_command(subparsers)
    actions = subparsers.choices["convert"]._actions
    assert len(actions) > 40
    for action in actions:
        assert action.option_strings[-1] in text
        assert action.help  # an option without a word is no option


@pytest.mark.parametrize(
    "argument",
    [
        "--num_shard=8",  # a slip of the pen
        "--shards=8",
        "stray",
    ],
)
def test_what_nobody_knows_is_refused_before_anything_is_read(
    argument: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in" / "a").mkdir(parents=True)
    (tmp_path / "in" / "a" / "1.jpg").touch()
    code = cli.main(
        ["convert", f"--input={tmp_path / 'in'}", f"--output={tmp_path / 'out'}", argument]
    )
    assert code == 2
    assert f"imagebeam: {argument} is " in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
