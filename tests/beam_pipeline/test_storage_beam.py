"""Beam's side of storage: its options, its own file systems, and every other scheme."""

import io
import os
import pickle
import posixpath

import pytest
from apache_beam.io.filesystem import BeamIOError, CompressionTypes, FileMetadata, FileSystem
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.options.value_provider import RuntimeValueProvider

from beam_pipeline import storage
from beam_pipeline.errors import ImageRejectedError, StorageError
from beam_pipeline.storage import StorageConfig
from beam_pipeline.types import RejectReason
from tests import servers
from tests.servers import S3_CREDENTIALS, Fault, FaultProxy


class FlatMemory(FileSystem):
    """flat://: names in a dict, as Beam sees an object store."""

    files: dict[str, bytes] = {}  # noqa: RUF012 - one store for all instances

    @classmethod
    def scheme(cls):
        return "flat"

    def has_dirs(self):
        return False

    def join(self, basepath, *paths):
        return posixpath.join(basepath, *paths)

    def split(self, path):
        return posixpath.split(path)

    def mkdirs(self, path):
        raise AssertionError("a flat store has no directories")

    def _list(self, prefix):
        for name, data in sorted(self.files.items()):
            if name.startswith(prefix):
                yield FileMetadata(name, len(data))

    def create(self, path, mime_type="", compression_type=CompressionTypes.AUTO):
        assert compression_type == CompressionTypes.UNCOMPRESSED
        files = self.files

        class Stream(io.BytesIO):
            def close(self):
                if not self.closed:
                    files[path] = self.getvalue()
                super().close()

        return Stream()

    def open(self, path, mime_type="", compression_type=CompressionTypes.AUTO):
        assert compression_type == CompressionTypes.UNCOMPRESSED
        if path not in self.files:
            raise OSError(2, "no such file", path)
        return io.BytesIO(self.files[path])

    def copy(self, source_file_names, destination_file_names):
        raise NotImplementedError

    def rename(self, source_file_names, destination_file_names):
        for source, target in zip(source_file_names, destination_file_names, strict=True):
            self.files[target] = self.files.pop(source)

    def exists(self, path):
        return path in self.files

    def size(self, path):
        return len(self.files[path])

    def last_updated(self, path):
        return 0.0

    def checksum(self, path):
        return ""

    def metadata(self, path):
        if path not in self.files:
            raise BeamIOError(f"{path} is no file")
        return FileMetadata(path, len(self.files[path]))

    def delete(self, paths):
        for path in paths:
            del self.files[path]


class TreeMemory(FlatMemory):
    """tree://: lists one level, directories with size 0, a file as itself, as HDFS does."""

    files: dict[str, bytes] = {}  # noqa: RUF012
    directories: set[str] = {"tree://h"}  # noqa: RUF012

    @classmethod
    def scheme(cls):
        return "tree"

    def has_dirs(self):
        return True

    def mkdirs(self, path):
        if self.exists(path):
            raise BeamIOError(f"{path} exists")
        while path not in self.directories:
            self.directories.add(path)
            path = posixpath.dirname(path)

    def _url_dirname(self, path):
        return path if path.endswith("/") else posixpath.dirname(path) + "/"

    def _list(self, url):
        url = url.rstrip("/")
        if url in self.files:
            yield FileMetadata(url + "/", len(self.files[url]))
        elif url not in self.directories:
            raise BeamIOError(f"{url} does not exist")
        for name in sorted(set(self.files) | self.directories):
            if name != url and posixpath.dirname(name) == url:
                yield FileMetadata(name, len(self.files.get(name, b"")))

    def create(self, path, mime_type="", compression_type=CompressionTypes.AUTO):
        if self.exists(path):
            raise BeamIOError(f"{path} exists")
        assert posixpath.dirname(path) in self.directories
        return super().create(path, mime_type, compression_type)

    def exists(self, path):
        return path.rstrip("/") in self.directories or path in self.files

    def rename(self, source_file_names, destination_file_names):
        for source, target in zip(source_file_names, destination_file_names, strict=True):
            assert not self.exists(target)
            for name in [n for n in self.files if n == source or n.startswith(source + "/")]:
                self.files[target + name[len(source) :]] = self.files.pop(name)
            for name in [d for d in self.directories if d == source or d.startswith(source + "/")]:
                self.directories.remove(name)
                self.directories.add(target + name[len(source) :])

    def delete(self, paths):
        for path in paths:
            for names in (self.files, self.directories):
                for name in [n for n in names if n == path or n.startswith(path + "/")]:
                    names.pop(name) if isinstance(names, dict) else names.remove(name)


@pytest.fixture(params=["flat", "tree"])
def base(request):
    for store in (FlatMemory, TreeMemory):
        store.files.clear()
    TreeMemory.directories.clear()
    TreeMemory.directories.add("tree://h")
    return f"{request.param}://h/d"


def seen(entries):
    return [(entry.path, entry.kind, entry.size) for entry in entries]


def test_other_schemes_list_read_and_write_as_local_disk_does(base, tmp_path):
    names = ["[1-3].jpg", "1.jpg", "b/1.jpg", "b.jpg", "b-c/2.jpg", "e/f/3.jpg", "*.jpg", "#%20 .x"]
    for place in (base, str(tmp_path)):
        for name in names:
            storage.write_bytes(f"{place}/{name}", name.encode())
        storage.write_bytes(f"{place}/1.jpg", b"written over")
        storage.write_bytes(f"{place}/empty.jpg", b"")
    local = str(tmp_path)
    assert seen(storage.walk(base)) == seen(storage.walk(local))
    assert seen(storage.walk(base, directories=True)) == seen(storage.walk(local, directories=True))
    assert seen(storage.list_directory(base)) == seen(storage.list_directory(local))
    for pattern in ("*.jpg", "**/?.jpg", "[1-3].jpg", "b/*", "e/**", "no/*"):
        assert seen(storage.glob(f"{base}/{pattern}")) == seen(storage.glob(f"{local}/{pattern}"))
    for entry in storage.walk(base):
        assert storage.read_bytes(entry.uri) == storage.read_bytes(f"{local}/{entry.path}")
        assert storage.stat(entry.uri) == entry._replace(path=storage.basename(entry.uri))
    assert storage.stat(f"{base}/e").kind == "directory"
    assert storage.stat(f"{base}/none") is None

    def skip(name):
        return name in ("b", "e")

    assert seen(storage.walk(base, skip)) == seen(storage.walk(local, skip))


def test_other_schemes_rename_delete_and_refuse(base):
    storage.write_bytes(f"{base}/s/1", b"0123456789")
    storage.write_bytes(f"{base}/s/2", b"2")
    storage.rename(f"{base}/s", f"{base}/t")
    storage.rename(f"{base}/t/2", f"{base}/t/1x")
    assert seen(storage.walk(base)) == [("t/1", "file", 10), ("t/1x", "file", 1)]
    assert storage.read_bytes(f"{base}/t/1", (3, 4)) == b"3456"
    with storage.open_read(f"{base}/t/1") as stream:
        assert stream.read() == b"0123456789"

    def reason(uri, **arguments):
        with pytest.raises(ImageRejectedError) as caught:
            storage.read_bytes(uri, **arguments)
        return caught.value.reason

    assert reason(f"{base}/none") is RejectReason.MISSING
    assert reason(f"{base}/t") is RejectReason.NOT_A_FILE
    assert reason(f"{base}/t/1", max_bytes=9) is RejectReason.TOO_MANY_BYTES
    with pytest.raises(StorageError, match="became shorter"):
        storage.read_bytes(f"{base}/t/1", (8, 4))
    with pytest.raises(StorageError, match=r"list .*none.*no such directory"):
        storage.list_directory(f"{base}/none")
    storage.delete([f"{base}/t/1", f"{base}/gone"])
    assert storage.exists(f"{base}/t/1x")
    storage.delete_tree(f"{base}/t")
    storage.delete_tree(f"{base}/t")
    assert not storage.exists(f"{base}/t/1x")


def test_an_unknown_scheme_is_named():
    with pytest.raises(StorageError, match=r"cannot use 'nosuch://'.*check"):
        storage.read_bytes("nosuch://h/x")


def test_beam_options_travel_there_and_back():
    options = PipelineOptions(
        [
            "--s3_endpoint_url=http://127.0.0.1:9",
            "--s3_access_key_id=id",
            "--s3_secret_access_key=secret",
            "--s3_verify=false",
            "--hdfs_host=namenode",
            "--hdfs_port=9870",
        ]
    )
    config = pickle.loads(pickle.dumps(storage.config_from_options(options)))
    assert config.s3_endpoint_url == "http://127.0.0.1:9"
    assert config.s3_verify is False, "not a file called 'false'"
    given = storage.beam_options(config).get_all_options(drop_default=True)
    wanted = options.get_all_options(drop_default=True) | {"s3_verify": False}
    assert {name: given[name] for name in wanted} == wanted


def test_endpoints_of_the_environment_travel_and_its_secrets_do_not(monkeypatch):
    for name in list(os.environ):
        if name.startswith(("AWS_", "STORAGE_EMULATOR")):
            monkeypatch.delenv(name)
    assert storage.config_from_options(PipelineOptions([])) == StorageConfig()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://s3")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://gcs")
    assert storage.config_from_options(PipelineOptions([])) == StorageConfig(
        s3_endpoint_url="http://s3", s3_region_name="eu-central-1", gcs_endpoint="http://gcs"
    )
    given = storage.config_from_options(PipelineOptions(["--s3_endpoint_url=http://option"]))
    assert given.s3_endpoint_url == "http://option"


@pytest.fixture
def _worker_without_options(monkeypatch):
    """A process that Beam handed no pipeline options, nor any credentials for Google."""
    from apache_beam.internal.gcp import auth

    monkeypatch.setattr(FileSystems, "_pipeline_options", None)
    monkeypatch.setattr(RuntimeValueProvider, "runtime_options", None)
    monkeypatch.setattr(auth._Credentials, "_credentials_init", True)
    monkeypatch.setattr(auth._Credentials, "_credentials", None)
    # Set and taken back, so that what configure_beam sets is undone too.
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "x")
    monkeypatch.delenv("STORAGE_EMULATOR_HOST")


@pytest.mark.usefixtures("_worker_without_options")
@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_beams_own_writing_reaches_the_same_endpoint_and_survives_faults(scheme):
    server = {"s3": servers.s3_server, "gs": servers.gcs_server}[scheme]
    data = os.urandom(6 << 20)
    with server("bucket") as url, FaultProxy(url) as proxy:
        config = StorageConfig(s3_endpoint_url=proxy.url, gcs_endpoint=proxy.url, **S3_CREDENTIALS)
        storage.configure_beam(config)
        storage.configure(config)
        for action in ("pass", "reset", "500"):
            fault = Fault(action, method="PUT", times=2)
            proxy.faults.append(fault)
            with FileSystems.create(f"{scheme}://bucket/temp/x") as stream:
                stream.write(data)
            FileSystems.rename([f"{scheme}://bucket/temp/x"], [f"{scheme}://bucket/{action}"])
            proxy.clear()
            assert fault.times < 2, "the fault did happen"
            assert storage.read_bytes(f"{scheme}://bucket/{action}") == data
        assert [e.path for e in storage.walk(f"{scheme}://bucket")] == ["500", "pass", "reset"]
    storage.configure(StorageConfig())


@pytest.mark.usefixtures("_worker_without_options")
def test_options_that_the_runner_handed_over_stay():
    options = PipelineOptions(["--s3_endpoint_url=http://runner"])
    FileSystems.set_options(options)
    storage.configure_beam(StorageConfig(s3_endpoint_url="http://other"))
    assert FileSystems._pipeline_options is options
