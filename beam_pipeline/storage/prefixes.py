"""Directories found in a sorted listing of names that only look like paths."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from beam_pipeline.storage.paths import DIRECTORY, FILE


def walk_paths(
    listing: Iterable[tuple[str, int]], skip: Callable[[str], bool] | None, directories: bool
) -> Iterator[tuple[str, str, int]]:
    """A walk, as `storage.walk` describes it, over the sorted names below a directory.

    Args:
      listing: (path, size in bytes), sorted; a path that ends in `/` stands for
        an empty directory.
      skip: is asked once about each file and directory name.
      directories: yield every directory, not only those with nothing left in them.

    Yields:
      (path, kind, size); -1 for directories.
    """
    # The directories that the last path was in, and whether anything in them was yielded.
    inside: list[tuple[str, list[bool]]] = []
    skipped: str | None = None

    def leave(path: str) -> Iterator[tuple[str, str, int]]:
        while inside and not path.startswith(inside[-1][0] + "/"):
            folder, used = inside.pop()
            if not used[0]:
                yield folder, DIRECTORY, -1

    for path, size in listing:
        if not path or (skipped is not None and path.startswith(skipped)):
            continue
        yield from leave(path)
        start = len(inside[-1][0]) + 1 if inside else 0
        while (cut := path.find("/", start)) >= 0:
            folder = path[:cut]
            if skip is not None and skip(path[start:cut]):
                skipped = folder + "/"
                break
            for _, used in inside:
                used[0] = True
            inside.append((folder, [directories]))
            if directories:
                yield folder, DIRECTORY, -1
            start = cut + 1
        else:
            name = path[start:]
            if not name or (skip is not None and skip(name)):
                continue
            for _, used in inside:
                used[0] = True
            yield path, FILE, size
    yield from leave("")
