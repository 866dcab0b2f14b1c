"""The coder that lets nothing but references cross a shuffle."""

from __future__ import annotations

import apache_beam as beam
import pytest

from beam_pipeline.references import RefBatch, RefBatchCoder
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
    assert len(RefBatchCoder().encode(RefBatch(refs))) < 120 * 1000
