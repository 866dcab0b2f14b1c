"""Keys: valid UTF-8, reversible, one spelling for one place."""

import os

import pytest

from beam_pipeline import keys


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("happy/1.jpg", "happy/1.jpg"),
        ("glücklich/1 (2).jpg", "glücklich/1 (2).jpg"),
        ("a,b#c%20d?[1-3]{x}'\"\n<script>.jpg", "a,b#c%20d?[1-3]{x}'\"\n<script>.jpg"),
        ("😀.png", "😀.png"),
        ("e\u0301.png", "e\u0301.png"),  # NFD stays NFD
        ("\u00e9.png", "\u00e9.png"),  # NFC stays NFC
        ("a\udcffb.jpg", r"a\xffb.jpg"),  # a byte that is not UTF-8
        ("\udce9t\udce9.jpg", r"\xe9t\xe9.jpg"),  # Latin-1
        (r"a\b.jpg", r"a\b.jpg"),  # a backslash that escapes nothing
        (r"a\xff.jpg", r"a\x5cxff.jpg"),  # literal text that looks like an escape
        (r"a\xFF.jpg", r"a\x5cxFF.jpg"),  # upper case too
        (r"a\x5c.jpg", r"a\x5cx5c.jpg"),
        (r"\\xaa", r"\\x5cxaa"),  # only the second backslash is ambiguous
        (r"a\xfg", r"a\xfg"),  # not two hex digits
        ("\\\udcff", r"\\xff"),  # a backslash, then a bad byte
        ("\\x5\udcff", r"\x5\xff"),
    ],
)
def test_to_key_and_back(path, key):
    assert keys.to_key(path) == key
    key.encode("utf-8")
    assert keys.from_key(key) == path


def test_every_pair_of_bytes_comes_back():
    for high in range(256):
        for name in (b"\\x%02x" % high, b"\\" + bytes([high]) + b"x41", bytes([high, 0xC3, 0xA9])):
            path = os.fsdecode(name)
            key = keys.to_key(path)
            key.encode("utf-8")
            assert os.fsencode(keys.from_key(key)) == name


def test_distinct_paths_have_distinct_keys():
    names = [b"\\xff", b"\xff", b"\\x5cxff", b"\\\\xff", b"\\\xff", b"\\x5c\xff"]
    assert len({keys.to_key(os.fsdecode(name)) for name in names}) == len(names)


def test_a_surrogate_that_is_no_byte_is_refused():
    with pytest.raises(UnicodeEncodeError):
        keys.to_key("a\ud800.jpg")


@pytest.mark.parametrize(
    ("path", "normal"),
    [
        ("a", "a"),
        ("./a", "a"),
        ("././a/./b", "a/b"),
        ("a//b", "a/b"),
        ("a/b/", "a/b"),
        ("x/../a", "a"),
        ("../a", "../a"),  # outside: a name only
        ("../../a/../b", "../../b"),
        (".hidden/..name/a..b/...", ".hidden/..name/a..b/..."),  # dots that are names
        ("", ""),
        (".", ""),
        ("a/..", ""),
        ("..", ".."),
        ("/", ""),
    ],
)
def test_normalize_path(path, normal):
    assert keys.normalize_path(path) == normal


@pytest.mark.parametrize(
    ("path", "base", "below"),
    [
        ("/data/a/x.jpg", "/data", "a/x.jpg"),
        ("/data//a/../x.jpg", "/data/", "x.jpg"),
        ("/data2/x.jpg", "/data", None),  # a prefix of the text, not of the path
        ("/data/../etc/x", "/data", None),
        ("/x.jpg", "/", "x.jpg"),
        ("s3://bucket/a/x.jpg", "s3://bucket/a", "x.jpg"),
        ("s3://bucket/ab/x.jpg", "s3://bucket/a", None),
        ("gs://bucket/x.jpg", "s3://bucket", None),
        ("file:///data/x.jpg", "/data", "x.jpg"),
    ],
)
def test_path_below(path, base, below):
    assert keys.path_below(path, base) == below


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("/etc/x.jpg", "etc/x.jpg"),
        ("//etc//x.jpg", "etc/x.jpg"),
        ("/../x.jpg", "x.jpg"),
        ("s3://bucket/a/./x.jpg", "bucket/a/x.jpg"),
        ("file:///data/x.jpg", "data/x.jpg"),
    ],
)
def test_without_root(path, key):
    assert keys.without_root(path) == key


@pytest.mark.parametrize(
    ("bases", "prefixes"),
    [
        (["/data"], [""]),
        (["/data", "/data/"], ["", ""]),  # the same place: the same keys
        (["/data/a", "/data/b"], ["a/", "b/"]),
        (["/data/a/train", "/data/b/train"], ["a/train/", "b/train/"]),
        (["/data", "/data/sub"], ["", "sub/"]),  # one inside the other: same file, same key
        (["s3://one/a", "s3://two/a"], ["one/a/", "two/a/"]),
        (["s3://one/a", "/data"], ["one/a/", "data/"]),
    ],
)
def test_key_prefixes(bases, prefixes):
    assert keys.key_prefixes(bases) == prefixes
