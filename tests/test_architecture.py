"""The rules of the design that no single module can hold: imports, the public API, the shuffle."""

from __future__ import annotations

import ast
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.common_urns import primitives

import beam_pipeline
from beam_pipeline.inputs import ListingReport, resolve_inputs
from beam_pipeline.options import EqualImages
from beam_pipeline.pipeline import build_pipeline, with_name
from beam_pipeline.progress import ProgressReporter
from beam_pipeline.ref_coder import RefBatchCoder
from beam_pipeline.storage import StorageConfig
from beam_pipeline.write_dataset import WriteContext
from tests import conversions, fakes

ROOT = pathlib.Path(beam_pipeline.__file__).parent.parent

PUBLIC = {
    "ConversionSummary",
    "ConvertOptions",
    "DatasetInfo",
    "DetachedJob",
    "ImageOptions",
    "ImageRef",
    "ImageRejectedError",
    "ImagebeamError",
    "ImagesToExamples",
    "InputOptions",
    "ListImages",
    "OutputOptions",
    "RejectedImage",
    "WriteImages",
    "__version__",
    "convert",
    "read_dataset_info",
}


# ---------------------------------------------------------------- the public API


def test_the_public_names_are_these() -> None:
    # Whoever adds or removes a name says so here, and in the change log.
    assert set(beam_pipeline.__all__) == PUBLIC
    assert len(beam_pipeline.__all__) == len(PUBLIC)


def test_every_public_name_exists_and_is_documented() -> None:
    for name in beam_pipeline.__all__:
        value = getattr(beam_pipeline, name)
        assert name in dir(beam_pipeline)
        if name != "__version__":
            assert value.__doc__
            assert not value.__doc__.startswith(f"{name}(")  # made by dataclass or NamedTuple
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = beam_pipeline.nothing


# ---------------------------------------------------------------- who imports whom

# Whoever may import Beam; below a folder everything may.
USES_BEAM = (
    "combiners.py",
    "doctor.py",  # says which engine would run
    "external_pool.py",  # Beam's worker pool
    "metrics.py",
    "pipeline.py",
    "ref_coder.py",
    "stock_writer.py",  # Beam's own writer
    "shard_sink.py",
    "tfrecord_writer.py",
    "reference_steps.py",
    "transforms.py",
    "worker_dofn.py",
    "write_dataset.py",
    "write_images.py",
    "checks/",
    "inputs/",
    "runners/",
    "storage/",
)
USES_PILLOW = ("images.py", "imaging/", "faces.py", "sample", "checks/", "doctor.py")
CONVERSION_NEVER = ("tensorflow", "keras", "tensorflow_datasets")
MAY_LOAD_TENSORFLOW = ("checks/", "doctor")  # reading back, or asked about in a process of its own


def modules(package: str) -> list[pathlib.Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imported(path: pathlib.Path) -> Iterator[str]:
    """Every module that a file imports, anywhere in it, but for type checking only."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_types = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in for_types:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def users_of(package: str, library: str) -> set[str]:
    return {
        os.fspath(path.relative_to(ROOT / package))
        for path in modules(package)
        if any(name.split(".")[0] == library for name in imported(path))
    }


def outside(users: set[str], allowed: tuple[str, ...]) -> set[str]:
    return {user for user in users if not user.startswith(allowed)}


def test_beam_is_imported_only_where_it_may_be() -> None:
    users = users_of("beam_pipeline", "apache_beam")
    assert outside(users, USES_BEAM) == set()
    assert {"write_dataset.py", "tfrecord_writer.py"} <= users  # the search does find imports


def test_pillow_is_imported_only_by_what_handles_pixels() -> None:
    users = users_of("beam_pipeline", "PIL")
    assert outside(users, USES_PILLOW) == set()
    assert "images.py" in users


def test_a_conversion_imports_no_tensorflow() -> None:
    for library in CONVERSION_NEVER:
        assert outside(users_of("beam_pipeline", library), MAY_LOAD_TENSORFLOW) == set()


def test_training_never_imports_beam() -> None:
    assert users_of("training", "apache_beam") == set()
    allowed = ("dataset_info", "errors", "examples", "labels", "options", "types", "version")
    shared = {"engine", "images", "image", "progress", "storage", "summary", "keys"}
    for path in modules("training"):
        for name in imported(path):
            parts = name.split(".")
            if parts[0] == "beam_pipeline" and len(parts) > 1:
                assert parts[1].startswith(allowed) or parts[1].startswith(tuple(shared)), (
                    path,
                    name,
                )


LAYERS = (
    ("errors", "types", "version"),
    ("options", "hashing", "keys"),
    ("labels", "splits", "duplicates", "shards", "examples", "dataset_info", "tfrecord_format"),
    ("plan", "records", "index", "metadata", "output_directory"),
    ("references", "combiners", "worker_dofn"),
    ("batching", "shard_sink", "tfrecord_writer", "outcome", "finalize"),
    ("reference_steps",),
    ("transforms", "write_dataset"),
    ("pipeline",),
    ("commands",),
    ("cli",),
)


def test_no_layer_imports_one_above_it() -> None:
    height = {name: number for number, layer in enumerate(LAYERS) for name in layer}
    for name, mine in height.items():
        path = ROOT / "beam_pipeline" / f"{name}.py"
        for other in imported(path if path.exists() else path.with_suffix("") / "convert.py"):
            parts = other.split(".")
            if parts[0] != "beam_pipeline" or len(parts) < 2:
                continue
            assert height.get(parts[1], -1) <= mine, f"{name} imports {parts[1]}"


@pytest.mark.parametrize(
    ("module", "never"),
    [
        ("beam_pipeline", ("apache_beam", "PIL", "pyarrow", "tensorflow")),
        ("beam_pipeline.cli", ("apache_beam", "PIL", "pyarrow", "tensorflow")),
        ("beam_pipeline.worker_pool", ("apache_beam", "tensorflow", "pyarrow")),
        ("beam_pipeline.worker_main", ("apache_beam", "tensorflow", "pyarrow")),
        ("beam_pipeline.records", ("apache_beam", "tensorflow")),
        ("beam_pipeline.dataset_info", ("apache_beam", "tensorflow", "PIL")),
        ("beam_pipeline.dry_run", ("apache_beam", "tensorflow")),
        ("beam_pipeline.pipeline", ("tensorflow", "tensorflow_datasets")),
    ],
)
def test_what_an_import_brings(module: str, never: tuple[str, ...]) -> None:
    script = f"import sys, {module}; print(*({never!r} & sys.modules.keys()))".replace(
        f"{never!r}", f"set({never!r})"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.split() == []


# ---------------------------------------------------------------- no TensorFlow in any process

# Stands before the real one on the path: whoever imports it leaves a mark, and fails.
DECOY = """
import os
with open(os.environ["IMPORT_MARK"], "a") as stream:
    stream.write(f"{os.getpid()}\\n")
raise ImportError("a conversion never imports TensorFlow")
"""


@pytest.mark.parametrize(
    "flags",
    [
        ["--workers=2"],
        ["--direct_running_mode=multi_processing", "--direct_num_workers=2"],
        ["--dry_run"],
    ],
)
def test_no_process_of_a_conversion_loads_tensorflow(
    flags: list[str], tmp_path: pathlib.Path
) -> None:
    fakes.class_folders(tmp_path / "in")
    for package in CONVERSION_NEVER:
        fakes.write_tree(tmp_path / "decoys", {f"{package}/__init__.py": DECOY.encode()})
    mark = tmp_path / "mark"
    environment = {
        **os.environ,
        "IMPORT_MARK": str(mark),
        "PYTHONPATH": os.pathsep.join([str(tmp_path / "decoys"), str(ROOT)]),
    }
    arguments = ["convert", f"--input={tmp_path / 'in'}", f"--output={tmp_path / 'out'}", *flags]
    done = subprocess.run(
        [sys.executable, "-m", "beam_pipeline", *arguments],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not mark.exists()
    # The decoy does its work.
    script = "import tensorflow"
    decoyed = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True)
    assert decoyed.returncode == 1
    assert mark.exists()


# ---------------------------------------------------------------- what crosses a shuffle


def crossing(tmp_path: pathlib.Path, **options: Any) -> dict[str, beam.coders.Coder]:
    """Name of every GroupByKey of a conversion → the coder of the values that it groups."""
    fakes.class_folders(tmp_path / "in", per_label=1)
    chosen = with_name(conversions.make_options(tmp_path / "in", tmp_path / "out", **options))
    pipeline = beam.Pipeline(options=PipelineOptions([]))
    context = WriteContext(
        staging=str(tmp_path / "out" / "staging"),
        replaced=(),
        run={},
        reporter=ProgressReporter(None),
        storage=StorageConfig(),
    )
    build_pipeline(pipeline, chosen, resolve_inputs(chosen.input), context)
    proto, known = pipeline.to_runner_api(return_context=True)
    found = {}
    for transform in proto.components.transforms.values():
        if transform.spec.urn == primitives.GROUP_BY_KEY.urn:
            (source,) = transform.inputs.values()
            coder = known.coders.get_by_id(proto.components.pcollections[source].coder_id)
            found[transform.unique_name] = coder.value_coder()
    return found


def test_only_references_cross_a_group_by_key(tmp_path: pathlib.Path) -> None:
    coders = crossing(tmp_path)
    own = {name: c for name, c in coders.items() if "Combine" not in name and "Merge" not in name}
    assert {name.split("/")[-1] for name in own} == {"GroupByBucket", "GroupByShard"}
    assert {type(coder) for coder in own.values()} == {RefBatchCoder}
    # Equal images are compared by a hash that a reference has with it.
    dropping = crossing(tmp_path / "drop", equal_images=EqualImages.DROP)
    compared = [coder for name, coder in dropping.items() if name.endswith("/GroupByBytes")]
    assert [type(coder) for coder in compared] == [RefBatchCoder]
    # The others add up tallies and reports, which are small whatever the input.
    others = {name for name in coders if name not in own}
    assert all("TallyReferences" in name or "MergeReports" in name for name in others)


def test_a_report_stays_small() -> None:
    import pickle

    report = ListingReport()
    for number in range(10_000):
        report.ignore("hidden files and folders", f".hidden {number}")
        report.listed += 1
    assert len(pickle.dumps(report)) < 2000


def test_the_manifest_is_not_in_the_graph(tmp_path: pathlib.Path) -> None:
    def graph(rows: int) -> int:
        (tmp_path / "m.csv").write_text(
            "path,label\n" + "".join(f"images/{i:06d}.jpg,a\n" for i in range(rows))
        )
        chosen = with_name(conversions.make_options(tmp_path / "m.csv", tmp_path / "out"))
        pipeline = beam.Pipeline(options=PipelineOptions([]))
        context = WriteContext("s", (), {}, ProgressReporter(None), StorageConfig())
        build_pipeline(pipeline, chosen, resolve_inputs(chosen.input), context)
        return pipeline.to_runner_api().ByteSize()

    assert abs(graph(20_000) - graph(10)) < 1000
