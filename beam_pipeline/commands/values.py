"""Values of command-line options: text → what it means, or a UsageError that shows the right form."""

from __future__ import annotations

import re
from typing import Any

from beam_pipeline.errors import UsageError
from beam_pipeline.imaging.sniff import SOURCE_FORMATS
from beam_pipeline.options import FeatureType, check_split_name

_UNITS = {"": 1, "B": 1}
for _power, _prefix in enumerate("KMGT", start=1):
    _UNITS |= {
        _prefix: 1 << 10 * _power,
        f"{_prefix}IB": 1 << 10 * _power,
        f"{_prefix}B": 1000**_power,
    }


def parse_size(option: str, text: str) -> int:
    """Bytes from text such as 256MiB, 1.5GB or 4096."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2].upper() not in _UNITS:
        raise UsageError(f"{option} must be a size such as 256MiB, 1.5GB or 4096, got {text!r}")
    return round(float(match[1]) * _UNITS[match[2].upper()])


def parse_features(texts: list[str]) -> dict[str, FeatureType]:
    """Feature name → type, of --feature NAME:TYPE, repeated."""
    features: dict[str, FeatureType] = {}
    for text in texts:
        name, kind = _parse_feature(text)
        if name in features:
            raise UsageError(f"--feature names {name!r} twice: {', '.join(texts)}")
        features[name] = kind
    return features


def _parse_feature(text: str) -> tuple[str, FeatureType]:
    name, separator, kind = text.rpartition(":")
    kinds = [item.value for item in FeatureType]
    if not separator or not name or kind not in kinds:
        raise UsageError(
            f"--feature must be NAME:TYPE with TYPE in {', '.join(kinds)}, got {text!r}"
        )
    return name, FeatureType(kind)


def parse_resize(text: str | None) -> tuple[int, int] | None:
    """(height, width) in pixels, of --resize HxW."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+)[xX×](\d+)", text)
    if match is None:
        raise UsageError(f"--resize must be HxW in pixels, such as 224x224, got {text!r}")
    return int(match[1]), int(match[2])


def parse_color(text: str) -> tuple[int, int, int]:
    """RGB, each 0 to 255, of --background."""
    named = {"black": "#000000", "white": "#ffffff", "gray": "#808080", "grey": "#808080"}
    match = re.fullmatch(r"#?([0-9a-fA-F]{6})", named.get(text.lower(), text))
    if match is not None:
        value = int(match[1], 16)
        return value >> 16, value >> 8 & 255, value & 255
    match = re.fullmatch(r"(\d{1,3}),(\d{1,3}),(\d{1,3})", text)
    if match is not None:
        return int(match[1]), int(match[2]), int(match[3])
    raise UsageError(
        f"--background must be black, white, gray, #rrggbb or R,G,B (0 to 255), got {text!r}"
    )


def parse_formats(text: str | None) -> frozenset[str] | None:
    """Names of source formats, of --formats LIST; None: all."""
    if text is None:
        return None
    names = [name.strip().lower() for name in text.split(",") if name.strip()]
    if not names:
        raise UsageError(f"--formats must be a list such as jpeg,png, got {text!r}")
    formats = frozenset({"jpg": "jpeg", "tif": "tiff", "heif": "heic"}.get(n, n) for n in names)
    unknown = sorted(formats - set(SOURCE_FORMATS))
    if unknown:
        raise UsageError(
            f"--formats: {', '.join(unknown)} is not known; known are {', '.join(SOURCE_FORMATS)}"
        )
    return formats


def parse_split(text: str | None) -> dict[str, float]:
    """Split name → fraction, of --split."""
    return {} if text is None else dict(_pairs("--split", text, float, "train=0.8,test=0.2"))


def parse_num_shards(text: str | None) -> int | dict[str, int] | None:
    """A number for all splits, or one by split name, of --num_shards."""
    if text is None:
        return None
    if re.fullmatch(r"\d+", text):
        return int(text)
    return dict(_pairs("--num_shards", text, int, "8 or train=16,test=2"))


def _pairs(option: str, text: str, kind: type, example: str) -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for item in text.split(","):
        name, separator, value = item.strip().partition("=")
        try:
            number = kind(value)
        except ValueError:
            separator = ""
        if not separator:
            raise UsageError(f"{option} must be like {example}, got {text!r}")
        check_split_name(name)
        if any(name == known for known, _ in pairs):
            raise UsageError(f"{option} names {name!r} twice: {text!r}")
        pairs.append((name, number))
    return pairs
