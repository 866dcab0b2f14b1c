"""What is counted about the images of one split; adds up over shards in any order."""

from __future__ import annotations

import dataclasses
import heapq
import math
import pickle
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image
from tfx_bsl.sketches import KmvSketch, QuantilesSketch

# Quantiles that are told: 0%, 5%, … 100%.
QUANTILES = 20
_SKETCHED = ("width", "height", "pixels", "aspect", "bytes")
_EPSILON = 0.001  # rank error of a quantile
_DISTINCT_BUCKETS = 4096
EXTREMES = 5  # smallest and largest images that are named
FLAT_SHOWN = 20
FLAT_DEVIATION = 4.0  # of 255: below, a picture is nearly of one colour
BINS_PER_OCTAVE = 4  # of sides, for plots
_MOST_SIZES = 10_000  # different sizes that are counted exactly


@dataclasses.dataclass
class PixelSums:
    """Sums over the pixels of decoded images, as gray or RGB values of 0 to 255.

    Attributes:
      images: images added.
      count, total, squares: per channel, float64 [channels].
    """

    images: int = 0
    count: np.ndarray | None = None
    total: np.ndarray | None = None
    squares: np.ndarray | None = None

    def add(self, count: np.ndarray, total: np.ndarray, squares: np.ndarray, images: int) -> None:
        """Adds sums, one value per channel each."""
        self.images += images
        if self.count is None or self.total is None or self.squares is None:
            self.count, self.total, self.squares = count.copy(), total.copy(), squares.copy()
        else:
            self.count += count
            self.total += total
            self.squares += squares

    def merge(self, other: PixelSums) -> None:
        """Adds another one."""
        if other.count is not None and other.total is not None and other.squares is not None:
            self.add(other.count, other.total, other.squares, other.images)

    def mean(self) -> list[float]:
        """Per channel, of 0 to 1."""
        if self.count is None or self.total is None:
            return []
        return (self.total / self.count / 255).tolist()

    def deviation(self) -> list[float]:
        """Standard deviation per channel, of 0 to 1."""
        if self.count is None or self.total is None or self.squares is None:
            return []
        variance = self.squares / self.count - (self.total / self.count) ** 2
        return (np.sqrt(np.maximum(variance, 0)) / 255).tolist()


class SplitAccumulator:
    """Counts, sketches and extremes of a set of images; picklable, mergeable.

    Attributes:
      records: images.
      shards: shard files.
      file_bytes, image_bytes: of shards, and of the stored images in them.
      classes: class name, or id as text where there is no name → images.
      formats, channels: stored format, channel count → images.
      sizes: (width, height) → images, exact unless `sizes_cut`.
      bins: (bin of width, bin of height) → images; see size_bin.
      smallest, largest: (pixels, key, width, height), at most EXTREMES.
      gray, color: sums over decoded pixels.
      flat: keys of nearly one-coloured images among the decoded ones, at most FLAT_SHOWN.
      flat_count: how many.
      undecodable: images that Pillow does not decode, among those tried.
    """

    def __init__(self) -> None:
        self.records = self.shards = self.file_bytes = self.image_bytes = 0
        self.classes: Counter[str] = Counter()
        self.formats: Counter[str] = Counter()
        self.channels: Counter[int] = Counter()
        self.sizes: Counter[tuple[int, int]] = Counter()
        self.sizes_cut = False
        self.bins: Counter[tuple[int, int]] = Counter()
        self.smallest: list[tuple[int, str, int, int]] = []
        self.largest: list[tuple[int, str, int, int]] = []
        self.gray, self.color = PixelSums(), PixelSums()
        self.flat: list[str] = []
        self.flat_count = self.undecodable = 0
        self._sketches = {name: QuantilesSketch(_EPSILON, 1 << 32, 1) for name in _SKETCHED}
        self._distinct = KmvSketch(_DISTINCT_BUCKETS)
        self.has_sizes = self.has_checksums = False

    def add_sizes(self, width: np.ndarray, height: np.ndarray, keys: list[str]) -> None:
        """Adds images by their sizes, int64 [N] each, in pixels."""
        if not len(width):
            return
        self.has_sizes = True
        pixels = width * height
        self._sketch("width", width)
        self._sketch("height", height)
        self._sketch("pixels", pixels)
        self._sketch("aspect", width / np.maximum(height, 1))
        pairs, counts = np.unique(np.stack([width, height]), axis=1, return_counts=True)
        for (w, h), count in zip(pairs.T.tolist(), counts.tolist(), strict=True):
            self.bins[size_bin(w), size_bin(h)] += count
            if (w, h) in self.sizes or len(self.sizes) < _MOST_SIZES:
                self.sizes[w, h] += count
            else:
                self.sizes_cut = True
        # Candidates first, then exactly: which of equal sizes is named must not depend on
        # how images were cut into batches.
        limits = np.sort(pixels)[[min(EXTREMES, len(pixels)) - 1, -min(EXTREMES, len(pixels))]]
        for target, places in (
            ("smallest", np.flatnonzero(pixels <= limits[0])),
            ("largest", np.flatnonzero(pixels >= limits[1])),
        ):
            found = [(int(pixels[i]), keys[i], int(width[i]), int(height[i])) for i in places]
            self._keep_extremes(target, found)

    def _keep_extremes(self, target: str, found: list[tuple[int, str, int, int]]) -> None:
        pick = heapq.nsmallest if target == "smallest" else heapq.nlargest
        setattr(self, target, pick(EXTREMES, getattr(self, target) + found))

    def add_image_bytes(self, sizes: np.ndarray) -> None:
        """Adds the byte sizes of stored images, int64 [N]."""
        self.image_bytes += int(sizes.sum())
        self._sketch("bytes", sizes)

    def add_checksums(self, checksums: pa.Array) -> None:
        """Adds what tells images apart."""
        self.has_checksums = True
        self._distinct.AddValues(checksums)

    def add_picture(self, image: Image.Image, key: str) -> None:
        """Adds the pixels of a decoded picture, gray or RGB."""
        histogram = np.array(image.histogram(), np.float64).reshape(-1, 256)
        levels = np.arange(256.0)
        count = histogram.sum(axis=1)
        total, squares = histogram @ levels, histogram @ levels**2
        sums = self.gray if len(count) == 1 else self.color
        sums.add(count, total, squares, 1)
        deviation = np.sqrt(np.maximum(squares / count - (total / count) ** 2, 0))
        if deviation.max() < FLAT_DEVIATION:
            self.flat_count += 1
            self.flat = sorted([*self.flat, key])[:FLAT_SHOWN]

    def _sketch(self, name: str, values: np.ndarray) -> None:
        self._sketches[name].AddValues(pa.array(values))

    def merge(self, other: SplitAccumulator) -> None:
        """Adds another accumulator."""
        for name in ("records", "shards", "file_bytes", "image_bytes", "flat_count", "undecodable"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("classes", "formats", "channels", "bins", "sizes"):
            getattr(self, name).update(getattr(other, name))
        for name in ("sizes_cut", "has_sizes", "has_checksums"):
            setattr(self, name, getattr(self, name) or getattr(other, name))
        for target in ("smallest", "largest"):
            self._keep_extremes(target, getattr(other, target))
        self.gray.merge(other.gray)
        self.color.merge(other.color)
        self.flat = sorted(self.flat + other.flat)[:FLAT_SHOWN]
        for name, sketch in self._sketches.items():
            sketch.Merge(other._sketches[name])
        self._distinct.Merge(other._distinct)

    def quantiles(self, name: str) -> list[float]:
        """The 0%, 5%, … 100% quantiles of "width", "height", "pixels", "aspect" or "bytes"."""
        if not self.records:
            return []
        # Asking closes a sketch for good, so a copy is asked.
        sketch = pickle.loads(pickle.dumps(self._sketches[name]))
        found = sketch.GetQuantiles(QUANTILES).to_pylist()
        return found[0] if found else []

    @property
    def distinct(self) -> int | None:
        """About how many different images there are (within a few percent), or None."""
        return self._distinct.Estimate() if self.has_checksums else None

    @property
    def decoded(self) -> int:
        """Images whose pixels were looked at."""
        return self.gray.images + self.color.images

    def imbalance(self) -> float | None:
        """Images of the largest class for each of the smallest; None below two classes."""
        counts = [count for count in self.classes.values() if count]
        return max(counts) / min(counts) if len(counts) > 1 else None

    def to_json(self) -> dict[str, Any]:
        """Everything, plainly."""
        result: dict[str, Any] = {
            "images": self.records,
            "shards": self.shards,
            "shard_bytes": self.file_bytes,
            "image_bytes": self.image_bytes,
            "classes": dict(self.classes),
            "imbalance": self.imbalance(),
            "formats": dict(self.formats.most_common()),
            "channels": {str(key): count for key, count in sorted(self.channels.items())},
            "distinct_images": self.distinct,
            "different_sizes": None if self.sizes_cut else len(self.sizes),
            "common_sizes": [
                {"width": w, "height": h, "images": count}
                for (w, h), count in self.sizes.most_common(10)
            ],
            "quantiles": {
                name: {f"{100 * i // QUANTILES}%": value for i, value in enumerate(values)}
                for name in _SKETCHED
                if (values := self.quantiles(name))
            },
            "pixels": {
                name: {"images": sums.images, "mean": sums.mean(), "std": sums.deviation()}
                for name, sums in (("gray", self.gray), ("rgb", self.color))
                if sums.images
            },
            "one_colour": {"images": self.flat_count, "keys": self.flat, "of": self.decoded},
            "undecodable": self.undecodable,
        }
        for name in ("smallest", "largest"):
            result[name] = [
                {"key": key, "width": w, "height": h} for _, key, w, h in getattr(self, name)
            ]
        return result


def size_bin(side: int) -> int:
    """The bin of a side in pixels: BINS_PER_OCTAVE bins for every doubling."""
    return math.floor(BINS_PER_OCTAVE * math.log2(max(side, 1)))


def bin_start(number: int) -> float:
    """The smallest side, in pixels, of a bin."""
    return 2 ** (number / BINS_PER_OCTAVE)
