"""What a conversion came to: the dataset that was written, or why there must be none."""

from __future__ import annotations

import datetime
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from beam_pipeline import dataset_info
from beam_pipeline.dataset_info import DatasetInfo, ShardInfo, SplitInfo
from beam_pipeline.examples import FeatureSpec
from beam_pipeline.inputs import ListingReport
from beam_pipeline.options import ConvertOptions, OutputOptions
from beam_pipeline.plan import ConversionPlan
from beam_pipeline.tfrecord_writer import ShardResult

_REJECTS_SHOWN = 3  # of each reason, in the summary


def describe(
    options: ConvertOptions,
    run: Mapping[str, Any],
    plan: ConversionPlan,
    report: ListingReport,
    specs: tuple[FeatureSpec, ...],
    results: Sequence[ShardResult],
    ledger: Mapping[str, int],
) -> DatasetInfo:
    """The dataset that the shards make up, as conversion.json tells it.

    Args:
      options: of the conversion; output.name is set.
      run: what is known of the run; stored as it is.
      plan: of the conversion.
      report: of the listing.
      specs: the features of every Example.
      results: of all shards, by split and number.
      ledger: inputs, written, rejected, duplicates; proven.
    """
    name = str(options.output.name)
    splits: dict[str, SplitInfo] = {}
    for split in plan.splits:
        written = [r for r in results if r.split == split and r.path is not None]
        classes: Counter[str] = Counter()
        for result in written:
            classes.update(result.counts["classes"])
        shards = tuple(
            ShardInfo(
                dataset_info.shard_file_name(name, split, number, len(written)),
                result.records,
                result.bytes,
                result.sha256,
            )
            for number, result in enumerate(written)
        )
        if shards:
            named = plan.labels if plan.labels is not None else ()
            splits[split] = SplitInfo(split, shards, {label: classes[label] for label in named})
    channels: Counter[int] = Counter()
    sizes: set[tuple[int, int]] = set()
    totals: dict[str, Counter[str]] = {
        kind: Counter() for kind in ("reasons", "formats", "notes", "warnings")
    }
    for result in results:
        channels.update(result.channels)
        sizes.update(result.sizes)
        for kind, counter in totals.items():
            counter.update(result.counts.get(kind, {}))
    return DatasetInfo(
        directory=options.output.output,
        name=name,
        splits=splits,
        labels=plan.labels,
        features=specs,
        encoding=options.image.encoding.value,
        feature_names=options.output.feature_names.value,
        compression=options.output.compression.value,
        formats=_sorted(totals["formats"]),
        channels=next(iter(channels)) if len(channels) == 1 else None,
        size=next(iter(sizes)) if len(sizes) == 1 else None,
        ledger=ledger,
        rejects=_sorted(totals["reasons"]),
        fingerprint=dataset_info.fingerprint(
            shard for split in splits.values() for shard in split.shards
        ),
        run={
            **run,
            "finished": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "input_bytes": sum(result.input_bytes for result in results),
            "notes": _sorted(totals["notes"]),
            "decoder_warnings": _sorted(totals["warnings"]),
            "ignored_text": report.ignored_text(),
            "ignored": dict(sorted(report.ignored.items())),
            "warnings": [*plan.warnings, *report.warnings],
            "empty_splits": sorted(set(plan.named_splits) - set(splits)),
            "empty_classes": _emptied_classes(plan, splits),
            "rejects_shown": _shown(results),
        },
    )


def _emptied_classes(plan: ConversionPlan, splits: Mapping[str, SplitInfo]) -> list[str]:
    """Classes that had inputs of which none was written."""
    written: Counter[str] = Counter()
    for info in splits.values():
        written.update(info.classes)
    return [label for label in plan.occurring if not written[label]]


def _shown(results: Sequence[ShardResult]) -> list[dict[str, Any]]:
    shown: Counter[str] = Counter()
    rows = []
    for reject in sorted(
        (reject for result in results for reject in result.shown), key=lambda r: (r.reason, r.key)
    ):
        shown[reject.reason] += 1
        if shown[reject.reason] <= _REJECTS_SHOWN:
            rows.append(reject._asdict())
    return rows


def _sorted(counter: Counter[str]) -> dict[str, int]:
    return dict(sorted(counter.items()))


def failure_of(info: DatasetInfo, output: OutputOptions) -> str | None:
    """Why this run must not become a dataset, or None."""
    rejected, inputs = info.ledger["rejected"], info.ledger["inputs"]
    kinds = ", ".join(f"{count} {reason}" for reason, count in info.rejects.items())
    if not info.ledger["written"]:
        return f"no image could be converted: {inputs} inputs, {rejected} rejected ({kinds})"
    if output.max_rejects is not None:
        if rejected > output.max_rejects:
            return (
                f"{rejected} of {inputs} inputs were rejected ({kinds}), more than "
                f"--max_rejects {output.max_rejects} allows"
            )
    elif rejected > output.max_reject_fraction * inputs:
        needed = min(1.0, _round_up(rejected / inputs))
        return (
            f"{rejected} of {inputs} inputs ({rejected / inputs:.2%}) were rejected ({kinds}), more "
            f"than --max_reject_fraction {output.max_reject_fraction:g} allows; mend or remove "
            f"them, or allow them with --max_reject_fraction {needed:g}"
        )
    return None


def _round_up(fraction: float) -> float:
    return math.ceil(fraction * 100) / 100
