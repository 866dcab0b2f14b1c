"""Manifests: one reference per row, whatever the file looks like; errors that name the row."""

import itertools
import json
import os
import tracemalloc
from collections import Counter

import pytest

from beam_pipeline.duplicates import resolve_duplicates
from beam_pipeline.errors import InputError, UsageError
from beam_pipeline.inputs import ListingReport, declared_labels, list_images
from beam_pipeline.inputs.columns import Feature, parse_json, parse_text
from beam_pipeline.options import FeatureType
from tests.beam_pipeline.test_inputs_class_folder import HOSTILE, corpus, listed, resolve


def write(folder, content, name="list.csv") -> str:
    file = folder / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(file)


def problems(refs):
    return [(ref.problem.reason, ref.problem.detail) if ref.problem else None for ref in refs]


def test_csv(tmp_path):
    file = write(tmp_path, "label,path,subject\nhappy,a/1.jpg,s1\nsad,b.png,\n")
    plan, refs, report = listed(file)
    assert plan.announcement == (
        "manifest, CSV: path from 'path', label from 'label', group from 'subject'"
    )
    assert plan.labelled
    assert declared_labels(plan) is None
    assert [ref.key for ref in refs] == ["a/1.jpg", "b.png"]
    assert refs[0].uri == str(tmp_path / "a/1.jpg")
    assert [(ref.label, ref.group, ref.split) for ref in refs] == [
        ("happy", "s1", None),
        ("sad", None, None),
    ]
    assert [ref.row for ref in refs] == [1, 2]
    assert problems(refs) == [None, None]
    assert not report.ignored
    assert "none of the first 2 images exists" in plan.warnings[0]
    assert "--image_root" in plan.warnings[0]
    write(tmp_path, "x", "b.png")
    assert resolve(file).warnings == ()


@pytest.mark.parametrize(
    ("content", "name"),
    [
        ("path,label,split\n{},{},{}\n", "m.csv"),
        ("path;label;split\n{};{};{}\n", "m.csv"),
        ("path\tlabel\tsplit\n{}\t{}\t{}\n", "m.csv"),
        ("path|label|split\n{}|{}|{}\n", "m.csv"),
        ("path\tlabel\tsplit\n{}\t{}\t{}\n", "m.tsv"),
        ("path,label,split\n{},{},{}\n", "m.tsv"),
        ("path,label,split\n{},{},{}\n", "m.txt"),
        ("\ufeffpath,label,split\n{},{},{}\n", "m.csv"),  # byte order mark
        ("path,label,split\r\n{},{},{}\r\n", "M.CSV"),
        ("path,label,split\n{},{},{}", "m.csv"),  # no line end at the end
        ('"path","label","split"\n"{}","{}","{}"\n', "m.csv"),
        ("\n\npath,label,split\n\n{},{},{}\n\n", "m.csv"),  # blank lines
        ("File Name,Emotion,Usage\n{},{},{}\n", "m.csv"),
        (" image_path , CLASS , Subset \n{},{},{}\n", "m.csv"),
        ("user.id,note; or not,split,label,pth\n1,2,{2},{1},{0}\n", "m.csv"),
        ('{{"path": "{}", "label": "{}", "split": "{}"}}\n', "m.jsonl"),
        ('\ufeff{{"filename": "{}", "class": "{}", "split": "{}"}}\r\n\n', "m.ndjson"),
        ('{{"path": "{}", "label": "{}", "split": "{}"}}', "m.json"),
        ('{{"path": "{}", "label": "{}", "split": "{}"}}', "m.txt"),
    ],
)
def test_forms(tmp_path, content, name):
    file = write(tmp_path, content.format("a/1.jpg", "happy", "train"), name)
    plan, (ref,), _ = listed(file)
    assert plan.kind == "manifest"
    assert (ref.key, ref.label, ref.split, ref.row) == ("a/1.jpg", "happy", "train", 1)
    assert ref.problem is None


def test_columns_and_delimiter_can_be_told(tmp_path):
    file = write(tmp_path, "path:x:y:z:w\nno:a.jpg:happy:test:s1\n")
    _, (ref,), _ = listed(
        file,
        delimiter=":",
        path_column="x",
        label_column="Y",  # case does not matter
        split_column="z",
        group_column="w",
    )
    assert ref[2:5] == ("happy", "test", "s1")
    assert ref.key == "a.jpg"
    file = write(tmp_path, "path\tlabel\na.jpg\thappy\n")
    for tab in ("\t", "\\t", "tab"):
        assert listed(file, delimiter=tab)[1][0].label == "happy"


def test_quoted_newlines_commas_and_row_numbers(tmp_path):
    content = (
        'path,label\n"a\nb, c.jpg",happy\n\n'  # row 1 takes two lines, then a blank one
        'x.jpg\n"say ""hi"".jpg",sad\n"",sad\ny.jpg,"sad\n"\n'
    )
    _, refs, report = listed(write(tmp_path, content))
    assert [(ref.row, ref.key) for ref in refs] == [
        (1, "a\nb, c.jpg"),
        (2, "list.csv/row-000002"),
        (3, 'say "hi".jpg'),
        (4, "list.csv/row-000004"),
        (5, "y.jpg"),
    ]
    assert problems(refs) == [
        None,
        ("bad_row", "row 2 (line 5): expected 2 columns, found 1: 'x.jpg'"),
        None,
        ("bad_row", "row 4 (line 7): the path is empty, found ''"),
        None,
    ]
    assert refs[4].label == "sad\n"
    assert report.ignored == {"blank lines": 1}


def test_every_row_gives_one_reference(tmp_path):
    rows = ["a.jpg,x", "a.jpg,x", "./a.jpg,y", ",x", " ,x", "b.jpg", "b.jpg,x,y", "b.jpg,", "..,x"]
    _, refs, _ = listed(write(tmp_path, "path,label\n" + "\n".join(rows)))
    assert [ref.row for ref in refs] == list(range(1, len(rows) + 1))
    assert [ref.problem.reason if ref.problem else None for ref in refs] == [
        None,
        None,
        None,
        "bad_row",
        "bad_row",
        "bad_row",
        "bad_row",
        "no_label",
        None,  # a folder: reading refuses it
    ]
    assert refs[7].key == "b.jpg"
    assert refs[7].problem.detail == "row 8 (line 9): it has no label (found '')"


def test_one_path_spelled_in_many_ways_is_one_key(tmp_path):
    spellings = ["a/x.jpg", "./a/x.jpg", "a//x.jpg", "b/../a/x.jpg", f"{tmp_path}/a/x.jpg"]
    spellings += [f"{tmp_path}//a/./x.jpg", f"file://{tmp_path}/a/x.jpg"]
    _, refs, _ = listed(write(tmp_path, "path,label\n" + "".join(f"{p},h\n" for p in spellings)))
    assert {ref.key for ref in refs} == {"a/x.jpg"}
    outcomes = Counter(
        ref.problem.outcome if ref.problem else None for ref in resolve_duplicates(refs)
    )
    assert outcomes == {None: 1, "duplicate": len(spellings) - 1}


def test_paths_outside_and_uris(tmp_path):
    paths = ["../x.jpg", "../../etc/passwd", "/etc/x.jpg", "s3://bucket/k/1.jpg", "gs://b/2.jpg"]
    paths += ["c:d.jpg", "~/x.jpg", "#x.jpg"]
    _, refs, _ = listed(write(tmp_path, "path\n" + "".join(f"{path}\n" for path in paths)))
    assert [(ref.key, ref.uri) for ref in refs] == [
        ("../x.jpg", f"{tmp_path}/../x.jpg"),
        ("../../etc/passwd", f"{tmp_path}/../../etc/passwd"),
        ("etc/x.jpg", "/etc/x.jpg"),
        ("bucket/k/1.jpg", "s3://bucket/k/1.jpg"),
        ("b/2.jpg", "gs://b/2.jpg"),
        ("c:d.jpg", f"{tmp_path}/c:d.jpg"),
        ("~/x.jpg", f"{tmp_path}/~/x.jpg"),
        ("#x.jpg", f"{tmp_path}/#x.jpg"),
    ]


def test_image_root(tmp_path, monkeypatch):
    (tmp_path / "lists").mkdir()
    file = write(tmp_path / "lists", "path,label\na.jpg,x\n/data/b.jpg,x\ns3://b/k/c.jpg,x\n")
    monkeypatch.chdir(tmp_path)
    _, refs, _ = listed(file, image_root="pictures/")
    assert refs[0].uri == str(tmp_path / "pictures/a.jpg")
    assert [ref.key for ref in listed(file, image_root="/data")[1]] == [
        "a.jpg",
        "b.jpg",
        "b/k/c.jpg",
    ]
    assert [ref.key for ref in listed(file, image_root="/")[1]][1] == "data/b.jpg"
    assert listed(file, image_root="/")[1][0].uri == "/a.jpg"


def test_hostile_paths(tmp_path):
    names = [name for name in HOSTILE if "\udcff" not in name]
    lines = "".join(json.dumps({"path": name, "label": "x"}) + "\n" for name in HOSTILE)
    _, refs, _ = listed(write(tmp_path, lines, "m.jsonl"))
    assert len({ref.key for ref in refs}) == len(HOSTILE)
    assert [ref.uri for ref in refs] == [f"{tmp_path}/{name}" for name in HOSTILE]
    assert r"bad-\xff\xfe.jpg" in {ref.key for ref in refs}
    quoted = "".join('"' + name.replace('"', '""') + '",x\n' for name in names)
    _, refs, _ = listed(write(tmp_path, "path,label\n" + quoted))
    assert [ref.uri for ref in refs] == [f"{tmp_path}/{name}" for name in names]
    assert problems(refs) == [None] * len(names)
    _, refs, _ = listed(write(tmp_path, "path\n" + "x" * 100_000 + ".jpg\na\0b.jpg\n"))
    assert refs[0].problem is None
    assert refs[1].problem.detail == "row 2 (line 3): the path 'a\\x00b.jpg' holds a NUL character"


def test_several_manifests(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    files = [write(tmp_path / name, "path,label\nx.jpg,h\n../y.jpg,h\n") for name in "ab"]
    plan, refs, _ = listed(*files)
    assert plan.announcement.startswith("2 manifests, CSV")
    # Another folder, another file; but both mean the same ../y.jpg.
    assert [ref.key for ref in refs] == ["a/x.jpg", "y.jpg", "b/x.jpg", "y.jpg"]
    _, refs, _ = listed(*files, image_root=str(tmp_path / "pictures"))
    assert [ref.key for ref in refs] == ["x.jpg", "../y.jpg", "x.jpg", "../y.jpg"]
    other = write(tmp_path, "path\nx.jpg\n")
    with pytest.raises(InputError, match="the manifests differ in whether they have labels"):
        resolve(files[0], other)


def test_labels_by_rule(tmp_path):
    file = write(tmp_path, "path,label\nhappy/s1_1.jpg,x\nsad/s2_1.jpg,y\ntop.jpg,z\n")
    assert [ref.label for ref in listed(file, label_from="parent")[1]] == [
        "happy",
        "sad",
        tmp_path.name,
    ]
    plan, refs, _ = listed(file, label_from="none")
    assert not plan.labelled
    assert plan.announcement == "manifest, CSV: path from 'path', no labels"
    assert {ref.label for ref in refs} == {None}
    _, refs, _ = listed(file, label_from=r"regex:(?P<label>\w+)/(?P<group>s\d)")
    assert [(ref.label, ref.group) for ref in refs] == [
        ("happy", "s1"),
        ("sad", "s2"),
        (None, None),
    ]
    assert refs[2].problem.reason == "no_label"
    with pytest.raises(InputError, match="finds no label in 'happy/s1_1.jpg', nor in the 2 after"):  # noqa: RUF043
        resolve(file, label_from="regex:(?P<label>zz)")
    with pytest.raises(UsageError, match="contradict each other"):
        resolve(file, label_from="parent", label_column="label")


def test_manifest_without_labels(tmp_path):
    plan, (ref,), _ = listed(write(tmp_path, "path\na.jpg\n"))
    assert not plan.labelled
    assert ref.label is None
    assert ref.problem is None
    labels = write(tmp_path, "a\nb\n", "labels.txt")
    with pytest.raises(UsageError, match="the input has no labels"):
        resolve(str(tmp_path / "list.csv"), labels_file=labels)


def test_labels_file_is_carried(tmp_path):
    labels = write(tmp_path, "sad\nhappy\n", "labels.txt")
    plan = resolve(write(tmp_path, "path,label\na.jpg,happy\n"), labels_file=labels)
    assert plan.given_labels == ("sad", "happy")
    assert plan.declared_labels is None


def test_split_names_are_checked(tmp_path):
    content = "path,label,split\na.jpg,x,train\nb.jpg,x,hold-out\nc.jpg,x,\nd.jpg,x,../up\n"
    _, refs, _ = listed(write(tmp_path, content))
    assert [ref.split for ref in refs] == ["train", None, None, None]
    assert problems(refs)[1] == (
        "bad_row",
        "row 2 (line 3): 'hold-out' cannot be a split name: use letters, digits, _ and ., "
        "starting with a letter or digit",
    )
    assert refs[2].problem.reason == refs[3].problem.reason == "bad_row"


def test_csv_features(tmp_path):
    content = (
        "path,age,score,note,blob\n"
        "a.jpg, 31 ,0.5,héllo,aGk=\n"
        "b.jpg,3.5,1,x,\n"
        "c.jpg,1,abc,x,\n"
        "d.jpg,1,1e300,x,\n"
        "e.jpg,9223372036854775808,1,x,\n"
        "f.jpg,1,1,x,not base64\n"
        "g.jpg,-9223372036854775808,-inf,,\n"
    )
    types = {
        "age": FeatureType.INT64,
        "score": FeatureType.FLOAT,
        "note": FeatureType.TEXT,
        "blob": FeatureType.BYTES,
    }
    plan, refs, _ = listed(write(tmp_path, content), features=types)
    assert plan.features == tuple((name, kind, False) for name, kind in types.items())
    assert refs[0].features == {"age": 31, "score": 0.5, "note": "héllo", "blob": b"hi"}
    assert refs[6].features == {"age": -(1 << 63), "score": float("-inf"), "note": "", "blob": b""}
    assert problems(refs)[1:6] == [
        ("bad_row", "row 2 (line 3): column 'age': expected an integer of 64 bits, found '3.5'"),
        ("bad_row", "row 3 (line 4): column 'score': expected a number, found 'abc'"),
        (
            "bad_row",
            "row 4 (line 5): column 'score': expected a number that a 32-bit float can hold, "
            "found '1e300'",
        ),
        (
            "bad_row",
            "row 5 (line 6): column 'age': expected an integer of 64 bits, found "
            "'9223372036854775808'",
        ),
        ("bad_row", "row 6 (line 7): column 'blob': expected base64, found 'not base64'"),
    ]
    assert [ref.key for ref in refs] == [f"{letter}.jpg" for letter in "abcdefg"]


@pytest.mark.parametrize("text", ["", " ", "1_0", "٣", "0x10", "1e3", "+", "9" * 30])
def test_what_is_no_integer(text):
    with pytest.raises(ValueError, match="expected an integer of 64 bits"):
        parse_text(text, FeatureType.INT64)


@pytest.mark.parametrize("text", ["", "1_0", "1,5", "one"])
def test_what_is_no_number(text):
    with pytest.raises(ValueError, match="expected a number"):
        parse_text(text, FeatureType.FLOAT)


@pytest.mark.parametrize(
    ("value", "kind", "repeated", "expected"),
    [
        (3, FeatureType.INT64, False, 3),
        (True, FeatureType.INT64, False, 1),
        (3, FeatureType.FLOAT, False, 3.0),
        (0.25, FeatureType.FLOAT, False, 0.25),
        ("é", FeatureType.TEXT, False, "é"),
        ("aGk=", FeatureType.BYTES, False, b"hi"),
        ([1, 2], FeatureType.INT64, True, [1, 2]),
        ([], FeatureType.INT64, True, []),
        (None, FeatureType.FLOAT, True, []),
        (7, FeatureType.INT64, True, [7]),
        (["a", "b"], FeatureType.TEXT, True, ["a", "b"]),
    ],
)
def test_json_values(value, kind, repeated, expected):
    found = parse_json(value, Feature("f", kind, repeated))
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("value", "kind", "repeated"),
    [
        (3.0, FeatureType.INT64, False),
        ("3", FeatureType.INT64, False),
        (None, FeatureType.INT64, False),
        (1 << 63, FeatureType.INT64, False),
        (10**400, FeatureType.FLOAT, False),
        ("1", FeatureType.FLOAT, False),
        (3, FeatureType.TEXT, False),
        ("\ud800", FeatureType.TEXT, False),
        ({}, FeatureType.TEXT, False),
        ([1], FeatureType.INT64, False),  # a list where the first rows had none
        ([1, "a"], FeatureType.INT64, True),
        ([[1]], FeatureType.INT64, True),
    ],
)
def test_json_values_of_another_type(value, kind, repeated):
    with pytest.raises(ValueError):  # noqa: PT011
        parse_json(value, Feature("f", kind, repeated))


def test_json_lines_with_lists_and_bad_rows(tmp_path):
    rows = [
        '{"path": "a.jpg", "label": 5, "box": [1, 2.5], "age": 3}',
        '{"path": "b.jpg", "label": "x", "box": [], "age": 4}',
        '{"path": "c.jpg", "label": "x", "age": 5}',
        '{"path": "d.jpg", "label": "x", "box": "no", "age": 5}',
        '{"path": "e.jpg", "label": null, "age": 5}',
        '{"path": "f.jpg", "label": 1.5, "age": 5}',
        '{"path": 7, "label": "x", "age": 5}',
        '{"label": "x", "age": 5}',
        "[1, 2]",
        '{"path": "g.jpg"',
        "",
        '{"path": "h\\ud800.jpg", "label": "x", "age": 5}',
        '{"path": "i.jpg", "label": "\\ud800", "age": 5}',
    ]
    types = {"box": FeatureType.FLOAT, "age": FeatureType.INT64}
    plan, refs, report = listed(write(tmp_path, "\n".join(rows), "m.jsonl"), features=types)
    assert plan.features == (("box", FeatureType.FLOAT, True), ("age", FeatureType.INT64, False))
    assert [ref.features for ref in refs[:3]] == [
        {"box": [1.0, 2.5], "age": 3},
        {"box": [], "age": 4},
        {"box": [], "age": 5},
    ]
    assert refs[0].label == "5"
    assert [ref.row for ref in refs] == list(range(1, 13))
    found = problems(refs)
    assert found[:3] == [None, None, None]
    assert found[3] == ("bad_row", "row 4 (line 4): column 'box': expected a number, found 'no'")
    assert found[4] == ("no_label", "row 5 (line 5): it has no label (found '')")
    assert found[5][1].startswith("row 6 (line 6): column 'label': expected text or an integer")
    assert found[6][1].startswith("row 7 (line 7): 'path' must be text, found '{\"path\": 7")
    assert {reason for reason, _ in found[7:]} == {"bad_row"}
    assert "expected a JSON object" in found[9][1]
    assert "row 11 (line 12)" in found[10][1]
    assert report.ignored == {"blank lines": 1}
    for ref in refs:
        json.dumps(ref, ensure_ascii=False).encode("utf-8")


def test_raf_db_list(tmp_path):
    content = "train_00001.jpg 5\ntrain_00002.jpg 5\ntest_0001.jpg 3\n"
    plan, refs, _ = listed(write(tmp_path, content, "list_patition_label.txt"))
    assert plan.announcement == (
        "manifest, list file: path from 'name', label from 'last word', "
        "split from train_ and test_ in the names"
    )
    assert [(ref.key, ref.label, ref.split) for ref in refs] == [
        ("train_00001.jpg", "5", "train"),
        ("train_00002.jpg", "5", "train"),
        ("test_0001.jpg", "3", "test"),
    ]


def test_list_files(tmp_path):
    content = "a/x 1.jpg  happy\r\n\r\nb.jpg\tsad\nc.jpg\n"
    _, refs, _ = listed(write(tmp_path, content, "list.txt"))
    assert [(ref.key, ref.label, ref.split) for ref in refs] == [
        ("a/x 1.jpg", "happy", None),
        ("b.jpg", "sad", None),
        ("list.txt/row-000003", None, None),
    ]
    assert refs[2].problem.detail == "row 3 (line 4): expected a name and a label, found 'c.jpg'"
    plan, refs, _ = listed(write(tmp_path, "a.jpg\nb c.jpg\n", "list.txt"))
    assert not plan.labelled
    assert [ref.key for ref in refs] == ["a.jpg", "b c.jpg"]
    with pytest.raises(UsageError, match="--label_column: .* has no named columns"):  # noqa: RUF043
        resolve(write(tmp_path, "a.jpg 1\n", "list.txt"), label_column="label")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("\n \n", "is empty"),
        ("path,label\n", "has a header but no rows"),
        (
            "a.jpg,happy\nb.jpg,sad\n",
            r"Expected a header line with one of path, .*label.*found 'a.jpg', 'happy': this looks "
            "like data; add a header line, such as path,label",
        ),
        ("x,y\n1,2\n", r"found 'x', 'y'\. Name it with --path_column"),
        ("pixels,Usage\n1 2,Training\n", "needs the columns emotion and pixels"),
        ("path,label,label\na.jpg,x,y\n", "the column 'label' stands twice"),
        (b"path,label\na.jpg,x\nb\xff.jpg,x\n", r"row 2 \(line 3\) is not UTF-8"),
        (b"p\xffth,label\n", r"the first line \(line 1\) is not UTF-8"),
        ("path,label\na.jpg,x\n".encode("utf-16"), "is UTF-16 text; save it as UTF-8"),
        ('path,label\na.jpg,x\n"b.jpg,x\nc.jpg,x\n', r"row 2 \(line 3\): a quote that opens here"),
        (
            'path,label\n"a"b.jpg,x\n',
            r"row 1 \(line 2\): .*\(a quote inside a quoted cell must be d",
        ),
        ("path,label\ra.jpg,x\r", "lines end in a carriage return alone"),
        ("path,label\na.jpg,x\rb.jpg,x\n", r"row 1 \(line 2\): a line ends in a carriage return"),
        ("x" * (1 << 20), "its first line is longer than 1 MiB"),
    ],
)
def test_wrong_csv_files(tmp_path, content, message):
    file = write(tmp_path, content)
    with pytest.raises(InputError, match=message) as info:
        list(list_images(resolve(file), ListingReport()))
    assert file in str(info.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[{"path": "a.jpg"}]\n', "it holds one JSON array: write one object per line"),
        ("hello\n", "expected JSON lines.*found 'hello'"),
        ('{"x": 1}\n', r"found 'x'"),
        (b'{"path": "a.jpg"}\n{"path": "\xff"}\n', r"row 1 \(line 2\) is not UTF-8"),
    ],
)
def test_wrong_json_files(tmp_path, content, message):
    with pytest.raises(InputError, match=message):
        resolve(write(tmp_path, content, "m.jsonl"))


def test_text_that_is_not_utf8_far_down_names_its_row(tmp_path):
    for name, head, row in (
        ("m.csv", b"path,label\n", b"img.jpg,%06d\n"),
        ("m.jsonl", b"", b'{"path": "img.jpg", "label": "%06d"}\n'),
        ("m.txt", b"", b"img.jpg %06d\n"),
    ):
        rows = b"".join(row % number for number in range(150_000))
        plan = resolve(write(tmp_path, head + rows + b"\xff\xfe\n", name))
        refs = list_images(plan)
        line = 150_001 + bool(head)
        *_, last = itertools.islice(refs, 150_000)
        assert last.row == 150_000
        with pytest.raises(InputError, match=rf"row 150001 \(line {line}\) is not UTF-8"):
            next(refs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"label_column": "lable"},
            "--label_column 'lable': .* columns 'path', 'label'; did you me",
        ),
        ({"path_column": "x"}, "--path_column 'x'"),
        ({"split_column": "x"}, "--split_column 'x'"),
        ({"group_column": "x"}, "--group_column 'x'"),
        ({"features": {"x": FeatureType.TEXT}}, "--feature 'x'"),
        ({"delimiter": ",,"}, "--delimiter must be one character"),
    ],
)
def test_wrong_options(tmp_path, options, message):
    file = write(tmp_path, "path,label\na.jpg,happy\n")
    with pytest.raises(UsageError, match=message):
        resolve(file, **options)


def test_memory_stays_flat(tmp_path):
    rows = "".join(f"images/{number:07d}.jpg,happy\n" for number in range(100_000))
    plan = resolve(write(tmp_path, "path,label\n" + rows))
    del rows
    tracemalloc.start()
    count = sum(1 for _ in list_images(plan))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 100_000
    assert peak < 2 << 20  # 2 MiB; the rows alone have 3 MB


@pytest.mark.corpus
def test_corpus_faces_manifest():
    root = corpus("faces_manifest")
    plan, refs, _ = listed(f"{root}/legend.csv", image_root=f"{root}/images")
    assert plan.announcement == "manifest, CSV: path from 'image', label from 'emotion'"
    assert len(refs) == 410
    resolved = resolve_duplicates(refs)
    outcomes = Counter(ref.problem.reason if ref.problem else None for ref in resolved)
    assert outcomes == {None: 401, "same_path": 7, "conflicting_labels": 2}
    missing = [ref for ref in resolved if not ref.problem and not os.path.exists(ref.uri)]
    assert len(missing) == 6  # so 395 can be written
    plan = resolve(f"{root}/legend.csv")
    assert "none of the first 5 images exists below" in plan.warnings[0]
