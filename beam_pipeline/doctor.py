"""`imagebeam doctor`: what a conversion on this machine would use, and what is broken.

Every finding is looked at for real: the encoder encodes, TensorFlow is imported (in a
process of its own, so that a crash or a hang is a finding too), a path is listed.
"""

from __future__ import annotations

import dataclasses
import enum
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from beam_pipeline import storage, worker_check
from beam_pipeline.errors import ImagebeamError
from beam_pipeline.summary import size_text

TENSORFLOW_SECONDS = 120
JAVA_SECONDS = 20
LOW_DISK = 1 << 30  # 1 GiB


class Level(str, enum.Enum):
    """How a finding is meant."""

    OK = "ok"
    NOTE = "note"  # works without it, or is only needed for some uses
    BROKEN = "BROKEN"


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    level: Level
    topic: str
    text: str


@dataclasses.dataclass(frozen=True)
class Report:
    """All findings."""

    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Nothing is broken."""
        return all(finding.level is not Level.BROKEN for finding in self.findings)

    def text(self) -> str:
        """For a terminal: one line for each finding."""
        width = max(len(finding.topic) for finding in self.findings)
        return "\n".join(
            f"{finding.level.value:<6}  {finding.topic:<{width}}  {finding.text}"
            for finding in self.findings
        )


def examine(
    *, paths: Sequence[str] = (), worker_pool: str | None = None, flink_master: str | None = None
) -> Report:
    """Looks at this installation.

    Args:
      paths: inputs or outputs that must be reachable.
      worker_pool: HOST:PORT of a worker pool to be asked, or None.
      flink_master: HOST:PORT of a Flink cluster to be asked, or None.
    """
    checks: list[Callable[[], Iterator[Finding]]] = [
        _versions,
        _engine,
        _other_engines,
        _crc32c,
        _pillow,
        _encoder,
        _tensorflow,
        _temporary_space,
    ]
    checks += [lambda path=path: _path(path) for path in paths]  # type: ignore[misc]
    if worker_pool is not None:
        checks.append(lambda: _pool(worker_pool))
    if flink_master is not None:
        checks.append(lambda: _flink(flink_master))
    findings: list[Finding] = []
    for check in checks:
        try:
            findings += check()
        except Exception as error:
            name = getattr(check, "__name__", "check").strip("_").replace("<lambda>", "check")
            findings.append(Finding(Level.BROKEN, name, f"{type(error).__name__}: {error}"))
    return Report(tuple(findings))


# ---------------------------------------------------------------- this installation


def _versions() -> Iterator[Finding]:
    found = worker_check.versions()
    found["python"] = platform.python_version()
    missing = [name for name, version in found.items() if version == "not installed"]
    text = ", ".join(f"{name} {version}" for name, version in found.items())
    yield Finding(Level.BROKEN if missing else Level.OK, "versions", text)
    yield Finding(Level.OK, "machine", f"{platform.platform()}, {sys.executable}")


def _engine() -> Iterator[Finding]:
    from beam_pipeline import runners, worker_pool

    runner = type(runners.choose_engine([]).make_runner()).__name__
    yield Finding(
        Level.OK,
        "engine",
        f"{runner} in this process, {worker_pool.available_cores()} worker processes that decode "
        "(--workers)",
    )


def _other_engines() -> Iterator[Finding]:
    from beam_pipeline.runners import flink, prism

    binary = prism.find_prism()
    if binary is None:
        text = f"no binary; `{prism.install_hint()}` builds one"
        yield Finding(Level.NOTE, "prism", text)
    else:
        version = prism.prism_version(binary) or "of unknown version"
        yield Finding(Level.OK, "prism", f"{binary}, {version}")
    yield _java()
    jar = os.environ.get(flink.JAR_VARIABLE)
    if jar:
        plain = jar.replace("{version}", "*")
        there = "*" in plain or os.path.isfile(plain)
        text = f"{flink.JAR_VARIABLE}={jar}" + ("" if there else ": no such file")
        yield Finding(Level.OK if there else Level.BROKEN, "flink job server", text)


def _java() -> Finding:
    java = shutil.which("java")
    if java is None:
        text = "not found; only the job servers of Flink and Spark need it"
        return Finding(Level.NOTE, "java", text)
    done = subprocess.run(
        [java, "-version"], capture_output=True, text=True, timeout=JAVA_SECONDS, check=False
    )
    lines = (done.stderr + done.stdout).splitlines()
    level = Level.NOTE if done.returncode else Level.OK
    return Finding(level, "java", f"{java}: {lines[0] if lines else 'says nothing'}")


def _crc32c() -> Iterator[Finding]:
    """The function that Beam's TFRecord sink chooses, timed."""
    from apache_beam.io import tfrecordio

    data = bytes(1 << 20)
    try:
        function = tfrecordio._default_crc32c_fn
        function(b"")  # it chooses an implementation at the first call
        start = time.perf_counter()
        value = function(data)
        seconds = time.perf_counter() - start
    except Exception as error:
        text = f"none ({error}); `pip install google-crc32c`: TFRecords cannot be written"
        yield Finding(Level.BROKEN, "crc32c", text)
        return
    if value != 0x14298C12:  # of 1 MiB of zeros
        yield Finding(Level.BROKEN, "crc32c", f"computes {value:#x} for 1 MiB of zeros")
        return
    chosen = getattr(tfrecordio._default_crc32c_fn, "fn", function)
    where = getattr(chosen, "__module__", None) or type(chosen).__module__
    rate = len(data) / seconds / 1e6
    level = Level.OK if rate > 500 else Level.NOTE
    hint = "" if level is Level.OK else ": slow, `pip install google-crc32c`"
    yield Finding(level, "crc32c", f"{where}, {rate:,.0f} MB/s{hint}")


def _pillow() -> Iterator[Finding]:
    from PIL import features

    needed = {"jpg": "JPEG", "zlib": "PNG"}
    useful = {"webp": "WebP", "avif": "AVIF", "libtiff": "TIFF", "jpg_2000": "JPEG 2000"}
    have = [name for key, name in {**needed, **useful}.items() if features.check(key)]
    lack = [name for key, name in {**needed, **useful}.items() if not features.check(key)]
    broken = [name for key, name in needed.items() if not features.check(key)]
    turbo = ", libjpeg-turbo" if features.check_feature("libjpeg_turbo") else ""
    text = f"reads {', '.join(have)}{turbo}" + (f"; not {', '.join(lack)}" if lack else "")
    yield Finding(Level.BROKEN if broken else Level.OK, "pillow", text)
    try:
        import pillow_heif

        yield Finding(Level.OK, "heif", f"pillow-heif {pillow_heif.__version__}")
    except ImportError:
        text = "HEIC and HEIF are refused; `pip install 'imagebeam[heif]'` reads them"
        yield Finding(Level.NOTE, "heif", text)


def _encoder() -> Iterator[Finding]:
    import pyarrow as pa
    from tfx_bsl.coders.example_coder import RecordBatchToExamplesEncoder

    rows = 1000
    batch = pa.RecordBatch.from_pydict({"x": pa.array([[1]] * rows, pa.large_list(pa.int64()))})
    encoder = RecordBatchToExamplesEncoder()
    start = time.perf_counter()
    examples = encoder.encode(batch)
    seconds = time.perf_counter() - start
    if len(examples) != rows or b"x" not in examples[0]:
        yield Finding(Level.BROKEN, "tfx-bsl", "its encoder gives back something else")
        return
    text = f"C++ encoder works, {seconds / rows * 1e6:.1f} µs an example"
    yield Finding(Level.OK, "tfx-bsl", text)


_ASK_TENSORFLOW = """
import tensorflow as tf
devices = [d.name.removeprefix("/physical_device:") for d in tf.config.list_physical_devices()]
print("imagebeam:", tf.__version__, ", ".join(devices))
"""


def _tensorflow() -> Iterator[Finding]:
    """Conversion does without it: what is wrong with it is a note."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _ASK_TENSORFLOW],
            capture_output=True,
            text=True,
            timeout=TENSORFLOW_SECONDS,
            check=False,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        )
    except subprocess.TimeoutExpired:
        text = f"does not load within {TENSORFLOW_SECONDS} s; training will not work"
        yield Finding(Level.NOTE, "tensorflow", text)
        return
    mark = "imagebeam: "
    answers = [line for line in done.stdout.splitlines() if line.startswith(mark)]
    if done.returncode or not answers:
        why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        text = f"does not load ({why}); converting works without it, training does not"
        yield Finding(Level.NOTE, "tensorflow", text)
        return
    version, _, devices = answers[0].removeprefix(mark).partition(" ")
    yield Finding(Level.OK, "tensorflow", f"{version}, devices: {devices}")


# ---------------------------------------------------------------- paths and servers


def _temporary_space() -> Iterator[Finding]:
    import tempfile

    yield _free_space("temporary files", tempfile.gettempdir())


def _free_space(topic: str, directory: str) -> Finding:
    free = shutil.disk_usage(directory).free
    level = Level.OK if free > LOW_DISK else Level.NOTE
    return Finding(level, topic, f"{directory}: {size_text(free)} free")


def _path(uri: str) -> Iterator[Finding]:
    start = time.perf_counter()
    try:
        entry = storage.stat(uri)
        if entry is not None and entry.kind == "directory":
            count = len(storage.list_directory(uri))
            what = f"a directory with {count:,} entries"
        elif entry is not None:
            what = f"a {entry.kind} of {size_text(entry.size)}"
        else:
            what = "nothing there yet"
    except ImagebeamError as error:
        yield Finding(Level.BROKEN, uri, str(error))
        return
    milliseconds = (time.perf_counter() - start) * 1000
    if not storage.is_local(uri):
        yield Finding(Level.OK, uri, f"{what} (reached in {milliseconds:.0f} ms)")
        return
    parent = os.path.abspath(uri.removeprefix("file://"))
    while not os.path.isdir(parent):
        parent = os.path.dirname(parent)
    writable = os.access(parent, os.W_OK)
    space = _free_space(uri, parent)
    yield Finding(
        space.level, uri, f"{what}, {'writable' if writable else 'not writable'}, {space.text}"
    )


def _pool(address: str) -> Iterator[Finding]:
    from beam_pipeline.runners.pool_probe import ask_pool

    topic = f"pool {address}"
    try:
        found = ask_pool(address)
    except (ImagebeamError, ValueError) as error:
        yield Finding(Level.BROKEN, topic, str(error))
        return
    wrong = worker_check.differences(worker_check.versions(), found)
    where = f"{found['executable']} on {found['host']}"
    if wrong:
        yield Finding(Level.BROKEN, topic, f"{where} has {', '.join(wrong)} (here)")
    else:
        yield Finding(Level.OK, topic, f"{where}, same versions as here")


def _flink(master: str) -> Iterator[Finding]:
    from apache_beam.options.pipeline_options import FlinkRunnerOptions

    from beam_pipeline.runners import flink

    topic = f"flink {master}"
    try:
        cluster = flink.ask_cluster(master)
    except ImagebeamError as error:
        yield Finding(Level.BROKEN, topic, str(error))
        return
    known = FlinkRunnerOptions.PUBLISHED_FLINK_VERSIONS
    fits = cluster.beam_version in known
    yield Finding(
        Level.OK if fits else Level.BROKEN,
        topic,
        f"Flink {cluster.version}, {cluster.taskmanagers} TaskManagers, {cluster.free_slots} of "
        f"{cluster.slots} slots free"
        + ("" if fits else f"; Beam has runners for {', '.join(known)} only"),
    )
