"""Serialized Examples → columns of their metadata, with every Example that does not fit named."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from beam_pipeline.checks.shards import metadata_decoder
from beam_pipeline.checks.wire import BytesFeatureFinder, WireError, parse_example
from beam_pipeline.examples import FeatureSpec, Role


class Misfit(NamedTuple):
    """An Example that does not follow the schema: its place in the batch, and why."""

    row: int
    kind: str  # "not_an_example" or "feature_wrong"
    detail: str


class Columns(NamedTuple):
    """The metadata of the Examples that fit.

    Attributes:
      rows: int64 [N], their places in the batch, ascending.
      values: feature name → Arrow array of N single values (large_binary, int64 or
        float32); features that are lists are left out.
      misfits: the Examples that do not.
    """

    rows: np.ndarray
    values: dict[str, pa.Array]
    misfits: list[Misfit]


class MetadataReader:
    """Reads batches of Examples without touching pixels."""

    def __init__(self, specs: Sequence[FeatureSpec]):
        image = next((spec.name for spec in specs if spec.role is Role.IMAGE), None)
        self._image = None if image is None else BytesFeatureFinder(image)
        self._specs = {spec.name: spec for spec in specs}
        self._columns = [spec for spec in specs if spec.role is not Role.IMAGE]
        self._specs_read = tuple(specs)
        self._decoder = metadata_decoder(specs)

    def slim(self, record: bytes) -> bytes:
        """The Example without its image: the decoder copies also what it leaves out."""
        bounds = None if self._image is None else self._image.find(record)
        return record if bounds is None else self._image.without(record, bounds[1])  # type: ignore[union-attr]

    def read(self, records: list[bytes]) -> Columns:
        """The columns of Examples, slim or not, and what does not fit; give it thousands."""
        rows = np.arange(len(records))
        misfits: list[Misfit] = []
        try:
            batch = self._decode(records)
        except Exception:  # one bad Example refuses the whole batch: find out which
            good = []
            for row, record in enumerate(records):
                try:
                    self._decode([record])
                    good.append(row)
                except Exception as error:
                    misfits.append(self._explain(row, record, error))
            rows = np.array(good, np.int64)
            if not good:
                return Columns(rows, {}, misfits)
            batch = self._decode([records[row] for row in good])
        single = np.ones(len(rows), bool)
        for spec in self._columns:
            if not spec.repeated:
                column = batch.column(batch.schema.get_field_index(spec.name))
                lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
                single &= lengths == 1
        if not single.all():
            for i in np.flatnonzero(~single):
                misfits.append(self._explain(int(rows[i]), records[rows[i]], None))
            batch = batch.filter(pa.array(single))
            rows = rows[single]
        values = {}
        for spec in self._columns:
            if not spec.repeated:
                column = batch.column(batch.schema.get_field_index(spec.name))
                values[spec.name] = column.flatten()
        return Columns(rows, values, misfits)

    def _decode(self, records: list[bytes]) -> pa.RecordBatch:
        try:
            return self._decoder.DecodeBatch(records)
        except Exception:
            # What it had decoded before the error would turn up in the next batch.
            self._decoder = metadata_decoder(self._specs_read)
            raise

    def _explain(self, row: int, record: bytes, error: Exception | None) -> Misfit:
        try:
            wrong = "; ".join(feature_faults(record, self._specs.values()))
        except WireError as wire_error:
            return Misfit(row, "not_an_example", f"not a tf.train.Example: {wire_error}")
        if wrong:
            return Misfit(row, "feature_wrong", wrong)
        first_line = str(error).splitlines()[0] if str(error) else "it cannot be decoded"
        return Misfit(row, "not_an_example", first_line)


def feature_faults(record: bytes, specs: Iterable[FeatureSpec]) -> Iterator[str]:
    """What of the schema one Example does not keep, feature by feature; exact and slow.

    Raises:
      WireError: it is no Example.
    """
    features = parse_example(record)
    for spec in specs:
        wanted = "bytes" if spec.type == "text" else spec.type
        feature = features.get(spec.name)
        if feature is None or not feature.kind:
            if not spec.repeated:
                yield f"feature {spec.name!r} is missing, expected one {wanted}"
        elif feature.kind != wanted:
            yield f"feature {spec.name!r} is {feature.kind}, expected {wanted}"
        elif not spec.repeated and len(feature.values) != 1:
            yield f"feature {spec.name!r} has {len(feature.values)} values, expected one"


def unknown_features(record: bytes, specs: Sequence[FeatureSpec]) -> list[str]:
    """Names of features that are not in the schema."""
    return sorted(parse_example(record).keys() - {spec.name for spec in specs})
