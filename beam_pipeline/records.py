"""ImageRefs → serialized Examples, rejects and index rows: all the work on one image.

The path of an image: storage.read_bytes → images.prepare_image → ExampleEncoder. This
module needs neither Beam nor TensorFlow, so that worker processes start fast.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pyarrow as pa

from beam_pipeline import images, storage
from beam_pipeline.errors import ImageRejectedError, InputError
from beam_pipeline.examples import ExampleEncoder, FeatureSpec, feature_specs
from beam_pipeline.imaging.decoder_warnings import take_decoder_warnings
from beam_pipeline.index import IndexRow, to_arrow
from beam_pipeline.inputs.fer2013 import parse_pixels
from beam_pipeline.keys import to_key
from beam_pipeline.labels import quoted
from beam_pipeline.options import ConvertOptions, Encoding, ImageOptions
from beam_pipeline.plan import UNKNOWN_SIZE, ConversionPlan
from beam_pipeline.tfrecord_format import frame, frame_into
from beam_pipeline.types import (
    ImageRecord,
    ImageRef,
    Outcome,
    PreparedImage,
    RejectedImage,
    RejectReason,
    Stage,
)

# References handed over at once: enough to hide the cost of handing over, few enough
# that the results of all workers together stay small in memory.
MIN_CHUNK_IMAGES = 16
MAX_CHUNK_IMAGES = 256
CHUNK_BYTES = 2 << 20  # 2 MiB of input
# Objects in a remote store are fetched side by side: each costs a round trip.
REMOTE_READ_THREADS = 16


class Records(NamedTuple):
    """The outcome of some references.

    Attributes:
      examples: serialized Examples of the images that are written, in order.
      rows: one per reference, in order; the written ones in the order of `examples`.
      rejected: the refused ones.
      input_bytes: bytes read.
      warnings: kind of decoder warning → how often.
    """

    examples: list[bytes]
    rows: list[IndexRow]
    rejected: list[RejectedImage]
    input_bytes: int
    warnings: Counter[str]


@dataclasses.dataclass(frozen=True)
class Chunk:
    """The outcome of a chunk of references, ready to be appended to a shard.

    Everything that can be computed is: whoever writes a shard is one process, the
    workers are many.

    Attributes:
      data: the written records with their TFRecord framing; where it is a memoryview,
        it is good until the next chunk is asked for.
      rows: the index rows, one per reference; see index.to_arrow.
      rejected: the refused ones.
      counts: "outcomes", "classes", "formats", "notes", "warnings" → value → how often.
      channels: channel count → images.
      sizes: distinct (height, width), at most two of them.
      input_bytes: bytes read.
    """

    data: bytes | memoryview
    rows: pa.RecordBatch
    rejected: list[RejectedImage]
    counts: dict[str, Counter[str]]
    channels: Counter[int]
    sizes: set[tuple[int, int]]
    input_bytes: int

    @classmethod
    def of(cls, records: Records, buffer: memoryview | None = None) -> Chunk:
        """Frames records (into `buffer` if they fit) and adds up what is told of them."""
        data = None if buffer is None else frame_into(buffer, records.examples)
        written = [row for row in records.rows if row.record_bytes is not None]
        notes: Counter[str] = Counter()
        for row in written:
            if row.notes:
                notes.update(row.notes.split(","))
        return cls(
            data=frame(records.examples) if data is None else data,
            rows=to_arrow(records.rows),
            rejected=records.rejected,
            counts={
                "outcomes": Counter(row.outcome for row in records.rows),
                "classes": Counter(row.label or "" for row in written),
                "formats": Counter(row.format or "" for row in written),
                "notes": notes,
                "warnings": records.warnings,
            },
            channels=Counter(row.channels or 0 for row in written),
            sizes=set(sorted({(row.height or 0, row.width or 0) for row in written})[:2]),
            input_bytes=records.input_bytes,
        )


def chunks(refs: Sequence[ImageRef], image: ImageOptions) -> Iterator[list[ImageRef]]:
    """Cuts references into chunks of bounded count and (as far as sizes are known) bytes.

    Few references make small chunks, so that every worker gets some.
    """
    # Raw pixels are an order of magnitude larger than the file that they come from.
    growth = 12 if image.encoding is Encoding.RAW and image.resize is None else 1
    limit = min(MAX_CHUNK_IMAGES, max(MIN_CHUNK_IMAGES, len(refs) // 32))
    chunk: list[ImageRef] = []
    size = 0
    for ref in refs:
        expected = (ref.size if ref.size >= 0 else UNKNOWN_SIZE) * growth
        if chunk and (len(chunk) >= limit or size + expected > CHUNK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(ref)
        size += expected
    if chunk:
        yield chunk


@dataclasses.dataclass(frozen=True)
class RecordMaker:
    """Turns references into records; picklable, the same in every kind of worker.

    Attributes:
      image: what is accepted and how it is stored.
      specs: the features of an Example.
      labels: class names by id, or None.
      storage: how object stores are reached.
    """

    image: ImageOptions
    specs: tuple[FeatureSpec, ...]
    labels: tuple[str, ...] | None
    storage: storage.StorageConfig = dataclasses.field(default_factory=storage.StorageConfig)

    def make(self, refs: Sequence[ImageRef]) -> Records:
        """Reads, checks, encodes and serializes `refs`, in order.

        Raises:
          StorageError: the environment failed (never because of one bad file).
          InputError: a label is not among `labels`.
        """
        storage.configure(self.storage)
        label_ids = {name: number for number, name in enumerate(self.labels or ())}
        records: list[ImageRecord] = []
        rows: list[IndexRow] = []
        rejected: list[RejectedImage] = []
        input_bytes = 0
        for ref, data in zip(refs, _read_all(refs, self.image.max_bytes), strict=True):
            stage = Stage.READ
            try:
                if ref.problem is not None:
                    if ref.problem.outcome is Outcome.DUPLICATE:
                        rows.append(_row(ref, Outcome.DUPLICATE, ref.problem.detail or None))
                        continue
                    stage = Stage.LIST
                    raise ImageRejectedError(RejectReason(ref.problem.reason), ref.problem.detail)
                if isinstance(data, ImageRejectedError):
                    raise data
                assert data is not None
                input_bytes += len(data)
                if self.labels is not None and ref.label is None:
                    stage = Stage.LIST
                    raise ImageRejectedError(
                        RejectReason.NO_LABEL, "it has no label, while other inputs have one"
                    )
                stage = Stage.DECODE
                prepared = self._prepare(ref, data)
            except ImageRejectedError as error:
                rejected.append(
                    RejectedImage(
                        ref.key,
                        to_key(ref.uri),
                        stage.value,
                        error.reason.value,
                        error.detail,
                        ref.row,
                    )
                )
                rows.append(_row(ref, Outcome.REJECTED, error.reason.value))
                continue
            record = ImageRecord(
                key=ref.key,
                image=prepared,
                sha256=hashlib.sha256(prepared.data).hexdigest(),
                label=self._label_id(ref, label_ids),
                label_name=ref.label,
                features=ref.features,
            )
            records.append(record)
            rows.append(_written_row(ref, record))
        serialized = ExampleEncoder(self.specs).encode(records)
        lengths = iter(serialized)
        rows = [
            row._replace(record_bytes=len(next(lengths)))
            if row.outcome == Outcome.WRITTEN.value
            else row
            for row in rows
        ]
        warnings = Counter(take_decoder_warnings())
        return Records(serialized, rows, rejected, input_bytes, warnings)

    def make_chunk(self, refs: Sequence[ImageRef], buffer: memoryview | None = None) -> Chunk:
        """The same as `make`, ready to be appended to a shard; `buffer`: see Chunk.of."""
        return Chunk.of(self.make(refs), buffer)

    def _label_id(self, ref: ImageRef, label_ids: dict[str, int]) -> int | None:
        if self.labels is None or ref.label is None:
            return None
        try:
            return label_ids[ref.label]
        except KeyError:
            raise InputError(
                f"{ref.key} has the label {ref.label!r}, expected one of {quoted(self.labels)}"
            ) from None

    def _prepare(self, ref: ImageRef, data: bytes) -> PreparedImage:
        if ref.pixels == "fer2013":
            return images.prepare_pixels(parse_pixels(data, ref.row), self.image)
        return images.prepare_image(data, self.image)


def make_specs(options: ConvertOptions, plan: ConversionPlan) -> tuple[FeatureSpec, ...]:
    """The features of every Example that a conversion writes."""
    return feature_specs(
        options.output.feature_names,
        labelled=plan.labels is not None,
        encoding=options.image.encoding,
        extra={
            name: (kind, name in plan.repeated_features)
            for name, kind in options.input.features.items()
        },
    )


def _read_all(
    refs: Sequence[ImageRef], max_bytes: int
) -> Iterator[bytes | ImageRejectedError | None]:
    """The bytes of every reference, or why there are none; None where none are wanted."""

    def read(ref: ImageRef) -> bytes | ImageRejectedError | None:
        if ref.problem is not None:
            return None
        try:
            return storage.read_bytes(ref.uri, ref.byte_range, max_bytes)
        except ImageRejectedError as error:
            return error

    if all(storage.is_local(ref.uri) for ref in refs):
        yield from map(read, refs)
    else:
        with ThreadPoolExecutor(REMOTE_READ_THREADS) as pool:
            yield from pool.map(read, refs)


def _row(ref: ImageRef, outcome: Outcome, reason: str | None) -> IndexRow:
    return IndexRow(ref.key, outcome.value, reason, ref.row, ref.label, ref.group, *([None] * 9))


def _written_row(ref: ImageRef, record: ImageRecord) -> IndexRow:
    image = record.image
    return IndexRow(
        key=ref.key,
        outcome=Outcome.WRITTEN.value,
        reason=None,
        row=ref.row,
        label=ref.label,
        group=ref.group,
        record_bytes=None,
        sha256=record.sha256,
        height=image.height,
        width=image.width,
        channels=image.channels,
        format=image.format,
        source_format=image.source_format,
        image_bytes=len(image.data),
        notes=",".join(image.notes),
    )


def measure_size_ratio(refs: Sequence[ImageRef], image: ImageOptions) -> float:
    """Stored bytes per source byte over a sample of references; 1 where none can be read."""
    source = stored = 0
    maker = RecordMaker(image, (), None)
    for ref, data in zip(refs, _read_all(refs, image.max_bytes), strict=True):
        if not isinstance(data, bytes):
            continue
        try:
            stored += len(maker._prepare(ref, data).data)
        except ImageRejectedError:
            continue
        source += ref.size if ref.size > 0 else len(data)
    return stored / source if source and stored else 1.0
