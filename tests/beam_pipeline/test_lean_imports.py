"""What a local conversion loads: none of the packages that Beam and Arrow could do without."""

from __future__ import annotations

import importlib
import os
import pathlib
import subprocess
import sys

import pytest

from beam_pipeline import engine, storage
from beam_pipeline.lean_imports import without
from beam_pipeline.storage import StorageConfig
from tests import fakes, servers

ROOT = pathlib.Path(engine.__file__).parent.parent

# Stands before the real one on the path: whoever imports it leaves a mark.
DECOY = """
import os
with open(os.environ["IMPORT_MARK"], "a") as stream:
    stream.write(__name__ + "\\n")
raise ImportError("not wanted here")
"""
NEVER = ("pandas", "boto3", "pymongo", "apitools", "oauth2client")


def test_without_hides_modules_for_a_while(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes.write_tree(tmp_path, {f"{name}.py": b"x = 1" for name in ("hidden_one", "seen_one")})
    monkeypatch.syspath_prepend(str(tmp_path))
    before = list(sys.meta_path)
    with without("hidden_one"):
        assert importlib.import_module("seen_one").x == 1
        with pytest.raises(ModuleNotFoundError, match="hidden_one is left out") as raised:
            importlib.import_module("hidden_one")
    assert raised.value.name == "hidden_one"
    assert sys.meta_path == before
    assert importlib.import_module("hidden_one").x == 1
    with without("hidden_one"):
        assert importlib.import_module("hidden_one").x == 1  # loaded already


def test_arrow_stays_without_pandas() -> None:
    script = (
        "from beam_pipeline.lean_imports import load_arrow; load_arrow()\n"
        "import sys, numpy as np, pyarrow as pa\n"
        "pa.array([1, None]); pa.array(np.arange(3), mask=np.arange(3) < 1)\n"
        "pa.chunked_array([[1, None]]).to_numpy()\n"
        "assert 'pandas' not in sys.modules\n"
        "import pandas\n"  # whoever wants it still gets it
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)


def convert(
    tmp_path: pathlib.Path, *arguments: str
) -> tuple[subprocess.CompletedProcess[str], set[str]]:
    """Runs the command; returns which decoys any of its processes has imported."""
    for package in NEVER:
        fakes.write_tree(tmp_path / "decoys", {f"{package}/__init__.py": DECOY.encode()})
    mark = tmp_path / "mark"
    environment = {
        **os.environ,
        "IMPORT_MARK": str(mark),
        "PYTHONPATH": os.pathsep.join([str(tmp_path / "decoys"), str(ROOT)]),
    }
    done = subprocess.run(
        [sys.executable, "-m", "beam_pipeline", "convert", *arguments],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    return done, set(mark.read_text().split()) if mark.exists() else set()


def test_a_local_conversion_loads_no_optional_package(tmp_path: pathlib.Path) -> None:
    fakes.class_folders(tmp_path / "in")
    done, loaded = convert(
        tmp_path, f"--input={tmp_path / 'in'}", f"--output={tmp_path / 'out'}", "--workers=2"
    )
    assert done.returncode == 0, done.stderr
    assert loaded == set()
    assert (tmp_path / "out" / "_SUCCESS").exists()


@pytest.mark.parametrize("option", ["--runner=direct", "--labels_file=s3://nowhere/labels.txt"])
def test_with_beam_options_or_remote_paths_everything_is_loaded(
    option: str, tmp_path: pathlib.Path
) -> None:
    fakes.class_folders(tmp_path / "in")
    _, loaded = convert(
        tmp_path, f"--input={tmp_path / 'in'}", f"--output={tmp_path / 'out'}", option
    )
    assert {"pandas", "boto3"} <= loaded


def test_rows_of_a_local_manifest_may_be_in_object_stores(tmp_path: pathlib.Path) -> None:
    rows = [f"s3://bucket/{number}.png,a\n" for number in range(3)]
    rows += [f"gs://bucket/{number}.png,b\n" for number in range(3, 6)]
    (tmp_path / "m.csv").write_text("path,label\n" + "".join(rows))
    with servers.s3_server("bucket") as s3, servers.gcs_server("bucket") as gcs:
        config = StorageConfig(s3_endpoint_url=s3, gcs_endpoint=gcs, **servers.S3_CREDENTIALS)
        storage.configure(config)
        try:
            for number, row in enumerate(rows):
                storage.write_bytes(row.partition(",")[0], fakes.png(number))
        finally:
            storage.configure(StorageConfig())
        environment = {"AWS_ENDPOINT_URL": s3, "STORAGE_EMULATOR_HOST": gcs}
        done = subprocess.run(
            [
                *(sys.executable, "-m", "beam_pipeline", "convert"),
                *(f"--input={tmp_path / 'm.csv'}", f"--output={tmp_path / 'out'}"),
            ],
            capture_output=True,
            text=True,
            env={**os.environ, **servers.S3_ENVIRONMENT, **environment},
            cwd=ROOT,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert "6 inputs = 6 written + 0 rejected + 0 duplicates" in done.stdout + done.stderr
