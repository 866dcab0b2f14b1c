"""One record, readably: its features, and its picture in a file or in the terminal."""

from __future__ import annotations

import base64
import hashlib
import io
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from beam_pipeline import images
from beam_pipeline.checks import shards as shards_module
from beam_pipeline.checks.wire import Feature, WireError, parse_example
from beam_pipeline.errors import DatasetError, ImageRejectedError, UsageError
from beam_pipeline.examples import FeatureSpec, Role
from beam_pipeline.options import Encoding, ImageOptions
from beam_pipeline.random_access import RandomAccessDataset, plain_features
from beam_pipeline.summary import printable, size_text

_LONG = 60  # characters or list items after which a value is cut


class Shown(NamedTuple):
    """A record to show.

    Attributes:
      place: where it lies.
      features: as parsed.
      specs: what is known of them, by name.
    """

    place: str
    features: dict[str, Feature]
    specs: dict[str, FeatureSpec]

    def value(self, role: Role) -> Any:
        """The value of the feature with this role, or None."""
        for spec in self.specs.values():
            feature = self.features.get(spec.name)
            if spec.role is role and feature is not None and len(feature.values) == 1:
                return feature.values[0]
        return None

    def text(self) -> str:
        """For a terminal: the place, then one line for each feature."""
        lines = [self.place]
        width = max((len(name) for name in self.features), default=0)
        for name, feature in sorted(self.features.items()):
            values = [_readable(v, self.specs.get(name)) for v in feature.values[:_LONG]]
            more = f" … ({len(feature.values):,} values)" if len(feature.values) > _LONG else ""
            shown = values[0] if len(feature.values) == 1 else f"[{', '.join(values)}{more}]"
            lines.append(f"  {printable(name):{width}}  {feature.kind:5}  {shown}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """For --json; bytes as text or base64, the image as its size and SHA-256."""
        plain: dict[str, Any] = plain_features(self.features, self.specs)
        for name, value in plain.items():
            spec = self.specs.get(name)
            if spec is not None and spec.role is Role.IMAGE and isinstance(value, bytes):
                digest = hashlib.sha256(value).hexdigest()
                plain[name] = {"bytes": len(value), "sha256": digest}
            else:
                plain[name] = _jsonable(value)
        return {"place": self.place, "features": plain}


def load_record(
    directory: str | None,
    *,
    globs: list[str] | None = None,
    key: str | None = None,
    split: str | None = None,
    number: int | None = None,
) -> Shown:
    """The record with a key, or the `number`-th (from 0) of a split or of foreign files.

    Raises:
      DatasetError: there is no such record, or it is damaged.
    """
    if globs:
        return _foreign_record(globs, key, number or 0)
    assert directory is not None
    info = shards_module.load_info(directory)
    specs = {spec.name: spec for spec in info.features}
    if info.compression != "none":
        tasks = [t for t in shards_module.dataset_tasks(info) if split in (None, t.split)]
        if split is not None:
            info.split(split)
        key_name = info.feature(Role.KEY)
        return _scan(tasks, specs, key_name, key, number or 0, directory)
    dataset = RandomAccessDataset(directory, split)
    if key is not None:
        number = dataset.find(key)
    number = number or 0
    if not 0 <= number < len(dataset):
        where = f"split {split}" if split else "the dataset"
        raise DatasetError(f"{where} has {len(dataset):,} records; there is no number {number:,}")
    try:
        features = parse_example(dataset.record(number))
    except WireError as error:
        raise DatasetError(f"{dataset.place(number)}: not a tf.train.Example: {error}") from error
    return Shown(dataset.place(number), features, specs)


def _foreign_record(globs: list[str], key: str | None, number: int) -> Shown:
    tasks = shards_module.foreign_tasks(globs)
    specs = {spec.name: spec for spec in shards_module.foreign_specs(tasks)}
    key_name = next((spec.name for spec in specs.values() if spec.role is Role.KEY), None)
    if key is not None and key_name is None:
        raise UsageError("these files have no feature that is known to hold keys; give --index")
    return _scan(tasks, specs, key_name, key, number, " ".join(globs))


def _scan(
    tasks: list[shards_module.ShardTask],
    specs: dict[str, FeatureSpec],
    key_name: str | None,
    key: str | None,
    number: int,
    what: str,
) -> Shown:
    """Looks for a record from the first shard on: there is no index, or it is of no use."""
    seen = 0
    for task in tasks:
        for window in shards_module.read_windows(task):
            for record, place, offset in zip(
                window.records, window.numbers, window.offsets, strict=True
            ):
                if key is None and seen < number:
                    seen += 1
                    continue
                seen += 1
                try:
                    features = parse_example(record)
                except WireError as error:
                    if key is not None:
                        continue
                    raise DatasetError(f"{task.file}, record {place}: {error}") from error
                found = features.get(key_name or "")
                if key is None or (found is not None and found.values == [key.encode()]):
                    return Shown(
                        f"{task.file}, record {place:,} (byte {offset:,})", features, specs
                    )
    if key is not None:
        raise DatasetError(f"{what} has no image with key {key!r} ({seen:,} records)")
    raise DatasetError(f"{what} has {seen:,} records; there is no number {number:,}")


def _readable(value: Any, spec: FeatureSpec | None) -> str:
    if not isinstance(value, bytes):
        return f"{value:.7g}" if isinstance(value, float) else str(value)
    if spec is not None and spec.role is Role.IMAGE:
        return f"{size_text(len(value))}: {value[:8].hex(' ')} …"
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return f"{size_text(len(value))}: {value[:16].hex(' ')}{' …' if len(value) > 16 else ''}"
    return repr(printable(text))


def _jsonable(value: Any) -> Any:
    if isinstance(value, list):
        return [_jsonable(item) for item in value]
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


# ---------------------------------------------------------------- the picture


def picture(shown: Shown) -> Image.Image:
    """The stored image; DatasetError when it is no image."""
    data = shown.value(Role.IMAGE)
    if data is None:
        raise DatasetError(f"{shown.place} has no feature that is known to hold an image")
    shape = [shown.value(role) for role in (Role.HEIGHT, Role.WIDTH, Role.CHANNELS)]
    return decode_picture(data, shown.value(Role.FORMAT) == b"raw", shape, shown.place)


def decode_picture(data: bytes, raw: bool, shape: list[Any], place: str) -> Image.Image:
    """Stored bytes as a gray or RGB picture.

    Raises:
      DatasetError: they are none.
    """
    try:
        if not raw:
            prepared = images.prepare_image(data, ImageOptions(encoding=Encoding.RAW))
            data, shape = prepared.data, [prepared.height, prepared.width, prepared.channels]
        pixels = np.frombuffer(data, np.uint8).reshape(shape)
    except (ImageRejectedError, ValueError, TypeError) as error:
        raise DatasetError(f"{place}: its image does not decode: {error}") from error
    return Image.fromarray(pixels[..., 0] if shape[2] == 1 else pixels)


def write_picture(shown: Shown, path: str) -> None:
    """Writes the picture: the stored bytes where the ending allows it, else converted.

    Raises:
      UsageError: the ending is of no image format that can be written.
    """
    data, stored = shown.value(Role.IMAGE), (shown.value(Role.FORMAT) or b"").decode()
    ending = os.path.splitext(path)[1].lower()
    same = {"jpeg": (".jpg", ".jpeg", ""), "png": (".png", "")}.get(stored, ())
    if data is not None and ending in same:
        with open(path, "wb") as stream:
            stream.write(data)
        return
    image = picture(shown)
    if ending not in Image.registered_extensions():
        raise UsageError(f"--image {path}: its ending must be of an image format, such as .png")
    try:
        image.save(path)
    except (OSError, KeyError, ValueError) as error:
        raise UsageError(f"--image {path} cannot be written: {error}") from error


def terminal_picture(image: Image.Image, environment: Mapping[str, str], columns: int) -> str:
    """A picture in the way that the terminal supports.

    kitty's and iTerm2's image protocols where the environment names such a terminal, else
    half blocks in 24-bit or 256 colours.
    """
    term, program = environment.get("TERM", ""), environment.get("TERM_PROGRAM", "")
    inside = "TMUX" in environment or term.startswith(("screen", "tmux"))
    if not inside and ("kitty" in term or "ghostty" in term or "KITTY_WINDOW_ID" in environment):
        return _kitty(image)
    if not inside and program in ("iTerm.app", "WezTerm", "mintty", "vscode"):
        data = _png(image)
        return (
            f"\x1b]1337;File=inline=1;size={len(data)};preserveAspectRatio=1:"
            f"{base64.b64encode(data).decode()}\a\n"
        )
    true_colour = environment.get("COLORTERM", "") in ("truecolor", "24bit")
    return half_blocks(image, min(columns, 80), true_colour)


def _png(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def _kitty(image: Image.Image) -> str:
    text = base64.b64encode(_png(image)).decode()
    chunks = [text[i : i + 4096] for i in range(0, len(text), 4096)]
    parts = []
    for i, chunk in enumerate(chunks):
        head = "a=T,f=100," if i == 0 else ""
        parts.append(f"\x1b_G{head}m={int(i + 1 < len(chunks))};{chunk}\x1b\\")
    return "".join(parts) + "\n"


def half_blocks(image: Image.Image, columns: int, true_colour: bool) -> str:
    """A picture as text: each character is two pixels, one above the other."""
    scale = min(columns / image.width, 1.0)
    width = max(1, round(image.width * scale))
    height = max(2, round(image.height * scale) // 2 * 2)
    pixels = np.asarray(image.convert("RGB").resize((width, height), Image.Resampling.BOX))

    def colour(rgb: np.ndarray) -> str:
        red, green, blue = (int(value) for value in rgb)
        if true_colour:
            return f"2;{red};{green};{blue}"
        r, g, b = (round(value / 255 * 5) for value in (red, green, blue))
        return f"5;{16 + 36 * r + 6 * g + b}"

    lines = []
    for top, bottom in zip(pixels[::2], pixels[1::2], strict=True):
        cells = [f"\x1b[38;{colour(a)};48;{colour(b)}m▀" for a, b in zip(top, bottom, strict=True)]
        lines.append("".join(cells) + "\x1b[0m\n")
    return "".join(lines)
