"""FER2013: rows as byte ranges of the file, published labels and splits, bad rows by number."""

import numpy as np
import pytest

from beam_pipeline import storage
from beam_pipeline.errors import ImageRejectedError, InputError, UsageError
from beam_pipeline.inputs import given_labels
from beam_pipeline.inputs.fer2013 import LABELS, parse_pixels
from beam_pipeline.types import RejectReason
from tests.beam_pipeline.test_inputs_class_folder import corpus, listed, resolve


def pixels(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (48, 48), dtype=np.uint8)


def text(seed: int) -> str:
    return " ".join(map(str, pixels(seed).ravel()))


def write(folder, content, name="fer2013.csv") -> str:
    file = folder / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(file)


def read(ref) -> np.ndarray:
    """What a worker does with a reference."""
    assert ref.pixels == "fer2013"
    return parse_pixels(storage.read_bytes(ref.uri, ref.byte_range), ref.row)


def test_rows(tmp_path):
    usages = ["Training", "PublicTest", "PrivateTest"]
    rows = [f"{n % 7},{text(n)},{usages[n % 3]}\n" for n in range(9)]
    file = write(tmp_path, "emotion,pixels,Usage\n" + "".join(rows))
    plan, refs, _ = listed(file)
    assert plan.kind == "fer2013"
    assert plan.announcement == (
        "FER2013, 48×48 gray pixels in CSV rows: 7 labels, splits from Usage"
    )
    assert given_labels(plan) == (
        "angry",
        "disgust",
        "fear",
        "happy",
        "sad",
        "surprise",
        "neutral",
    )
    assert plan.splits == ("train", "validation", "test")
    assert [ref.key for ref in refs] == [f"row-{n:06d}" for n in range(1, 10)]
    assert [ref.row for ref in refs] == list(range(1, 10))
    assert [ref.label for ref in refs] == [LABELS[n % 7] for n in range(9)]
    assert [ref.split for ref in refs] == ["train", "validation", "test"] * 3
    for number, ref in enumerate(refs):
        assert ref.uri == file
        assert ref.size == ref.byte_range[1] == len(text(number))
        np.testing.assert_array_equal(read(ref), pixels(number))


@pytest.mark.parametrize(
    "form",
    [
        "emotion,pixels,Usage\n{e},{p},{u}\n",
        "emotion,pixels,Usage\n{e},{p},{u}",  # no line end
        "emotion,pixels,Usage\r\n{e},{p},{u}\r\n",
        "\ufeffemotion,pixels,Usage\n{e},{p},{u}\n",
        "emotion, Usage, pixels\n{e},{u},{p}\n",  # icml_face_data.csv
        "pixels,emotion,Usage\n{p}, {e} , {u} \n",
        "Usage,PIXELS,Emotion\n{u},{p},{e}\n",
        'emotion,pixels,Usage\n{e},"{p}",{u}\n',
        '"emotion","pixels","Usage"\r\n"{e}","{p}","{u}"\r\n',
        "id,emotion,pixels,Usage\n17,{e},{p},{u}\n",
        "emotion;pixels;Usage\n{e};{p};{u}\n",
        "\n\nemotion,pixels,Usage\n\n{e},{p},{u}\n\n",
        "emotion,pixels,Usage\n{e}, {p} ,{u}\n",
    ],
)
def test_forms(tmp_path, form):
    file = write(tmp_path, form.format(e=3, p=text(1), u="PublicTest"))
    plan, (ref,), _ = listed(file)
    assert plan.kind == "fer2013"
    assert (ref.label, ref.split, ref.row, ref.problem) == ("happy", "validation", 1, None)
    np.testing.assert_array_equal(read(ref), pixels(1))


def test_quoted_pixels_over_several_lines(tmp_path):
    rows = [f'0,"{text(n).replace(" ", chr(10))}",Training\n' for n in range(2)]
    _, refs, _ = listed(write(tmp_path, "emotion,pixels,Usage\n" + "".join(rows)))
    assert [ref.row for ref in refs] == [1, 2]
    for number, ref in enumerate(refs):
        np.testing.assert_array_equal(read(ref), pixels(number))


def test_without_usage(tmp_path):
    plan, (ref,), _ = listed(write(tmp_path, f"emotion,pixels\n6,{text(1)}\n"))
    assert "no Usage column, so no splits" in plan.announcement
    assert (ref.label, ref.split) == ("neutral", None)
    assert plan.splits == ()


@pytest.mark.parametrize(
    ("row", "detail"),
    [
        ("7,1 2,Training", "row 2: emotion must be 0 to 6, found '7'"),
        ("happy,1 2,Training", "row 2: emotion must be 0 to 6, found 'happy'"),
        (",1 2,Training", "row 2: emotion must be 0 to 6, found ''"),
        ("1,1 2,Test", "row 2: Usage must be Training, PublicTest or PrivateTest, found 'Test'"),
        ("1,1 2", "row 2: expected 3 columns, found 2"),
        ("1,1,2,Training", "row 2: expected 3 columns, found 4"),
        ("garbage", "row 2: expected 3 columns, found 1"),
    ],
)
def test_bad_rows_are_named_and_do_not_shift_the_others(tmp_path, row, detail):
    good = f"0,{text(1)},Training\n"
    _, refs, _ = listed(write(tmp_path, f"emotion,pixels,Usage\n{good}{row}\n{good}"))
    assert [ref.row for ref in refs] == [1, 2, 3]
    assert refs[1].problem[1:] == ("bad_row", detail)
    assert refs[1].key == "row-000002"
    for ref in (refs[0], refs[2]):
        assert ref.problem is None
        np.testing.assert_array_equal(read(ref), pixels(1))


GOOD = ["0"] * 2304


@pytest.mark.parametrize(
    ("words", "detail"),
    [
        (GOOD[1:], "row 5: expected 2304 pixels (48×48), found 2303"),
        ([*GOOD, "0"], "row 5: expected 2304 pixels (48×48), found 2305"),
        ([], "row 5: expected 2304 pixels (48×48), found 0"),
        ([*GOOD[:9], "256", *GOOD[10:]], "row 5: pixel 10 is '256', over 255"),
        ([*GOOD[1:], "9" * 5000], f"row 5: pixel 2304 is '{'9' * 40}', over 255"),
        (["-1", *GOOD[1:]], "row 5: pixels must be numbers from 0 to 255, found '-1'"),
        ([*GOOD[1:], "1.5"], "row 5: pixels must be numbers from 0 to 255, found '1.5'"),
        ([*GOOD[1:], "x"], "row 5: pixels must be numbers from 0 to 255, found 'x'"),
        ([*GOOD[1:], "1_0"], "row 5: pixels must be numbers from 0 to 255, found '1_0'"),
        (["é", *GOOD[1:]], "row 5: pixels must be numbers from 0 to 255, found 'é'"),
    ],
)
def test_bad_pixels(words, detail):
    with pytest.raises(ImageRejectedError) as info:
        parse_pixels(" ".join(words).encode(), 5)
    assert info.value.reason is RejectReason.BAD_ROW
    assert info.value.detail == detail


def test_parse_pixels():
    numbers = [f"{n % 256:03d}" for n in range(2304)]  # leading zeros are fine
    parsed = parse_pixels(("  " + "\t".join(numbers) + "\r\n").encode())
    assert parsed.dtype == np.uint8
    assert parsed.shape == (48, 48)
    assert parsed.ravel().tolist() == [n % 256 for n in range(2304)]
    with pytest.raises(ImageRejectedError, match=r"^bad_row: expected 2304 pixels"):
        parse_pixels(b"")


def test_several_files_do_not_share_keys(tmp_path):
    for name in ("a/train.csv", "a/test.csv", "b/test.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path, f"emotion,pixels,Usage\n0,{text(1)},Training\n", name)
    _, refs, _ = listed(tmp_path / "a/train.csv", tmp_path / "a/test.csv")
    assert [ref.key for ref in refs] == ["train.csv/row-000001", "test.csv/row-000001"]
    _, refs, _ = listed(tmp_path / "a/test.csv", tmp_path / "b/test.csv")
    assert [ref.key for ref in refs] == ["a/test.csv/row-000001", "b/test.csv/row-000001"]


def test_mistakes(tmp_path):
    header = "emotion,pixels,Usage\n"
    with pytest.raises(InputError, match="has a header but no rows"):
        resolve(write(tmp_path, header))
    file = write(tmp_path, "a,b\n1,2\n")
    with pytest.raises(InputError, match="emotion, pixels and Usage of FER2013, found 'a', 'b'"):
        resolve(file, kind="fer2013")
    file = write(tmp_path, f"{header}0,{text(1)},Training\n")
    with pytest.raises(UsageError, match="--label_from cannot be used with FER2013"):
        resolve(file, label_from="none")
    with pytest.raises(UsageError, match="--label_column is for manifests, but the input is a FER"):
        resolve(file, label_column="emotion")
    labels = write(tmp_path, "sad\nhappy\n", "labels.txt")
    with pytest.raises(InputError, match="not in the labels file: 'angry', 'disgust'"):
        resolve(file, labels_file=labels)
    given = "\n".join(reversed(LABELS))
    plan = resolve(file, labels_file=write(tmp_path, given, "labels.txt"))
    assert given_labels(plan) == tuple(reversed(LABELS))


@pytest.mark.corpus
def test_corpus_fer2013_sample():
    plan, refs, _ = listed(corpus("fer2013_sample.csv"))
    assert plan.kind == "fer2013"
    assert [ref.label for ref in refs] == ["angry", "angry", "fear", "sad"]
    assert {ref.split for ref in refs} == {"train"}
    first = read(refs[0])
    assert first[0, :6].tolist() == [70, 80, 82, 72, 58, 58]
    assert read(refs[3])[-1, -1] == 142
