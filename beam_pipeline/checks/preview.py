"""The preview of a dataset: gathers statistics and pictures, writes the page or a sheet."""

from __future__ import annotations

import io
from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

from beam_pipeline import dataset_info, storage
from beam_pipeline.checks import shards as shards_module
from beam_pipeline.checks.preview_page import page
from beam_pipeline.checks.preview_sections import Rejects
from beam_pipeline.checks.run import configure_storage
from beam_pipeline.checks.shard_reader import UNLABELLED, Picture
from beam_pipeline.checks.statistics import Statistics, gather
from beam_pipeline.errors import UsageError
from beam_pipeline.summary import printable

# Pictures of a page at most, so that it stays a few megabytes.
_MOST_PICTURES = 1200
_CELL, _GAP, _TITLE = 112, 8, 30  # pixels of the sheet


def gather_preview(
    directory: str | None,
    *,
    globs: Sequence[str] = (),
    per_class: int = 12,
    pixels: int | None = 1000,
    seed: int = 0,
    beam_options: Sequence[str] = (),
    threads: int | None = None,
) -> Statistics:
    """Statistics with at most `per_class` pictures of each class and split.

    Raises:
      DatasetError: the dataset cannot be read.
    """
    if per_class < 1:
        raise UsageError(f"--per_class must be at least 1, got {per_class}")
    configure_storage(beam_options)
    if directory is not None:
        info = shards_module.load_info(directory)
        groups = max(1, len(info.splits) * min(len(info.labels or ("",)), 100))
        per_class = max(1, min(per_class, _MOST_PICTURES // groups))
        if info.labels is None:
            per_class = min(48, _MOST_PICTURES // max(1, len(info.splits)))
    return gather(
        directory,
        globs=globs,
        pixels=pixels,
        pictures=per_class,
        seed=seed,
        beam_options=beam_options,
        threads=threads,
    )


def write_page(statistics: Statistics, output: str, seed: int = 0) -> None:
    """Writes the HTML page; rejects are read from the dataset."""
    lines: list[str] = []
    if statistics.info is not None:
        path = storage.join(statistics.info.directory, dataset_info.REJECTED_FILE)
        if storage.exists(path):
            lines = storage.read_bytes(path).decode("utf-8", "replace").splitlines()
    html = page(statistics, Rejects.from_lines(lines), seed)
    storage.write_bytes(output, html.encode("utf-8", "replace"))


def write_sheet(statistics: Statistics, output: str) -> None:
    """Writes the contact sheet as a PNG image: a row of pictures for each class."""
    stream = io.BytesIO()
    contact_sheet(statistics).save(stream, "PNG")
    storage.write_bytes(output, stream.getvalue())


def contact_sheet(statistics: Statistics, columns: int = 12) -> Image.Image:
    """The pictures of every class and split, with the class as title."""
    rows: list[tuple[str, list[Picture]]] = []
    names = list(statistics.splits)
    known = [*statistics.labels, UNLABELLED]
    extra = sorted({label for _, label in statistics.pictures} - set(known))
    for label in [*known, *extra]:
        for name in names:
            pictures = sorted(statistics.pictures.get((name, label), []))
            title = " · ".join(printable(part, 60) for part in (label, name) if part)
            for start in range(0, len(pictures), columns):
                rows.append((title if start == 0 else "", pictures[start : start + columns]))
    if not rows:
        raise UsageError("there is no picture to show")
    width = _GAP + columns * (_CELL + _GAP)
    heights = [_CELL + _GAP + (_TITLE if title else 0) for title, _ in rows]
    sheet = Image.new("RGB", (width, sum(heights) + _GAP), "white")
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(18)
    top = _GAP
    for (title, pictures), height in zip(rows, heights, strict=True):
        if title:
            draw.text((_GAP, top + 2), title, fill="#222222", font=font)
        y = top + height - _CELL - _GAP
        for column, picture in enumerate(pictures):
            with Image.open(io.BytesIO(picture.data)) as image:
                scale = _CELL / max(image.size)
                size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
                small = image.resize(
                    size, Image.Resampling.NEAREST if scale > 1.5 else Image.Resampling.LANCZOS
                )
            x = _GAP + column * (_CELL + _GAP)
            sheet.paste(small, (x + (_CELL - size[0]) // 2, y + (_CELL - size[1]) // 2))
        top += height
    return sheet
