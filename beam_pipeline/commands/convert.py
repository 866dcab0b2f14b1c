"""`imagebeam convert`: arguments → ConvertOptions → one call."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from typing import Any

from beam_pipeline import storage
from beam_pipeline.commands.values import (
    parse_color,
    parse_features,
    parse_formats,
    parse_num_shards,
    parse_resize,
    parse_size,
    parse_split,
)
from beam_pipeline.options import (
    ColorProfile,
    Compression,
    ConvertOptions,
    Encoding,
    EqualImages,
    FeatureNames,
    ImageOptions,
    InputLayout,
    InputOptions,
    OutputOptions,
    ResizeMode,
    Writer,
)


def add_command(subparsers: Any) -> None:
    """Adds the sub-command."""
    parser = subparsers.add_parser(
        "convert",
        help="images → sharded TFRecords",
        description="Converts labelled images to sharded TFRecords. Options that are not listed "
        "here go to Apache Beam (--runner, --project, --temp_location, --direct_num_workers …).",
        allow_abbrev=False,
    )
    defaults_image, defaults_output = ImageOptions(), OutputOptions(output="-")
    group = parser.add_argument_group("input")
    group.add_argument(
        "--input",
        action="append",
        required=True,
        metavar="PATH",
        help="a folder, a glob, a manifest (CSV, TSV, JSON lines) or a FER2013 CSV; repeatable",
    )
    group.add_argument(
        "--input_kind",
        default="auto",
        choices=("auto", "folder", "glob", "manifest", "fer2013"),
        help="what --input is (default: found out)",
    )
    group.add_argument(
        "--input_layout",
        default=InputLayout.AUTO.value,
        choices=[layout.value for layout in InputLayout],
        help="of a folder: label is root/label/image (default: found out)",
    )
    group.add_argument(
        "--label_from",
        metavar="RULE",
        help="parent, none, or regex:(?P<label>…) over the path; may also name split and group",
    )
    group.add_argument("--labels_file", metavar="FILE", help="class names, one a line: fixes ids")
    for column in ("path", "label", "split", "group"):
        group.add_argument(f"--{column}_column", metavar="NAME", help=f"{column} in a manifest")
    group.add_argument("--delimiter", help="of a CSV manifest (default: found out); tab for TSV")
    group.add_argument("--image_root", metavar="DIR", help="where relative manifest paths start")
    group.add_argument(
        "--feature",
        action="append",
        default=[],
        metavar="NAME:TYPE",
        help="keep a manifest column as a feature; TYPE is int64, float, bytes or text; repeatable",
    )
    group.add_argument(
        "--equal_images",
        default=defaults_output.equal_images.value,
        choices=[choice.value for choice in EqualImages],
        help="with the same bytes under different names: keep all, or drop copies, which reads "
        "every image twice (default: %(default)s)",
    )
    group = parser.add_argument_group("images")
    group.add_argument(
        "--encoding",
        default=defaults_image.encoding.value,
        choices=[encoding.value for encoding in Encoding],
        help="how images are stored (default: %(default)s)",
    )
    group.add_argument("--resize", metavar="HxW", help="height x width in pixels, such as 224x224")
    group.add_argument(
        "--resize_mode",
        default=defaults_image.resize_mode.value,
        choices=[mode.value for mode in ResizeMode],
        help="how the size is reached (default: %(default)s)",
    )
    group.add_argument(
        "--channels", default="keep", choices=("keep", "1", "3"), help="(default: %(default)s)"
    )
    group.add_argument(
        "--jpeg_quality",
        type=int,
        default=defaults_image.jpeg_quality,
        metavar="N",
        help="1 to 100, of JPEGs written here (default: %(default)s)",
    )
    group.add_argument(
        "--background",
        default="black",
        metavar="COLOR",
        help="under transparency and in padding: black, white, gray, #rrggbb (default: black)",
    )
    group.add_argument(
        "--max_pixels",
        type=int,
        default=defaults_image.max_pixels,
        metavar="N",
        help="refuse larger images (default: %(default)s)",
    )
    group.add_argument(
        "--max_bytes", default="1GiB", metavar="SIZE", help="refuse larger files (default: 1GiB)"
    )
    group.add_argument(
        "--color_profile",
        default=defaults_image.color_profile.value,
        choices=[profile.value for profile in ColorProfile],
        help="embedded profiles: ignore, or convert to srgb (default: %(default)s)",
    )
    group.add_argument("--formats", metavar="LIST", help="accept only these, such as jpeg,png")
    group.add_argument(
        "--image_timeout",
        type=float,
        default=defaults_image.image_timeout,
        metavar="SECONDS",
        help="refuse images that take longer to decode; 0: no bound (default: %(default)s)",
    )
    group = parser.add_argument_group("output")
    group.add_argument("--output", required=True, metavar="DIR", help="the dataset directory")
    group.add_argument("--name", help="of the dataset (default: from --output)")
    group.add_argument(
        "--split",
        metavar="NAME=FRACTION,…",
        help="such as train=0.8,validation=0.1,test=0.1, where the input names no split",
    )
    group.add_argument(
        "--shard_size", default="256MiB", metavar="SIZE", help="at most (default: 256MiB)"
    )
    group.add_argument(
        "--num_shards", metavar="N|SPLIT=N,…", help="exactly, instead of --shard_size"
    )
    group.add_argument(
        "--compression",
        default=defaults_output.compression.value,
        choices=[compression.value for compression in Compression],
        help="of the shards (default: %(default)s)",
    )
    group.add_argument(
        "--feature_names",
        default=defaults_output.feature_names.value,
        choices=[names.value for names in FeatureNames],
        help="(default: %(default)s)",
    )
    group.add_argument(
        "--writer",
        default=defaults_output.writer.value,
        choices=[writer.value for writer in Writer],
        help="shard: deterministic; beam: Beam's own WriteToTFRecord (default: %(default)s)",
    )
    group.add_argument("--seed", type=int, default=0, help="of shuffle and splits (default: 0)")
    group.add_argument(
        "--overwrite", action="store_true", help="replace a dataset once the new one is complete"
    )
    group.add_argument(
        "--max_reject_fraction",
        type=float,
        default=defaults_output.max_reject_fraction,
        metavar="F",
        help="fail when more is refused (default: %(default)s)",
    )
    group.add_argument("--max_rejects", type=int, metavar="N", help="the same as a number")
    group.add_argument(
        "--license", metavar="TEXT", help="of the images, such as cc-by-4.0: goes into README.md"
    )
    group = parser.add_argument_group("run")
    group.add_argument(
        "--workers", type=int, metavar="N", help="local worker processes (default: one a core)"
    )
    group.add_argument(
        "--no_wait",
        action="store_true",
        help="start the job and return (on engines that go on alone)",
    )
    group.add_argument(
        "--shared_filesystem",
        action="store_true",
        help="local paths are the same on every worker's machine; each proves it",
    )
    group.add_argument("--dry_run", action="store_true", help="print the plan, write nothing")
    group.add_argument("--quiet", action="store_true", help="print only errors")
    group.add_argument("--verbose", action="store_true", help="print Beam's log too")
    parser.set_defaults(run=run, takes_beam_options=True)


def run(args: argparse.Namespace, beam_options: list[str]) -> int:
    """Runs the command and returns its exit code."""
    started = time.time()
    options = parse_options(args)

    def say(line: str) -> None:
        if not args.quiet:
            print(line, file=sys.stderr, flush=True)

    if args.dry_run:
        from beam_pipeline.dry_run import plan_text

        print(plan_text(options, announce=say))
        return 0
    from beam_pipeline.engine import fast_imports, prepare_engine

    prepare_engine(verbose=args.verbose)
    with contextlib.ExitStack() as stack:
        all_local = not beam_options and _all_local(options)
        if all_local and (args.workers is None or args.workers > 0):
            # While Beam is imported, workers start and the inputs are listed.
            from beam_pipeline.worker_pool import WorkerPool, available_cores

            stack.enter_context(WorkerPool(args.workers or available_cores(), options.input))
        with fast_imports(extras=not all_local):
            from beam_pipeline.pipeline import convert
        outcome = convert(
            options,
            beam_options=beam_options,
            workers=args.workers,
            progress=not args.quiet,
            announce=say,
            wait=not args.no_wait,
            shared_filesystem=args.shared_filesystem,
        )
    from beam_pipeline.runners import DetachedJob

    if isinstance(outcome, DetachedJob):
        print(outcome.text())
    elif not args.quiet:
        print(type(outcome)(outcome.info, time.time() - started).text())
    return 0


def _all_local(options: ConvertOptions) -> bool:
    """Whether every path that was given is on a local disk."""
    given = options.input
    paths = [*given.inputs, given.image_root, given.labels_file, options.output.output]
    return all(storage.is_local(path) for path in paths if path is not None)


def parse_options(args: argparse.Namespace) -> ConvertOptions:
    """The options that parsed arguments stand for; UsageError names the argument."""
    return ConvertOptions(
        input=InputOptions(
            inputs=tuple(args.input),
            kind=args.input_kind,
            layout=InputLayout(args.input_layout),
            label_from=args.label_from,
            path_column=args.path_column,
            label_column=args.label_column,
            split_column=args.split_column,
            group_column=args.group_column,
            delimiter="\t" if args.delimiter in ("tab", "\\t") else args.delimiter,
            image_root=args.image_root,
            features=parse_features(args.feature),
            labels_file=args.labels_file,
        ),
        image=ImageOptions(
            encoding=Encoding(args.encoding),
            resize=parse_resize(args.resize),
            resize_mode=ResizeMode(args.resize_mode),
            channels=None if args.channels == "keep" else int(args.channels),
            jpeg_quality=args.jpeg_quality,
            background=parse_color(args.background),
            max_pixels=args.max_pixels,
            max_bytes=min(parse_size("--max_bytes", args.max_bytes), (1 << 31) - 1),
            color_profile=ColorProfile(args.color_profile),
            formats=parse_formats(args.formats),
            image_timeout=args.image_timeout,
        ),
        output=OutputOptions(
            output=args.output,
            name=args.name,
            split=parse_split(args.split),
            shard_size=parse_size("--shard_size", args.shard_size),
            num_shards=parse_num_shards(args.num_shards),
            compression=Compression(args.compression),
            feature_names=FeatureNames(args.feature_names),
            writer=Writer(args.writer),
            seed=args.seed,
            overwrite=args.overwrite,
            max_reject_fraction=args.max_reject_fraction,
            max_rejects=args.max_rejects,
            license=args.license,
            equal_images=EqualImages(args.equal_images),
        ),
    )
