"""The plan: label ids, splits and shard bounds, whatever way references arrived."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from beam_pipeline.errors import InputError
from beam_pipeline.examples import ExampleEncoder, feature_specs
from beam_pipeline.hashing import order_hash
from beam_pipeline.options import (
    ConvertOptions,
    Encoding,
    FeatureNames,
    FeatureType,
    ImageOptions,
    InputOptions,
    OutputOptions,
)
from beam_pipeline.plan import (
    SAMPLE_SIZE,
    UNKNOWN_SIZE,
    ConversionPlan,
    PlanTally,
    make_plan,
    record_overhead,
    reencodes_everything,
)
from beam_pipeline.tfrecord_format import FRAMING_BYTES
from beam_pipeline.types import ImageRecord, ImageRef, Outcome, PreparedImage, Problem

REFUSED = Problem(Outcome.REJECTED, "bad_row", "…")
DUPLICATE = Problem(Outcome.DUPLICATE, "same_path", "row 1")


def options(image: ImageOptions | None = None, **output: Any) -> ConvertOptions:
    return ConvertOptions(
        InputOptions(("in",)), OutputOptions("out", **output), image or ImageOptions()
    )


def tally(refs: list[ImageRef], chosen: ConvertOptions | None = None) -> PlanTally:
    found = PlanTally()
    found.add(refs, (chosen or options()).output)
    return found


def refs(count: int, label: str = "a", size: int = 1000, **fields: Any) -> list[ImageRef]:
    return [ImageRef(f"{label}/{i}", "/x", label, size=size, **fields) for i in range(count)]


def test_an_exact_plan() -> None:
    listed = [
        *refs(3, "happy", split="train"),
        *refs(2, "sad", split="test"),
        ImageRef("x", "/x", "odd", "train", problem=REFUSED),
        ImageRef("happy/0", "/x", "happy", "train", problem=DUPLICATE),
    ]
    chosen = options()
    plan = make_plan(tally(listed, chosen), chosen, declared_labels=("unused",))
    assert plan.labels == ("happy", "odd", "sad", "unused")
    assert plan.occurring == ("happy", "odd", "sad")
    assert list(plan.splits) == ["test", "train"]
    assert plan.splits["train"].records == 3
    assert plan.splits["train"].classes == {"happy": 3, "odd": 0, "sad": 0, "unused": 0}
    assert plan.splits["test"].classes == {"happy": 0, "odd": 0, "sad": 2, "unused": 0}
    assert plan.splits["test"].bytes == 2 * (1000 + record_overhead(refs(1, "sad")[0]))
    assert plan.splits["train"].bounds == (0,)
    assert (plan.inputs, plan.records, plan.rejected, plan.duplicates) == (7, 5, 1, 1)


def test_the_order_of_merging_does_not_matter() -> None:
    chosen = options(num_shards=3, split={"train": 0.7, "test": 0.3})
    parts = [refs(20, label, size=100 + i) for i, label in enumerate("abcd")]
    everything = [ref for part in parts for ref in part]
    whole = make_plan(tally(everything, chosen), chosen)
    sample = tally(everything, chosen).sample
    for order in itertools.permutations(parts):
        merged = PlanTally()
        for part in order:
            merged.merge(tally(part, chosen).compact())
        assert make_plan(merged, chosen) == whole
        assert merged.sample == sample
    assert len(sample) == SAMPLE_SIZE
    assert [ref.key for ref in sample] == sorted(
        (ref.key for ref in everything), key=lambda key: order_hash(0, key)
    )[:SAMPLE_SIZE]


def test_unknown_sizes_are_guessed() -> None:
    plan = make_plan(tally(refs(2, size=-1)), options())
    assert plan.splits["train"].bytes == 2 * (UNKNOWN_SIZE + record_overhead(refs(1)[0]))


def test_num_shards_by_split() -> None:
    chosen = options(num_shards={"train": 4})
    listed = [*refs(9, "a", split="train"), *refs(9, "b", split="test")]
    plan = make_plan(tally(listed, chosen), chosen)
    assert {name: len(split.bounds) for name, split in plan.splits.items()} == {
        "train": 4,
        "test": 1,  # not named: by --shard_size
    }


def test_num_shards_of_a_split_that_does_not_exist() -> None:
    chosen = options(num_shards={"train": 4, "eval": 1, "dev": 2})
    with pytest.raises(
        InputError, match=r"--num_shards names the split dev, eval, but the splits are train$"
    ):
        make_plan(tally(refs(3), chosen), chosen)


def test_labels_absent() -> None:
    plan = make_plan(tally([ImageRef("a", "/a", size=5)]), options())
    assert plan.labels is None
    assert plan.splits["train"].classes == {"": 1}


def test_given_labels_fix_ids_and_refuse_others() -> None:
    plan = make_plan(tally(refs(1, "b")), options(), given_labels=("z", "b", "a"))
    assert plan.labels == ("z", "b", "a")
    with pytest.raises(InputError, match="'c'"):
        make_plan(tally(refs(1, "c")), options(), given_labels=("z", "b", "a"))


def test_labels_that_look_alike_are_warned_about() -> None:
    plan = make_plan(tally([*refs(1, "Happy"), *refs(1, "happy")]), options())
    assert len(plan.warnings) == 1
    assert "'Happy'" in plan.warnings[0]


def test_lists_make_a_feature_repeated() -> None:
    listed = [
        ImageRef("a", "/a", features={"tags": [], "n": 1}),
        ImageRef("b", "/b", features={"tags": ["x"], "n": 2}),
    ]
    assert make_plan(tally(listed), options()).repeated_features == ("tags",)


def test_the_size_ratio_is_asked_only_where_images_are_reencoded() -> None:
    asked: list[int] = []

    def ratio(sample: Any) -> float:
        asked.append(len(sample))
        return 10.0

    plain = make_plan(tally(refs(50)), options(), size_ratio=ratio)
    assert asked == []
    chosen = options(ImageOptions(encoding=Encoding.RAW))
    raw = make_plan(tally(refs(50), chosen), chosen, size_ratio=ratio)
    assert asked == [SAMPLE_SIZE]
    beside = sum(map(record_overhead, refs(50)))
    assert plain.splits["train"].bytes == 50 * 1000 + beside
    # Only images grow; what stands beside them is taken at its average.
    assert raw.splits["train"].bytes == pytest.approx(50 * 10_000 + beside, rel=0.001)


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (ImageOptions(), False),
        (ImageOptions(encoding=Encoding.PNG), True),
        (ImageOptions(resize=(8, 8)), True),
        (ImageOptions(channels=1), True),
    ],
)
def test_reencodes_everything(image: ImageOptions, expected: bool) -> None:
    assert reencodes_everything(options(image)) is expected


def test_shard_size_uses_the_plan() -> None:
    chosen = options(shard_size=4 * (1000 + record_overhead(refs(1)[0])))
    plan = make_plan(tally(refs(10), chosen), chosen)
    assert len(plan.splits["train"].bounds) == 3
    grouped = plan.shards_of(refs(10), chosen.output)
    assert sorted(grouped) == [("train", 0), ("train", 1), ("train", 2)]
    assert max(map(len, grouped.values())) <= 4


@pytest.mark.parametrize("names", list(FeatureNames))
@pytest.mark.parametrize("encoding", [Encoding.PASSTHROUGH, Encoding.RAW])
@pytest.mark.parametrize("size", [10, 70_000, 3 << 20])
def test_record_overhead_is_an_upper_bound(
    names: FeatureNames, encoding: Encoding, size: int
) -> None:
    features: dict = {"n": -1, "f": 0.5, "t": "ü" * 300, "b": bytes(9), "v": ["", "x" * 200, "y"]}
    features |= {"i": [-1] * 500, "g": [0.5] * 500, "e": []}
    kinds = {"n": "int64", "f": "float", "t": "text", "b": "bytes", "v": "text", "i": "int64"}
    kinds |= {"g": "float", "e": "text"}
    extra = {n: (FeatureType(k), isinstance(features[n], list)) for n, k in kinds.items()}
    specs = feature_specs(names, labelled=True, encoding=encoding, extra=extra)
    image = PreparedImage(bytes(size), "jpeg", 65_500, 65_500, 3, "jpeg")
    record = ImageRecord("ü/1.jpg" * 20, image, "0" * 64, 99_999, "gl☃ck", features)
    (example,) = ExampleEncoder(specs).encode([record])
    ref = ImageRef(record.key, "/x", record.label_name, features=features)
    spare = record_overhead(ref) - (len(example) + FRAMING_BYTES - size)
    assert 0 <= spare < 0.7 * record_overhead(ref)


def test_shards_of_covers_every_reference_once() -> None:
    chosen = options(num_shards=5, split={"train": 0.6, "test": 0.4}, seed=3)
    listed = refs(200)
    plan: ConversionPlan = make_plan(tally(listed, chosen), chosen)
    grouped = plan.shards_of(listed, chosen.output)
    assert sorted(ref.key for part in grouped.values() for ref in part) == sorted(
        ref.key for ref in listed
    )
    assert len(grouped) == 10
    for split in ("train", "test"):
        counts = [len(grouped[split, number]) for number in range(5)]
        assert max(counts) - min(counts) <= 1
        # Shards are ranges of the global order.
        ranges = [[order_hash(3, ref.key) for ref in grouped[split, n]] for n in range(5)]
        for lower, upper in itertools.pairwise(ranges):
            assert max(lower) < min(upper)


def test_an_empty_split_has_one_shard_without_records() -> None:
    plan = make_plan(
        tally([*refs(1, split="train"), ImageRef("x", "/x", "a", "test", problem=REFUSED)]),
        options(num_shards=3),
    )
    assert plan.splits["test"].bounds == (0,)
    assert plan.splits["test"].records == 0
