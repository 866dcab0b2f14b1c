"""Glob patterns over any storage, by listing only the directories that can match."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterator

from beam_pipeline.storage.paths import DIRECTORY, Entry, join, local_path, root_length, walk_order

_MAGIC = re.compile(r"[*?\[]")

Stat = Callable[[str], Entry | None]
ListDirectory = Callable[[str], list[Entry]]


def has_magic(pattern: str) -> bool:
    """Whether `pattern` holds a character that makes it a pattern."""
    return _MAGIC.search(pattern) is not None


def split_pattern(pattern: str, stat: Stat) -> tuple[str, list[str]]:
    """The longest literal directory prefix of `pattern`, and the names that follow it.

    A name with `[` counts as literal when a directory is called exactly so:
    unlike `*` and `?`, it would not match itself as a pattern.
    """
    pattern = local_path(pattern)
    root = root_length(pattern)
    base, names = pattern[:root], [name for name in pattern[root:].split("/") if name]
    while len(names) > 1:
        if has_magic(names[0]):
            entry = None
            if "[" in names[0] and "*" not in names[0] and "?" not in names[0]:
                entry = stat(join(base, names[0]))
            if entry is None or entry.kind != DIRECTORY:
                break
        base = join(base, names.pop(0))
    return base, names


def glob(
    pattern: str,
    stat: Stat,
    list_directory: ListDirectory,
    identity: Callable[[str], object],
    skip: Callable[[str], bool] | None,
) -> Iterator[Entry]:
    """See `storage.glob`. `identity` of a directory is equal for two paths to one place."""
    entry = stat(pattern)
    if entry is not None:
        yield entry
        return
    base, names = split_pattern(pattern, stat)
    found = stat(base or ".")
    if not has_magic("/".join(names)) or found is None or found.kind != DIRECTORY:
        return
    if names[-1] == "**":
        names.append("*")
    matches = [
        None if name == "**" else re.compile(fnmatch.translate(name)).match for name in names
    ]

    def step(states: frozenset[int], name: str) -> frozenset[int]:
        """From each "names[i:] are left to match", what is left after `name`."""
        following = set()
        for state in states:
            while matches[state] is None:  # ** takes this name, or no name at all
                following.add(state)
                state += 1
            if matches[state](name):  # type: ignore[misc]
                following.add(state + 1)
        return frozenset(following)

    def expand(
        directory: str, prefix: str, states: frozenset[int], above: frozenset[object]
    ) -> Iterator[Entry]:
        here = identity(directory)
        if here in above:
            return  # a link to a folder that we are in: the loop ends here
        above = above | {here}
        for entry in sorted(list_directory(directory), key=walk_order):
            if skip is not None and skip(entry.path):
                continue
            following = step(states, entry.path)
            path = prefix + entry.path
            if len(names) in following:
                yield entry._replace(path=path)
            deeper = following - {len(names)}
            if entry.kind == DIRECTORY and deeper:
                yield from expand(entry.uri, path + "/", deeper, above)

    yield from expand(base, "", frozenset([0]), frozenset())
