"""Decodes stored images with TensorFlow, as training will; imported where it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from beam_pipeline.worker_pool import available_cores
from training.quiet import import_tensorflow

_JPEG, _PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"


class TensorFlowDecoder:
    """Decodes images to their size; picklable, TensorFlow is loaded with the first image."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_pool": None}

    def __call__(self, images: Sequence[bytes]) -> list[tuple[int, int, int] | str]:
        """(height, width, channels) of each image, or what is wrong with it."""
        if self._pool is None:
            import_tensorflow()
            # TensorFlow's decoders free the interpreter lock.
            self._pool = ThreadPoolExecutor(available_cores(), thread_name_prefix="decode")
        return list(self._pool.map(_decode, images))


def _decode(data: bytes) -> tuple[int, int, int] | str:
    import tensorflow as tf

    # Only what TensorFlow decodes safely: an animated WebP ends the whole process.
    if data.startswith(_JPEG):
        decode = tf.io.decode_jpeg
    elif data.startswith(_PNG):
        decode = tf.io.decode_png
    else:
        return f"its bytes ({data[:8]!r} …) are neither JPEG nor PNG"
    try:
        with tf.device("/cpu:0"):
            height, width, channels = decode(data).shape
    except tf.errors.OpError as error:
        lines = (error.message or "it does not decode").splitlines()
        return f"TensorFlow cannot decode it: {lines[0]}"
    return int(height), int(width), int(channels)
