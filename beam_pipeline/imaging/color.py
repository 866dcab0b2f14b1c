"""Embedded colour profiles → sRGB, for --color_profile srgb."""

from __future__ import annotations

import io

from PIL import Image

from beam_pipeline.options import ColorProfile, ImageOptions


def needs_conversion(profile: object, options: ImageOptions) -> bytes | None:
    """`profile` where it has to be applied: asked for, and not sRGB itself."""
    if not isinstance(profile, bytes) or options.color_profile is not ColorProfile.SRGB:
        return None
    # The description tag names the profile, in ASCII or UTF-16.
    head = profile.replace(b"\0", b"")
    return None if b"sRGB" in head[:4096] else profile


def apply_profile(image: Image.Image, profile: bytes, notes: set[str]) -> Image.Image:
    """`image` in sRGB; unchanged where the profile is damaged or made for other channels.

    Args:
      image: of any mode.
      profile: an ICC profile.
      notes: "profile_converted" is added here when it was applied.
    """
    from PIL import ImageCms  # only loaded where it is asked for

    alpha = None
    if image.mode in ("LA", "RGBA", "PA") or "transparency" in image.info:
        image = image.convert("LA" if image.mode == "LA" else "RGBA")
        alpha = image.getchannel("A")
        image = image.convert("L" if image.mode == "LA" else "RGB")
    elif image.mode in ("P", "RGBX"):
        image = image.convert("RGB")
    if image.mode not in ("L", "RGB", "CMYK", "LAB"):
        return image
    try:
        converted = ImageCms.profileToProfile(
            image,
            ImageCms.ImageCmsProfile(io.BytesIO(profile)),
            ImageCms.createProfile("sRGB"),
            renderingIntent=ImageCms.Intent.RELATIVE_COLORIMETRIC,
            outputMode="RGB",
        )
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError):
        converted = None
    if converted is None:
        result = image
    else:
        notes.add("profile_converted")
        result = converted.convert("L") if image.mode == "L" else converted
    if alpha is not None:
        result.putalpha(alpha)
    return result
