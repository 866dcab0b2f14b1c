"""Inline SVG of the preview page: bars, a heat map of sizes, curves of quantiles."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from html import escape

from beam_pipeline.checks.accumulator import BINS_PER_OCTAVE, bin_start

COLOURS = 6  # classes f0 … f5 of the style sheet
_WIDTH, _HEIGHT = 420, 250  # of charts, in SVG units
_LEFT, _BOTTOM, _TOP, _RIGHT = 46, 30, 10, 14


def colour(number: int) -> str:
    """The style class of the `number`-th split."""
    return f"f{min(number, COLOURS - 1)}"


def stacked_bar(parts: Sequence[int], whole: float, label: str, style: str = "bar") -> str:
    """A bar of coloured parts; `whole` is the value that would fill it."""
    position, rects = 0.0, []
    for number, part in enumerate(parts):
        width = 100 * part / whole if whole else 0
        if width:
            rects.append(
                f'<rect class="{colour(number)}" x="{position:.3f}" width="{width:.3f}" height="10"/>'
            )
        position += width
    return (
        f'<svg class="{style}" viewBox="0 0 100 10" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(label)}">{"".join(rects)}</svg>'
    )


def size_map(bins: Counter[tuple[int, int]]) -> str:
    """Width against height on logarithmic axes; the darker, the more images."""
    low = min(min(pair) for pair in bins)
    high = max(max(pair) for pair in bins) + 1
    low, high = low // BINS_PER_OCTAVE * BINS_PER_OCTAVE, max(high, low + BINS_PER_OCTAVE)
    high = math.ceil(high / BINS_PER_OCTAVE) * BINS_PER_OCTAVE
    side = 300
    step = side / (high - low)
    most = max(bins.values())
    cells = []
    for (x, y), count in sorted(bins.items()):
        strength = 0.18 + 0.82 * math.log1p(count) / math.log1p(most)
        title = (
            f"{bin_start(x):.0f} to {bin_start(x + 1):.0f} wide, "
            f"{bin_start(y):.0f} to {bin_start(y + 1):.0f} high: {count:,} images"
        )
        cells.append(
            f'<rect class="cell" x="{_LEFT + (x - low) * step:.2f}" '
            f'y="{_TOP + side - (y - low + 1) * step:.2f}" width="{step:.2f}" '
            f'height="{step:.2f}" fill-opacity="{strength:.3f}"><title>{title}</title></rect>'
        )
    marks = []
    every = max(1, (high - low) // BINS_PER_OCTAVE // 6) * BINS_PER_OCTAVE
    for number in range(low, high + 1, every):
        place = (number - low) * step
        text = f"{bin_start(number):.0f}"
        marks.append(
            f'<text x="{_LEFT + place:.1f}" y="{_TOP + side + 18}" text-anchor="middle">{text}</text>'
            f'<text x="{_LEFT - 6}" y="{_TOP + side - place + 4:.1f}" text-anchor="end">{text}</text>'
            f'<line class="axis" x1="{_LEFT + place:.1f}" x2="{_LEFT + place:.1f}" y1="{_TOP}" '
            f'y2="{_TOP + side}"/><line class="axis" x1="{_LEFT}" x2="{_LEFT + side}" '
            f'y1="{_TOP + side - place:.1f}" y2="{_TOP + side - place:.1f}"/>'
        )
    total = _TOP + side + 40
    return (
        f'<svg class="chart" viewBox="0 0 {_LEFT + side + _RIGHT} {total}" role="img" '
        f'aria-label="width against height of all images">{"".join(marks)}{"".join(cells)}'
        f'<text x="{_LEFT + side}" y="{total - 4}" text-anchor="end">width, pixels</text>'
        f'<text x="{_LEFT}" y="{total - 4}">↑ height</text></svg>'
    )


def quantile_curve(values: Sequence[float], label: str, logarithmic: bool = True) -> str:
    """Values at the 0%, 5%, … 100% quantiles: how much of the dataset is below a value."""
    scale = (lambda v: math.log(max(v, 1e-9))) if logarithmic else float
    low, high = scale(values[0]), scale(values[-1])
    spread = (high - low) or 1.0
    inner_width, inner_height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def x(value: float) -> float:
        return _LEFT + (scale(value) - low) / spread * inner_width

    def y(part: float) -> float:
        return _TOP + (1 - part) * inner_height

    points = " ".join(
        f"{x(value):.1f},{y(i / (len(values) - 1)):.1f}" for i, value in enumerate(values)
    )
    marks = []
    for part in (0, 0.5, 1):
        marks.append(
            f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(part):.1f}" '
            f'y2="{y(part):.1f}"/><text x="{_LEFT - 6}" y="{y(part) + 4:.1f}" '
            f'text-anchor="end">{part:.0%}</text>'
        )
    middle = values[len(values) // 2]
    ends = ((values[0], "start"), (middle, "middle"), (values[-1], "end"))
    for value, anchor in ends:
        if anchor == "middle" and not 0.25 < (scale(value) - low) / spread < 0.75:
            continue
        marks.append(
            f'<text x="{x(value):.1f}" y="{_HEIGHT - 8}" text-anchor="{anchor}">{number_text(value)}'
            "</text>"
        )
    return (
        f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{escape(label)}">{"".join(marks)}<polyline class="curve" points="{points}"/>'
        "</svg>"
    )


def number_text(value: float) -> str:
    """A number as short as it may be told."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.2f}"
