"""The drawn sample set: what is in it, that it is real, varied and the same for one seed."""

import hashlib
import os
import pathlib
import time
from collections import Counter

import numpy as np
import pytest
from PIL import Image, ImageFile, ImageOps

from beam_pipeline.errors import OutputError, UsageError
from beam_pipeline.faces import LABELS, draw_face
from beam_pipeline.sample import draw_sample


def checksums(root) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(pathlib.Path(root).rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    root = tmp_path_factory.mktemp("sample") / "faces"
    started = time.process_time()
    report = draw_sample(str(root), images=700, seed=0)
    report_seconds = time.process_time() - started
    assert report_seconds < 30  # 3 s when nothing else runs; 10 s is the aim
    return root, report


def test_folders_and_counts(sample):
    root, report = sample
    assert sorted(os.listdir(root)) == sorted(LABELS)
    assert report.images == dict.fromkeys(LABELS, 100)
    files = checksums(root)
    assert len(files) == 703
    assert set(report.odd) <= set(files)
    assert set(report.broken) <= set(files)
    assert len(report.broken) / len(files) < 0.01  # the default limit of a conversion
    assert len(set(files.values())) == 703  # no two faces are the same


def test_formats_and_sizes_are_mixed(sample):
    root, report = sample
    formats, modes, sizes = Counter(), Counter(), set()
    for path in root.rglob("*"):
        name = str(path.relative_to(root))
        if path.is_dir() or name in report.broken:
            continue
        with Image.open(path) as image:
            image.load()
            formats[image.format] += 1
            modes[image.mode] += 1
            sizes.add(image.size)
    assert set(formats) == {"JPEG", "PNG"}
    assert min(formats.values()) > 200
    assert modes["L"] > 50
    assert modes["CMYK"] == 1
    assert modes["I;16"] == 1
    assert len(sizes) > 30
    assert min(min(size) for size in sizes) == 48
    assert max(max(size) for size in sizes) <= 260


def test_odd_files_are_what_they_say(sample):
    root, _ = sample
    with Image.open(root / "happy/turned-by-exif.jpg") as image:
        assert image.getexif()[0x0112] == 6
    with Image.open(root / "sad/cmyk.jpg") as image:
        assert (image.format, image.mode) == ("JPEG", "CMYK")
    with Image.open(root / "surprise/16-bit.png") as image:
        pixels = np.asarray(image)
    assert pixels.dtype == np.uint16
    assert pixels.max() > 40_000
    assert (root / "neutral/really-a-png.jpg").read_bytes().startswith(b"\x89PNG")


def test_turned_face_is_upright_after_its_tag(tmp_path):
    report = draw_sample(str(tmp_path / "s"), images=7, seed=5)
    assert report.odd["happy/turned-by-exif.jpg"]
    # The same face without a tag: number 3 is the first happy one.
    rng = np.random.default_rng((5, 0, 3))
    expected = np.asarray(draw_face("happy", (120, 120), rng), np.float64)
    with Image.open(tmp_path / "s" / "happy/turned-by-exif.jpg") as image:
        stored = np.asarray(image, np.float64)
        upright = np.asarray(ImageOps.exif_transpose(image), np.float64)
    assert np.abs(upright - expected).mean() < 5
    assert np.abs(stored - expected).mean() > 15


def test_broken_files_are_broken(sample, monkeypatch):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", False)  # TFDS switches it on
    root, report = sample
    assert sorted(report.broken) == ["angry/empty.jpg", "disgust/text.jpg", "fear/cut-off.jpg"]
    assert (root / "angry/empty.jpg").stat().st_size == 0
    for name in ("disgust/text.jpg", "fear/cut-off.jpg"):
        with pytest.raises(OSError), Image.open(root / name) as image:  # noqa: PT011
            image.load()


def test_same_seed_same_bytes(tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2), ("d", -1)):
        draw_sample(str(tmp_path / name), images=28, seed=seed)
    a, b, c, d = (checksums(tmp_path / name) for name in "abcd")
    assert a == b
    assert not set(a.values()) & set(c.values())
    assert not set(a.values()) & set(d.values())


@pytest.mark.parametrize(("images", "broken"), [(7, 0), (99, 0), (100, 1), (300, 3), (301, 3)])
def test_small_samples_stay_below_one_percent_of_broken_files(tmp_path, images, broken):
    report = draw_sample(str(tmp_path / "s"), images=images)
    assert len(report.broken) == broken
    assert sum(report.images.values()) == images
    assert len(checksums(tmp_path / "s")) == images + broken


def test_expressions_differ_where_lots_agree():
    """The same lots with another label give another face: the label shows."""
    faces = [
        np.asarray(draw_face(label, (96, 96), np.random.default_rng(4)), np.float64)
        for label in LABELS
    ]
    for i, one in enumerate(faces):
        for other in faces[:i]:
            assert np.abs(one - other).mean() > 1


def test_errors(tmp_path):
    with pytest.raises(UsageError, match="at least 7"):
        draw_sample(str(tmp_path / "s"), images=6)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("keep")
    with pytest.raises(OutputError, match="not empty"):
        draw_sample(str(tmp_path / "full"))
    assert os.listdir(tmp_path / "full") == ["mine.txt"]
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"):
        draw_sample(str(tmp_path / "file"))
