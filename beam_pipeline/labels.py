"""Class names and their ids: the label map, the labels file, and names that look alike.

Without a labels file the names are sorted in natural order: runs of digits compare as
numbers, everything else by code point, so that `2` stands before `10` and `class9`
before `class10`. A name's position is its id: 0 to N - 1, without gaps.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Sequence

from beam_pipeline import storage
from beam_pipeline.errors import InputError

_DIGITS = re.compile(r"([0-9]+)")
_NAMED = 20  # names that an error lists


def natural_order(name: str) -> tuple[tuple[object, ...], str]:
    """Sort key of a class name: digit runs as numbers; the name itself decides ties."""
    parts: list[object] = list(_DIGITS.split(name))
    for i in range(1, len(parts), 2):
        digits = str(parts[i]).lstrip("0")
        parts[i] = (len(digits), digits)  # int() refuses thousands of digits
    return tuple(parts), name


def build_label_map(
    names: Iterable[str], given: Sequence[str] | None = None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The class names by id, and what the user should know about them.

    Args:
      names: every class name that occurs, in any order, repeated or not.
      given: the names of a labels file, in the order that fixes their ids; classes
        that do not occur keep their ids.

    Returns:
      (class names, warnings): `given` as it is, or `names` in natural order; a warning
      for names that differ only in case, spaces or Unicode form.

    Raises:
      InputError: a name is not among `given`; the message lists the known ones.
    """
    found = set(names)
    if given is None:
        labels = tuple(sorted(found, key=natural_order))
    else:
        unknown = sorted(found - set(given), key=natural_order)
        if unknown:
            raise InputError(_unknown_labels(unknown, given))
        labels = tuple(given)
    return labels, look_alikes(labels)


def _unknown_labels(unknown: Sequence[str], given: Sequence[str]) -> str:
    hints = []
    for name in unknown[:3]:
        folded = {_folded(known): known for known in reversed(given)}
        close = difflib.get_close_matches(_folded(name), folded, n=1)
        if close:
            hints.append(f"{name!r} may mean {folded[close[0]]!r}")
    hint = f" ({'; '.join(hints)})" if hints else ""
    return (
        f"{'label' if len(unknown) == 1 else 'labels'} not in the labels file: "
        f"{quoted(unknown)}{hint}. It has {len(given)}: {quoted(given)}. "
        "Add what is missing to the file, or correct the input"
    )


def quoted(names: Sequence[str], most: int = _NAMED) -> str:
    """Names for a message: each quoted so that odd ones are seen, the list cut when long."""
    text = ", ".join(map(repr, names[:most]))
    return text if len(names) <= most else f"{text} and {len(names) - most} more"


def _folded(name: str) -> str:
    return "".join(unicodedata.normalize("NFKC", name).casefold().split())


def look_alikes(labels: Sequence[str]) -> tuple[str, ...]:
    """A warning that names the classes that are probably one, written in two ways; or none."""
    twins: dict[str, list[str]] = defaultdict(list)
    for label in labels:
        twins[_folded(label)].append(label)
    groups = [" and ".join(map(repr, same)) for same in twins.values() if len(same) > 1]
    if not groups:
        return ()
    more = f"; and {len(groups) - _NAMED} more" if len(groups) > _NAMED else ""
    return (
        f"labels that differ only in case, spaces or Unicode form: {'; '.join(groups[:_NAMED])}"
        f"{more}. They stay different classes: rename them if they are one",
    )


def read_labels_file(uri: str) -> tuple[str, ...]:
    r"""The class names of a labels file: one per line, the first has id 0.

    A byte order mark, CRLF and empty lines at the end are fine. `\n` and `\\` stand for
    a newline and a backslash, as in the label.labels.txt of a dataset.

    Raises:
      InputError: it does not exist, is not UTF-8, is empty, has an empty line or has a
        name twice; the message gives the line.
    """
    entry = storage.stat(uri)
    if entry is None or entry.kind != "file":
        raise InputError(f"the labels file {uri} does not exist")
    data = storage.read_bytes(uri, max_bytes=64 << 20)  # 64 MiB
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        at = data.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"the labels file {uri} is not UTF-8 (line {at}); save it as UTF-8"
        ) from error
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise InputError(f"the labels file {uri} is empty; expected one class name per line")
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        name = _unescaped(line)
        if not name.strip():
            raise InputError(f"the labels file {uri} has no class name in line {number}")
        if name in seen:
            raise InputError(
                f"the labels file {uri} has {name!r} twice, in lines {seen[name]} and {number}"
            )
        seen[name] = number
    return tuple(seen)


def _unescaped(line: str) -> str:
    if "\\" not in line:
        return line
    return re.sub(r"\\([\\n])", lambda match: "\n" if match.group(1) == "n" else "\\", line)
