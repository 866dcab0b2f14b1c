"""The coder that lets nothing but references cross a shuffle."""

from __future__ import annotations

import pickle

import apache_beam as beam
import pytest

from beam_pipeline.ref_coder import RefBatchCoder
from beam_pipeline.references import RefBatch
from beam_pipeline.types import ImageRef, Outcome, Problem

FULL = ImageRef(
    key="a/ü.jpg",
    uri="/d/a/\udcff.jpg",  # bytes that are not UTF-8
    label="happy",
    split="train",
    group="7",
    features={"tags": ["x"], "n": 1, "b": b"\xff"},
    row=3,
    size=4000,
    byte_range=(5, 6),
    pixels="fer2013",
    problem=Problem(Outcome.REJECTED, "bad_row", "row 3: …"),
)


def test_every_field_comes_back() -> None:
    batch = RefBatch([FULL, ImageRef("b", "/d/b")])
    decoded = RefBatchCoder().decode(RefBatchCoder().encode(batch))
    assert decoded == batch
    assert isinstance(decoded.refs[0], ImageRef)
    assert isinstance(decoded.refs[0].problem, Problem)
    assert decoded.refs[0].problem.outcome is Outcome.REJECTED
    assert isinstance(decoded.refs[1], ImageRef)
    assert RefBatchCoder().decode(RefBatchCoder().encode(RefBatch([]))) == RefBatch([])


def test_what_looks_equal_is_not_mixed_up() -> None:
    # Repeated values are stored once; these only compare equal.
    refs = [
        ImageRef("a", "/d/a", features={"x": 0.0}, row=1),
        ImageRef("b", "/d/b", features={"x": -0.0}, row=1),
        ImageRef("c", "/elsewhere/c", features={"x": 0.0}, row=None),
    ]
    decoded = RefBatchCoder().decode(RefBatchCoder().encode(RefBatch(refs))).refs
    assert repr(decoded) == repr(refs)


def test_a_batch_stays_encoded_until_it_is_looked_at() -> None:
    encoded = RefBatchCoder().encode(RefBatch([FULL]))
    passed_on = RefBatchCoder().decode(encoded)
    assert RefBatchCoder().encode(passed_on) is encoded
    assert pickle.loads(pickle.dumps(passed_on)) == RefBatch([FULL])


@pytest.mark.parametrize("value", [b"pixels", [FULL], ("key", b"pixels"), FULL])
def test_anything_else_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="only RefBatch crosses a shuffle here, got"):
        RefBatchCoder().encode(value)  # type: ignore[arg-type]


def test_beam_uses_it() -> None:
    assert isinstance(beam.coders.registry.get_coder(RefBatch), RefBatchCoder)
    assert RefBatchCoder() == RefBatchCoder()
    assert hash(RefBatchCoder()) == hash(RefBatchCoder())
    assert not RefBatchCoder().is_deterministic()


def test_a_reference_is_small() -> None:
    refs = [
        ImageRef(f"happy/{i:06d}.jpg", f"/data/faces/happy/{i:06d}.jpg", "happy", size=4000)
        for i in range(1000)
    ]
    assert len(RefBatchCoder().encode(RefBatch(refs))) < 60 * 1000
