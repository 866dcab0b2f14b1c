"""Names and paths that are derived from the output directory."""

from __future__ import annotations

import dataclasses
import os
import re

from beam_pipeline import storage
from beam_pipeline.options import ConvertOptions


def with_name(options: ConvertOptions) -> ConvertOptions:
    """`options` with a dataset name, made from the output directory where none is given."""
    if options.output.name is not None:
        return options
    base = storage.basename(
        os.path.abspath(options.output.output)
        if storage.is_local(options.output.output)
        else options.output.output
    )
    name = re.sub(r"\W+", "_", base, flags=re.ASCII).strip("_").lower()
    if not name or not name[0].isalpha():
        name = f"images_{name}".rstrip("_")
    return dataclasses.replace(options, output=dataclasses.replace(options.output, name=name))


def with_absolute_output(options: ConvertOptions) -> ConvertOptions:
    """`options` with an output path that holds in another process's directory."""
    output = options.output.output
    if not storage.is_local(output):
        return options
    output = os.path.abspath(output.removeprefix("file://"))
    return dataclasses.replace(options, output=dataclasses.replace(options.output, output=output))
