"""Labelled images to sharded TFRecords with Apache Beam; everything public is named here.

Names are loaded on first use: importing this package imports neither Beam nor TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from beam_pipeline.version import __version__

if TYPE_CHECKING:
    from beam_pipeline.dataset_info import DatasetInfo, read_dataset_info
    from beam_pipeline.errors import ImagebeamError, ImageRejectedError
    from beam_pipeline.options import ConvertOptions, ImageOptions, InputOptions, OutputOptions
    from beam_pipeline.pipeline import convert
    from beam_pipeline.runners.job import DetachedJob
    from beam_pipeline.summary import ConversionSummary
    from beam_pipeline.transforms import ImagesToExamples, ListImages
    from beam_pipeline.types import ImageRef, RejectedImage
    from beam_pipeline.write_images import WriteImages

_MODULES = {
    "ConversionSummary": "summary",
    "ConvertOptions": "options",
    "DatasetInfo": "dataset_info",
    "DetachedJob": "runners.job",
    "ImageOptions": "options",
    "ImageRef": "types",
    "ImageRejectedError": "errors",
    "ImagebeamError": "errors",
    "ImagesToExamples": "transforms",
    "InputOptions": "options",
    "ListImages": "transforms",
    "OutputOptions": "options",
    "RejectedImage": "types",
    "WriteImages": "write_images",
    "convert": "pipeline",
    "read_dataset_info": "dataset_info",
}

__all__ = [
    "ConversionSummary",
    "ConvertOptions",
    "DatasetInfo",
    "DetachedJob",
    "ImageOptions",
    "ImageRef",
    "ImageRejectedError",
    "ImagebeamError",
    "ImagesToExamples",
    "InputOptions",
    "ListImages",
    "OutputOptions",
    "RejectedImage",
    "WriteImages",
    "__version__",
    "convert",
    "read_dataset_info",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
