"""Globs and single files: what matches, its keys and labels, what is passed over."""

import os

import pytest

from beam_pipeline.errors import InputError, UsageError
from beam_pipeline.options import InputLayout
from tests.beam_pipeline.test_inputs_class_folder import listed, resolve, tree


def test_labels_from_the_parent_folder(tmp_path):
    tree(tmp_path, "faces/happy/1.jpg", "faces/sad/2.png", "faces/sad/3.txt", "faces/4.jpg")
    plan, refs, _ = listed(tmp_path / "faces/*/*")
    assert plan.announcement == "glob, labels: the folder of each image"
    assert plan.labelled
    # A pattern takes what it matches, whatever the name: 3.txt is judged by its bytes.
    assert [(ref.key, ref.label) for ref in refs] == [
        ("happy/1.jpg", "happy"),
        ("sad/2.png", "sad"),
        ("sad/3.txt", "sad"),
    ]
    assert refs[0].uri == str(tmp_path / "faces/happy/1.jpg")
    assert refs[0].size == 1


def test_labels_none_and_regex(tmp_path):
    tree(tmp_path, "train/s1_happy.jpg", "test/s2_sad.jpg")
    plan, refs, _ = listed(tmp_path / "*/*.jpg", label_from="none")
    assert not plan.labelled
    assert {ref.label for ref in refs} == {None}
    rule = r"regex:^(?P<split>[^/]+)/(?P<group>[^_]+)_(?P<label>[^.]+)"
    plan, refs, _ = listed(tmp_path / "*/*.jpg", label_from=rule)
    assert [ref[2:5] for ref in refs] == [("sad", "test", "s2"), ("happy", "train", "s1")]


def test_double_star_and_hidden_names(tmp_path):
    tree(
        tmp_path,
        "a/1.jpg",
        "a/b/c/2.jpg",
        "a/.ipynb_checkpoints/1.jpg",
        "a/._1.jpg",
        "a/Thumbs.db",
        "a/.DS_Store",
    )
    _, refs, report = listed(f"{tmp_path}/**/*")
    assert [ref.key for ref in refs] == ["a/1.jpg", "a/b/c/2.jpg"]
    assert report.ignored["hidden files and folders"] == 2
    assert report.ignored["system files (Thumbs.db, desktop.ini, __MACOSX, ._*)"] == 2
    assert report.ignored["folders that match the pattern"] == 3  # a, a/b, a/b/c


def test_folders_and_dead_links_that_match(tmp_path):
    tree(tmp_path, "a/1.jpg", "a/folder.jpg/inside.jpg", "a/folder/x")
    (tmp_path / "a/dead.jpg").symlink_to("nowhere")
    os.mkfifo(tmp_path / "a/pipe.jpg")
    _, refs, report = listed(tmp_path / "a/*")
    assert {ref.key: ref.problem.reason if ref.problem else None for ref in refs} == {
        "1.jpg": None,
        "dead.jpg": "missing",
        "folder.jpg": "not_a_file",
        "pipe.jpg": "not_a_file",
    }
    assert report.ignored == {"folders that match the pattern": 1}


def test_literal_names_win_over_patterns(tmp_path):
    tree(tmp_path, "happy/[1-3].jpg", "happy/1.jpg", "happy/a?.jpg", "happy/ab.jpg")
    _, refs, _ = listed(tmp_path / "happy/[1-3].jpg")
    assert [(ref.key, ref.label) for ref in refs] == [("[1-3].jpg", "happy")]
    _, refs, _ = listed(tmp_path / "happy/a?.jpg")
    assert [ref.key for ref in refs] == ["a?.jpg"]
    _, refs, _ = listed(tmp_path / "happy/[0-9].jpg")
    assert [ref.key for ref in refs] == ["1.jpg"]


def test_many_single_files_as_a_shell_expands_them(tmp_path):
    tree(tmp_path, "happy/1.jpg", "sad/1.jpg")
    plan, refs, _ = listed(tmp_path / "happy/1.jpg", tmp_path / "sad/1.jpg")
    assert plan.announcement.startswith("2 globs")
    assert [(ref.key, ref.label) for ref in refs] == [
        ("happy/1.jpg", "happy"),
        ("sad/1.jpg", "sad"),
    ]


def test_overlapping_patterns_give_one_key_twice(tmp_path):
    tree(tmp_path, "a/1.jpg", "a/2.jpg", "b/3.jpg")
    _, refs, _ = listed(tmp_path / "*/*.jpg", tmp_path / "a/*.jpg")
    assert [ref.key for ref in refs] == ["a/1.jpg", "a/2.jpg", "b/3.jpg", "a/1.jpg", "a/2.jpg"]


def test_relative_pattern(tmp_path, monkeypatch):
    tree(tmp_path, "happy/1.jpg")
    monkeypatch.chdir(tmp_path / "happy")
    _, (ref,), _ = listed("*.jpg")
    assert (ref.key, ref.label) == ("1.jpg", "happy")
    assert ref.uri == str(tmp_path / "happy/1.jpg")


def test_bytes_that_are_not_utf8(tmp_path):
    tree(tmp_path, "l\udcffabel/\udce9.jpg")
    _, (ref,), _ = listed(tmp_path / "*/*")
    assert ref.key == r"l\xffabel/\xe9.jpg"
    assert ref.label == r"l\xffabel"
    with open(ref.uri, "rb") as stream:
        assert stream.read() == b"x"


def test_mistakes(tmp_path):
    tree(tmp_path, "a/.hidden.jpg", "a/b/")
    with pytest.raises(InputError, match=r"no images found in .*/\*\.gif; check the pattern"):
        resolve(tmp_path / "a/*.gif")
    with pytest.raises(
        InputError, match=r"ignored: folders .*: 1 .*; hidden files and folders: 1 "
    ):
        resolve(tmp_path / "a/*")
    with pytest.raises(UsageError, match="--input_layout is for folders, but the input is a glob"):
        resolve(tmp_path / "a/*", layout=InputLayout.LABEL)
    tree(tmp_path, "c/1.jpg")
    with pytest.raises(InputError, match=r"finds no label in '1.jpg'"):
        resolve(tmp_path / "c/*", label_from="regex:(?P<label>zz)")
