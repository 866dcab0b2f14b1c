"""Decoder warnings are counted, and nothing of them reaches stderr."""

from __future__ import annotations

import subprocess
import sys
import textwrap

from beam_pipeline.imaging.decoder_warnings import describe_warnings

# Damaged TIFFs that make Pillow warn in Python and log, and libtiff write from C.
DAMAGED = """
    import sys
    from PIL import Image
    from beam_pipeline.errors import ImageRejectedError
    from beam_pipeline.imaging.decoder_warnings import (
        describe_warnings, quiet_decoders, take_decoder_warnings
    )
    from beam_pipeline.images import prepare_image
    from beam_pipeline.options import ImageOptions
    from tests.beam_pipeline.image_samples import seeds

    def decode_damaged():
        for name, data in seeds().items():
            if not name.startswith("tiff"):
                continue
            for position in range(8, len(data), 7):
                damaged = data[:position] + b"\\xff" + data[position + 1:]
                for file in (damaged, data[:position]):
                    try:
                        prepare_image(file, ImageOptions())
                    except ImageRejectedError:
                        pass
"""


def _run(code: str) -> subprocess.CompletedProcess[str]:
    program = textwrap.dedent(DAMAGED) + textwrap.dedent(code)
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    )


def test_without_the_call_stderr_is_flooded() -> None:
    # Else the next test would prove nothing.
    noise = _run("decode_damaged()").stderr
    assert "UserWarning" in noise
    assert "Fax" in noise or "LZW" in noise or "tempfile.tif" in noise
    assert len(noise.splitlines()) > 50


def test_nothing_reaches_stderr_and_all_is_counted() -> None:
    result = _run(
        """
        quiet_decoders()
        quiet_decoders()  # once more changes nothing
        decode_damaged()
        counts = take_decoder_warnings()
        assert take_decoder_warnings() == {}
        print(*describe_warnings(counts), sep="\\n")
        """
    )
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert len(lines) < 100
    assert sum(line.startswith("libtiff: ") for line in lines) > 3
    assert sum(line.startswith("Pillow: ") for line in lines) >= 2
    assert any("Corrupt EXIF data. Expecting to read N bytes" in line for line in lines)
    kinds = [line.rpartition(" (")[0] for line in lines]
    assert len(kinds) == len(set(kinds))


def test_other_warnings_are_still_shown() -> None:
    result = _run(
        """
        import warnings, logging
        quiet_decoders()
        warnings.warn("of somebody else")
        logging.getLogger("somebody").warning("a record of somebody else")
        logging.getLogger("PIL.TiffImagePlugin").warning("a record of Pillow 17")
        logging.getLogger("PIL.TiffImagePlugin").debug("not worth a word")
        assert take_decoder_warnings() == {"Pillow: a record of Pillow N": 1}
        """
    )
    assert "UserWarning: of somebody else" in result.stderr
    assert "a record of somebody else" in result.stderr
    assert "Pillow" not in result.stderr


def test_threads_count_together_and_results_stay_the_same() -> None:
    result = _run(
        """
        from concurrent.futures import ThreadPoolExecutor
        quiet_decoders()
        decode_damaged()
        alone = take_decoder_warnings()
        with ThreadPoolExecutor(4) as pool:
            for job in [pool.submit(decode_damaged) for _ in range(4)]:
                job.result()
        together = take_decoder_warnings()
        assert together == {kind: 4 * count for kind, count in alone.items()}, (alone, together)
        """
    )
    assert result.stderr == ""


def test_the_number_of_kinds_is_bounded() -> None:
    result = _run(
        """
        import logging
        quiet_decoders()
        for number in range(500):
            logging.getLogger("PIL").warning("kind " + "x" * number + "\\n\\x1b[31m")
        counts = take_decoder_warnings()
        assert sum(counts.values()) == 500
        assert len(counts) <= 101
        assert counts["other warnings"] > 0
        assert all(len(kind) < 140 and kind.isascii() for kind in counts)
        """
    )
    assert result.stderr == ""


def test_lines_are_ordered_by_count() -> None:
    assert describe_warnings({"a": 1, "b": 12, "c": 1}) == ["b (12×)", "a (1×)", "c (1×)"]
