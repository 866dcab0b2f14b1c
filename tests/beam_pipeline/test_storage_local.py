"""Local disk: literal names, links, walks, globs, reading, writing, errors."""

import os
import pathlib
import subprocess
import sys

import pytest

from beam_pipeline import storage
from beam_pipeline.errors import ImageRejectedError, StorageError
from beam_pipeline.storage import Entry
from beam_pipeline.types import RejectReason
from tests import fakes

# Names that a pattern, a URL or a shell would not take as they are.
ODD_NAMES = [
    "[1-3].jpg",
    "1.jpg",  # what [1-3].jpg would match
    "a b,c.jpg",
    "x#1%20?.jpg",
    "{x}.jpg",
    "*.jpg",
    "back\\slash.jpg",
    "quo'te\".jpg",
    "new\nline.jpg",
    "é.jpg",
    "e\u0301.jpg",
    "😀.jpg",
    "http:__x.jpg",
    ".hidden.jpg",
    " leading.jpg",
    "trailing .jpg ",
    os.fsdecode(b"latin\xe4.jpg"),
]


@pytest.fixture
def root(tmp_path: pathlib.Path) -> str:
    return str(tmp_path)


def paths(entries):
    return [entry.path for entry in entries]


def refusal(uri, **arguments):
    with pytest.raises(ImageRejectedError) as caught:
        storage.read_bytes(uri, **arguments)
    return caught.value


@pytest.mark.parametrize("prefix", ["", "file://"])
def test_odd_names_are_listed_and_read_as_they_are(root, prefix):
    fakes.write_tree(root, {f"d/{name}": os.fsencode(name) for name in ODD_NAMES})
    listed = storage.list_directory(f"{prefix}{root}/d")
    assert paths(listed) == sorted(ODD_NAMES)
    walked = list(storage.walk(prefix + root))
    assert sorted(paths(walked)) == sorted(f"d/{name}" for name in ODD_NAMES)
    for entry in listed:
        assert entry.kind == "file"
        assert storage.read_bytes(entry.uri) == os.fsencode(entry.path)
        assert storage.read_bytes(f"{prefix}{root}/d/{entry.path}") == os.fsencode(entry.path)
        assert storage.stat(prefix + entry.uri) == entry
        assert list(storage.glob(entry.uri)) == [entry], "a literal name that exists wins"


def test_names_of_paths_and_uris():
    cases = [
        # uri, parent, last name
        ("/a/b.jpg", "/a", "b.jpg"),
        ("/a/b/", "/a", "b"),
        ("/a", "/", "a"),
        ("/", "/", ""),
        ("a/b", "a", "b"),
        ("a", ".", "a"),
        ("file:///a/b", "file:///a", "b"),
        ("s3://bucket/a/b", "s3://bucket/a", "b"),
        ("s3://bucket/a", "s3://bucket", "a"),
        ("s3://bucket/a?b#c", "s3://bucket", "a?b#c"),
        ("gs://bucket", "gs://bucket", ""),
        ("gs://bucket/", "gs://bucket", ""),
    ]
    for uri, parent, name in cases:
        assert storage.parent(uri) == parent, uri
        assert storage.basename(uri) == name, uri
    assert storage.join("s3://b", "x", "y/z") == "s3://b/x/y/z"
    assert storage.join("a/", "b", "") == "a/b"
    assert storage.join("a", "/b") == "/b", "as os.path.join"
    assert storage.join("a", "gs://b/c") == "gs://b/c"
    assert storage.join("", "b") == "b"
    local = {"/a": True, "a": True, "file:///a": True, "c:/a": True, "s3://b/a": False}
    assert {uri: storage.is_local(uri) for uri in local} == local


def test_walk_follows_links_ends_loops_and_sorts_whole_paths(root):
    files = {"b/1.jpg": b"1", "b.jpg": b"22", "b-c/2.jpg": b"", "a/deep/er/3.jpg": b"333"}
    fakes.write_tree(root, files)
    os.makedirs(f"{root}/empty/inner")
    os.symlink("../b", f"{root}/a/link")  # to a folder
    os.symlink("../..", f"{root}/a/deep/up")  # a loop
    os.symlink(".", f"{root}/b/self")  # the shortest loop
    os.symlink("nowhere.jpg", f"{root}/dead.jpg")
    os.symlink("turning.jpg", f"{root}/turning.jpg")  # a link to itself
    os.mkfifo(f"{root}/pipe")
    entries = list(storage.walk(root))
    assert [(e.path, e.kind, e.size) for e in entries] == [
        ("a/deep/er/3.jpg", "file", 3),
        ("a/link/1.jpg", "file", 1),
        ("b-c/2.jpg", "file", 0),
        ("b.jpg", "file", 2),
        ("b/1.jpg", "file", 1),
        ("dead.jpg", "broken_link", -1),
        ("empty/inner", "directory", -1),
        ("pipe", "other", -1),
        ("turning.jpg", "broken_link", -1),
    ]
    assert all(entry.uri == f"{root}/{entry.path}" for entry in entries)
    folders = [e.path for e in storage.walk(root, directories=True) if e.kind == "directory"]
    assert folders == ["a", "a/deep", "a/deep/er", "a/link", "b-c", "b", "empty", "empty/inner"]


def test_walk_skips_names_with_all_below_and_asks_once(root):
    fakes.write_tree(root, {"a/.git/x/1": b"", "a/2.jpg": b"", "b/.DS": b"", ".x": b""})
    asked = []

    def skip(name):
        asked.append(name)
        return name.startswith(".")

    assert [(e.path, e.kind) for e in storage.walk(root, skip)] == [
        ("a/2.jpg", "file"),
        ("b", "directory"),  # nothing else is left in it
    ]
    assert sorted(asked) == [".DS", ".git", ".x", "2.jpg", "a", "b"]


def test_relative_paths_are_listed(root, monkeypatch):
    fakes.write_tree(root, {"d/1.jpg": b"x"})
    monkeypatch.chdir(root)
    assert list(storage.walk("d")) == [Entry("d/1.jpg", "1.jpg", "file", 1)]
    assert list(storage.walk(".")) == [Entry("./d/1.jpg", "d/1.jpg", "file", 1)]
    assert list(storage.glob("*/1.jpg")) == [Entry("d/1.jpg", "d/1.jpg", "file", 1)]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.jpg", ["1.jpg", "dir.jpg"]),
        ("a/*", ["1.jpg", "2.png", "b"]),
        ("a/[12].*", ["1.jpg", "2.png"]),
        ("a/[!1].*", ["2.png"]),
        ("?.jpg", ["1.jpg"]),
        ("**/*.jpg", ["1.jpg", "a/1.jpg", "a/b/1.jpg", "a/b/c/1.jpg", "dir.jpg"]),
        ("a/**/1.jpg", ["1.jpg", "b/1.jpg", "b/c/1.jpg"]),
        ("**/b/**/1.jpg", ["a/b/1.jpg", "a/b/c/1.jpg"]),  # each one once
        ("a/**", ["1.jpg", "2.png", "b", "b/1.jpg", "b/c", "b/c/1.jpg"]),
        ("*/b/*.jpg", ["a/b/1.jpg"]),
        ("[set]/*", ["s.txt"]),  # a folder of exactly that name
        ("nothing/*.jpg", []),
        ("*.gif", []),
        ("1.jpg/*", []),
    ],
)
def test_glob(root, pattern, expected):
    names = ["1.jpg", "a/1.jpg", "a/2.png", "a/b/1.jpg", "a/b/c/1.jpg", "[set]/s.txt", "s/t.txt"]
    fakes.write_tree(root, dict.fromkeys(names, b""))
    os.makedirs(f"{root}/dir.jpg")
    entries = list(storage.glob(f"{root}/{pattern}"))
    assert sorted(paths(entries)) == expected
    assert all(os.path.lexists(entry.uri) for entry in entries)


def test_glob_ends_loops_and_skips(root):
    fakes.write_tree(root, {"a/1.jpg": b"", ".git/2.jpg": b""})
    os.symlink("..", f"{root}/a/up")
    found = storage.glob(f"{root}/**/*.jpg", skip=lambda name: name.startswith("."))
    assert paths(found) == ["a/1.jpg"]


def test_read_bytes_refuses_what_is_wrong_with_one_file(root):
    fakes.write_tree(root, {"f": b"0123456789", "dir.jpg/x": b""})
    os.symlink("gone", f"{root}/dead")
    os.symlink("turn", f"{root}/turn")
    os.mkfifo(f"{root}/pipe")
    cases = {
        "none": RejectReason.MISSING,
        "f/below": RejectReason.MISSING,
        "dead": RejectReason.MISSING,
        "turn": RejectReason.MISSING,
        "n" * 300: RejectReason.MISSING,
        "nul\0": RejectReason.MISSING,
        "dir.jpg": RejectReason.NOT_A_FILE,
        "pipe": RejectReason.NOT_A_FILE,
    }
    for name, reason in cases.items():
        assert refusal(f"{root}/{name}").reason is reason, name
    assert "link to 'gone'" in refusal(f"{root}/dead").detail
    assert refusal(f"{root}/f", max_bytes=9).reason is RejectReason.TOO_MANY_BYTES
    assert storage.read_bytes(f"{root}/f", max_bytes=10) == b"0123456789"


def test_permission_denied_is_unreadable(root, monkeypatch):
    fakes.write_tree(root, {"f": b"x"})
    if os.geteuid() == 0:  # root may read everything, so say it in its place

        def denied(path, flags):
            raise PermissionError(13, "Permission denied", path)

        monkeypatch.setattr(os, "open", denied)
    else:
        os.chmod(f"{root}/f", 0)
    refused = refusal(f"{root}/f")
    assert refused.reason is RejectReason.UNREADABLE
    assert "Permission denied" in refused.detail


def test_read_bytes_of_parts_empty_files_and_files_of_unknown_size(root):
    fakes.write_tree(root, {"f": b"0123456789", "empty": b""})
    assert storage.read_bytes(f"{root}/f", (3, 4)) == b"3456"
    assert storage.read_bytes(f"{root}/f", (3, 0)) == b""
    assert storage.read_bytes(f"{root}/empty") == b""
    assert storage.read_bytes("/proc/self/status").startswith(b"Name:")
    assert refusal(f"{root}/f", byte_range=(0, 8), max_bytes=7).reason.value == "too_many_bytes"
    with pytest.raises(StorageError, match=r"bytes 8 to 12 were expected, found 2.*shorter"):
        storage.read_bytes(f"{root}/f", (8, 4))


def test_writes_replace_whole_files_and_leave_nothing_else(root):
    name = "n" * 250  # no room for an ending
    storage.write_bytes(f"{root}/new/folder/{name}", b"one")
    storage.write_bytes(f"{root}/new/folder/{name}", b"two")
    assert os.listdir(f"{root}/new/folder") == [name]
    assert storage.read_bytes(f"{root}/new/folder/{name}") == b"two"
    os.makedirs(f"{root}/taken/x")
    with pytest.raises(StorageError, match=f"cannot write '{root}/taken': Is a directory"):
        storage.write_bytes(f"{root}/taken", b"")
    assert sorted(os.listdir(root)) == ["new", "taken"]
    with storage.open_write(f"{root}/stream/s.gz") as stream:
        stream.write(b"\x1f\x8bplain")
    with storage.open_read(f"{root}/stream/s.gz") as stream:
        assert stream.read() == b"\x1f\x8bplain", "never decompressed"


def test_rename_and_delete(root):
    fakes.write_tree(root, {"a/1": b"1", "a/b/2": b"2", "keep/3": b"3"})
    os.symlink("../keep", f"{root}/a/link")
    storage.rename(f"{root}/a", f"{root}/new/a")
    storage.rename(f"{root}/new/a/1", f"{root}/new/a/b/2")  # replaces
    assert storage.read_bytes(f"{root}/new/a/b/2") == b"1"
    storage.delete([f"{root}/new/a/b/2", f"{root}/none"])
    assert not storage.exists(f"{root}/new/a/b/2")
    storage.delete_tree(f"{root}/new")
    storage.delete_tree(f"{root}/new")  # gone already
    assert not storage.exists(f"{root}/new")
    assert storage.read_bytes(f"{root}/keep/3") == b"3", "links are not followed"
    storage.make_directory(f"{root}/x/y")
    storage.make_directory(f"{root}/x/y")
    stat = storage.stat(f"{root}/x/y")
    assert stat is not None
    assert (stat.kind, stat.path) == ("directory", "y")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda root: storage.list_directory(f"{root}/none"), "list .*none.*check the spelling"),
        (lambda root: list(storage.walk(f"{root}/file")), "list .*file.*is a file"),
        (lambda root: storage.open_read(f"{root}/none"), "read .*none.*No such file"),
        (lambda root: storage.rename(f"{root}/none", f"{root}/x"), "rename to .*/x.* the path"),
        (lambda root: storage.make_directory(f"{root}/file"), "make the directory .*exists"),
        (lambda root: storage.write_bytes(f"{root}/file/x", b""), "write .*file/x"),
        (lambda root: storage.rename(f"{root}/file", "s3://b/x"), "different storages"),
    ],
)
def test_errors_of_the_environment_name_path_and_cause(root, call, message):
    fakes.write_tree(root, {"file": b""})
    with pytest.raises(StorageError, match=message):
        call(root)


def test_a_failing_disk_stops_the_job(root, monkeypatch):
    fakes.write_tree(root, {"f": b"x"})

    def broken(descriptor, size):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "read", broken)
    with pytest.raises(StorageError, match=r"cannot read '.*f': Input/output error \(the disk"):
        storage.read_bytes(f"{root}/f")


def test_local_files_load_neither_beam_nor_cloud_libraries(root):
    fakes.write_tree(root, {"a/f": b"x"})
    program = (
        "import sys; from beam_pipeline import storage; "
        f"[storage.read_bytes(e.uri) for e in storage.walk({root!r})]; "
        "print([m for m in ('apache_beam', 'boto3', 'google.auth', 'requests', 'tensorflow')"
        " if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
