"""Class names and ids: order, unknown names, look-alikes, the labels file."""

import pytest

from beam_pipeline.dataset_info import labels_text
from beam_pipeline.errors import InputError
from beam_pipeline.labels import build_label_map, read_labels_file


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        (["sad", "angry", "happy", "sad"], ("angry", "happy", "sad")),
        (["10", "9", "1", "2"], ("1", "2", "9", "10")),  # numbers count as numbers
        (["class10", "class9", "class1"], ("class1", "class9", "class10")),
        (["b", "C", "a"], ("C", "a", "b")),  # else by code point
        (["1a", "a1", "1", "a"], ("1", "1a", "a", "a1")),
        (["07", "7", "007"], ("007", "07", "7")),  # equal numbers: by the text
        (["é", "z", "😀"], ("z", "é", "😀")),
        (["9" * 5000, "8" * 5000], ("8" * 5000, "9" * 5000)),  # more digits than int() takes
        ([], ()),
    ],
)
def test_natural_order(names, labels):
    assert build_label_map(names) == (labels, ())
    assert build_label_map(reversed(names))[0] == labels


def test_given_labels_fix_the_ids():
    given = ["sad", "angry", "happy"]
    assert build_label_map({"angry"}, given) == (("sad", "angry", "happy"), ())


def test_unknown_label_lists_the_known_ones():
    with pytest.raises(InputError) as info:
        build_label_map({"happy", "Angry ", "bored"}, ["sad", "angry", "happy"])
    assert str(info.value) == (
        "labels not in the labels file: 'Angry ', 'bored' ('Angry ' may mean 'angry'). It has 3: "
        "'sad', 'angry', 'happy'. Add what is missing to the file, or correct the input"
    )


def test_unknown_labels_are_not_all_listed():
    with pytest.raises(InputError, match=r"'x19' and 980 more.*It has 1: 'a'\."):
        build_label_map({f"x{i}" for i in range(1000)}, ["a"])


@pytest.mark.parametrize(
    "twins",
    [
        ("happy", "Happy"),
        ("happy", " happy"),
        ("very happy", "veryhappy"),
        ("\u00e9", "e\u0301"),  # one letter in two Unicode forms
        ("STRASSE", "straße"),
    ],
)
def test_look_alikes_are_warned_about_and_stay_apart(twins):
    labels, warnings = build_label_map({*twins, "sad"})
    assert set(labels) == {*twins, "sad"}
    (warning,) = warnings
    assert all(repr(name) in warning for name in twins)


def test_one_warning_for_all_look_alikes():
    names = ["anger", "ANGER", "fear", "Fear", "sad"]
    assert build_label_map(names)[1] == (
        "labels that differ only in case, spaces or Unicode form: 'ANGER' and 'anger'; 'Fear' and "
        "'fear'. They stay different classes: rename them if they are one",
    )
    _, (warning,) = build_label_map([f"{c}{n}" for n in range(25) for c in "aA"])
    assert "'A19' and 'a19'; and 5 more. They" in warning


def test_labels_file(tmp_path):
    file = tmp_path / "labels.txt"
    file.write_bytes("\ufeffangry\r\nvery happy\r\n  odd \r\n\r\n\r\n".encode())
    assert read_labels_file(str(file)) == ("angry", "very happy", "  odd ")


def test_labels_file_of_a_dataset_comes_back(tmp_path):
    labels = ("a\nb", "a\\nb", "back\\slash", "plain", "\\\\n")
    file = tmp_path / "label.labels.txt"
    file.write_text(labels_text(labels), encoding="utf-8")
    assert read_labels_file(str(file)) == labels


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "does not exist"),
        (b"", "is empty; expected one class name per line"),
        (b"\n\n", "is empty"),
        (b"a\n\nb\n", "no class name in line 2"),
        (b"a\nb\na\n", "has 'a' twice, in lines 1 and 3"),
        (b"a\nb\xff\n", r"not UTF-8 \(line 2\)"),
    ],
)
def test_labels_file_errors(tmp_path, data, message):
    file = tmp_path / "labels.txt"
    if data is not None:
        file.write_bytes(data)
    with pytest.raises(InputError, match=message):
        read_labels_file(str(file))
