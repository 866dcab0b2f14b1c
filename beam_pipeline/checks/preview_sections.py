"""The lower sections of the preview page: pictures, rejects, the conversion; and its escaping."""

from __future__ import annotations

import base64
import dataclasses
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from beam_pipeline.checks import preview_charts as charts
from beam_pipeline.checks.shard_reader import UNLABELLED, Picture
from beam_pipeline.checks.statistics import Statistics
from beam_pipeline.dataset_info import DatasetInfo
from beam_pipeline.summary import ADVICE, printable, size_text

_TINY = 80  # pixels; smaller pictures are enlarged without smoothing
_REJECTS_LISTED = 200  # of each reason


@dataclasses.dataclass(frozen=True)
class Rejects:
    """The refused inputs.

    Attributes:
      counts: reason → inputs.
      listed: reason → the first of them, as lines of rejected.jsonl.
    """

    counts: Mapping[str, int]
    listed: Mapping[str, Sequence[Mapping[str, Any]]]

    @classmethod
    def from_lines(cls, lines: Iterable[str]) -> Rejects:
        """From the lines of rejected.jsonl."""
        counts: dict[str, int] = defaultdict(int)
        listed: dict[str, list] = defaultdict(list)
        for line in lines:
            reject = json.loads(line)
            counts[reject["reason"]] += 1
            if len(listed[reject["reason"]]) < _REJECTS_LISTED:
                listed[reject["reason"]].append(reject)
        return cls(dict(counts), dict(listed))


def text(value: object, limit: int = 300) -> str:
    """Any text for the page: escaped, on one line, without control characters, isolated."""
    return f"<bdi>{escape(printable(str(value), limit))}</bdi>"


def attribute(value: object, limit: int = 300) -> str:
    """Any text for a quoted attribute."""
    return escape(printable(str(value), limit), quote=True)


# ---------------------------------------------------------------- images


def images_section(statistics: Statistics, seed: int) -> str:
    """Random pictures of each class, with the controls that choose among them."""
    if not statistics.pictures:
        return ""
    names = list(statistics.splits)
    by_class: dict[str, list[tuple[int, Picture]]] = defaultdict(list)
    for (split, label), pictures in statistics.pictures.items():
        for picture in sorted(pictures):
            by_class[label].append((names.index(split), picture))
    order = [label for label in statistics.labels if label in by_class]
    order += sorted(by_class.keys() - set(order))
    pills = "".join(
        f'<label class="pill"><input type="radio" name="split" value="{value}"{checked}>'
        f"<span>{shown}</span></label>"
        for value, shown, checked in [
            ("", "All", " checked"),
            *((str(i), text(name or "(no split)", 30), "") for i, name in enumerate(names)),
        ]
    )
    select = ""
    if len(order) > 1:
        options = "".join(
            f'<option value="{i}">{escape(printable(label, 60))}</option>'
            for i, label in enumerate(order)
        )
        select = (
            f'<label><span class="name">Class</span><select><option value="">All classes</option>'
            f"{options}</select></label>"
        )
    left = len(statistics.labels) - len([label for label in order if label != UNLABELLED])
    note = f" The largest {len(order)} classes are shown." if left > 0 and len(order) > 1 else ""
    parts = []
    total = statistics.total
    for i, label in enumerate(order):
        shots = "".join(
            _shot(label, names[split], split, picture)
            for split, picture in sorted(by_class[label], key=lambda item: item[0])
        )
        title = text(label, 100) if label != UNLABELLED else "Images"
        parts.append(
            f'<div class="class" data-class="{i}"><h3>{title}<span class="soft">'
            f'{total.classes[label]:,} images</span></h3><div class="sheet">{shots}</div></div>'
        )
    return (
        f'<p class="soft">Chosen at random (seed {seed}) from each class and split; the coloured '
        f"edge tells the split. Choose one for details, arrow keys go on.{note}</p>"
        f'<div class="controls" hidden><fieldset><legend>Split</legend>{pills}</fieldset>{select}'
        f'<span class="count soft" aria-live="polite"></span></div>{"".join(parts)}'
    )


def _shot(label: str, split_name: str, split: int, picture: Picture) -> str:
    data = base64.b64encode(picture.data).decode()
    tiny = ' class="tiny"' if max(picture.width, picture.height) <= _TINY else ""
    shown = label if label != UNLABELLED else "no label"
    return (
        f'<button type="button" class="shot" data-split="{split}" data-label="{attribute(shown)}" '
        f'data-splitname="{attribute(split_name)}" data-key="{attribute(picture.key)}" '
        f'data-size="{picture.width} × {picture.height}" data-place="{attribute(picture.place)}" '
        f'title="{attribute(picture.key)}"><img{tiny} decoding="async" '
        f'alt="{attribute(shown)}: {attribute(picture.key)}" src="data:image/webp;base64,{data}">'
        f'<i class="{charts.colour(split)}"></i></button>'
    )


# ---------------------------------------------------------------- rejects and the conversion


def rejects_section(rejects: Rejects) -> str:
    """Refused inputs by reason, with what to do about them."""
    total = sum(rejects.counts.values())
    if not total:
        return "<p>No input was refused.</p>"
    parts = [f"<p>{total:,} inputs were refused.</p>"]
    for reason, count in sorted(rejects.counts.items(), key=lambda item: (-item[1], item[0])):
        listed = rejects.listed.get(reason, ())
        items = "".join(
            f"<li><code>{text(reject.get('key', ''))}</code> – {text(reject.get('detail', ''))}</li>"
            for reject in listed
        )
        more = f"<p>… and {count - len(listed):,} more.</p>" if count > len(listed) else ""
        advice = f' <span class="soft">– {text(ADVICE[reason])}</span>' if reason in ADVICE else ""
        opened = " open" if len(rejects.counts) == 1 or count <= 10 else ""
        parts.append(
            f'<details{opened}><summary><span class="bad">{count:,}</span> {text(reason)}{advice}'
            f"</summary><ul>{items}</ul>{more}</details>"
        )
    return "".join(parts)


def conversion_section(info: DatasetInfo) -> str:
    """How the dataset was made."""
    run, ledger = info.run, info.ledger
    facts: list[tuple[str, str]] = [
        (
            "Ledger",
            f"{ledger['inputs']:,} inputs = {ledger['written']:,} written + "
            f"{ledger['rejected']:,} rejected + {ledger['duplicates']:,} duplicates",
        ),
        ("Started", text(run.get("started", "?"))),
        ("Finished", text(run.get("finished", "?"))),
        ("Runner", text(run.get("runner", "?"))),
        ("Encoding", text(info.encoding)),
        ("Fingerprint", f"<code>{text(info.fingerprint)}</code>"),
    ]
    for name, title in (("notes", "Done to images"), ("versions", "Versions")):
        values = run.get(name)
        if isinstance(values, Mapping) and values:
            shown = ", ".join(
                f"{n:,} {key}" if name == "notes" else f"{key} {n}" for key, n in values.items()
            )
            facts.append((title, text(shown, 500)))
    if run.get("ignored_text"):
        ignored = str(run["ignored_text"]).removeprefix("ignored: ")
        facts.append(("Ignored", text(ignored, 500)))
    html = f"<pre>{text(run.get('command', ''), 2000)}</pre><h3>Run</h3>"
    html += f'<dl class="facts">{"".join(f"<dt>{a}</dt><dd>{b}</dd>" for a, b in facts)}</dl>'
    warnings = run.get("warnings")
    if isinstance(warnings, list) and warnings:
        items = "".join(f"<li>{text(line, 500)}</li>" for line in warnings)
        html += f'<ul class="notes" aria-label="Warnings">{items}</ul>'
    options = escape(json.dumps(run.get("options", {}), indent=2))
    features = "".join(
        f"<li><code>{text(spec.name)}</code> {text(spec.type)}"
        f"{' (list)' if spec.repeated else ''}</li>"
        for spec in info.features
    )
    shards = "".join(
        f'<tr><th scope="row">{text(shard.file)}</th><td>{shard.records:,}</td>'
        f"<td>{size_text(shard.bytes)}</td></tr>"
        for split in info.splits.values()
        for shard in split.shards[:500]
    )
    html += (
        f"<details><summary>Features of a record</summary><ul>{features}</ul></details>"
        f"<details><summary>All options</summary><pre>{options}</pre></details>"
        '<details><summary>Shards</summary><div class="scroll" tabindex="0" role="region" '
        'aria-label="Shards"><table><thead><tr><th scope="col">File</th><th scope="col">Records</th>'
        f'<th scope="col">Size</th></tr></thead><tbody>{shards}</tbody></table></div></details>'
    )
    return html
