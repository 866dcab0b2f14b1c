"""The plan of a conversion: label ids, splits and shard bounds, from the references alone.

Workers add references to PlanTally objects; merged in any order, they give the same
ConversionPlan, which every worker then gets. A plan is small: a few bytes per shard.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from beam_pipeline.errors import InputError
from beam_pipeline.hashing import order_hashes
from beam_pipeline.labels import build_label_map
from beam_pipeline.options import ConvertOptions, Encoding, OutputOptions
from beam_pipeline.shards import OrderHistogram, cut_by_bytes, cut_by_count, shard_numbers
from beam_pipeline.splits import assign_split
from beam_pipeline.types import FeatureValue, ImageRef, Outcome

# Bytes of a record beside its image: names of the features, checksums, framing; without
# key, label and kept columns. At most 344, for slim names and raw pixels.
RECORD_OVERHEAD = 344
# Where neither listing nor a stat told the size of an input.
UNKNOWN_SIZE = 100_000
# References that are decoded to learn how re-encoding changes the size of an image.
SAMPLE_SIZE = 32
# Merging histograms is cheapest in groups.
_MERGE_EVERY = 32


class PlanTally:
    """What is known of a part of the references: counts, classes, order, a sample."""

    def __init__(self) -> None:
        self.inputs = 0
        self.outcomes: Counter[str] = Counter()  # of problems found before reading
        self.labels: set[str] = set()  # of all references, refused ones too
        self.named_splits: set[str] = set()  # that the input names, or that may get an image
        self.classes: dict[str, Counter[str]] = {}  # split → label → images
        self.repeated_features: set[str] = set()  # that hold a list in any row
        self.overheads: Counter[str] = Counter()  # split → bytes beside the images
        self._histograms: dict[str, list[OrderHistogram]] = {}
        self._sample: list[tuple[int, ImageRef]] = []  # a heap of (-hash, ref)

    def add(self, refs: Sequence[ImageRef], output: OutputOptions) -> None:
        """Adds references whose duplicates are resolved."""
        self.inputs += len(refs)
        by_split: dict[str, list[ImageRef]] = {}
        for ref in refs:
            split = assign_split(ref, output.split, output.seed)
            members = by_split.setdefault(split, [])
            if ref.label is not None:
                self.labels.add(ref.label)
            if ref.problem is None:
                members.append(ref)
                continue
            self.outcomes[ref.problem.outcome.value] += 1
            if ref.split is not None:
                self.named_splits.add(split)
        for split, members in by_split.items():
            self._add_to_split(split, members, output.seed)

    def _add_to_split(self, split: str, refs: Sequence[ImageRef], seed: int) -> None:
        if refs:
            self.named_splits.add(split)
            self.classes.setdefault(split, Counter()).update(ref.label or "" for ref in refs)
        hashes = order_hashes(seed, [ref.key for ref in refs])
        overheads = list(map(record_overhead, refs))
        self.overheads[split] += sum(overheads)
        sizes = [
            (ref.size if ref.size >= 0 else UNKNOWN_SIZE) + overhead
            for ref, overhead in zip(refs, overheads, strict=True)
        ]
        self._add_histograms(split, [OrderHistogram.of(hashes, sizes)])
        for ref, order in zip(refs, hashes, strict=True):
            if ref.features:
                self.repeated_features.update(
                    name for name, value in ref.features.items() if isinstance(value, list)
                )
            if len(self._sample) < SAMPLE_SIZE or -order > self._sample[0][0]:
                self._add_to_sample(order, ref)

    def merge(self, other: PlanTally) -> None:
        """Adds everything that `other` knows."""
        self.inputs += other.inputs
        self.outcomes += other.outcomes
        self.labels |= other.labels
        self.named_splits |= other.named_splits
        self.repeated_features |= other.repeated_features
        self.overheads += other.overheads
        for split, classes in other.classes.items():
            self.classes.setdefault(split, Counter()).update(classes)
        for split, parts in other._histograms.items():
            self._add_histograms(split, parts)
        for negated, ref in other._sample:
            self._add_to_sample(-negated, ref)

    def compact(self) -> PlanTally:
        """Merges what was left to merge; before a tally is sent anywhere."""
        for split, parts in self._histograms.items():
            self._histograms[split] = [OrderHistogram.merge(parts)]
        return self

    def histograms(self) -> dict[str, OrderHistogram]:
        """Split name → histogram, splits sorted by name."""
        return {split: OrderHistogram.merge(self._histograms[split]) for split in self.splits}

    @property
    def splits(self) -> list[str]:
        """Names of the splits, sorted."""
        return sorted(self._histograms)

    @property
    def sample(self) -> list[ImageRef]:
        """The SAMPLE_SIZE references with the lowest hashes, in hash order."""
        ordered = sorted(self._sample, key=lambda item: (-item[0], item[1].key))
        return [ref for _, ref in ordered]

    def _add_histograms(self, split: str, parts: list[OrderHistogram]) -> None:
        known = self._histograms.setdefault(split, [])
        known += parts
        if len(known) > _MERGE_EVERY:
            self._histograms[split] = [OrderHistogram.merge(known)]

    def _add_to_sample(self, order: int, ref: ImageRef) -> None:
        if len(self._sample) < SAMPLE_SIZE:
            heapq.heappush(self._sample, (-order, ref))
        elif -order > self._sample[0][0]:
            heapq.heapreplace(self._sample, (-order, ref))


@dataclasses.dataclass(frozen=True)
class SplitPlan:
    """One split before anything is decoded.

    Attributes:
      bounds: lowest order hash of every shard, ascending, the first is 0.
      records: images that may be written.
      bytes: estimated size of all shards.
      classes: label → images.
    """

    bounds: tuple[int, ...]
    records: int
    bytes: int
    classes: Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class ConversionPlan:
    """What every worker must know.

    Attributes:
      labels: class names by id, or None where no input has a label.
      splits: by name, sorted.
      inputs: references listed, duplicates and known rejects included.
      duplicates, rejected: references that already have their verdict.
      occurring: the classes that any input names, in the order of their ids.
      named_splits: splits that the input names or that may get an image, sorted; a
        refused row without a split is in the default split, which may be neither.
      repeated_features: further features that are variable-length lists, sorted.
      warnings: about labels, for the user.
    """

    labels: tuple[str, ...] | None
    splits: Mapping[str, SplitPlan]
    inputs: int
    duplicates: int
    rejected: int
    named_splits: tuple[str, ...] = ()
    occurring: tuple[str, ...] = ()
    repeated_features: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def records(self) -> int:
        """Images that may be written."""
        return sum(split.records for split in self.splits.values())

    def shards_of(
        self, refs: Iterable[ImageRef], output: OutputOptions
    ) -> dict[tuple[str, int], list[ImageRef]]:
        """Groups references by (split, shard number)."""
        by_split: dict[str, list[ImageRef]] = {}
        for ref in refs:
            split = assign_split(ref, output.split, output.seed)
            by_split.setdefault(split, []).append(ref)
        grouped: dict[tuple[str, int], list[ImageRef]] = {}
        for split, members in by_split.items():
            hashes = order_hashes(output.seed, [ref.key for ref in members])
            numbers = shard_numbers(self.splits[split].bounds, hashes)
            for ref, number in zip(members, numbers.tolist(), strict=True):
                grouped.setdefault((split, number), []).append(ref)
        return grouped


def make_plan(
    tally: PlanTally,
    options: ConvertOptions,
    *,
    declared_labels: Sequence[str] | None = None,
    given_labels: Sequence[str] | None = None,
    size_ratio: Callable[[Sequence[ImageRef]], float] | None = None,
) -> ConversionPlan:
    """Decides label ids and shard bounds.

    Args:
      tally: of all references.
      options: of the conversion.
      declared_labels: classes that exist whether or not they have images.
      given_labels: from a labels file; fixes the ids.
      size_ratio: stored bytes per source byte, measured on a sample of references;
        asked only where images are re-encoded.

    Raises:
      InputError: a label is not among `given_labels`; a split in --num_shards does
        not exist.
    """
    labels: tuple[str, ...] | None = None
    warnings: tuple[str, ...] = ()
    if tally.labels or declared_labels or given_labels:
        names = tally.labels | set(declared_labels or ())
        labels, warnings = build_label_map(names, given_labels)
    ratio = 1.0
    if size_ratio is not None and reencodes_everything(options) and tally.sample:
        ratio = size_ratio(tally.sample)
    splits = {}
    for split, histogram in tally.histograms().items():
        scaled = histogram
        if ratio != 1:
            beside = tally.overheads[split] // max(histogram.records, 1) * histogram.counts
            images = np.maximum(histogram.sizes - beside, 0) * ratio
            scaled = dataclasses.replace(histogram, sizes=images.astype(np.int64) + beside)
        splits[split] = SplitPlan(
            bounds=_cut(split, scaled, options.output),
            records=scaled.records,
            bytes=scaled.bytes,
            classes={
                label: tally.classes.get(split, Counter())[label] for label in (labels or ("",))
            },
        )
    unknown = set(_shard_counts(options.output)) - set(splits)
    if unknown:
        raise InputError(
            f"--num_shards names the split {', '.join(sorted(unknown))}, "
            f"but the splits are {', '.join(splits)}"
        )
    return ConversionPlan(
        labels=labels,
        splits=splits,
        inputs=tally.inputs,
        duplicates=tally.outcomes[Outcome.DUPLICATE.value],
        rejected=tally.outcomes[Outcome.REJECTED.value],
        occurring=tuple(label for label in labels or () if label in tally.labels),
        named_splits=tuple(sorted(tally.named_splits)),
        repeated_features=tuple(sorted(tally.repeated_features)),
        warnings=warnings,
    )


def record_overhead(ref: ImageRef) -> int:
    """Bytes of a record beside its image, at most."""
    size = RECORD_OVERHEAD + _text_bytes(ref.key) + _text_bytes(ref.label or "")
    for name, value in (ref.features or {}).items():
        size += len(name.encode()) + 24
        size += sum(map(_value_bytes, value if isinstance(value, list) else [value]))
    return size


def _text_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _value_bytes(value: FeatureValue) -> int:
    if isinstance(value, float):
        return 4
    if isinstance(value, int):
        return 10  # a negative one; as a varint
    assert not isinstance(value, list)
    return 6 + len(value.encode() if isinstance(value, str) else value)


def reencodes_everything(options: ConvertOptions) -> bool:
    """Whether the size of an input says little about the size of its record."""
    image = options.image
    return (
        image.encoding is not Encoding.PASSTHROUGH
        or image.resize is not None
        or image.channels is not None
    )


def _shard_counts(output: OutputOptions) -> Mapping[str, int]:
    return output.num_shards if isinstance(output.num_shards, Mapping) else {}


def _cut(split: str, histogram: OrderHistogram, output: OutputOptions) -> tuple[int, ...]:
    if not histogram.records:
        return (0,)
    if isinstance(output.num_shards, int):
        return cut_by_count(histogram, output.num_shards)
    if split in _shard_counts(output):
        return cut_by_count(histogram, _shard_counts(output)[split])
    return cut_by_bytes(histogram, output.shard_size)
