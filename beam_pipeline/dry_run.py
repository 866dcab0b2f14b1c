"""`--dry_run`: the plan of a conversion, made without Beam and without writing anything."""

from __future__ import annotations

from collections.abc import Callable

from beam_pipeline.duplicates import resolve_duplicates
from beam_pipeline.equal_images import drop_equal_images, with_digests
from beam_pipeline.examples import check_feature_names
from beam_pipeline.inputs import (
    ListingReport,
    declared_labels,
    given_labels,
    list_images,
    resolve_inputs,
)
from beam_pipeline.listing_sizes import with_sizes
from beam_pipeline.naming import refuse_nested_output, with_plain_output
from beam_pipeline.options import ConvertOptions, EqualImages
from beam_pipeline.plan import ConversionPlan, PlanTally, make_plan
from beam_pipeline.records import measure_size_ratio
from beam_pipeline.summary import printable, size_text, table

_BATCH = 8192


def make_dry_plan(
    options: ConvertOptions, announce: Callable[[str], None] | None = None
) -> tuple[ConversionPlan, ListingReport]:
    """Lists, resolves duplicates and plans in this process, the same way as the pipeline."""
    check_feature_names(options.output.feature_names, options.input.features)
    inputs = resolve_inputs(options.input)
    refuse_nested_output(with_plain_output(options), inputs)
    if announce is not None:
        announce(f"input: {inputs.announcement}")
    report = ListingReport()
    refs = with_sizes(resolve_duplicates(list_images(inputs, report)))
    if options.output.equal_images is EqualImages.DROP:
        refs = drop_equal_images(with_digests(refs, options.image.max_bytes))
    tally = PlanTally()
    for start in range(0, len(refs), _BATCH):
        tally.add(refs[start : start + _BATCH], options.output)
    plan = make_plan(
        tally,
        options,
        declared_labels=declared_labels(inputs),
        given_labels=given_labels(inputs),
        size_ratio=lambda sample: measure_size_ratio(sample, options.image),
    )
    return plan, report


def plan_text(options: ConvertOptions, announce: Callable[[str], None] | None = None) -> str:
    """The plan as the user reads it: counts, classes, splits, shards, estimated bytes."""
    plan, report = make_dry_plan(options, announce)
    splits = plan.splits
    rows = [["class", *splits, "total"]]
    for label in plan.labels or ():
        counts = [split.classes[label] for split in splits.values()]
        rows.append([printable(label), *(f"{n:,}" for n in counts), f"{sum(counts):,}"])
    rows.append(["all", *(f"{split.records:,}" for split in splits.values()), f"{plan.records:,}"])
    shards = [len(split.bounds) if split.records else 0 for split in splits.values()]
    rows.append(["shards", *(f"{n:,}" for n in shards), f"{sum(shards):,}"])
    sizes = [split.bytes for split in splits.values()]
    rows.append(["bytes, about", *(size_text(n) for n in sizes), size_text(sum(sizes))])
    lines = [
        table(rows),
        "",
        f"{plan.inputs:,} inputs: {plan.records:,} to convert, {plan.rejected:,} already refused, "
        f"{plan.duplicates:,} duplicates",
    ]
    if report.ignored_text():
        lines.append(report.ignored_text())
    lines += [f"warning: {printable(line)}" for line in (*plan.warnings, *report.warnings)]
    read = "nothing was read beyond the listing"
    if options.output.equal_images is EqualImages.DROP:
        read = "images were compared, not decoded"
    lines.append(f"dry run: {read}, nothing was written")
    return "\n".join(lines)
