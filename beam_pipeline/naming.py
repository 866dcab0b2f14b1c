"""Names and paths that are derived from the output directory."""

from __future__ import annotations

import dataclasses
import os
import re

from beam_pipeline import storage
from beam_pipeline.errors import UsageError
from beam_pipeline.inputs import InputPlan
from beam_pipeline.keys import path_below
from beam_pipeline.options import NAME_LENGTH, ConvertOptions


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
        name = f"images_{name}"
    name = name[:NAME_LENGTH].rstrip("_")
    return dataclasses.replace(options, output=dataclasses.replace(options.output, name=name))


def with_plain_output(options: ConvertOptions) -> ConvertOptions:
    """`options` with a local output as the system knows it: without file://, `~` expanded.

    A shell expands `--output ~/x`, but not `--output=~/x`.
    """
    output = options.output.output
    if not storage.is_local(output):
        return options
    if output[:7].lower() == "file://":
        output = output[7:]
    output = os.path.expanduser(output)
    return dataclasses.replace(options, output=dataclasses.replace(options.output, output=output))


def refuse_nested_output(options: ConvertOptions, inputs: InputPlan) -> None:
    """Raises UsageError where the dataset would lie among the images.

    The next listing would take its directory for a class.
    """
    output = options.output.output
    if inputs.kind != "folder" or not storage.is_local(output):
        return
    target = os.path.realpath(output)
    for source in inputs.sources:
        if storage.is_local(source.uri) and path_below(target, os.path.realpath(source.uri)):
            raise UsageError(
                f"--output {output} lies inside the input folder {source.uri}, where the next run "
                "would take it for a class; give a directory outside of it"
            )


def with_absolute_output(options: ConvertOptions) -> ConvertOptions:
    """`options` with an output path that holds in another process's directory."""
    output = options.output.output
    if not storage.is_local(output):
        return options
    output = os.path.abspath(output)
    return dataclasses.replace(options, output=dataclasses.replace(options.output, output=output))
