"""`--equal_images drop`: one record of inputs with the same bytes, and a verdict for each."""

from __future__ import annotations

import itertools
import os
import pathlib
from typing import Any

import apache_beam as beam
import pyarrow.parquet as pq
import pytest

from beam_pipeline import cli
from beam_pipeline.dry_run import make_dry_plan
from beam_pipeline.equal_images import drop_equal_images, with_digests
from beam_pipeline.errors import StorageError
from beam_pipeline.inputs import ListingReport, list_images, resolve_inputs
from beam_pipeline.options import EqualImages, InputOptions, OutputOptions, Writer
from beam_pipeline.types import ImageRef, Outcome, Problem
from beam_pipeline.write_images import WriteImages
from tests import conversions, fakes

DROP = EqualImages.DROP
BMP = fakes.encode(fakes.picture(2, 2), "BMP")


def ref(key: str, digest: bytes | None = b"d", label: str | None = "a", **fields: Any) -> ImageRef:
    return ImageRef(key, f"/d/{key}", label, digest=digest, **fields)


def outcome(refs: list[ImageRef]) -> list[tuple[str, str | None]]:
    """(key, what it is said of it), sorted by key."""
    found = drop_equal_images(refs)
    assert all(one.digest is None for one in found)
    return [(one.key, None if one.problem is None else one.problem.detail) for one in found]


# ---------------------------------------------------------------- which one is kept


def test_different_bytes_are_left_alone() -> None:
    refs = [ref("a", b"1"), ref("b", b"2"), ref("c", None), ref("d", None)]
    assert drop_equal_images(refs) == [one._replace(digest=None) for one in refs]


def test_the_first_is_kept_in_whatever_order_they_come() -> None:
    problem = Problem(Outcome.DUPLICATE, "same_bytes", "same bytes as b")
    refs = [ref("a", row=7), ref("b", row=3), ref("c", row=3)]
    for order in itertools.permutations(refs):
        assert drop_equal_images(order) == [
            ref("a", None, row=7, problem=problem),
            ref("b", None, row=3),
            ref("c", None, row=3, problem=problem),
        ]


def test_a_copy_outside_of_train_is_kept() -> None:
    refs = [ref("a", split="train"), ref("b", split="validation"), ref("c", split="test")]
    for order in itertools.permutations(refs):
        assert outcome(list(order)) == [
            ("a", "same bytes as c"),
            ("b", "same bytes as c"),
            ("c", None),
        ]
    assert outcome([ref("a", split="train"), ref("b", split="train")])[0] == ("a", None)


def test_copies_with_several_labels_are_all_refused() -> None:
    refs = [ref("a", label="happy"), ref("b", label="sad"), ref("c", label="happy")]
    for order in itertools.permutations(refs):
        found = drop_equal_images(order)
        assert {one.problem for one in found} == {
            Problem(
                Outcome.REJECTED,
                "conflicting_labels",
                "images with the same bytes have more than one label: happy (a), sad (b), …; "
                "keep the right one",
            )
        }
    assert outcome([ref("a", label=None), ref("b", label="a")])[0][1] == (
        "images with the same bytes have more than one label: a (b), no label (a); keep the right one"
    )


def test_without_labels() -> None:
    assert outcome([ref("a", label=None), ref("b", label=None)]) == [
        ("a", None),
        ("b", "same bytes as a"),
    ]


# ---------------------------------------------------------------- reading


def test_digests_are_of_the_bytes(tmp_path: pathlib.Path) -> None:
    fakes.write_tree(
        tmp_path, {"one": BMP, "two": b".." + BMP + b"..", "large": BMP * 4, "text": b"none"}
    )
    paths = {name: str(tmp_path / name) for name in ("one", "two", "large", "none", "text")}
    problem = Problem(Outcome.DUPLICATE, "same_path", "")
    refs = [
        ImageRef("one", paths["one"]),
        ImageRef("two", paths["two"], byte_range=(2, len(BMP))),
        ImageRef("pixels", paths["text"], pixels="fer2013"),
        ImageRef("text", paths["text"]),
        ImageRef("large", paths["large"]),
        ImageRef("none", paths["none"]),
        ImageRef("again", paths["one"], problem=problem),
    ]
    found = with_digests(refs, max_bytes=2 * len(BMP))
    assert [one._replace(digest=None) for one in found] == refs
    digests = {one.key: one.digest for one in found}
    assert digests["one"] == digests["two"] != digests["pixels"]
    assert all(len(digests[key] or b"") == 16 for key in ("one", "two", "pixels"))
    assert [digests[key] for key in ("text", "large", "none", "again")] == [None] * 4


def test_a_fault_of_the_environment_ends_it() -> None:
    with pytest.raises(StorageError):
        with_digests([ImageRef("a", "nosuchscheme://bucket/a")], 100)


# ---------------------------------------------------------------- whole conversions


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """train and test: a copy in both, one with two labels, a missing, an empty and an odd file."""
    root = tmp_path_factory.mktemp("source")
    files = {
        f"{split}/{label}/{number}.png": fakes.png(1000 * len(split) + 100 * len(label) + number)
        for split in ("train", "test")
        for label in ("happy", "sad")
        for number in range(12)
    }
    files["train/sad/copy.png"] = files["test/sad/3.png"]
    files["train/sad/copy of copy.png"] = files["test/sad/3.png"]
    files["train/happy/clash.png"] = files["train/sad/5.png"]
    files["train/happy/empty.png"] = files["train/happy/empty too.png"] = b""
    files |= dict.fromkeys(("train/happy/page.png", "train/sad/page.png"), b"<html>404</html>")
    fakes.write_tree(root, files)
    os.symlink(root / "nowhere", root / "train" / "happy" / "dead.png")
    return root


WANTED = {
    "train/sad/copy.png": ("duplicate", "same bytes as test/sad/3.png"),
    "train/sad/copy of copy.png": ("duplicate", "same bytes as test/sad/3.png"),
    "train/happy/clash.png": ("rejected", "conflicting_labels"),
    "train/sad/5.png": ("rejected", "conflicting_labels"),
    "train/happy/empty.png": ("rejected", "empty"),
    "train/happy/empty too.png": ("rejected", "empty"),
    "train/happy/page.png": ("rejected", "not_an_image"),
    "train/sad/page.png": ("rejected", "not_an_image"),
    "train/happy/dead.png": ("rejected", "missing"),
}


def verdicts(output: pathlib.Path) -> dict[str, tuple[str, str]]:
    """Key → (outcome, reason) of all that was not written."""
    rows = [
        row
        for path in sorted((output / "index").glob("*.parquet"))
        for row in pq.read_table(path).to_pylist()
    ]
    return {
        row["key"]: (row["outcome"], row["reason"]) for row in rows if row["outcome"] != "written"
    }


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"workers": 2},
        {"writer": Writer.BEAM},
        {"beam_options": ["--direct_running_mode=multi_threading", "--direct_num_workers=2"]},
    ],
    ids=["here", "workers", "writer beam", "multi threading"],
)
def test_every_input_has_its_verdict(
    how: dict[str, Any], source: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    summary = conversions.run(
        source, tmp_path / "out", equal_images=DROP, max_reject_fraction=0.2, **how
    )
    assert verdicts(tmp_path / "out") == WANTED
    assert dict(summary.info.ledger) == {
        "inputs": 56,
        "written": 47,
        "rejected": 7,
        "duplicates": 2,
    }
    assert summary.info.run["same_bytes"] == {}


def test_the_bytes_are_those_of_a_conversion_without_the_copies(
    source: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    report = ListingReport()
    plan = resolve_inputs(InputOptions((str(source),)))
    rows = [
        f"{one.uri},{one.label},{one.split}\n"
        for one in list_images(plan, report)
        if one.key not in WANTED
    ]
    (source / "clean.csv").write_text("path,label,split\n" + "".join(rows))
    common: dict[str, Any] = {"name": "faces", "max_reject_fraction": 0.2}
    conversions.run(source, tmp_path / "drop", equal_images=DROP, **common)
    conversions.run(source / "clean.csv", tmp_path / "clean", **common)
    (source / "clean.csv").unlink()

    def shards(output: pathlib.Path) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in output.glob("*.tfrecord-*")}

    assert shards(tmp_path / "drop") == shards(tmp_path / "clean")


def test_a_random_split_gets_each_picture_once(tmp_path: pathlib.Path) -> None:
    files = {f"{label}/{number}.png": fakes.png(number) for number in range(30) for label in "a"}
    files |= {f"a/copy {number}.png": fakes.png(number) for number in range(30)}
    fakes.write_tree(tmp_path / "in", files)
    split = {"train": 0.5, "test": 0.5}
    kept = conversions.run(tmp_path / "in", tmp_path / "keep", split=split)
    assert kept.info.run["same_bytes"]["in_several_splits"]  # type: ignore[index]
    dropped = conversions.run(tmp_path / "in", tmp_path / "drop", split=split, equal_images=DROP)
    assert dropped.info.run["same_bytes"] == {}
    assert (dropped.written, dropped.duplicates) == (30, 30)


def test_the_dry_plan_is_the_same(source: pathlib.Path, tmp_path: pathlib.Path) -> None:
    options = conversions.make_options(source, tmp_path / "out", equal_images=DROP)
    plan, _ = make_dry_plan(options)
    assert (plan.inputs, plan.duplicates, plan.rejected) == (56, 2, 3)  # the dead link, two labels
    assert plan.records == 51


def test_in_a_pipeline_of_your_own(source: pathlib.Path, tmp_path: pathlib.Path) -> None:
    refs = list(list_images(resolve_inputs(InputOptions((str(source),)))))
    output = OutputOptions(str(tmp_path / "out"), equal_images=DROP, max_reject_fraction=0.2)
    with conversions.local_pipeline() as pipeline:
        _ = pipeline | beam.Create(refs) | WriteImages(output)
    assert verdicts(tmp_path / "out") == WANTED


def test_the_command(
    source: pathlib.Path, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ["convert", f"--input={source}", "--equal_images=drop", "--max_reject_fraction=0.2"]
    assert cli.main([*arguments, f"--output={tmp_path / 'out'}", "--workers=1"]) == 0
    shown = capfd.readouterr()
    assert "equal images: every image is read once to be compared" in shown.err
    assert "56 inputs = 47 written + 7 rejected + 2 duplicates" in shown.out
    assert "same bytes as" not in shown.out
    assert cli.main(["verify", str(tmp_path / "out")]) == 0
    assert "warning" not in capfd.readouterr().out
    assert cli.main([*arguments, f"--output={tmp_path / 'dry'}", "--dry_run"]) == 0
    shown = capfd.readouterr()
    assert "56 inputs: 51 to convert, 3 already refused, 2 duplicates" in shown.out
    assert "dry run: images were compared, not decoded" in shown.out


def test_files_that_become_equal_are_still_told(tmp_path: pathlib.Path) -> None:
    pixels = fakes.picture(8, 8)
    files = {"a/x.bmp": fakes.encode(pixels, "BMP"), "a/y.tiff": fakes.encode(pixels, "TIFF")}
    fakes.write_tree(tmp_path / "in", files)
    text = conversions.run(tmp_path / "in", tmp_path / "out", equal_images=DROP).text()
    assert "warning: 2 images have the same bytes as another one: a/x.bmp and a/y.tiff" in text
    assert "warning: their files differ" in text
    assert "--equal_images" not in text
