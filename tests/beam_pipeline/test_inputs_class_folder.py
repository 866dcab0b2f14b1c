"""Folders: the layouts that are found, the files that count, the mistakes that are told."""

import os
import pathlib
import pickle
from collections import Counter

import pytest

from beam_pipeline.errors import InputError, UsageError
from beam_pipeline.inputs import ListingReport, declared_labels, list_images, resolve_inputs
from beam_pipeline.keys import from_key
from beam_pipeline.options import InputLayout, InputOptions
from tests import fakes

CORPUS = pathlib.Path(
    os.environ.get("IMAGEBEAM_CORPUS", pathlib.Path(__file__).parents[3] / "shared" / "corpus")
)


def corpus(name: str) -> str:
    if not (CORPUS / name).exists():
        pytest.skip(f"no corpus at {CORPUS}")
    return str(CORPUS / name)


def tree(root, *names: str) -> str:
    """Files of one byte; a name that ends in / is a folder."""
    for name in names:
        if name.endswith("/"):
            os.makedirs(os.path.join(root, name), exist_ok=True)
        else:
            fakes.write_tree(root, {name: b"x"})
    return str(root)


def resolve(*inputs: str, **options):
    return resolve_inputs(InputOptions(inputs=tuple(map(str, inputs)), **options))


def listed(*inputs: str, **options):
    report = ListingReport()
    plan = resolve(*inputs, **options)
    refs = list(list_images(pickle.loads(pickle.dumps(plan)), report))
    assert report.listed == len(refs)
    return plan, refs, report


def test_label_folders(tmp_path):
    fakes.class_folders(tmp_path)
    plan, refs, report = listed(tmp_path)
    assert plan.announcement == "folder, root/label/image: 3 labels (angry, happy, sad)"
    assert plan.labelled
    assert declared_labels(plan) == ("angry", "happy", "sad")
    assert Counter(ref.label for ref in refs) == {"angry": 5, "happy": 5, "sad": 5}
    assert [ref.key for ref in refs] == sorted(ref.key for ref in refs)
    first = refs[0]
    assert first.key == "angry/0.jpg"
    assert first.uri == str(tmp_path / "angry/0.jpg")
    assert first.size == os.path.getsize(first.uri)
    assert (first.split, first.group, first.row, first.problem) == (None, None, None, None)
    assert not report.ignored


@pytest.mark.parametrize("names", [("train", "test"), ("Training", "PublicTest"), ("VAL",)])
def test_split_folders_are_found(tmp_path, names):
    tree(tmp_path, *(f"{split}/{label}/1.jpg" for split in names for label in ("happy", "sad")))
    plan, refs, _ = listed(tmp_path)
    count = f"{len(names)} split{'s' * (len(names) > 1)}"
    shown = ", ".join(sorted(names))
    assert plan.announcement == (
        f"folder, root/split/label/image: {count} ({shown}), 2 labels (happy, sad)"
    )
    assert plan.splits == tuple(sorted(names))
    assert {(ref.split, ref.label) for ref in refs} == {
        (split, label) for split in names for label in ("happy", "sad")
    }


def test_a_class_absent_from_one_split_is_declared(tmp_path):
    tree(tmp_path, "train/happy/1.jpg", "train/sad/1.jpg", "test/sad/1.jpg", "test/bored/")
    plan, refs, _ = listed(tmp_path)
    assert declared_labels(plan) == ("bored", "happy", "sad")
    assert len(refs) == 3


def test_nested_levels_below_the_label(tmp_path):
    tree(tmp_path, "happy/1.jpg", "happy/2019/may/2.jpg", "sad/deep/3.jpg")
    plan, refs, _ = listed(tmp_path)
    assert plan.options.layout is InputLayout.AUTO
    assert [(ref.key, ref.label) for ref in refs] == [
        ("happy/1.jpg", "happy"),
        ("happy/2019/may/2.jpg", "happy"),
        ("sad/deep/3.jpg", "sad"),
    ]
    _, refs, _ = listed(tmp_path, label_from="parent")
    assert [ref.label for ref in refs] == ["happy", "may", "deep"]


@pytest.mark.parametrize(
    ("layout", "labels", "splits"),
    [
        (InputLayout.LABEL, {"train", "test"}, {None}),
        (InputLayout.SPLIT_LABEL, {"happy", "sad"}, {"train", "test"}),
        (InputLayout.SPLIT, {None}, {"train", "test"}),
        (InputLayout.FLAT, {None}, {None}),
    ],
)
def test_layout_can_be_forced(tmp_path, layout, labels, splits):
    tree(tmp_path, "train/happy/1.jpg", "test/sad/2.jpg")
    plan, refs, _ = listed(tmp_path, layout=layout)
    assert {ref.label for ref in refs} == labels
    assert {ref.split for ref in refs} == splits
    assert plan.labelled == (labels != {None})


def test_labels_none_and_regex(tmp_path):
    tree(tmp_path, "train/s1_happy_1.jpg", "train/s2_sad_1.jpg", "test/s1_sad_2.jpg")
    plan, refs, _ = listed(tmp_path, label_from="none")
    assert not plan.labelled
    assert [(ref.label, ref.split) for ref in refs] == [
        (None, "test"),
        (None, "train"),
        (None, "train"),
    ]
    rule = r"regex:(?P<group>s\d+)_(?P<label>[a-z]+)_"
    plan, refs, _ = listed(tmp_path, label_from=rule)
    assert plan.labelled
    assert declared_labels(plan) is None
    assert [(ref.label, ref.split, ref.group) for ref in refs] == [
        ("sad", "test", "s1"),
        ("happy", "train", "s1"),
        ("sad", "train", "s2"),
    ]


def test_regex_split_and_names_without_label(tmp_path):
    tree(tmp_path, "a/train-happy.jpg", "a/dev+1-sad.jpg", "a/other.jpg")
    rule = r"regex:(?P<split>[^/]+)-(?P<label>\w+)\."
    _, refs, _ = listed(tmp_path, label_from=rule)
    by_key = {ref.key: ref for ref in refs}
    assert by_key["a/train-happy.jpg"][2:4] == ("happy", "train")
    assert by_key["a/other.jpg"].problem.reason == "no_label"
    assert "'a/other.jpg'" in by_key["a/other.jpg"].problem.detail
    assert by_key["a/dev+1-sad.jpg"].problem.reason == "bad_row"
    assert "'dev+1' cannot be a split name" in by_key["a/dev+1-sad.jpg"].problem.detail


def test_hidden_and_system_names_are_counted(tmp_path):
    tree(
        tmp_path,
        "happy/1.jpg",
        "happy/.hidden.jpg",
        "happy/._1.jpg",
        "happy/Thumbs.db",
        "happy/DESKTOP.INI",
        "happy/.ipynb_checkpoints/1-checkpoint.jpg",
        "__MACOSX/happy/1.jpg",
        ".git/x.jpg",
        "sad/2.jpg",
        "sad/notes.txt",
        "README.md",
        "sad/nested/",
    )
    plan, refs, report = listed(tmp_path)
    assert [ref.key for ref in refs] == ["happy/1.jpg", "sad/2.jpg"]
    assert declared_labels(plan) == ("happy", "sad")
    assert report.ignored == {
        "hidden files and folders": 3,
        "system files (Thumbs.db, desktop.ini, __MACOSX, ._*)": 4,
        "files without an image extension": 2,
        "empty folders": 1,
    }
    text = report.ignored_text()
    assert text.startswith("ignored: empty folders: 1 ('sad/nested'); files without an image ext")
    assert "; system files (Thumbs.db, desktop.ini, __MACOSX, ._*): 4 ('" in text
    assert text.endswith("…)")


def test_extensions_in_any_case(tmp_path):
    names = ["1.JPG", "2.Jpeg", "3.pNg", "4.WEBP", "5.tiff", "6.HEIC", "7.svg"]
    tree(tmp_path, *(f"a/{name}" for name in names), "a/jpg", "a/8.jpg.txt", "a/9.jpg~")
    _, refs, report = listed(tmp_path)
    assert [ref.key for ref in refs] == [f"a/{name}" for name in names]
    assert report.ignored == {"files without an image extension": 3}


HOSTILE = [
    "with space.jpg",
    "comma, and; semicolon.jpg",
    "hash#1.jpg",
    "percent%20.jpg",
    "what?.jpg",
    "[1-3].jpg",
    "{x}*.jpg",
    "back\\slash.jpg",
    "quote'and\".jpg",
    "new\nline.jpg",
    "<script>alert(1)</script>.jpg".replace("/", "∕"),
    "glücklich.jpg",
    "😀.jpg",
    "nfc-\u00e9.jpg",
    "nfd-e\u0301.jpg",
    "bad-\udcff\udcfe.jpg",
    "-rf.jpg",
    "..jpg.jpg".replace("..", "x.."),
    "\\xff.jpg",
    "a" * 250 + ".jpg",
]


def test_every_name_is_listed_under_a_key_that_leads_back(tmp_path):
    for name in HOSTILE:
        folder = os.fsencode(tmp_path / "happy")
        os.makedirs(folder, exist_ok=True)
        pathlib.Path(os.fsdecode(os.path.join(folder, os.fsencode(name)))).write_bytes(b"x")
    _, refs, report = listed(tmp_path)
    assert not report.ignored
    assert {from_key(ref.key) for ref in refs} == {f"happy/{name}" for name in HOSTILE}
    assert len({ref.key for ref in refs}) == len(HOSTILE)
    for ref in refs:
        ref.key.encode("utf-8")
        assert not ref.key.startswith("/")
        with open(ref.uri, "rb") as stream:
            assert stream.read() == b"x"
        assert ref.size == 1


def test_odd_label_names(tmp_path):
    labels = ["very happy", "[1-3]", "😀", "bad-\udcff", "happy.jpg"]
    tree(tmp_path, *(f"{label}/1.jpg" for label in labels))
    plan, refs, _ = listed(tmp_path)
    expected = {"very happy", "[1-3]", "😀", r"bad-\xff", "happy.jpg"}
    assert {ref.label for ref in refs} == expected
    assert set(declared_labels(plan)) == expected


def test_links_folders_and_pipes(tmp_path):
    tree(tmp_path, "happy/1.jpg", "happy/folder.jpg/", "happy/full.jpg/2.jpg", "top.png/")
    (tmp_path / "happy/dead.jpg").symlink_to("nowhere.jpg")
    (tmp_path / "happy/dead.txt").symlink_to("nowhere.txt")
    (tmp_path / "happy/loop").symlink_to(tmp_path / "happy")
    (tmp_path / "happy/self.jpg").symlink_to("self.jpg")
    os.mkfifo(tmp_path / "happy/pipe.jpg")
    os.makedirs(tmp_path / "store")
    fakes.write_tree(tmp_path / "store", {"real.jpg": b"x"})
    (tmp_path / "sad").symlink_to(tmp_path / "store")  # a label folder that is a link
    (tmp_path / "happy/link.jpg").symlink_to(tmp_path / "store/real.jpg")
    plan, refs, report = listed(tmp_path)
    assert declared_labels(plan) == ("happy", "sad", "store")
    found = {ref.key: ref.problem.reason if ref.problem else None for ref in refs}
    assert found == {
        "happy/1.jpg": None,
        "happy/dead.jpg": "missing",
        "happy/folder.jpg": "not_a_file",
        "happy/full.jpg/2.jpg": None,
        "happy/link.jpg": None,
        "happy/pipe.jpg": "not_a_file",
        "happy/self.jpg": "missing",
        "sad/real.jpg": None,
        "store/real.jpg": None,
        "top.png": "not_a_file",
    }
    details = {ref.key: ref.problem.detail for ref in refs if ref.problem}
    assert details["happy/dead.jpg"] == "'happy/dead.jpg' is a link that leads nowhere"
    assert details["happy/folder.jpg"] == "'happy/folder.jpg' is a folder, not a file"
    assert report.ignored == {"files without an image extension": 1}


def test_several_roots_never_share_a_key(tmp_path):
    tree(tmp_path, "one/faces/happy/1.jpg", "two/faces/happy/1.jpg", "two/faces/sad/1.jpg")
    plan, refs, _ = listed(tmp_path / "one/faces", tmp_path / "two/faces")
    assert declared_labels(plan) == ("happy", "sad")
    assert [(ref.key, ref.label) for ref in refs] == [
        ("one/faces/happy/1.jpg", "happy"),
        ("two/faces/happy/1.jpg", "happy"),
        ("two/faces/sad/1.jpg", "sad"),
    ]
    # The same root twice names the same images twice.
    _, refs, _ = listed(tmp_path / "one/faces", f"{tmp_path}/one/../one/faces/")
    assert [ref.key for ref in refs] == ["happy/1.jpg", "happy/1.jpg"]


def test_relative_roots_work_from_any_directory(tmp_path, monkeypatch):
    tree(tmp_path, "data/happy/1.jpg", "elsewhere/")
    monkeypatch.chdir(tmp_path)
    plan = resolve("data")
    monkeypatch.chdir(tmp_path / "elsewhere")
    (ref,) = list_images(plan)
    assert ref.key == "happy/1.jpg"
    assert ref.uri == str(tmp_path / "data/happy/1.jpg")


def test_labels_file_fixes_ids_and_must_know_every_folder(tmp_path):
    root = tree(tmp_path / "data", "happy/1.jpg", "sad/1.jpg")
    file = tmp_path / "labels.txt"
    file.write_text("sad\nangry\nhappy\n")
    plan = resolve(root, labels_file=str(file))
    assert plan.given_labels == ("sad", "angry", "happy")
    file.write_text("sad\nangry\n")
    with pytest.raises(InputError, match="not in the labels file: 'happy'"):
        resolve(root, labels_file=str(file))
    with pytest.raises(UsageError, match="--labels_file is given, but the input has no labels"):
        resolve(root, labels_file=str(file), label_from="none")


@pytest.mark.parametrize(
    ("names", "given", "options", "message"),
    [
        ([], "", {}, r"holds no folders and no files with an image extension \(it is empty\)"),
        (["notes.txt"], "", {}, r"1 other files"),
        (
            ["happy/notes.txt"],
            "",
            {},
            r"no images found in .*files without .*: 1 .'happy/notes.txt",
        ),
        (["happy/"], "", {}, r"no images found in .*empty folders: 1 \('happy'\)"),
        ([".happy/1.jpg"], "", {}, "holds no folders"),
        (["1.jpg", "2.jpg"], "", {}, r"2 images lie directly in .* \(for example '1.jpg'\)"),
        (["1.jpg"], "", {}, "sort them into one folder per class"),
        (["1.jpg", "happy/2.jpg"], "", {}, r"move them into a class folder \(there are 'happy'\)"),
        # One level too deep: a class folder was given.
        (
            ["data/happy/1.jpg", "data/sad/2.jpg"],
            "data/happy",
            {},
            r"'happy' seems to be one class folder beside 'sad', .* one level too deep: give .*data$",
        ),
        # One level too high.
        (
            ["faces/happy/1.jpg", "faces/sad/2.jpg"],
            "",
            {},
            r"one class folder only, 'faces', .*\('happy', 'sad'\): .* too high: give .*/faces ",
        ),
        (["faces/train/happy/1.jpg", "faces/test/sad/2.jpg"], "", {}, "too high: give .*/faces "),
        (["train/faces/happy/1.jpg", "test/faces/sad/2.jpg"], "", {}, "take this level out"),
        (["train/1.jpg", "test/2.jpg"], "", {}, "directly in the split folder 'test', 'train'"),
        (["train/happy/1.jpg", "test/2.jpg"], "", {}, "directly in the split folder 'test'"),
        (["train/a/1.jpg", "test/a/2.jpg", "docs/b/3.jpg"], "", {}, r"beside others \('docs'\)"),
        (["happy/train/1.jpg", "sad/train/1.jpg"], "", {}, "looks like root/label/split/image"),
        (
            [f"{fold}/{label}/1.jpg" for fold in ("fold1", "fold2") for label in ("happy", "sad")],
            "",
            {},
            r"every folder \('fold1', 'fold2'\) holds the same folders \('happy', 'sad'\)",
        ),
        (["1.jpg", "a/2.jpg"], "", {"layout": InputLayout.LABEL}, "--input_layout label expects"),
        (["1.jpg", "a/b/2.jpg"], "", {"layout": InputLayout.SPLIT_LABEL}, "directly in"),
        (["a/1.jpg"], "", {"layout": InputLayout.SPLIT_LABEL}, "split folder 'a'"),
        (["my fold/a/1.jpg"], "", {"layout": InputLayout.SPLIT_LABEL}, "'my fold' cannot be a spl"),
        (["a/1.jpg"], "", {"label_from": "regex:(?P<label>zz)"}, "finds no label in 'a/1.jpg'; it"),
        (["a/1.jpg"], "nowhere/x", {}, "nowhere/x does not exist .the path exists up to .*[^e]. "),
        (
            ["a/1.jpg"],
            "",
            {"kind": "manifest"},
            "is a directory, but the input kind manifest expec",
        ),
        (["a.zip"], "a.zip", {}, "unpack an archive"),
        (["a/1.jpg"], "a/1.jpg", {"kind": "folder"}, "is a file, but the input kind folder"),
    ],
)
def test_mistakes(tmp_path, names, given, options, message):
    tree(tmp_path, *names)
    with pytest.raises(InputError, match=message):
        resolve(os.path.join(tmp_path, given), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label_column": "x"}, "--label_column is for manifests, but the input is a folder"),
        ({"image_root": "x"}, "--image_root is for manifests"),
        ({"delimiter": ";"}, "--delimiter is for manifests"),
    ],
)
def test_options_of_other_kinds_are_refused(tmp_path, options, message):
    tree(tmp_path, "happy/1.jpg")
    with pytest.raises(UsageError, match=message):
        resolve(tmp_path, **options)


def test_folders_must_agree(tmp_path):
    tree(tmp_path, "a/happy/1.jpg", "b/train/happy/1.jpg", "m.csv")
    with pytest.raises(
        InputError, match=r"the folders are laid out differently: .*/a is root/label"
    ):
        resolve(tmp_path / "a", tmp_path / "b")
    (tmp_path / "m.csv").write_text("path,label\na/happy/1.jpg,happy\n")
    with pytest.raises(UsageError, match=r"must all be of one kind, got .*folder.*manifest"):
        resolve(tmp_path / "a", tmp_path / "m.csv")


def test_one_class_folder_is_fine_when_it_holds_images(tmp_path):
    tree(tmp_path, "happy/1.jpg", "happy/more/2.jpg")
    assert declared_labels(resolve(tmp_path)) == ("happy",)
    tree(tmp_path / "forced", "faces/happy/1.jpg")
    assert declared_labels(resolve(tmp_path / "forced", layout=InputLayout.LABEL)) == ("faces",)


def test_a_label_called_like_a_split_is_a_label_among_labels(tmp_path):
    tree(tmp_path, "train/1.jpg", "car/1.jpg", "bus/1.jpg")
    plan, refs, _ = listed(tmp_path)
    assert declared_labels(plan) == ("bus", "car", "train")
    assert {ref.split for ref in refs} == {None}


def test_report_merges():
    one, two = ListingReport(), ListingReport()
    for number in range(2):
        one.ignore("a", f"one-{number}")
        two.ignore("a", f"two-{number}")
    two.ignore("b", "bad-\udcff")
    one.warn("same")
    two.warn("same")
    two.listed = 7
    one.merge(pickle.loads(pickle.dumps(two)))
    assert one.listed == 7
    assert one.ignored == {"a": 4, "b": 1}
    assert one.examples == {"a": ["one-0", "one-1", "two-0"], "b": [r"bad-\xff"]}
    assert one.warnings == ["same"]
    assert one.ignored_text() == r"ignored: a: 4 ('one-0', 'one-1', 'two-0', …); b: 1 ('bad-\\xff')"


@pytest.mark.corpus
def test_corpus_faces_fer():
    plan, refs, report = listed(corpus("faces_fer"))
    assert plan.announcement.startswith("folder, root/split/label/image: 3 splits (test, train, va")
    assert Counter(ref.split for ref in refs) == {"train": 1750, "validation": 350, "test": 350}
    assert set(Counter(ref.label for ref in refs).values()) == {350}
    assert report.ignored == {"files without an image extension": 1}


@pytest.mark.corpus
def test_corpus_faces_ckplus_grouped_by_subject():
    rule = r"regex:^(?P<label>[^/]+)/(?P<group>S\d+)_"
    _, refs, _ = listed(corpus("faces_ckplus"), label_from=rule)
    assert len(refs) == 981
    assert len({ref.group for ref in refs}) == 118
    assert Counter(ref.label for ref in refs)["surprise"] == 249
