"""Statistics as text for a terminal."""

from __future__ import annotations

from beam_pipeline.checks.accumulator import QUANTILES, SplitAccumulator
from beam_pipeline.checks.statistics import Statistics
from beam_pipeline.summary import duration, printable, size_text, table

_MOST_CLASSES = 60
_SHOWN = (0, 5, 25, 50, 75, 95, 100)  # percent


def statistics_text(statistics: Statistics) -> str:
    """Tables of splits and classes, sizes, formats, pixels, and what stands out."""
    splits, total = statistics.splits, statistics.total
    parts = [_overview(statistics, total)]
    if statistics.labels:
        parts.append(_classes(statistics, total))
    if total.has_sizes:
        parts.append(_quantiles(total))
        parts.append(_sizes(total))
    parts.append(_formats(total))
    if total.decoded:
        parts.append(_pixels(total))
    notes = [*statistics.absent(), *statistics.drift(), *_notes(total)]
    if notes:
        parts.append("\n".join(f"note: {printable(note, 400)}" for note in notes))
    rate = sum(split.file_bytes for split in splits.values()) / max(statistics.seconds, 1e-9)
    parts.append(f"read in {duration(statistics.seconds)} ({size_text(rate)}/s)")
    return "\n\n".join(parts)


def _overview(statistics: Statistics, total: SplitAccumulator) -> str:
    rows = [["split", "images", "share", "shards", "on disk", "mean image", "imbalance"]]
    for name, split in [*statistics.splits.items(), ("all", total)]:
        ratio = split.imbalance()
        rows.append(
            [
                name or "(none)",
                f"{split.records:,}",
                f"{split.records / max(total.records, 1):.1%}",
                f"{split.shards:,}",
                size_text(split.file_bytes),
                size_text(split.image_bytes / max(split.records, 1)),
                "" if ratio is None else f"{ratio:,.2f}",
            ]
        )
    return f"{statistics.what}\n{table(rows)}"


def _classes(statistics: Statistics, total: SplitAccumulator) -> str:
    rows = [["class", *statistics.splits, "all", "share"]]
    labels = statistics.labels
    for label in labels[:_MOST_CLASSES]:
        counts = [split.classes[label] for split in statistics.splits.values()]
        share = total.classes[label] / max(total.records, 1)
        rows.append(
            [printable(label, 40), *(f"{n:,}" for n in counts), f"{sum(counts):,}", f"{share:.1%}"]
        )
    text = table(rows)
    if len(labels) > _MOST_CLASSES:
        text += f"\n… and {len(labels) - _MOST_CLASSES:,} more classes (--json lists all)"
    return text


def _quantiles(total: SplitAccumulator) -> str:
    rows = [["quantile", *("min" if q == 0 else "max" if q == 100 else f"{q}%" for q in _SHOWN)]]
    for name, title in (
        ("width", "width"),
        ("height", "height"),
        ("aspect", "width / height"),
        ("bytes", "bytes"),
    ):
        values = total.quantiles(name)
        if values:
            shown = [values[q * QUANTILES // 100] for q in _SHOWN]
            rows.append([title, *(f"{v:.2f}" if name == "aspect" else f"{v:,.0f}" for v in shown)])
    return table(rows)


def _sizes(total: SplitAccumulator) -> str:
    if len(total.sizes) == 1:
        (width, height), _ = total.sizes.most_common(1)[0]
        return f"sizes: all images are {width} x {height}"
    many = "more than " if total.sizes_cut else ""
    common = ", ".join(f"{w} x {h} ({n:,})" for (w, h), n in total.sizes.most_common(5))
    lines = [f"sizes: {many}{len(total.sizes):,} different; most common {common}"]
    for name in ("smallest", "largest"):
        named = [f"{printable(key, 60)} {w} x {h}" for _, key, w, h in getattr(total, name)[:3]]
        lines.append(f"{name}: {', '.join(named)}")
    return "\n".join(lines)


def _formats(total: SplitAccumulator) -> str:
    formats = ", ".join(f"{n:,} {name}" for name, n in total.formats.most_common())
    channels = ", ".join(
        f"{n:,} {'gray' if c == 1 else 'colour' if c == 3 else f'of {c} channels'}"
        for c, n in sorted(total.channels.items())
    )
    lines = [f"formats: {formats or 'unknown'}; {channels or 'channels unknown'}"]
    if total.distinct is not None:
        lines.append(f"different images: about {min(total.distinct, total.records):,}")
    return "\n".join(lines)


def _pixels(total: SplitAccumulator) -> str:
    lines = []
    for name, sums in (("gray", total.gray), ("RGB", total.color)):
        if sums.images:
            mean = ", ".join(f"{value:.4f}" for value in sums.mean())
            deviation = ", ".join(f"{value:.4f}" for value in sums.deviation())
            lines.append(f"pixels of {sums.images:,} {name} images: mean {mean}; std {deviation}")
    return "\n".join(lines)


def _notes(total: SplitAccumulator) -> list[str]:
    notes = []
    if total.flat_count:
        some = ", ".join(total.flat[:3]) + (" …" if total.flat_count > 3 else "")
        notes.append(
            f"{total.flat_count:,} of {total.decoded:,} images looked at are nearly of one "
            f"colour: {some}"
        )
    if total.undecodable:
        notes.append(
            f"images that do not decode: {total.undecodable:,}; imagebeam verify --decode names them"
        )
    ratio = total.imbalance()
    if ratio is not None and ratio >= 3:
        largest, smallest = (
            max(total.classes, key=total.classes.__getitem__),
            min(
                (label for label in total.classes if total.classes[label]),
                key=total.classes.__getitem__,
            ),
        )
        notes.append(
            f"class {largest!r} has {ratio:,.1f} times the images of {smallest!r}: consider "
            "class weights"
        )
    return notes
