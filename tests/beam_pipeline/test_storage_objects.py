"""S3 and GCS against real HTTP servers, and against a proxy that fails on purpose."""

import concurrent.futures
import dataclasses
import gc
import json
import os
import pickle
import time

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from beam_pipeline import storage
from beam_pipeline.errors import ImageRejectedError, StorageError
from beam_pipeline.storage import StorageConfig, api
from beam_pipeline.types import RejectReason
from tests import fakes, servers
from tests.servers import S3_CREDENTIALS, SLOW_DOWN, Fault, FaultProxy

PART = {"s3": 5 << 20, "gs": 256 << 10}  # the smallest that each allows
BASES = {"s3": "s3://bucket", "gs": "gs://bucket"}


@pytest.fixture(scope="module")
def proxies():
    with (
        servers.s3_server("bucket", "empty") as s3,
        servers.gcs_server("bucket", "empty") as gcs,
        FaultProxy(s3) as s3_proxy,
        FaultProxy(gcs) as gcs_proxy,
    ):
        yield {"s3": s3_proxy, "gs": gcs_proxy}


@pytest.fixture(autouse=True)
def _configured(proxies, monkeypatch):
    for name in list(os.environ):
        if name.startswith(("AWS_", "GOOGLE_", "STORAGE_EMULATOR")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    config = StorageConfig(
        s3_endpoint_url=proxies["s3"].url,
        gcs_endpoint=proxies["gs"].url,
        retry_seconds=20,
        **S3_CREDENTIALS,
    )
    storage.configure(config)
    for scheme, part in PART.items():
        api._store(BASES[scheme]).part_bytes = part
    for proxy in proxies.values():
        proxy.clear()
    yield
    storage.configure(StorageConfig())


@pytest.fixture(params=["s3", "gs"])
def scheme(request):
    return request.param


@pytest.fixture
def proxy(proxies, scheme):
    return proxies[scheme]


@pytest.fixture
def base(scheme, request):
    """A directory of the test's own."""
    return f"{BASES[scheme]}/{request.node.name}"


def write_all(base, files):
    for name, data in files.items():
        storage.write_bytes(f"{base}/{name}", data)


def seen(entries):
    return [(entry.path, entry.kind, entry.size) for entry in entries]


def test_the_same_names_bytes_and_order_as_on_local_disk(base, tmp_path):
    names = [
        "[1-3].jpg",
        "1.jpg",
        "a b,c.jpg",
        "x#1%20?&=+.jpg",
        "{x}*.jpg",
        "back\\slash.jpg",
        "quo'te\".jpg",
        "é😀.jpg",
        "b/1.jpg",
        "b.jpg",
        "b-c/2.jpg",
        "deep/er/[x]/3.jpg",
    ]
    files = {name: name.encode() for name in names}
    write_all(base, files)
    fakes.write_tree(tmp_path, files)
    local = str(tmp_path)
    for place in ("", "/b", "/deep/er"):
        assert seen(storage.walk(base + place)) == seen(storage.walk(local + place))
        assert seen(storage.list_directory(base + place)) == seen(
            storage.list_directory(local + place)
        )
    every = list(storage.walk(base, directories=True))
    assert seen(every) == seen(storage.walk(local, directories=True))
    for entry in storage.walk(base):
        assert entry.uri == f"{base}/{entry.path}"
        assert storage.read_bytes(entry.uri) == files[entry.path]
        assert storage.stat(entry.uri) == entry._replace(path=storage.basename(entry.uri))
    for pattern in ("*.jpg", "**/*.jpg", "[1-3].jpg", "b*/?.jpg", "deep/**", "no/*"):
        assert seen(storage.glob(f"{base}/{pattern}")) == seen(
            storage.glob(f"{local}/{pattern}")
        ), pattern

    def skip(name):
        return name in ("b", "deep", "1.jpg")

    assert seen(storage.walk(base, skip)) == seen(storage.walk(local, skip))


def test_directories_are_prefixes(base, scheme):
    write_all(base, {"d/x": b"1", "d2/y": b"2"})
    assert seen([storage.stat(f"{base}/d")]) == [("d", "directory", -1)]
    assert storage.stat(f"{base}/d/").kind == "directory"
    assert storage.stat(f"{base}/d/none") is None
    assert storage.stat(f"{base}/d/\udce4") is None, "a local name that no object can have"
    assert storage.stat(f"{scheme}://empty").kind == "directory"
    assert storage.list_directory(f"{scheme}://empty") == []
    assert storage.exists(f"{base}/d")
    with pytest.raises(StorageError, match=r"cannot list .*none.*no object has a name"):
        storage.list_directory(f"{base}/none")


def test_listings_of_many_pages(base, scheme, monkeypatch):
    names = [f"{number:02}/x" for number in range(23)]
    write_all(base, dict.fromkeys(names, b""))
    store = api._store(base)
    if scheme == "s3":
        whole = store._list_page
        monkeypatch.setattr(store, "_list_page", lambda b, p, d, t, limit: whole(b, p, d, t, 5))
    else:  # the emulator has no pages: cut its answer here

        def pages(bucket, prefix, delimiter, token, limit, whole=store._list_page):
            page, _ = whole(bucket, prefix, delimiter, None, limit)
            start = int(token or 0)
            return page[start : start + 5], str(start + 5) if start + 5 < len(page) else None

        monkeypatch.setattr(store, "_list_page", pages)
    assert [entry.path for entry in storage.walk(base)] == names
    assert [entry.path for entry in storage.list_directory(base)] == [n[:2] for n in names]


def test_empty_folder_objects_are_empty_directories(base, proxies):
    # As the web consoles make them; the GCS emulator refuses such names.
    if not base.startswith("s3"):
        pytest.skip("the emulator has no objects whose names end in /")
    prefix = base.removeprefix("s3://bucket/")
    client = servers.s3_client(proxies["s3"].url)
    for key in ("happy/", "sad/", "sad/1.jpg"):
        client.put_object(Bucket="bucket", Key=f"{prefix}/{key}", Body=b"")
    assert seen(storage.walk(base)) == [("happy", "directory", -1), ("sad/1.jpg", "file", 0)]
    assert seen(storage.list_directory(f"{base}/sad")) == [("1.jpg", "file", 0)]


def test_refusals_of_one_object(base):
    write_all(base, {"d/f": b"0123456789"})

    def reason(uri, **arguments):
        with pytest.raises(ImageRejectedError) as caught:
            storage.read_bytes(uri, **arguments)
        return caught.value.reason

    assert reason(f"{base}/none") is RejectReason.MISSING
    assert reason(f"{base}/latin\udce4") is RejectReason.MISSING
    assert reason(f"{base}/d") is RejectReason.NOT_A_FILE
    assert reason(f"{base}/d/f", max_bytes=9) is RejectReason.TOO_MANY_BYTES
    assert storage.read_bytes(f"{base}/d/f", max_bytes=10) == b"0123456789"
    assert storage.read_bytes(f"{base}/d/f", (3, 4)) == b"3456"
    assert storage.read_bytes(f"{base}/d/f", (3, 0)) == b""
    for part in ((8, 4), (18, 4)):
        with pytest.raises(StorageError, match="the file became shorter"):
            storage.read_bytes(f"{base}/d/f", part)


@pytest.mark.parametrize("status", ["403", "401"])
def test_access_denied(base, proxy, status):
    write_all(base, {"f": b"x"})
    proxy.faults.append(Fault(status, "GET", times=99))
    if status == "403":
        with pytest.raises(ImageRejectedError, match=r"unreadable.*permission"):
            storage.read_bytes(f"{base}/f")
    else:
        with pytest.raises(StorageError, match=r"read .*(AWS_PROFILE|gcloud auth)"):
            storage.read_bytes(f"{base}/f")
    assert len(proxy.requests) == 2, "the write and one read: nothing here is worth a retry"


@pytest.mark.parametrize("action", ["reset", "lose", "cut", "tear", "500", "503"])
def test_a_read_that_fails_is_repeated(base, proxy, action):
    data = os.urandom(100_000)
    write_all(base, {"f": data})
    proxy.clear()
    body = SLOW_DOWN if base.startswith("s3") and action == "503" else b""
    proxy.faults.append(Fault(action, "GET", times=2, body=body))
    assert storage.read_bytes(f"{base}/f") == data
    assert proxy.count("GET") == 3
    proxy.faults.append(Fault(action, "GET", times=1, body=body))
    assert seen(storage.walk(base)) == [("f", "file", 100_000)]
    proxy.faults.append(Fault(action, "GET", times=1, body=body))
    with storage.open_read(f"{base}/f") as stream:
        assert stream.read(10) == data[:10]
        stream.seek(-10, os.SEEK_END)
        assert stream.read() == data[-10:]
        stream.seek(0)
        assert stream.read() == data


@pytest.mark.parametrize("action", ["reset", "lose", "500", "503"])
def test_a_write_that_fails_anywhere_is_repeated(base, proxy, scheme, action):
    data = os.urandom(PART[scheme] * 2 + 1000)  # three parts
    steps = 5 if scheme == "s3" else 4  # S3 completes with a request of its own
    for failing in range(steps):
        proxy.clear()
        # Also twice in a row, in the middle.
        faults = [Fault("pass", times=failing), Fault(action, times=2 if failing == 2 else 1)]
        proxy.faults += faults
        with storage.open_write(f"{base}/{failing}") as stream:
            for start in range(0, len(data), 200_000):
                stream.write(data[start : start + 200_000])
        assert [fault.times for fault in faults] == [0, 0], "the fault did happen"
        proxy.clear()
        assert storage.read_bytes(f"{base}/{failing}") == data
    small = Fault(action, times=2)
    proxy.faults.append(small)
    storage.write_bytes(f"{base}/small", b"small")
    assert small.times == 0
    assert storage.read_bytes(f"{base}/small") == b"small"
    assert [e.path for e in storage.walk(base)] == [*map(str, range(steps)), "small"]


@pytest.mark.parametrize("action", ["reset", "lose", "500", "503"])
def test_rename_and_delete_are_repeated(base, proxy, action):
    files = {f"staging/{number}": b"%d" % number for number in range(3)}
    write_all(base, files)
    proxy.clear()
    fault = Fault(action, times=3)
    proxy.faults.append(fault)
    storage.rename(f"{base}/staging/0", f"{base}/final-0")
    storage.rename(f"{base}/staging", f"{base}/done")
    assert seen(storage.walk(base)) == [
        ("done/1", "file", 1),
        ("done/2", "file", 1),
        ("final-0", "file", 1),
    ]
    proxy.faults.append(Fault(action, times=2))
    storage.delete([f"{base}/final-0", f"{base}/never-there"])
    storage.delete_tree(f"{base}/done")
    storage.delete_tree(f"{base}/done")
    assert storage.stat(base) is None
    assert fault.times == 0


def test_one_failed_key_of_a_batch_is_deleted_again(base, proxies):
    if not base.startswith("s3"):
        pytest.skip("only S3 deletes in batches")
    write_all(base, {"a": b"", "b": b""})
    answer = b"<DeleteResult><Error><Key>a</Key><Code>SlowDown</Code></Error></DeleteResult>"
    proxies["s3"].faults.append(Fault("200", "POST", "delete", body=answer))
    storage.delete([f"{base}/a", f"{base}/b"])
    assert storage.stat(base) is None


def test_retries_end_in_time_and_say_how_often(base, proxy, scheme):
    storage.configure(dataclasses.replace(storage.config.current(), retry_seconds=1))
    proxy.faults.append(Fault("503", times=999))
    start = time.monotonic()
    with pytest.raises(StorageError, match=r"cannot write '.*/f' after \d attempts: .*503"):
        storage.write_bytes(f"{base}/f", b"x")
    assert time.monotonic() - start < 5


def test_an_object_appears_whole_or_not_at_all(base, scheme, proxies):
    data = bytes(PART[scheme] * 2)
    stream = storage.open_write(f"{base}/f")
    stream.write(data)
    assert storage.stat(f"{base}/f") is None, "not before it is closed"
    stream.close()
    assert storage.stat(f"{base}/f").size == len(data)

    def fail():
        with storage.open_write(f"{base}/failed") as stream:
            stream.write(data)
            raise RuntimeError("the shard could not be finished")

    with pytest.raises(RuntimeError, match="the shard"):
        fail()
    dropped = storage.open_write(f"{base}/dropped")
    dropped.write(data)
    del dropped
    gc.collect()
    assert [entry.path for entry in storage.walk(base)] == ["f"]
    if scheme == "s3":
        client = servers.s3_client(proxies["s3"].url)
        prefix = base.removeprefix("s3://bucket/")
        uploads = client.list_multipart_uploads(Bucket="bucket", Prefix=prefix)
        assert uploads.get("Uploads", []) == [], "parts cost money until they are deleted"


def test_an_object_replaced_while_it_is_read(base, scheme):
    if scheme == "gs":
        pytest.skip("the emulator ignores ifGenerationMatch")
    write_all(base, {"f": bytes(9 << 20)})
    with storage.open_read(f"{base}/f") as stream:
        stream.read(10)
        write_all(base, {"f": b"1" * (9 << 20)})
        with pytest.raises(StorageError, match="replaced while it was read"):
            stream.read()


def test_one_client_serves_many_threads_on_kept_connections(base, proxy):
    files = {f"{number}": b"%d" % number * 1000 for number in range(60)}
    write_all(base, files)
    store = api._store(base)
    before = proxy.connections
    for name in files:
        storage.read_bytes(f"{base}/{name}")
    assert proxy.connections - before <= 1, "connections are kept, for each costs a handshake"
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda name: storage.read_bytes(f"{base}/{name}"), files))
    assert found == list(files.values())
    assert api._store(base) is store
    storage.configure(dataclasses.replace(storage.config.current(), retry_seconds=7))
    assert api._store(base) is not store, "a new configuration gets a new client"


@pytest.mark.parametrize(
    "call",
    [
        lambda base: storage.read_bytes(f"{base}/f"),
        lambda base: storage.write_bytes(f"{base}/f", b""),
        lambda base: list(storage.walk(base)),
        lambda base: storage.stat(f"{base}/f"),
    ],
)
def test_a_missing_bucket_is_named_at_once(scheme, call):
    start = time.monotonic()
    with pytest.raises(StorageError, match=r"bucket.*\(check its name"):
        call(f"{scheme}://no-such-bucket/d")
    assert time.monotonic() - start < 5


def test_missing_credentials_are_named_at_once(scheme, proxy, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    start = time.monotonic()
    if scheme == "s3":
        storage.configure(StorageConfig(s3_endpoint_url=proxy.url))
        wanted = r"Unable to locate credentials \(.*AWS_ACCESS_KEY_ID"
    else:
        # Google's address, but answered here: as it answers those it does not know.
        monkeypatch.setattr("beam_pipeline.storage.gcs._ENDPOINT", proxy.url)
        storage.configure(StorageConfig())
        proxy.faults.append(Fault("401", times=9))
        wanted = r"no Google credentials were found.*\(run gcloud auth"
    with pytest.raises(StorageError, match=wanted):
        storage.list_directory(f"{scheme}://bucket/d")
    assert time.monotonic() - start < 10


def test_a_broken_key_file_is_named_at_once(monkeypatch, tmp_path):
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    storage.configure(StorageConfig())
    with pytest.raises(StorageError, match=r"none\.json was not found.*\(run gcloud auth"):
        storage.list_directory("gs://bucket/d")


def test_a_service_account_is_used_and_its_token_is_asked_for_again(proxies, monkeypatch, tmp_path):
    proxy = proxies["gs"]
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    account = {
        "type": "service_account",
        "client_email": "tester@example.com",
        "token_uri": f"{proxy.url}/token",
        "private_key": key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ).decode(),
    }
    (tmp_path / "key.json").write_text(json.dumps(account))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    storage.configure(StorageConfig(gcs_endpoint=proxy.url, retry_seconds=20))
    token = json.dumps({"access_token": "the-token", "expires_in": 3600}).encode()
    proxy.faults += [Fault("503", path="/token"), Fault("200", path="/token", body=token)]
    storage.write_bytes("gs://bucket/account/f", b"x")
    assert storage.read_bytes("gs://bucket/account/f") == b"x"
    assert proxy.authorization == "Bearer the-token"
    assert proxy.count("POST", "/token") == 2, "asked again after the 503, then kept"
    proxy.faults.append(Fault("400", path="/token", body=b'{"error": "invalid_grant"}'))
    storage.configure(StorageConfig(gcs_endpoint=proxy.url, retry_seconds=21))
    with pytest.raises(StorageError, match=r"invalid_grant.*\(run gcloud auth"):
        storage.read_bytes("gs://bucket/account/f")


def test_an_unreachable_endpoint_is_named_within_seconds(scheme):
    nobody = f"http://127.0.0.1:{servers.free_port()}"
    storage.configure(StorageConfig(s3_endpoint_url=nobody, gcs_endpoint=nobody, **S3_CREDENTIALS))
    start = time.monotonic()
    with pytest.raises(StorageError, match=f"(?s)connect.*{nobody}.*network"):
        storage.read_bytes(f"{scheme}://bucket/f")
    assert time.monotonic() - start < 10


def test_endpoints_come_from_the_environment(proxies, scheme, base, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxies["s3"].url)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxies["gs"].url)
    for name, value in servers.S3_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    storage.configure(StorageConfig())
    write_all(base, {"f": b"x"})
    assert storage.read_bytes(f"{base}/f") == b"x"
    assert proxies[scheme].count("GET") >= 1


def test_the_configuration_travels_and_hides_its_secrets():
    config = StorageConfig(s3_secret_access_key="very-secret", s3_session_token="token-secret")
    assert pickle.loads(pickle.dumps(config)) == config
    assert "secret" not in repr(config).replace("s3_secret_access_key", "")


def test_errors_travel_between_processes(base, scheme):
    with pytest.raises(StorageError) as caught:
        storage.read_bytes(f"{scheme}://no-such-bucket/d")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert str(copy) == str(caught.value)
    assert copy.kind is caught.value.kind
