"""Draws faces with one of seven expressions; everything else about them is drawn by lot.

What makes the class of a face is the shape of its brows, eyes and mouth (and a wrinkled
nose); skin, hair, head shape, position, size, tilt, light and noise say nothing of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

LABELS = ("angry", "disgust", "fear", "happy", "sad", "surprise", "neutral")

_SKINS = (
    (255, 224, 196), (241, 194, 125), (224, 172, 105), (198, 134, 66), (141, 85, 36), (92, 58, 33),
)  # fmt: skip
_HAIRS = (
    (28, 22, 18), (66, 40, 22), (120, 78, 38), (196, 150, 74), (150, 60, 30), (150, 150, 155),
)  # fmt: skip

Color = tuple[int, int, int]
Point = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class _Expression:
    """The middle of what a class looks like, in units of half a head; each face varies it.

    Attributes:
      brow: height of the brows over the eyes.
      slant: how much higher the outer end of a brow is than the inner one.
      arch: how much a brow bends up.
      eye: how far the eyes are open, 1 is normal.
      pupil: size of the pupils, 1 is normal.
      mouth: half its width.
      smile: how far the corners are above the middle; below zero they hang.
      open: half the height of the open mouth, 0 is closed.
      wave: how much the mouth swings, one corner up and one down.
    """

    brow: float = 0.27
    slant: float = 0.0
    arch: float = 0.05
    eye: float = 1.0
    pupil: float = 1.0
    mouth: float = 0.3
    smile: float = 0.0
    open: float = 0.0
    wave: float = 0.0


_EXPRESSIONS = {
    "angry": _Expression(brow=0.19, slant=0.17, arch=0, eye=0.72, mouth=0.3, smile=-0.07),
    "disgust": _Expression(brow=0.19, slant=0.06, eye=0.5, mouth=0.29, smile=-0.02, wave=0.1),
    "fear": _Expression(
        brow=0.38, slant=-0.15, eye=1.35, pupil=0.6, mouth=0.3, smile=-0.1, open=0.1
    ),
    "happy": _Expression(brow=0.3, arch=0.09, eye=0.75, mouth=0.4, smile=0.2),
    "sad": _Expression(brow=0.28, slant=-0.18, arch=0, eye=0.62, mouth=0.27, smile=-0.15),
    "surprise": _Expression(brow=0.43, arch=0.12, eye=1.35, mouth=0.15, open=0.23),
    "neutral": _Expression(),
}


class _Canvas:
    """Draws shapes given in head units (x right, y down, centre 0) on a tilted, moved head."""

    def __init__(self, image: Image.Image, center: Point, scale: float, tilt: float):
        self._draw = ImageDraw.Draw(image)
        self._center, self.scale = center, scale
        self._cos, self._sin = np.cos(tilt), np.sin(tilt)

    def at(self, points: Sequence[Point]) -> list[Point]:
        """Pixels of points in head units."""
        return [
            (
                self._center[0] + self.scale * (x * self._cos - y * self._sin),
                self._center[1] + self.scale * (x * self._sin + y * self._cos),
            )
            for x, y in points
        ]

    def shape(self, points: Sequence[Point], color: Color) -> None:
        """A filled outline."""
        self._draw.polygon(self.at(points), fill=color)

    def oval(self, x: float, y: float, width: float, height: float, color: Color) -> None:
        """A filled ellipse; width and height are half axes."""
        turns = np.linspace(0, 2 * np.pi, 40, endpoint=False)
        self.shape([(x + width * np.cos(t), y + height * np.sin(t)) for t in turns], color)

    def line(self, points: Sequence[Point], color: Color, width: float) -> None:
        """A line with round ends; `width` in head units."""
        pixels = max(1, round(width * self.scale))
        path = self.at(points)
        self._draw.line(path, fill=color, width=pixels, joint="curve")
        for x, y in (path[0], path[-1]):
            r = pixels / 2 - 0.5
            self._draw.ellipse((x - r, y - r, x + r, y + r), fill=color)


def _shade(color: Sequence[float] | np.ndarray, factor: float) -> Color:
    r, g, b = (int(min(255, max(0, channel * factor))) for channel in color)
    return r, g, b


def _curve(function: Callable[[float], float], left: float, right: float) -> list[Point]:
    """Points of a function from `left` to `right`; it takes -1 to 1."""
    ts = np.linspace(-1, 1, 15)
    return [(left + (right - left) * (t + 1) / 2, function(t)) for t in ts]


def draw_face(label: str, size: tuple[int, int], rng: np.random.Generator) -> Image.Image:
    """One face.

    Args:
      label: one of LABELS.
      size: (width, height) in pixels.
      rng: decides everything that the label does not.

    Returns:
      An RGB image.
    """
    width, height = 2 * size[0], 2 * size[1]  # drawn twice as large, for smooth edges
    jitter = lambda amount: float(rng.normal(0, amount))  # noqa: E731
    background = rng.integers(40, 226, 3)
    image = Image.new("RGB", (width, height), _shade(background, 1))
    _draw_background(image, background, rng)

    scale = min(width, height) * rng.uniform(0.36, 0.45)
    center = (
        width * (0.5 + np.clip(jitter(0.035), -0.08, 0.08)),
        height * (0.53 + np.clip(jitter(0.03), -0.07, 0.07)),
    )
    canvas = _Canvas(image, center, scale, np.radians(np.clip(jitter(6), -15, 15)))
    skin = _shade(_SKINS[rng.integers(len(_SKINS))], rng.uniform(0.92, 1.05))
    hair = _shade(_HAIRS[rng.integers(len(_HAIRS))], rng.uniform(0.85, 1.15))
    wide = rng.uniform(0.76, 0.92)
    _draw_head(canvas, wide, skin, hair, rng)
    _draw_features(canvas, label, skin, hair, rng)

    image = image.resize(size, Image.Resampling.LANCZOS)
    if rng.random() < 0.25:
        image = image.filter(ImageFilter.GaussianBlur(rng.uniform(0.3, 0.7) * min(size) / 96))
    return _lit_and_noisy(image, rng)


def _draw_background(image: Image.Image, color: np.ndarray, rng: np.random.Generator) -> None:
    """A few large blobs behind the head."""
    draw = ImageDraw.Draw(image)
    width, height = image.size
    for _ in range(rng.integers(0, 5)):
        x, y = rng.uniform(0, width), rng.uniform(0, height)
        r = rng.uniform(0.1, 0.4) * width
        draw.ellipse((x - r, y - r, x + r, y + r), fill=_shade(color, rng.uniform(0.7, 1.3)))


def _draw_head(
    canvas: _Canvas, wide: float, skin: Color, hair: Color, rng: np.random.Generator
) -> None:
    """Shoulders, hair, neck, ears, face and fringe."""
    cloth = _shade(rng.integers(30, 226, 3), 1)
    style = rng.integers(4)  # 0 bald, 1 short, 2 long, 3 full
    if style == 2:
        canvas.oval(0, 0.05, wide + 0.16, 1.15, hair)
        canvas.shape(
            [(-wide - 0.1, 0), (wide + 0.1, 0), (wide + 0.2, 1.2), (-wide - 0.2, 1.2)], hair
        )
    if style == 3:
        canvas.oval(0, -0.35, wide + 0.2, 0.85, hair)
    canvas.oval(0, 1.65, 1.15, 0.62, cloth)
    canvas.shape([(-0.3, 0.6), (0.3, 0.6), (0.34, 1.2), (-0.34, 1.2)], _shade(skin, 0.82))
    for side in (-1, 1):
        canvas.oval(side * wide, 0.02, 0.12, 0.2, _shade(skin, 0.9))
    canvas.oval(0, 0, wide, 1.0, skin)
    if style:
        # Hair on top, down to a hair line that differs from head to head.
        line = -rng.uniform(0.55, 0.7)
        part = rng.uniform(-0.5, 0.5)
        high = 1.05 if style == 1 else 1.12
        low = np.arcsin(0.28 / high)  # the hair ends beside the eyes
        turns = np.linspace(np.pi + low, 2 * np.pi - low, 24)
        top = [((wide + 0.03) * np.cos(t), high * np.sin(t)) for t in turns]
        fringe = _curve(
            lambda t: line - 0.16 * (1 - abs(t - part)) * (t * t < 0.9), wide * 0.9, -wide * 0.9
        )
        canvas.shape(top + fringe, hair)


def _draw_features(
    canvas: _Canvas, label: str, skin: Color, hair: Color, rng: np.random.Generator
) -> None:
    """What tells the expression: brows, eyes, nose and mouth."""
    face = _EXPRESSIONS[label]
    jitter = lambda amount: float(np.clip(rng.normal(0, amount), -2 * amount, 2 * amount))  # noqa: E731
    dark = _shade(skin, 0.55)
    apart, level = 0.36 + jitter(0.02), -0.12 + jitter(0.02)
    opening = max(0.25, face.eye + jitter(0.1))
    look = jitter(0.03)
    iris = _shade(((70, 45, 25), (50, 90, 130), (60, 100, 60))[rng.integers(3)], 1)
    brow, slant, arch = (
        face.brow + jitter(0.02),
        face.slant + jitter(0.022),
        face.arch + jitter(0.015),
    )
    thick = rng.uniform(0.075, 0.115)
    brow_color = _shade(hair, 0.75) if sum(skin) > 330 else (20, 14, 10)
    for side in (-1, 1):
        x = side * apart
        canvas.oval(x, level, 0.175, 0.115 * opening + 0.015, _shade(skin, 0.7))
        canvas.oval(x, level, 0.16, 0.115 * opening, (248, 248, 244))
        size = min(0.085, 0.115 * opening)
        canvas.oval(x + look, level, size * face.pupil, size * face.pupil, iris)
        canvas.oval(x + look, level, size * face.pupil * 0.6, size * face.pupil * 0.6, (12, 10, 10))
        inner, outer = x - side * 0.18, x + side * 0.2

        def height(t: float) -> float:
            return level - brow - slant / 2 * t - arch * (1 - t * t)

        canvas.line(_curve(height, inner, outer), brow_color, thick)
    _draw_nose(canvas, label, skin, jitter)
    _draw_mouth(canvas, label, face, skin, jitter, rng)
    if label == "sad" and rng.random() < 0.35:
        canvas.oval(apart + 0.02, level + 0.3, 0.045, 0.09, (150, 200, 240))
    if label == "happy":
        for side in (-1, 1):
            canvas.oval(side * 0.5, 0.25, 0.12, 0.07, _blush(skin))
    if rng.random() < 0.15:  # glasses
        for side in (-1, 1):
            turns = np.linspace(0, 2 * np.pi, 30)
            ring = [(side * apart + 0.25 * np.cos(t), level + 0.22 * np.sin(t)) for t in turns]
            canvas.line(ring, (35, 35, 40), 0.035)
        canvas.line([(-apart + 0.25, level), (apart - 0.25, level)], (35, 35, 40), 0.035)
    if rng.random() < 0.08:  # a mole
        canvas.oval(jitter(0.2), 0.3 + jitter(0.05), 0.025, 0.025, dark)


def _blush(skin: Color) -> Color:
    return min(255, skin[0] + 18), int(skin[1] * 0.85), int(skin[2] * 0.85)


def _draw_nose(canvas: _Canvas, label: str, skin: Color, jitter: Callable[[float], float]) -> None:
    shadow = _shade(skin, 0.72)
    long = 0.22 + jitter(0.02)
    canvas.line([(0.02, 0.0), (0.08 + jitter(0.015), long), (-0.05, long + 0.02)], shadow, 0.045)
    if label == "disgust":  # a wrinkled nose
        for y in (-0.06, 0.02, 0.1):
            canvas.line([(-0.13, y - 0.035), (0, y + 0.02), (0.13, y - 0.035)], shadow, 0.035)


def _draw_mouth(
    canvas: _Canvas,
    label: str,
    face: _Expression,
    skin: Color,
    jitter: Callable[[float], float],
    rng: np.random.Generator,
) -> None:
    lip = (min(255, int(skin[0] * 0.78) + 10), int(skin[1] * 0.45), int(skin[2] * 0.48))
    y = 0.5 + jitter(0.025)
    half = face.mouth * (1 + jitter(0.1))
    smile, wave = face.smile + jitter(0.02), face.wave * rng.choice((-1, 1))

    def middle(t: float) -> float:
        return y + smile * (0.5 - t * t) + wave * np.sin(2.2 * t) * 0.9

    outline = _curve(middle, -half, half)
    opened = face.open * (1 + jitter(0.12))
    if label in ("happy", "angry") and rng.random() < 0.5:  # teeth are shown
        opened = 0.09 if label == "happy" else 0.07
    if not opened:
        canvas.line(outline, lip, 0.09)
        if label == "disgust" and rng.random() < 0.4:  # the tongue is out
            canvas.oval(0.02, y + 0.1, 0.1, 0.11, (214, 90, 100))
        return
    if label == "surprise":
        canvas.oval(0, y + 0.05, half + 0.045, opened + 0.045, lip)
        canvas.oval(0, y + 0.05, half, opened, (60, 16, 20))
        return
    # An open mouth between two lips: a grin has a straight upper lip, bared teeth none.
    upper = [
        (x, v - opened * (0.35 if label == "happy" else 1) * _lens(x / half)) for x, v in outline
    ]
    lower = [(x, v + opened * _lens(x / half)) for x, v in outline]
    if label == "happy":
        upper = [(x, y - smile * 0.45 + 0.02) for x, _ in outline]
        lower = [(x, v + 0.05 * _lens(x / half)) for x, v in outline]
    canvas.shape(upper + lower[::-1], (70, 20, 24))
    if label != "fear" or rng.random() < 0.5:
        teeth = [(x, u + (v - u) * 0.5) for (x, u), (_, v) in zip(upper, lower, strict=True)]
        canvas.shape(upper[1:-1] + teeth[1:-1][::-1], (246, 244, 236))
    canvas.line(upper + lower[::-1] + upper[:1], lip, 0.05)


def _lens(t: float) -> float:
    """Height of an open mouth from corner (-1) to corner (1)."""
    return max(0.0, 1 - t**4)


def _lit_and_noisy(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Light from one side, brightness, contrast, and the noise of a camera."""
    pixels = np.asarray(image, np.float32)
    height, width, _ = pixels.shape
    y, x = np.mgrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j].astype(np.float32)
    angle = rng.uniform(0, 2 * np.pi)
    light = 1 + rng.uniform(0, 0.22) * (np.cos(angle) * x + np.sin(angle) * y)
    pixels = (pixels - 128) * rng.uniform(0.8, 1.1) + 128 + rng.uniform(-18, 18)
    pixels = pixels * light[..., None]
    pixels += rng.normal(0, rng.uniform(1, 7), pixels.shape)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
