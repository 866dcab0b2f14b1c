import argparse
import csv
import json
import os
import pathlib
import pty
import subprocess
import sys

import pytest

from beam_pipeline.cli import main
from tests import fakes
from tests.training.datasets import face, write_dataset
from training import cli, cli_options, staging
from training.benchmark_input import benchmark_input, take_turns
from training.read_options import ReadOptions

ROOT = pathlib.Path(__file__).parents[2]


def test_training_never_imports_beam():
    program = (
        "import importlib, pkgutil, sys, training\n"
        "names = [m.name for m in pkgutil.iter_modules(training.__path__)]\n"
        "assert {'train', 'predict', 'cli'} <= set(names), names\n"
        "for name in names: importlib.import_module(f'training.{name}')\n"
        "bad = [name for name in sys.modules if name.split('.')[0] == 'apache_beam']\n"
        "sys.exit(str(bad) if bad else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-1000:]


def test_adding_the_commands_imports_no_tensorflow():
    program = (
        "import argparse, sys\n"
        "from training import cli\n"
        "cli.add_commands(argparse.ArgumentParser().add_subparsers())\n"
        "assert 'tensorflow' not in sys.modules and 'keras' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_from_dataset_to_prediction_by_commands(tmp_path, capsys):
    data = write_dataset(
        tmp_path / "data", splits={"train": 48, "validation": 12, "test": 12}, size=(24, 24)
    )
    work, model = str(tmp_path / "run"), str(tmp_path / "model")
    options = ["--epochs", "8", "--width", "0.25", "--batch_size", "16", "--augment", "none"]
    assert main(["train", str(data), "--workdir", work, "--dropout", "0", *options]) == 0
    told = capsys.readouterr()
    assert "best epoch" in told.out
    assert "48 to train on, 12 to validate" in told.err
    assert "images/s, waiting for input" in told.err
    assert main(["evaluate", work]) == 0
    assert "split test: " in capsys.readouterr().out  # the test split comes first
    assert main(["evaluate", work, "--split", "train", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["examples"] == 48
    assert main(["export", work, "--output", model]) == 0
    good, bad = tmp_path / "good.png", tmp_path / "bad.jpg"
    good.write_bytes(fakes.encode(face(1, 9, (24, 24), 1)[..., 0], "PNG"))
    bad.write_text("no image")
    capsys.readouterr()
    assert main(["predict", model, str(good)]) == 0
    assert capsys.readouterr().out.startswith(f"{good}: happy ")
    assert main(["predict", model, str(bad), str(good), "--json"]) == 1
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["refused"]
    assert next(iter(second["probabilities"])) == "happy"


def test_user_errors_are_one_message_and_an_exit_code(tmp_path, capsys):
    data = write_dataset(tmp_path / "data")
    work = str(tmp_path / "run")
    cases = [
        (["train", str(tmp_path / "none"), "--workdir", work], 1, "is not a directory"),
        (["train", str(data), "--workdir", work, "--epochs", "0"], 2, "epochs must be at least 1"),
        (["train", str(data), "--workdir", work, "--model", "x"], 2, "model must be auto or one"),
        (["train", str(data), "--workdir", work, "--train_split", "x"], 1, "has no split 'x'"),
        (["evaluate", work], 1, "holds no training run"),
        (["export", work, "--output", str(tmp_path / "m")], 1, "holds no trained model"),
        (["predict", work, "x.png"], 1, "holds no model"),
        (["predict", work, "x.png", "--top", "0"], 2, "top must be at least 1"),
        (["bench-input", str(data), "--split", "val"], 1, "has no split 'val'; it has train"),
        (["bench-input", str(data), "--rounds", "0"], 2, "rounds at least 1"),
    ]
    for arguments, code, message in cases:
        assert main(arguments) == code, arguments
        told = capsys.readouterr().err
        assert message in told
        assert told.startswith("imagebeam: ")
        assert "Traceback" not in told


def test_sizes_are_parsed():
    assert cli_options.image_size("224x160") == (224, 160)
    assert cli_options.image_size("48") == (48, 48)
    assert cli_options.byte_count("2GiB") == 2 << 30
    assert cli_options.byte_count("1.5k") == 1536
    assert cli_options.byte_count("77") == 77
    for parse, text in (
        (cli_options.image_size, "0x5"),
        (cli_options.image_size, "big"),
        (cli_options.byte_count, "x"),
    ):
        with pytest.raises(argparse.ArgumentTypeError, match="must be"):
            parse(text)


def test_every_option_reaches_the_configuration():
    import dataclasses

    from training.config import TrainConfig

    parser = argparse.ArgumentParser()
    cli.add_commands(parser.add_subparsers())
    arguments = vars(parser.parse_args(["train", "d", "--workdir", "w"]))
    for field in dataclasses.fields(TrainConfig):
        assert field.name in arguments, field.name
        if field.name not in ("dataset", "devices"):
            assert arguments[field.name] == field.default, field.name


def test_a_command_prints_nothing_of_tensorflow(tmp_path):
    data = write_dataset(tmp_path / "data", splits={"train": 12})
    command = [sys.executable, "-m", "beam_pipeline", "train", str(data), "--epochs", "1"]
    environment = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
    done = subprocess.run(
        [*command, "--workdir", str(tmp_path / "run"), "--width", "0.1"],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert len(done.stderr.splitlines()) == 2, done.stderr  # what is trained, and one epoch
    assert len(done.stdout.splitlines()) == 2


def test_on_a_terminal_the_line_is_rewritten(tmp_path):
    from training.train_log import ProgressLine

    reader, writer = pty.openpty()
    with os.fdopen(writer, "w") as stream:
        line = ProgressLine(stream)
        line.show("step 1")
        line.say("epoch 1")
        shown = ""
        while not shown.endswith("\n"):
            shown += os.read(reader, 1000).decode()
    assert shown == "\rstep 1\r      \repoch 1\r\n"
    os.close(reader)


def test_bench_input_reports_all_readers(tmp_path, capsys):
    data = write_dataset(tmp_path, splits={"train": 60}, encoding="jpeg")
    short = ["--seconds", "0.1", "--rounds", "1", "--batch_size", "8"]
    assert main(["bench-input", str(data), *short]) == 0
    told = capsys.readouterr().out
    for text in ("60 images to 12×16×1", "cached in memory", "floor: decode only", "naive: map"):
        assert text in told
    assert main(["bench-input", str(data), *short, "--json", "--random_crop"]) == 0
    numbers = json.loads(capsys.readouterr().out)
    assert numbers["cached"] is None
    assert min(numbers["reading"], numbers["floor"], numbers["naive"]) > 0


def test_turns_measure_what_a_reader_can_do():
    import time

    def reader(pause):
        import numpy as np

        while True:
            time.sleep(pause)
            yield {"image": np.zeros((10, 1, 1, 1))}

    rates = take_turns({"slow": reader(0.02), "fast": reader(0.01)}, 0.2, 2)
    assert rates["slow"].wall == pytest.approx(500, rel=0.3)
    assert rates["fast"].wall == pytest.approx(1000, rel=0.3)
    assert rates["fast"].cpu > rates["fast"].wall  # it sleeps most of the time


def test_the_reported_input_wait_agrees_with_bench_input(tmp_path):
    """A model that costs next to nothing on images that cost much: reading decides."""
    from tests.training import runs

    data = write_dataset(
        tmp_path / "data", splits={"train": 384}, encoding="jpeg", size=(300, 400), channels=3
    )
    options = ReadOptions(deterministic=False)
    rates = benchmark_input(
        str(data), "train", batch_size=16, image_size=(32, 32), options=options,
        seconds=0.7, rounds=3,
    )  # fmt: skip
    result = runs.train(
        data, tmp_path / "run", model="test_linear", image_size=(32, 32), cache="none",
        augment="none", batch_size=16, epochs=3, ema=0.0,
    )  # fmt: skip
    row = result.log[-1]
    assert row["input_wait"] > 0.3
    # Images per second of waiting: what reading alone gives, within the noise of a test.
    waited = row["input_wait"] * row["seconds"]
    rate = row["images_per_s"] * row["seconds"] / waited
    assert 0.4 * rates.reading < rate < 4 * rates.reading
    with open(tmp_path / "run" / "log.csv") as stream:
        assert len(list(csv.DictReader(stream))) == 3


def test_a_remote_path_is_told_from_a_local_one():
    assert staging.is_remote("gs://bucket/x")
    assert staging.is_remote("hdfs://host/x")
    assert not staging.is_remote("/data/x")
    assert not staging.is_remote("file:///data/x")


def test_public_names_are_there_and_cost_nothing_until_used():
    import training

    for name in training.__all__:
        assert getattr(training, name) is not None
    assert sorted(training.__all__) == sorted(training._PLACES)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = training.nothing
    program = "import sys, training; sys.exit('tensorflow' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
