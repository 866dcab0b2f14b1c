"""The dataset card: README.md of a dataset, with how to load it in five ecosystems."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from beam_pipeline.dataset_info import DatasetInfo
from beam_pipeline.examples import Role
from beam_pipeline.same_bytes import SEVERAL_LABELS, SEVERAL_SPLITS
from beam_pipeline.summary import printable, size_text

_MOST_CLASSES = 100
_SIZE_CATEGORIES = (
    (1_000, "n<1K"),
    (10_000, "1K<n<10K"),
    (100_000, "10K<n<100K"),
    (1_000_000, "100K<n<1M"),
    (10_000_000, "1M<n<10M"),
)


def dataset_card(info: DatasetInfo) -> str:
    """README.md: what, when, from where, counts, options, command, versions, license, loading."""
    parts = [
        _front_matter(info),
        f"# {info.name}\n\n{_summary(info)}",
        "## Classes and splits\n\n" + _counts(info),
        "## Features of a record\n\n" + _features(info),
        "## Loading\n\n" + _loading(info),
        "## Where it comes from\n\n" + _origin(info),
        "## License\n\n" + _license(info),
    ]
    return "\n\n".join(parts) + "\n"


def _front_matter(info: DatasetInfo) -> str:
    """Metadata in YAML, as dataset hubs read it; strings are JSON, which YAML includes."""
    size = next((name for most, name in _SIZE_CATEGORIES if info.records < most), "n>10M")
    lines = ["---", f"pretty_name: {json.dumps(info.name)}"]
    lines.append(f"license: {json.dumps(_given_license(info) or 'unknown')}")
    if info.labels is not None:
        lines += ["task_categories:", "- image-classification"]
    lines += ["size_categories:", f"- {json.dumps(size)}", "tags:", "- tfrecord", "---"]
    return "\n".join(lines)


def _summary(info: DatasetInfo) -> str:
    what = f"{info.records:,} images"
    if info.labels is not None:
        what += f" of {len(info.labels):,} classes"
    what += f" in {len(info.splits):,} split{'s' if len(info.splits) != 1 else ''}"
    shards = [shard for split in info.splits.values() for shard in split.shards]
    total = size_text(sum(shard.bytes for shard in shards))
    formats = ", ".join(f"{count:,} {name}" for name, count in info.formats.items())
    size = "sizes differ" if info.size is None else f"{info.size[0]} x {info.size[1]} (H x W)"
    channels = {1: "gray", 3: "colour", None: "gray and colour"}[info.channels]
    text = (
        f"{what}, {total} in {len(shards):,} TFRecord shard{'s' if len(shards) != 1 else ''}. "
        f"Stored as {formats}; {size}; {channels}."
    )
    if info.compression != "none":
        text += f" The shards are {info.compression}-compressed (their names do not show it)."
    return text + f"\n\nFingerprint of the data: `{info.fingerprint}`"


def _counts(info: DatasetInfo) -> str:
    splits = list(info.splits.values())
    lines = [
        _row(["id", "class", *(split.name for split in splits), "all"]),
        _row(["---:", "---", *("---:" for _ in splits), "---:"]),
    ]
    labels = info.labels or ()
    for number, label in enumerate(labels[:_MOST_CLASSES]):
        counts = [split.classes[label] for split in splits]
        shown = [f"{count:,}" for count in (*counts, sum(counts))]
        lines.append(_row([str(number), _code(label), *shown]))
    totals = [f"{split.records:,}" for split in splits]
    lines.append(_row(["", "**all**", *totals, f"{info.records:,}"]))
    text = "\n".join(lines)
    if len(labels) > _MOST_CLASSES:
        text += (
            f"\n\n{len(labels) - _MOST_CLASSES:,} more classes are in `label.labels.txt` and "
            "`conversion.json`."
        )
    return text


def _features(info: DatasetInfo) -> str:
    meaning = {
        Role.IMAGE: "the stored image: an encoded file",
        Role.LABEL: "class id, the line number (from 0) in `label.labels.txt`",
        Role.LABEL_NAME: "class name",
        Role.KEY: "name of the input image",
        Role.HEIGHT: "pixels",
        Role.WIDTH: "pixels",
        Role.CHANNELS: "1 (gray) or 3 (RGB)",
        Role.FORMAT: "of the stored image",
        Role.SHA256: "of the stored image, hexadecimal",
        Role.DTYPE: "of the pixels",
        Role.EXTRA: "from the manifest",
    }
    if info.encoding == "raw":
        meaning[Role.IMAGE] = "pixels, uint8 [height, width, channels]"
    lines = [_row(["feature", "type", "meaning"]), _row(["---", "---", "---"])]
    for spec in info.features:
        kind = spec.type + (" (list)" if spec.repeated else "")
        lines.append(_row([_code(spec.name), kind, meaning[spec.role]]))
    return "\n".join(lines)


def _loading(info: DatasetInfo) -> str:
    split = "train" if "train" in info.splits else next(iter(info.splits), "train")
    image, label = info.feature(Role.IMAGE), info.feature(Role.LABEL)
    compressed = info.compression != "none"
    parts = []
    features = [f"    {image!r}: tf.io.FixedLenFeature([], tf.string),"]
    if label is not None:
        features.append(f"    {label!r}: tf.io.FixedLenFeature([], tf.int64),")
    argument = ', compression_type="GZIP"' if compressed else ""
    parts.append(
        "TensorFlow:\n\n```python\nimport tensorflow as tf\n\n"
        f'files = tf.io.gfile.glob("{info.name}-{split}.tfrecord-?????-of-?????")\n'
        "features = {\n" + "\n".join(features) + "\n}\n"
        f"dataset = tf.data.TFRecordDataset(sorted(files){argument})\n"
        "dataset = dataset.map(lambda record: tf.io.parse_single_example(record, features))\n```"
    )
    parts.append(
        "`imagebeam train` and its input pipeline (checked shards, batches, resuming):\n\n"
        "```bash\nimagebeam train --help\n```"
    )
    if compressed:
        parts.append(
            "TensorFlow Datasets, NVIDIA DALI and random access (PyTorch, HuggingFace) cannot read "
            f"{info.compression}-compressed shards. Convert without `--compression` for these."
        )
        return "\n\n".join(parts)
    if info.feature_names == "default":
        parts.append(
            "TensorFlow Datasets:\n\n```python\nimport tensorflow_datasets as tfds\n\n"
            'builder = tfds.builder_from_directory(".")\n'
            f'dataset = builder.as_dataset(split="{split}")\n```'
        )
    else:
        parts.append(
            "TensorFlow Model Garden: the image classification reader of `official.vision` reads "
            f"`{info.name}-{split}.tfrecord-*` with its default field names."
        )
    parts.append(
        "PyTorch (needs imagebeam, not TensorFlow; a map-style dataset for `DataLoader`):\n\n"
        "```python\nfrom beam_pipeline.random_access import RandomAccessDataset\n\n"
        f'dataset = RandomAccessDataset(".", "{split}")\n'
        f'features = dataset[0]  # {{"{image}": bytes, …}}\n```'
    )
    label_column = "" if label is None else f', "label": row[{label!r}]'
    parts.append(
        "HuggingFace datasets:\n\n```python\nimport datasets\n"
        "from beam_pipeline.random_access import RandomAccessDataset\n\n"
        "def rows():\n"
        f'    for row in RandomAccessDataset(".", "{split}"):\n'
        f'        yield {{"image": {{"bytes": row[{image!r}]}}{label_column}}}\n\n'
        "dataset = datasets.Dataset.from_generator(rows)"
        '.cast_column("image", datasets.Image())\n```'
        if info.encoding != "raw"
        else "HuggingFace datasets: build one from `RandomAccessDataset` with "
        "`datasets.Dataset.from_generator`; the images are raw pixels."
    )
    parts.append(
        "NVIDIA DALI: `imagebeam index .` writes an index file for each shard, in the format of "
        "`tfrecord2idx`."
    )
    return "\n\n".join(parts)


def _origin(info: DatasetInfo) -> str:
    run, ledger = info.run, info.ledger
    options: Any = run.get("options")
    inputs: list[str] = []
    if isinstance(options, Mapping) and isinstance(options.get("input"), Mapping):
        inputs = [str(item) for item in options["input"].get("inputs", [])]
    versions = run.get("versions")
    lines = [
        f"- Converted: {printable(str(run.get('finished', run.get('started', 'unknown'))))}",
        f"- From: {', '.join(map(_code, inputs)) or 'unknown'}",
        f"- Ledger: {ledger['inputs']:,} inputs = {ledger['written']:,} written + "
        f"{ledger['rejected']:,} rejected + {ledger['duplicates']:,} duplicates",
    ]
    if info.rejects:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in info.rejects.items())
        lines.append(f"- Rejected: {reasons}; each is listed in `rejected.jsonl`")
    same = run.get("same_bytes")
    if isinstance(same, Mapping) and same:
        lines.append(
            f"- Equal images under different keys: {same['images']:,}, of which "
            f"{same[SEVERAL_SPLITS]:,} lie in several splits and {same[SEVERAL_LABELS]:,} have "
            "several labels"
        )
    notes = run.get("notes")
    if isinstance(notes, Mapping) and notes:
        lines.append("- Done to images: " + ", ".join(f"{n:,} {name}" for name, n in notes.items()))
    lines.append(f"- Runner: {printable(str(run.get('runner', 'unknown')))}")
    if isinstance(versions, Mapping):
        lines.append("- Versions: " + ", ".join(f"{name} {v}" for name, v in versions.items()))
    lines.append("- All options: `conversion.json`; one row per input: `index/`")
    command = printable(str(run.get("command", "unknown")), 2000)
    return "\n".join(lines) + f"\n\nCommand:\n\n{_fenced(command)}"


def _given_license(info: DatasetInfo) -> str | None:
    options: Any = info.run.get("options")
    if isinstance(options, Mapping) and isinstance(options.get("output"), Mapping):
        value = options["output"].get("license")
        return printable(str(value)) if value else None
    return None


def _license(info: DatasetInfo) -> str:
    given = _given_license(info)
    if given is not None:
        return _code(given)
    return (
        "Not stated: ask those who made the images before you pass them on. "
        "(`imagebeam convert --license …` states it.)"
    )


# ---------------------------------------------------------------- Markdown


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _code(value: str) -> str:
    """Any text as code: nothing in it is Markdown or HTML."""
    shown = printable(value)
    ticks = "`"
    while ticks in shown:
        ticks += "`"
    space = " " if len(ticks) > 1 or shown.startswith(" ") or not shown else ""
    return f"{ticks}{space}{shown}{space}{ticks}"


def _fenced(value: str) -> str:
    fence = "```"
    while fence in value:
        fence += "`"
    return f"{fence}\n{value}\n{fence}"
