"""A standalone Flink cluster on this machine: one JobManager, TaskManagers, a worker pool each.

    python deploy/flink/cluster.py fetch 1.20.1 build/flink-1.20
    python deploy/flink/cluster.py start --flink build/flink-1.20 --directory build/cluster
    imagebeam convert --input … --output … $(python deploy/flink/cluster.py options \
        --directory build/cluster)
    python deploy/flink/cluster.py stop --directory build/cluster

Everything listens on 127.0.0.x only. Every process that is started is written down in
DIRECTORY/processes.json with its start time; `stop` ends those and no others.
Needs a JDK 17 (JAVA_HOME, or `java` in PATH) and nothing but Python's standard library.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time
import urllib.request
import zipfile
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
POOL_NAME = "imagebeam-pool"  # every TaskManager resolves it to the pool beside it
POOL_PORT = 50000
START_SECONDS = 120
STOP_SECONDS = 20

JOBMANAGER = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
TASKMANAGER = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"
JAVA_UTILS = "org.apache.flink.runtime.util.bash.BashJavaUtils"

# What Flink's own start scripts open to it on Java 17.
EXPORTS = [
    "java.base/sun.net.util",
    "java.rmi/sun.rmi.registry",
    "java.security.jgss/sun.security.krb5",
    "jdk.compiler/com.sun.tools.javac.api",
    "jdk.compiler/com.sun.tools.javac.file",
    "jdk.compiler/com.sun.tools.javac.parser",
    "jdk.compiler/com.sun.tools.javac.tree",
    "jdk.compiler/com.sun.tools.javac.util",
]
OPENS = [
    f"java.base/{package}"
    for package in [
        "java.lang",
        "java.net",
        "java.io",
        "java.nio",
        "sun.nio.ch",
        "java.lang.reflect",
        "java.text",
        "java.time",
        "java.util",
        "java.util.concurrent",
        "java.util.concurrent.atomic",
        "java.util.concurrent.locks",
    ]
]


class ClusterError(Exception):
    """Something is missing or does not come up; the message says what."""


# ---------------------------------------------------------------- the distribution


def fetch(version: str, target: pathlib.Path) -> pathlib.Path:
    """Takes Flink `version` out of the package apache-flink-libraries on PyPI.

    Returns:
      `target`, which holds lib/ and bin/ afterwards.
    """
    download = target.with_name(target.name + ".download")
    shutil.rmtree(download, ignore_errors=True)
    download.mkdir(parents=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--no-build-isolation", "-d", str(download)]
    subprocess.run([*command, f"apache-flink-libraries=={version}"], check=True)
    (archive,) = download.iterdir()
    unpacked = download / "unpacked"
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            wheel.extractall(unpacked)
    else:
        with tarfile.open(archive) as sdist:
            sdist.extractall(unpacked, filter="data")
    source = next(unpacked.rglob("flink-dist*.jar")).parent.parent
    shutil.rmtree(target, ignore_errors=True)
    shutil.move(source, target)
    shutil.rmtree(download)
    return target


def find_distribution(given: str | None) -> pathlib.Path:
    """A directory with lib/flink-dist-*.jar: given, named by IMAGEBEAM_FLINK, or installed."""
    candidates = [given] if given else [os.environ.get("IMAGEBEAM_FLINK")]
    for candidate in filter(None, candidates):
        path = pathlib.Path(str(candidate)).resolve()
        if list(path.glob("lib/flink-dist*.jar")):
            return path
        raise ClusterError(f"{path} holds no lib/flink-dist-*.jar: it is no Flink distribution")
    for directory in sys.path:
        path = pathlib.Path(directory) / "pyflink"
        if list(path.glob("lib/flink-dist*.jar")):
            return path
    raise ClusterError(
        "no Flink here: give --flink DIR or set IMAGEBEAM_FLINK; "
        f"`python {pathlib.Path(__file__).name} fetch 1.20.1 DIR` takes one from PyPI"
    )


def find_java() -> str:
    """The `java` of JAVA_HOME, else of PATH."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None or not os.access(java, os.X_OK):
        raise ClusterError("Flink needs Java 11 to 17: set JAVA_HOME, or put `java` into PATH")
    return java


# ---------------------------------------------------------------- processes


def start_time(pid: int) -> str | None:
    """When a process started, in the kernel's ticks; None when there is no such process.

    A process id alone may belong to somebody else by now.
    """
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


class Cluster:
    """The processes of one cluster, as its directory remembers them."""

    def __init__(self, directory: pathlib.Path):
        self.directory = directory.resolve()
        self.file = self.directory / "processes.json"
        self.state: dict[str, Any] = {"processes": []}
        if self.file.exists():
            self.state = json.loads(self.file.read_text())

    def alive(self) -> list[dict[str, Any]]:
        """The processes of this cluster that still run."""
        return [
            process
            for process in self.state["processes"]
            # One that ended at once has no start time.
            if process["started"] and process["started"] == start_time(process["pid"])
        ]

    def save(self) -> None:
        """Writes the processes down."""
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps(self.state, indent=1))
        os.replace(new, self.file)

    def spawn(self, name: str, command: list[str], env: dict[str, str] | None = None) -> None:
        """Starts a process in a group of its own; its log is DIRECTORY/logs/NAME.log."""
        with open(self.directory / "logs" / f"{name}.log", "wb") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )
        self.state["processes"].append(
            {"name": name, "pid": process.pid, "started": start_time(process.pid)}
        )
        self.save()

    def stop(self) -> int:
        """Ends every process of this cluster, with its children; returns how many there were."""
        alive = self.alive()
        for process in reversed(alive):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process["pid"], signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        while self.alive() and time.monotonic() < deadline:
            _reap()
            time.sleep(0.1)
        for process in alive:
            # Its group: a pool's workers go with it.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process["pid"], signal.SIGKILL)
        _reap()
        self.state = {"processes": []}
        self.file.unlink(missing_ok=True)
        shutil.rmtree(self.directory / "tmp", ignore_errors=True)
        return len(alive)

    def log_tail(self) -> str:
        """The last lines of every log, for an error message."""
        parts = []
        for path in sorted((self.directory / "logs").glob("*.log")):
            lines = path.read_text(errors="replace").splitlines()[-8:]
            parts.append("\n".join([f"--- {path.name}", *lines]))
        return "\n".join(parts)


def _reap() -> None:
    """Takes leave of children that ended, so that they are not zombies."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens to at the moment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


# ---------------------------------------------------------------- start


def configuration(directory: pathlib.Path, rest_port: int, slots: int, restarts: bool) -> str:
    """Flink's config.yaml (flat keys, which 1.20 and 2.x both read)."""
    settings = {
        "jobmanager.rpc.address": "127.0.0.1",
        "jobmanager.rpc.port": free_port(),
        "jobmanager.bind-host": "127.0.0.1",
        "rest.address": "127.0.0.1",
        "rest.bind-address": "127.0.0.1",
        "rest.port": rest_port,
        "taskmanager.host": "127.0.0.1",
        "taskmanager.bind-host": "127.0.0.1",
        "jobmanager.memory.process.size": "1200m",
        "taskmanager.memory.process.size": "1728m",
        # Every stage of a batch job has its own buffers; the default 10 % are too few for
        # four slots on one machine.
        "taskmanager.memory.network.min": "320m",
        "taskmanager.memory.network.max": "320m",
        "taskmanager.numberOfTaskSlots": slots,
        # Without this all subtasks of a small job land on one TaskManager, in one Python.
        "taskmanager.load-balance.mode": "SLOTS",
        # A dead TaskManager is noticed after 10 s instead of 50.
        "heartbeat.interval": 2000,
        "heartbeat.timeout": 10000,
        "io.tmp.dirs": directory / "tmp",
        "web.upload.dir": directory / "tmp",
    }
    if restarts:
        # The attempts outlast the heartbeat: 10 × 3 s.
        settings |= {
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": 10,
            "restart-strategy.fixed-delay.delay": "3 s",
        }
    else:
        settings["restart-strategy.type"] = "none"
    return "".join(f"{key}: {value}\n" for key, value in settings.items())


def start(
    flink: pathlib.Path,
    directory: pathlib.Path,
    *,
    rest_port: int = 8081,
    taskmanagers: int = 2,
    slots: int = 2,
    restarts: bool = True,
) -> Cluster:
    """Starts a cluster and waits until all its slots are there.

    Args:
      flink: the distribution.
      directory: for configuration, logs, temporary files and processes.json.
      rest_port: of the REST API, on 127.0.0.1.
      taskmanagers: how many, each with a worker pool on 127.0.0.2, 127.0.0.3 ….
      slots: of each TaskManager.
      restarts: jobs survive the loss of a TaskManager.

    Raises:
      ClusterError: a cluster runs in `directory` already, the port is taken, or
        something does not come up (then everything is stopped again).
    """
    java = find_java()
    cluster = Cluster(directory)
    directory = cluster.directory
    if cluster.alive():
        raise ClusterError(f"a cluster runs in {directory} already; stop it first")
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", rest_port)) == 0:
            raise ClusterError(f"port {rest_port} is taken; give another --rest_port")
    for name in ("conf", "logs", "tmp"):
        shutil.rmtree(directory / name, ignore_errors=True)
        (directory / name).mkdir(parents=True)
    (directory / "conf" / "config.yaml").write_text(
        configuration(directory, rest_port, slots, restarts)
    )
    pool_port = POOL_PORT if _all_free(POOL_PORT, taskmanagers) else free_port()
    cluster.state = {
        "processes": [],
        "flink_master": f"127.0.0.1:{rest_port}",
        "pool": f"{POOL_NAME}:{pool_port}",
        "pools": [f"127.0.0.{2 + number}:{pool_port}" for number in range(taskmanagers)],
    }
    try:
        _start_jobmanager(cluster, java, flink)
        for number in range(taskmanagers):
            address = f"127.0.0.{2 + number}"
            _start_pool(cluster, number, f"{address}:{pool_port}")
            start_taskmanager(cluster, java, flink, number, address)
        _wait(cluster, rest_port, taskmanagers * slots)
    except BaseException as error:
        tail = cluster.log_tail()
        cluster.stop()
        if isinstance(error, ClusterError):
            raise ClusterError(f"{error}\n{tail}") from None
        raise
    return cluster


def _all_free(port: int, taskmanagers: int) -> bool:
    for number in range(taskmanagers):
        with socket.socket() as probe:
            if probe.connect_ex((f"127.0.0.{2 + number}", port)) == 0:
                return False
    return True


def _java_command(
    cluster: Cluster, java: str, flink: pathlib.Path, kind: str, name: str
) -> tuple[list[str], list[str]]:
    """(java and its flags, arguments of the main class) as Flink's own scripts make them."""
    classpath = ":".join(map(str, sorted(flink.glob("lib/*.jar"))))
    utils = ":".join([*map(str, flink.glob("bin/bash-java-utils.jar")), classpath])
    conf = str(cluster.directory / "conf")
    asked = subprocess.run(
        [java, "-cp", utils, JAVA_UTILS, f"GET_{kind}_RESOURCE_PARAMS", "--configDir", conf],
        capture_output=True,
        text=True,
        check=False,
    )
    mark = "BASH_JAVA_UTILS_EXEC_RESULT:"
    answers = [
        line.split(mark, 1)[1] for line in asked.stdout.splitlines() if line.startswith(mark)
    ]
    if asked.returncode or not answers:
        raise ClusterError(f"Flink refuses its configuration:\n{asked.stdout}{asked.stderr}")
    flags = [
        *(f"--add-exports={item}=ALL-UNNAMED" for item in EXPORTS),
        *(f"--add-opens={item}=ALL-UNNAMED" for item in OPENS),
        f"-Dlog.file={cluster.directory / 'logs' / (name + '.out')}",
        f"-Djava.io.tmpdir={cluster.directory / 'tmp'}",
    ]
    dynamic = answers[1].split() if len(answers) > 1 else []
    return [java, *answers[0].split(), *flags, "-cp", classpath], ["--configDir", conf, *dynamic]


def _start_jobmanager(cluster: Cluster, java: str, flink: pathlib.Path) -> None:
    command, arguments = _java_command(cluster, java, flink, "JM", "jobmanager")
    cluster.spawn("jobmanager", [*command, JOBMANAGER, *arguments])


def start_taskmanager(
    cluster: Cluster, java: str, flink: pathlib.Path, number: int, pool_host: str
) -> None:
    """Starts TaskManager `number`, to which POOL_NAME means `pool_host`."""
    name = f"taskmanager-{number}"
    hosts = cluster.directory / "conf" / f"hosts-{number}"
    # Java then looks nowhere else, so the machine's own names must be in it.
    hosts.write_text(
        f"{pool_host} {POOL_NAME}\n127.0.0.1 localhost {socket.gethostname()} {socket.getfqdn()}\n"
    )
    command, arguments = _java_command(cluster, java, flink, "TM", name)
    command.insert(1, f"-Djdk.net.hosts.file={hosts}")
    cluster.spawn(name, [*command, TASKMANAGER, *arguments])


def _start_pool(cluster: Cluster, number: int, address: str) -> None:
    command = [sys.executable, "-m", "beam_pipeline", "worker_pool", "--listen", address]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    cluster.spawn(f"pool-{number}", command, {"PYTHONPATH": path})


def _wait(cluster: Cluster, rest_port: int, slots: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    found: Any = "no answer"
    while time.monotonic() < deadline:
        dead = [p for p in cluster.state["processes"] if p not in cluster.alive()]
        if dead:
            raise ClusterError(f"{dead[0]['name']} ended at once")
        with contextlib.suppress(OSError, ValueError, KeyError):
            found = rest(f"127.0.0.1:{rest_port}", "/overview")["slots-total"]
        if found == slots and all(_listens(pool) for pool in cluster.state["pools"]):
            return
        time.sleep(0.25)
    raise ClusterError(f"the cluster is not complete after {START_SECONDS} s (slots: {found})")


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def rest(master: str, path: str) -> Any:
    """The JSON answer of a cluster's REST API."""
    with urllib.request.urlopen(f"http://{master}{path}", timeout=5) as answer:
        return json.loads(answer.read())


# ---------------------------------------------------------------- use


def options(cluster: Cluster) -> list[str]:
    """What `imagebeam convert` needs to run on this cluster."""
    return [
        "--runner=flink",
        f"--flink_master={cluster.state['flink_master']}",
        "--environment_type=EXTERNAL",
        f"--environment_config={cluster.state['pool']}",
        "--shared_filesystem",
    ]


def convert(cluster: Cluster, arguments: list[str]) -> int:
    """Runs `imagebeam convert` on the cluster and returns its exit code."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "beam_pipeline", "convert", *arguments, *options(cluster)]
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=False).returncode


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    sub = commands.add_parser("fetch", help="take Flink from PyPI")
    sub.add_argument("version", help="such as 1.20.1 or 2.2.1")
    sub.add_argument("target", type=pathlib.Path)
    for name, text in (
        ("start", "start a cluster"),
        ("stop", "stop it"),
        ("status", "say what runs"),
        ("options", "print the options of imagebeam convert for it"),
        ("run", "start, convert, stop: everything after -- goes to imagebeam convert"),
    ):
        sub = commands.add_parser(name, help=text)
        sub.add_argument("--directory", type=pathlib.Path, default=ROOT / "build" / "flink")
        if name in ("start", "run"):
            sub.add_argument("--flink", metavar="DIR", help="the distribution (lib/, bin/)")
            sub.add_argument("--rest_port", type=int, default=8081)
            sub.add_argument("--taskmanagers", type=int, default=2)
            sub.add_argument("--slots", type=int, default=2)
            sub.add_argument("--no_restarts", action="store_true")
        if name == "run":
            sub.add_argument("arguments", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    try:
        return _run(args)
    except ClusterError as error:
        print(f"{pathlib.Path(__file__).name}: {error}", file=sys.stderr)
        return 1


def _run(args: argparse.Namespace) -> int:
    if args.command == "fetch":
        print(fetch(args.version, args.target))
        return 0
    cluster = Cluster(args.directory)
    if args.command in ("start", "run"):
        cluster = start(
            find_distribution(args.flink),
            args.directory,
            rest_port=args.rest_port,
            taskmanagers=args.taskmanagers,
            slots=args.slots,
            restarts=not args.no_restarts,
        )
        print(f"Flink at {cluster.state['flink_master']}", file=sys.stderr)
    if args.command == "run":
        try:
            return convert(cluster, [a for a in args.arguments if a != "--"])
        finally:
            cluster.stop()
    if args.command == "stop":
        print(f"{cluster.stop()} processes stopped")
    elif args.command == "options":
        print(" ".join(options(cluster)))
    elif args.command == "status":
        for process in cluster.alive():
            print(f"{process['pid']}  {process['name']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
