"""The last step of a conversion: prove that nothing is lost, then make the dataset appear.

Runs once, in one worker, on the small results of all shards; safe to repeat after a
failure. Order matters: shards, index and lists first, the files that other tools take for
a dataset after them, `_SUCCESS` last.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from beam_pipeline import card, dataset_info, index, metadata, storage
from beam_pipeline.dataset_info import DatasetInfo
from beam_pipeline.errors import ConversionError
from beam_pipeline.examples import FeatureSpec
from beam_pipeline.inputs import ListingReport
from beam_pipeline.options import Compression, ConvertOptions
from beam_pipeline.outcome import describe, failure_of
from beam_pipeline.output_directory import MOVES_FILE, failed_directory
from beam_pipeline.plan import ConversionPlan
from beam_pipeline.same_bytes import StoredImages, find_same_bytes
from beam_pipeline.shard_sink import finalize_shards
from beam_pipeline.tfrecord_writer import ShardResult
from beam_pipeline.types import Outcome

_REPLACED_MARK = "replaced"  # in staging: the old dataset is gone already
_PROOF_COLUMNS = ("outcome", "offset", "bytes", "sha256", "label")
_REMOTE_THREADS = 16
_LOCAL_THREADS = 2


@dataclasses.dataclass(frozen=True)
class FinalizeContext:
    """What the launcher knows of the run.

    Attributes:
      options: of the conversion; output.name is set.
      staging: the staging directory.
      replaced: names in the output directory that go.
      run: run id, command, versions, start time, plain options: stored as they are.
    """

    options: ConvertOptions
    staging: str
    replaced: tuple[str, ...]
    run: Mapping[str, Any]


def finalize(
    context: FinalizeContext,
    plan: ConversionPlan,
    report: ListingReport,
    specs: tuple[FeatureSpec, ...],
    results: Iterable[ShardResult],
) -> DatasetInfo:
    """Turns staged shards into a dataset, or into a report of why there is none.

    Returns:
      What was written. Where the run must fail (nothing written, too many rejects),
      `run["failure"]` says why, and the files lie in `{output}.failed`.

    Raises:
      ConversionError: inputs ≠ written + rejected + duplicates, or a staged file is
        not what its index says.
    """
    output = context.options.output.output
    earlier = _finished_by_this_run(context)
    if earlier is not None:
        return earlier
    ordered = sorted(results, key=lambda result: (result.split, result.number))
    ledger, stored = _prove(context, plan, report, ordered)
    same_bytes = find_same_bytes(
        stored, lambda shard, numbers: _index_rows(ordered[shard].index_path, numbers)
    )
    run = {**context.run, "same_bytes": same_bytes}
    info = describe(context.options, run, plan, report, specs, ordered, ledger)
    failure = failure_of(info, context.options.output)
    if failure is not None:
        info = dataclasses.replace(info, run={**info.run, "failure": failure})
        _keep_failed(context, info, ordered)
        _clear_staging(context)
        return info
    written = [result for result in ordered if result.path is not None]
    _announce_moves(context, info)
    _remove_replaced(context)
    for split in info.splits:
        paths = [str(result.path) for result in written if result.split == split]
        finalize_shards(context.options, split, context.staging, paths)
    _copy_index(context, ordered, output)
    files = {
        dataset_info.REJECTED_FILE: _rejected_text(ordered),
        dataset_info.SCHEMA_FILE: metadata.schema_pbtxt(info),
        dataset_info.CARD_FILE: card.dataset_card(info),
        dataset_info.FEATURES_FILE: metadata.tfds_features(info),
        dataset_info.CONVERSION_FILE: metadata.conversion_json(info),
        dataset_info.DATASET_INFO_FILE: metadata.tfds_dataset_info(info),
    }
    if info.labels is not None:
        files[dataset_info.LABELS_FILE] = dataset_info.labels_text(info.labels)
    for name, text in files.items():
        storage.write_bytes(storage.join(output, name), text.encode())
    if not storage.exists(storage.join(context.staging, MOVES_FILE)):
        # Ctrl-C or a cancelled job: the launcher has begun to remove what was moved.
        raise ConversionError("the run was stopped during its last step; nothing was kept")
    storage.delete_tree(failed_directory(output))  # of an earlier run; it is out of date now
    storage.write_bytes(storage.join(output, dataset_info.SUCCESS_FILE), b"")
    _clear_staging(context)
    return info


# ---------------------------------------------------------------- the proof


def _prove(
    context: FinalizeContext,
    plan: ConversionPlan,
    report: ListingReport,
    results: Sequence[ShardResult],
) -> tuple[dict[str, int], list[StoredImages]]:
    """Counts every input in the index files and compares; never trusts a counter."""
    label_ids = {name: number for number, name in enumerate(plan.labels or ())}
    with ThreadPoolExecutor(_threads(context)) as pool:
        counted = list(pool.map(lambda result: _count_shard(context, result, label_ids), results))
    outcomes: Counter[str] = Counter()
    for counts, _ in counted:
        outcomes.update(counts)
    ledger = {"inputs": report.listed, **{o.value: outcomes[o.value] for o in Outcome}}
    ledger["duplicates"] = ledger.pop(Outcome.DUPLICATE.value)
    accounted = ledger["written"] + ledger["rejected"] + ledger["duplicates"]
    if accounted != ledger["inputs"]:
        raise ConversionError(
            f"the run does not reconcile: {ledger['inputs']} inputs were listed, but "
            f"{ledger['written']} written + {ledger['rejected']} rejected + "
            f"{ledger['duplicates']} duplicates = {accounted}. Nothing was kept. Did files "
            "change while they were converted? Please run again, and report it if it stays"
        )
    return ledger, [stored for _, stored in counted]


def _count_shard(
    context: FinalizeContext, result: ShardResult, label_ids: Mapping[str, int]
) -> tuple[Mapping[str, int], StoredImages]:
    table = index.read_index(storage.read_bytes(result.index_path), _PROOF_COLUMNS)
    counts = index.ledger(table)
    if counts["written"] != result.records:
        raise ConversionError(
            f"shard {result.number} of {result.split} does not reconcile: its index has "
            f"{counts['written']} records, its writer counted {result.records}"
        )
    if result.path is not None:
        _check_staged_size(context, result, index.written_bytes(table))
    return counts, StoredImages(result.split, table, label_ids)


def _index_rows(path: str, numbers: Sequence[int]) -> list[dict[str, Any]]:
    """The rows of the index for these written records, 0-based."""
    table = index.read_index(storage.read_bytes(path), ("key", "split", "label", "position"))
    written = [row for row in table.to_pylist() if row["position"] is not None]
    return [written[number] for number in numbers]


def _check_staged_size(context: FinalizeContext, result: ShardResult, indexed: int) -> None:
    entry = storage.stat(str(result.path))
    found = None if entry is None else entry.size
    expected = result.bytes
    if context.options.output.compression is Compression.NONE and expected != indexed:
        raise ConversionError(
            f"shard {result.number} of {result.split}: {expected} bytes were written, "
            f"its index ends at {indexed}"
        )
    # A repeated finalize step finds the file renamed already; its size was checked then.
    if found is not None and found != expected:
        raise ConversionError(
            f"staged shard {result.path} has {found} bytes, expected {expected}: "
            "the storage lost or changed data"
        )


# ---------------------------------------------------------------- making it appear


def _finished_by_this_run(context: FinalizeContext) -> DatasetInfo | None:
    """The outcome, where an earlier attempt of this step came to its end and its answer was lost."""
    output = context.options.output.output
    places = [failed_directory(output)]
    if storage.stat(storage.join(output, dataset_info.SUCCESS_FILE)) is not None:
        places.insert(0, output)
    for place in places:
        path = storage.join(place, dataset_info.CONVERSION_FILE)
        if storage.stat(path) is None:
            continue
        try:
            info = DatasetInfo.from_json(place, json.loads(storage.read_bytes(path)))
        except Exception:
            continue  # a dataset of something else, about to be replaced
        if info.run.get("run_id") == context.run["run_id"]:
            _clear_staging(context)
            return info
    return None


def _clear_staging(context: FinalizeContext) -> None:
    """Removes what lost attempts left, also where the launcher is gone and cannot do it."""
    with contextlib.suppress(Exception):
        storage.delete_tree(context.staging)


def _announce_moves(context: FinalizeContext, info: DatasetInfo) -> None:
    """Writes down what is about to change, so that the next run can clean up after a crash."""
    appear = [shard.file for split in info.splits.values() for shard in split.shards]
    appear += [
        dataset_info.INDEX_DIRECTORY,
        dataset_info.REJECTED_FILE,
        dataset_info.SCHEMA_FILE,
        dataset_info.CARD_FILE,
        dataset_info.FEATURES_FILE,
        dataset_info.CONVERSION_FILE,
        dataset_info.DATASET_INFO_FILE,
        dataset_info.LABELS_FILE,
    ]
    moves = {"appear": appear, "disappear": list(context.replaced)}
    storage.write_bytes(storage.join(context.staging, MOVES_FILE), json.dumps(moves).encode())


def _remove_replaced(context: FinalizeContext) -> None:
    mark = storage.join(context.staging, _REPLACED_MARK)
    if not context.replaced or storage.exists(mark):
        return
    output = context.options.output.output
    # Without its marker the old dataset is no dataset any more, whatever happens next.
    names = sorted(context.replaced, key=lambda name: name != dataset_info.SUCCESS_FILE)
    for name in names:
        storage.delete_tree(storage.join(output, name))
    storage.write_bytes(mark, b"")


def _copy_index(context: FinalizeContext, results: Sequence[ShardResult], target: str) -> None:
    """Puts the index files in their place; those of renumbered shards get their final number.

    Copies, so that this step finds everything again when it is repeated.
    """
    directory = storage.join(target, dataset_info.INDEX_DIRECTORY)
    storage.make_directory(directory)
    written: Counter[str] = Counter()
    numbers = []
    for result in results:
        numbers.append(written[result.split])
        written[result.split] += result.path is not None

    def copy(result: ShardResult, number: int) -> None:
        data = storage.read_bytes(result.index_path)
        if result.path is not None and number != result.number:
            data = index.with_shard_number(data, number)
        name = f"{result.split}-{result.number:05d}.parquet"
        storage.write_bytes(storage.join(directory, name), data)

    with ThreadPoolExecutor(_threads(context)) as pool:
        list(pool.map(copy, results, numbers))


def _threads(context: FinalizeContext) -> int:
    return _LOCAL_THREADS if storage.is_local(context.staging) else _REMOTE_THREADS


def _rejected_text(results: Sequence[ShardResult]) -> str:
    lines: list[str] = []
    for result in results:
        if result.rejected_path is not None:
            lines += storage.read_bytes(result.rejected_path).decode().splitlines()
    lines.sort(key=lambda line: (json.loads(line)["key"], line))
    return "".join(line + "\n" for line in lines)


def _keep_failed(
    context: FinalizeContext, info: DatasetInfo, results: Sequence[ShardResult]
) -> None:
    """Keeps what was learned beside the output, under a name that no reader takes for a dataset."""
    target = failed_directory(context.options.output.output)
    storage.delete_tree(target)
    storage.make_directory(target)
    _copy_index(context, results, target)
    text = _rejected_text(results)
    storage.write_bytes(storage.join(target, dataset_info.REJECTED_FILE), text.encode())
    path = storage.join(target, dataset_info.CONVERSION_FILE)
    storage.write_bytes(path, metadata.conversion_json(info).encode())
