"""What runs in a worker process: `python -m beam_pipeline.worker_main [DESCRIPTOR]`.

A plain process that loads Pillow and the encoder but neither Beam nor TensorFlow, and
starts in a few tenths of a second. It ends by itself when its parent is gone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import pickle
import queue
import signal
import sys
import threading
from typing import TYPE_CHECKING, BinaryIO

from beam_pipeline.lean_imports import load_arrow
from beam_pipeline.listing_ahead import serve_listing
from beam_pipeline.options import InputOptions
from beam_pipeline.shared_slots import SharedSlots
from beam_pipeline.types import ImageRef

if TYPE_CHECKING:
    from beam_pipeline.records import RecordMaker

# Parts of a listing, of a few kB and 80 at most, that wait for a parent which is busy.
_LISTED_AHEAD = 512
_END = object()


def _serve(requests: BinaryIO, answers: BinaryIO, slots: SharedSlots | None) -> None:
    inputs = pickle.load(requests)
    if inputs is not None:
        _list(inputs, answers)
    load_arrow()
    from beam_pipeline.imaging.decoder_warnings import quiet_decoders
    from beam_pipeline.records import RecordMaker

    quiet_decoders()
    # What is imported stays, and records hold no cycles: collecting rarely is enough.
    gc.freeze()
    gc.set_threshold(50_000)
    maker: RecordMaker | None = None
    while True:
        try:
            request = pickle.load(requests)
        except EOFError:
            return
        if isinstance(request, RecordMaker):
            maker = request
            continue
        assert maker is not None
        refs, slot = request
        buffer = None if slots is None or slot is None else slots.view(slot)
        pickle.dump(_answer(maker, refs, buffer), answers, protocol=5)
        answers.flush()


def _list(inputs: InputOptions, answers: BinaryIO) -> None:
    # The parent may look only when the pipe has long been full.
    parts: queue.Queue[object] = queue.Queue(_LISTED_AHEAD)
    sender = threading.Thread(target=_send, args=(parts, answers))
    sender.start()
    try:
        serve_listing(inputs, parts.put)
    except Exception as error:
        parts.put(_sendable(error))
    parts.put(_END)
    sender.join()


def _send(parts: queue.Queue[object], answers: BinaryIO) -> None:
    try:
        while (part := parts.get()) is not _END:
            pickle.dump(part, answers, protocol=5)
            answers.flush()
    except BrokenPipeError:
        os._exit(0)  # the parent is gone


def _answer(
    maker: RecordMaker, refs: list[tuple], buffer: memoryview | None
) -> tuple[object, int | None]:
    """A chunk, or what was raised; and how much of the buffer it fills if its data is there."""
    try:
        chunk = maker.make_chunk([ImageRef._make(fields) for fields in refs], buffer)
    except Exception as error:
        return _sendable(error), None
    if isinstance(chunk.data, memoryview):
        return dataclasses.replace(chunk, data=b""), len(chunk.data)
    return chunk, None


def _sendable(error: Exception) -> Exception:
    """`error`, or a description of it where it cannot be pickled."""
    import traceback

    trace = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.__cause__ = None
    error.add_note(trace) if hasattr(error, "add_note") else None
    return error


def _main() -> None:
    # Ctrl-C reaches the whole process group; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Nothing that a library prints may end up between the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    threading.current_thread().name = "imagebeam worker"
    slots = SharedSlots(int(sys.argv[1])) if sys.argv[1:] else None
    with contextlib.suppress(BrokenPipeError):
        _serve(sys.stdin.buffer, answers, slots)
    os._exit(0)  # the parent may be gone: do not wait for, or complain at, exit handlers


if __name__ == "__main__":
    _main()
