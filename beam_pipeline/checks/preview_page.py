"""The preview page: one HTML file that needs nothing else; everything in it is escaped."""

from __future__ import annotations

import base64
import hashlib
from html import escape
from importlib import resources

from beam_pipeline.checks import preview_charts as charts
from beam_pipeline.checks.accumulator import QUANTILES, SplitAccumulator
from beam_pipeline.checks.preview_sections import (
    Rejects,
    conversion_section,
    images_section,
    rejects_section,
    text,
)
from beam_pipeline.checks.statistics import Statistics
from beam_pipeline.dataset_info import DatasetInfo
from beam_pipeline.summary import printable, size_text
from beam_pipeline.version import __version__

_CLASSES_LISTED = 200


def page(statistics: Statistics, rejects: Rejects, seed: int) -> str:
    """The whole page.

    Args:
      statistics: with pictures.
      rejects: the refused inputs.
      seed: of the choice of pictures.
    """
    info = statistics.info
    name = info.name if info is not None else statistics.what
    script = resources.files(__package__).joinpath("preview.js").read_text("utf-8")
    style = resources.files(__package__).joinpath("preview.css").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    sections = [
        ("overview", "Overview", _overview(statistics)),
        ("classes", "Classes", _classes(statistics)),
        ("sizes", "Sizes", _sizes(statistics.total)),
        ("images", "Images", images_section(statistics, seed)),
        ("rejects", "Rejects", rejects_section(rejects) if info is not None else ""),
        ("conversion", "Conversion", conversion_section(info) if info is not None else ""),
    ]
    shown = [(key, title, body) for key, title, body in sections if body]
    links = "".join(f'<a href="#{key}">{title}</a>' for key, title, _ in shown)
    bodies = "\n".join(
        f'<section id="{key}" aria-labelledby="h-{key}"><h2 id="h-{key}">{title}</h2>{body}</section>'
        for key, title, body in shown
    )
    policy = (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="generator" content="imagebeam {__version__}">
<link rel="icon" href="data:,">
<title>{escape(printable(name))} – preview</title>
<style>{style}</style>
</head>
<body>
<a class="skip" href="#overview">Skip to the content</a>
<header class="top"><h1>{text(name)}</h1><p>{_subtitle(statistics)}</p></header>
<nav aria-label="Sections"><div>{links}<button class="theme" type="button" hidden>Theme: auto</button></div></nav>
<main>
{bodies}
</main>
<footer>Made by imagebeam {__version__}. This page is one file and loads nothing.</footer>
{_DIALOG}
<script>{script}</script>
</body>
</html>
"""


_DIALOG = """<dialog aria-label="One image"><div class="stage"><img alt="" src="data:,"></div>
<dl><dt>Label</dt><dd class="label"></dd><dt>Split</dt><dd class="splitname"></dd><dt>Key</dt><dd class="key"></dd>
<dt>Size</dt><dd class="size"></dd><dt>Record</dt><dd class="place"></dd></dl>
<div class="buttons"><button type="button" class="previous">← Previous</button>
<button type="button" class="next">Next →</button><button type="button" class="close">Close</button></div></dialog>"""


def _subtitle(statistics: Statistics) -> str:
    parts = [f"{statistics.total.records:,} images"]
    if statistics.labels:
        parts.append(f"{len(statistics.labels):,} classes")
    parts.append(f"{len(statistics.splits):,} split{'s' if len(statistics.splits) != 1 else ''}")
    if statistics.info is not None and statistics.info.run.get("finished"):
        parts.append(f"converted {escape(str(statistics.info.run['finished'])[:10])}")
    return " · ".join(parts)


# ---------------------------------------------------------------- overview


def _overview(statistics: Statistics) -> str:
    total, info = statistics.total, statistics.info
    tiles = [("Images", f"{total.records:,}", "")]
    if statistics.labels:
        ratio = total.imbalance()
        note = "" if ratio is None else f"largest : smallest {ratio:,.1f}"
        tiles.append(("Classes", f"{len(statistics.labels):,}", note))
    mean = size_text(total.image_bytes / max(total.records, 1))
    tiles.append(("On disk", size_text(total.file_bytes), f"{mean} an image"))
    tiles.append(("Shards", f"{total.shards:,}", _compression(info)))
    if total.has_sizes:
        if len(total.sizes) == 1:
            ((width, height),) = total.sizes
            tiles.append(("Size", f"{width} × {height}", "all images"))
        else:
            middle = [total.quantiles(side)[QUANTILES // 2] for side in ("width", "height")]
            tiles.append(("Size", "{:,.0f} × {:,.0f}".format(*middle), "median width × height"))
    formats = " + ".join(name for name, _ in total.formats.most_common(3))
    kinds = {1: "gray", 3: "colour"}
    channels = ", ".join(
        f"{n:,} {kinds.get(c, f'{c} channels')}" for c, n in sorted(total.channels.items())
    )
    tiles.append(("Format", text(formats or "unknown"), escape(channels)))
    if total.distinct is not None:
        distinct = min(total.distinct, total.records)
        tiles.append(("Different images", f"≈ {distinct:,}", "by their bytes"))
    for title, sums in (("RGB", total.color), ("gray", total.gray)):
        if sums.images:
            mean = ", ".join(f"{value:.2f}" for value in sums.mean())
            deviation = ", ".join(f"{value:.2f}" for value in sums.deviation())
            tiles.append((f"Mean {title}", mean, f"std {deviation}; {sums.images:,} images"))
    body = "".join(
        f"<div><dt>{title}</dt><dd{' class=long' if title.startswith('Mean') else ''}>{value}"
        f"{f'<small>{note}</small>' if note else ''}</dd></div>"
        for title, value, note in tiles
    )
    html = f'<dl class="tiles">{body}</dl><h3>Splits</h3>{_split_bar(statistics)}'
    notes = [*statistics.absent(), *statistics.drift(), *_notes(total)]
    if notes:
        items = "".join(f"<li>{text(note, 500)}</li>" for note in notes)
        html += f'<ul class="notes" aria-label="Worth knowing">{items}</ul>'
    return html


def _compression(info: DatasetInfo | None) -> str:
    return "" if info is None or info.compression == "none" else f"{info.compression} compressed"


def _split_bar(statistics: Statistics) -> str:
    counts = [split.records for split in statistics.splits.values()]
    return _legend(statistics) + charts.stacked_bar(
        counts, sum(counts), "images of each split", "bar share"
    )


def _legend(statistics: Statistics) -> str:
    total = max(statistics.total.records, 1)
    items = "".join(
        f'<li><span class="dot {charts.colour(i)}"></span>{text(name or "(no split)")} '
        f'<span class="soft">{split.records:,} ({split.records / total:.1%})</span></li>'
        for i, (name, split) in enumerate(statistics.splits.items())
    )
    return f'<ul class="legend">{items}</ul>'


def _notes(total: SplitAccumulator) -> list[str]:
    notes = []
    if total.flat_count:
        some = ", ".join(total.flat[:3])
        notes.append(
            f"{total.flat_count:,} of {total.decoded:,} images looked at are nearly of one "
            f"colour, such as {some}"
        )
    if total.undecodable:
        notes.append(f"images that do not decode: {total.undecodable:,}")
    return notes


# ---------------------------------------------------------------- classes and sizes


def _classes(statistics: Statistics) -> str:
    if not statistics.labels:
        return ""
    total = statistics.total
    labels = sorted(statistics.labels, key=lambda label: -total.classes[label])
    most = max((total.classes[label] for label in labels), default=0)
    names = list(statistics.splits)
    head = "".join(f'<th scope="col">{text(name or "(no split)", 30)}</th>' for name in names)
    rows = []
    for label in labels[:_CLASSES_LISTED]:
        counts = [split.classes[label] for split in statistics.splits.values()]
        said = f"{printable(label)}: " + ", ".join(
            f"{n} {name}" for n, name in zip(counts, names, strict=True)
        )
        cells = "".join(f"<td>{n:,}</td>" for n in counts)
        share = total.classes[label] / max(total.records, 1)
        rows.append(
            f'<tr><th scope="row">{text(label, 80)}</th><td class="plot">'
            f"{charts.stacked_bar(counts, most, said)}</td>{cells}<td>{sum(counts):,}</td>"
            f"<td>{share:.1%}</td></tr>"
        )
    foot = "".join(f"<td>{split.records:,}</td>" for split in statistics.splits.values())
    html = (
        f'{_legend(statistics)}<div class="scroll" tabindex="0" role="region" aria-label="Images of each class">'
        f'<table><thead><tr><th scope="col">Class</th><th scope="col"></th>{head}'
        f'<th scope="col">All</th><th scope="col">Share</th></tr></thead><tbody>{"".join(rows)}</tbody>'
        f'<tfoot><tr><th scope="row">All</th><td></td>{foot}<td>{total.records:,}</td><td></td></tr>'
        "</tfoot></table></div>"
    )
    if len(labels) > _CLASSES_LISTED:
        html += f'<p class="soft">The largest {_CLASSES_LISTED} of {len(labels):,} classes.</p>'
    return html


def _sizes(total: SplitAccumulator) -> str:
    plots = []
    if total.has_sizes and len(total.sizes) > 1:
        plots.append(("Width and height, each on a logarithmic axis", charts.size_map(total.bins)))
        plots.append(
            (
                "Width ÷ height: how much of the dataset is below",
                charts.quantile_curve(total.quantiles("aspect"), "aspect ratios", False),
            )
        )
    if total.quantiles("bytes"):
        plots.append(
            (
                "Bytes of a stored image: how much of the dataset is below",
                charts.quantile_curve(total.quantiles("bytes"), "bytes of stored images"),
            )
        )
    figures = "".join(
        f"<figure><figcaption>{caption}</figcaption>{chart}</figure>" for caption, chart in plots
    )
    html = ""
    if len(total.sizes) == 1:
        ((width, height),) = total.sizes
        html += f"<p>All images are {width} × {height} pixels.</p>"
    elif total.has_sizes:
        many = "more than " if total.sizes_cut else ""
        common = ", ".join(f"{w} × {h} ({n:,})" for (w, h), n in total.sizes.most_common(4))
        html += f"<p>{many}{len(total.sizes):,} different sizes; most common: {common}.</p>"
    html += f'<div class="plots">{figures}</div>'
    if len(total.sizes) > 1:
        for title in ("smallest", "largest"):
            items = ", ".join(
                f"{text(key, 80)} ({w} × {h})" for _, key, w, h in getattr(total, title)[:3]
            )
            html += f'<p><span class="soft">{title.capitalize()}:</span> {items}</p>'
    return html
