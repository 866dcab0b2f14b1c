"""Inputs that a worker lists while its parent is still busy."""

from __future__ import annotations

import os
import pathlib
import signal
import time
from typing import Any

import pytest

from beam_pipeline import worker_pool
from beam_pipeline.batching import batches_by_bucket
from beam_pipeline.errors import ConversionError, ImagebeamError, InputError, UsageError
from beam_pipeline.examples import feature_specs
from beam_pipeline.inputs import ListingReport, list_images, resolve_inputs
from beam_pipeline.listing_ahead import ListingAhead, serve_listing
from beam_pipeline.options import Encoding, FeatureNames, ImageOptions, InputOptions
from beam_pipeline.records import RecordMaker
from beam_pipeline.worker_pool import WorkerPool
from tests import fakes


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> InputOptions:
    root = tmp_path_factory.mktemp("in")
    fakes.class_folders(root, per_label=3)
    fakes.write_tree(root, {"happy/notes.txt": b"no image", "happy/.hidden.png": b""})
    return InputOptions(inputs=(str(root),))


def manifest(tmp_path: pathlib.Path, rows: int) -> InputOptions:
    """A manifest whose listing is larger than all that waits for a busy parent."""
    lines = "".join(f"images/{'x' * 200}/{number}.jpg,a\n" for number in range(rows))
    (tmp_path / "m.csv").write_text("path,label\n" + lines)
    return InputOptions(inputs=(str(tmp_path / "m.csv"),))


def refs_of(batches: Any) -> list[tuple[int, Any]]:
    return [(bucket, ref) for bucket, batch in batches for ref in batch.refs]


def listed_here(options: InputOptions, report: ListingReport) -> list[tuple[int, Any]]:
    return refs_of(batches_by_bucket(list_images(resolve_inputs(options), report)))


def test_what_is_sent_is_a_plan_batches_and_a_report(inputs: InputOptions) -> None:
    parts: list[Any] = []
    serve_listing(inputs, parts.append)
    ends: list[None] = []
    received = iter(parts)
    ahead = ListingAhead(inputs, lambda: next(received), lambda: ends.append(None))
    assert ahead.plan() == ahead.plan() == resolve_inputs(inputs)
    report, want = ListingReport(), ListingReport()
    assert refs_of(ahead.batches(report)) == listed_here(inputs, want)
    assert report == want
    assert report.ignored  # something is told
    assert ends == [None]
    assert next(received, None) is None


def test_a_worker_lists_and_then_makes_records(inputs: InputOptions) -> None:
    specs = feature_specs(FeatureNames.DEFAULT, labelled=True, encoding=Encoding.PASSTHROUGH)
    with WorkerPool(1, inputs) as pool:
        assert pool.listing(InputOptions(inputs=("/elsewhere",))) is None
        ahead = pool.listing(inputs)
        assert ahead is not None
        plan = ahead.plan()
        assert pool.take_listing(plan) is ahead
        assert pool.take_listing(plan) is None  # once
        assert pool.listing(inputs) is None
        report, want = ListingReport(), ListingReport()
        found = refs_of(ahead.batches(report))
        assert found == listed_here(inputs, want)
        assert report == want
        labels = tuple(sorted({ref.label for _, ref in found}))
        maker = RecordMaker(ImageOptions(), specs, labels)
        refs = [ref for _, ref in found]
        (chunk,) = pool.map_ordered(maker, [refs])
        assert bytes(chunk.data) == maker.make_chunk(refs).data


def test_another_plan_is_a_mistake(inputs: InputOptions, tmp_path: pathlib.Path) -> None:
    with WorkerPool(1, inputs) as pool, pytest.raises(RuntimeError, match="lists other inputs"):
        pool.take_listing(resolve_inputs(manifest(tmp_path, 1)))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"inputs": ("/no/such/place",)}, InputError),
        ({"path_column": "path"}, UsageError),
        ({"label_from": "regex:(?P<label>never)"}, InputError),
    ],
)
def test_errors_come_through_as_they_are(
    inputs: InputOptions, options: dict[str, Any], error: type[ImagebeamError]
) -> None:
    chosen = InputOptions(**{"inputs": inputs.inputs, **options})
    with pytest.raises(error) as here:
        resolve_inputs(chosen)
    with WorkerPool(1, chosen) as pool:
        ahead = pool.listing(chosen)
        assert ahead is not None
        with pytest.raises(error) as there:
            ahead.plan()
        assert str(there.value) == str(here.value)
        assert type(there.value) is type(here.value)
        assert pool._idle.qsize() == 1  # the worker is free


def test_an_error_in_the_middle_comes_through(tmp_path: pathlib.Path) -> None:
    (tmp_path / "m.csv").write_bytes(b"path,label\n" + b"images/a.jpg,a\n" * 90_000 + b"\xff,a\n")
    options = InputOptions(inputs=(str(tmp_path / "m.csv"),))
    with pytest.raises(ImagebeamError) as here:
        listed_here(options, ListingReport())
    with WorkerPool(1, options) as pool:
        ahead = pool.take_listing(resolve_inputs(options))
        assert ahead is not None
        with pytest.raises(type(here.value)) as there:
            refs_of(ahead.batches(ListingReport()))
    assert str(there.value) == str(here.value)


def test_a_worker_waits_for_a_busy_parent(tmp_path: pathlib.Path) -> None:
    options = manifest(tmp_path, 60_000)
    want = listed_here(options, ListingReport())
    with WorkerPool(1, options) as pool:
        time.sleep(1)  # both the pipe and the queue fill
        ahead = pool.take_listing(resolve_inputs(options))
        assert ahead is not None
        assert refs_of(ahead.batches(ListingReport())) == want


def test_a_worker_that_dies_while_it_lists_is_named(tmp_path: pathlib.Path) -> None:
    options = manifest(tmp_path, 60_000)
    with WorkerPool(1, options) as pool:
        ahead = pool.take_listing(resolve_inputs(options))
        assert ahead is not None
        os.kill(pool._processes[0]._process.pid, signal.SIGKILL)
        with pytest.raises(ConversionError) as raised:
            refs_of(ahead.batches(ListingReport()))
    assert "was killed by the system (signal 9)" in str(raised.value)
    assert "while it listed the inputs" in str(raised.value)


def test_a_parent_that_gives_up_leaves_nothing(tmp_path: pathlib.Path) -> None:
    with WorkerPool(2, manifest(tmp_path, 60_000)) as pool:
        started = [worker._process for worker in pool._processes]
    assert all(process.poll() is not None for process in started)
    assert worker_pool.current() is None
