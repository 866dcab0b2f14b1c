"""Local disk: list, read and write with the names taken literally."""

from __future__ import annotations

import errno
import os
import shutil
import stat as stat_module
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, NoReturn, cast

from beam_pipeline.errors import ImageRejectedError, StorageError
from beam_pipeline.storage.paths import (
    BROKEN_LINK,
    DIRECTORY,
    FILE,
    OTHER,
    Entry,
    join,
    local_path,
    walk_order,
)
from beam_pipeline.types import RejectReason

# What the operating system says about a name that leads nowhere.
_NOWHERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EILSEQ)
_READ_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
_LARGEST_READ = 1 << 30  # 1 GiB; Linux reads at most 2 GiB in one call

_MEND = {
    errno.EACCES: "check the permissions of the path and of the folders above it",
    errno.EPERM: "check the permissions of the path and of the folders above it",
    errno.ENOSPC: "free some disk space, or choose another disk",
    errno.EDQUOT: "the disk quota of this user is used up",
    errno.EROFS: "the file system is read-only; choose another place",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the limit of open files of this machine",
    errno.EIO: "the disk or network drive is failing; check it (dmesg)",
    errno.ESTALE: "the network drive was remounted; run again",
    errno.ENOENT: "check the spelling of the path",
    errno.ENOTDIR: "a part of the path is a file",
    errno.EEXIST: "something else is there already",
    errno.ENOTEMPTY: "the target directory is not empty",
}


def storage_error(action: str, path: str, error: OSError | ValueError) -> StorageError:
    """A StorageError that names the path, the cause and, where one is known, the remedy."""
    cause = getattr(error, "strerror", None) or str(error)
    mend = _MEND.get(getattr(error, "errno", None) or 0)
    return StorageError(f"cannot {action} {path!r}: {cause}" + (f" ({mend})" if mend else ""))


def _kind(mode: int) -> str:
    if stat_module.S_ISREG(mode):
        return FILE
    return DIRECTORY if stat_module.S_ISDIR(mode) else OTHER


def stat(uri: str) -> Entry | None:
    """What is at `uri`, or None. See `storage.stat`."""
    path = local_path(uri)
    name = os.path.basename(path.rstrip("/"))
    try:
        status = os.stat(path)
    except ValueError:  # a NUL in the name
        return None
    except OSError as error:
        if error.errno not in _NOWHERE:
            raise storage_error("look at", path, error) from error
        return Entry(path, name, BROKEN_LINK) if os.path.islink(path) else None
    kind = _kind(status.st_mode)
    return Entry(path, name, kind, status.st_size if kind == FILE else -1)


def _scan(
    path: str, prefix: str, skip: Callable[[str], bool] | None, sizes: bool = True
) -> list[Entry]:
    """The entries of one directory, unsorted, with `prefix` before each relative path.

    Without `sizes` the directory itself tells what most entries are: 10 times faster.
    """
    entries = []
    try:
        with os.scandir(path or ".") as scan:
            for item in scan:
                name = item.name
                if skip is not None and skip(name):
                    continue
                uri = item.path if path else name
                if not sizes and item.is_file(follow_symlinks=False):
                    entries.append(Entry(uri, prefix + name, FILE))
                    continue
                try:
                    status = item.stat()
                except FileNotFoundError:
                    # A dead link, or a file that was deleted a moment ago.
                    if item.is_symlink():
                        entries.append(Entry(uri, prefix + name, BROKEN_LINK))
                    continue
                except OSError as error:
                    if error.errno not in _NOWHERE:
                        raise storage_error("look at", uri, error) from error
                    entries.append(Entry(uri, prefix + name, BROKEN_LINK))
                    continue
                if stat_module.S_ISREG(status.st_mode):
                    entries.append(Entry(uri, prefix + name, FILE, status.st_size))
                else:
                    entries.append(Entry(uri, prefix + name, _kind(status.st_mode)))
    except (OSError, ValueError) as error:
        raise storage_error("list the directory", path, error) from error
    return entries


def list_directory(uri: str, sizes: bool = True) -> list[Entry]:
    """One level of a directory, sorted by name. See `storage.list_directory`."""
    entries = _scan(local_path(uri), "", None, sizes)
    entries.sort(key=lambda entry: entry.path)
    return entries


def walk(
    uri: str, skip: Callable[[str], bool] | None = None, directories: bool = False
) -> Iterator[Entry]:
    """Everything below a directory. See `storage.walk`."""
    root = local_path(uri)
    top = identity(root)
    # Each level: what is left to yield, the identities of it and all above it.
    entries = sorted(_scan(root, "", skip), key=walk_order)
    levels = [(iter(entries), frozenset([top]))]
    while levels:
        rest, above = levels[-1]
        for entry in rest:
            if entry.kind != DIRECTORY:
                yield entry
                continue
            here = identity(entry.uri)
            if here in above:
                continue  # a link to a folder that we are in: the loop ends here
            below = sorted(_scan(entry.uri, entry.path + "/", skip), key=walk_order)
            if directories or not below:
                yield entry
            if below:
                levels.append((iter(below), above | {here}))
                break
        else:
            levels.pop()


def identity(path: str) -> tuple[int, int]:
    """Device and inode: equal for two paths that lead to one place."""
    try:
        status = os.stat(path or ".")
    except (OSError, ValueError) as error:
        raise storage_error("list the directory", path, error) from error
    return status.st_dev, status.st_ino


def read_bytes(
    uri: str, byte_range: tuple[int, int] | None = None, max_bytes: int | None = None
) -> bytes:
    """The bytes of one file. See `storage.read_bytes`."""
    path = local_path(uri)
    try:
        # O_NONBLOCK so that opening a named pipe returns; files do not know it.
        descriptor = os.open(path, _READ_FLAGS)
    except (OSError, ValueError) as error:
        _refuse(path, error)
    try:
        status = os.fstat(descriptor)
        if not stat_module.S_ISREG(status.st_mode):
            what = "a directory" if stat_module.S_ISDIR(status.st_mode) else "a pipe or a device"
            raise ImageRejectedError(RejectReason.NOT_A_FILE, f"{path!r} is {what}, not a file")
        size = status.st_size if byte_range is None else byte_range[1]
        if max_bytes is not None and size > max_bytes:
            raise too_many_bytes(path, size, max_bytes)
        if byte_range is not None:
            return _read_range(descriptor, path, byte_range)
        # One byte more than expected: a short answer says that this was all.
        data = os.read(descriptor, min(size + 1, _LARGEST_READ))
        if len(data) == size != 0:
            return data
        return _read_rest(descriptor, path, data, max_bytes)
    except OSError as error:
        raise storage_error("read", path, error) from error
    finally:
        os.close(descriptor)


def _read_rest(descriptor: int, path: str, data: bytes, max_bytes: int | None) -> bytes:
    """The slow way: larger than one read, still growing, or of no stated size (/proc)."""
    pieces = [data]
    total = len(data)
    while data:
        if max_bytes is not None and total > max_bytes:
            raise too_many_bytes(path, total, max_bytes)
        data = os.read(descriptor, _LARGEST_READ if total > 1 << 20 else 1 << 20)
        pieces.append(data)
        total += len(data)
    return b"".join(pieces)


def _read_range(descriptor: int, path: str, byte_range: tuple[int, int]) -> bytes:
    offset, length = byte_range
    pieces: list[bytes] = []
    while length > 0:
        data = os.pread(descriptor, min(length, _LARGEST_READ), offset)
        if not data:
            raise short_range(path, byte_range, sum(map(len, pieces)))
        pieces.append(data)
        offset += len(data)
        length -= len(data)
    return b"".join(pieces)


def too_many_bytes(path: str, size: int, max_bytes: int) -> ImageRejectedError:
    """The refusal of a file over the limit."""
    return ImageRejectedError(
        RejectReason.TOO_MANY_BYTES,
        f"{size:,} bytes, over the limit of {max_bytes:,} (--max_bytes)",
    )


def short_range(path: str, byte_range: tuple[int, int], found: int) -> StorageError:
    """The error for a file that became shorter after it was listed."""
    offset, length = byte_range
    return StorageError(
        f"cannot read {path!r}: bytes {offset} to {offset + length} were expected, found {found} "
        "of them; the file became shorter after it was listed (run again when it is complete)"
    )


def _refuse(path: str, error: OSError | ValueError) -> NoReturn:
    """Says what is wrong with this one file, or that the environment is to blame."""
    code = getattr(error, "errno", None)
    if isinstance(error, ValueError) or code in _NOWHERE:
        detail = f"{path!r} does not exist"
        if (
            code != errno.ENAMETOOLONG
            and not isinstance(error, ValueError)
            and os.path.islink(path)
        ):
            detail = f"{path!r} is a link to {os.readlink(path)!r}, which leads nowhere"
        raise ImageRejectedError(RejectReason.MISSING, detail) from error
    if code in (errno.EACCES, errno.EPERM):
        detail = f"{path!r} may not be read: {error.strerror}"  # type: ignore[union-attr]
        raise ImageRejectedError(RejectReason.UNREADABLE, detail) from error
    if code in (errno.ENXIO, errno.EISDIR):
        raise ImageRejectedError(RejectReason.NOT_A_FILE, f"{path!r} is not a file") from error
    raise storage_error("read", path, error) from error


def open_read(uri: str) -> BinaryIO:
    """A file to read as it is. See `storage.open_read`."""
    path = local_path(uri)
    try:
        return cast(BinaryIO, open(path, "rb"))
    except (OSError, ValueError) as error:
        raise storage_error("read", path, error) from error


def open_write(uri: str) -> BinaryIO:
    """A file to write; folders are made. See `storage.open_write`."""
    path = local_path(uri)
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        return cast(BinaryIO, open(path, "wb"))
    except (OSError, ValueError) as error:
        raise storage_error("write", path, error) from error


def write_bytes(uri: str, data: bytes) -> None:
    """Writes a whole file at once or not at all. See `storage.write_bytes`."""
    path = local_path(uri)
    folder = os.path.dirname(path)
    # Not the target's name with an ending: that may be too long for the disk.
    temporary = join(folder, f".imagebeam-{uuid.uuid4().hex}.tmp")
    try:
        os.makedirs(folder or ".", exist_ok=True)
        try:
            with open(temporary, "xb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, path)
        except BaseException:
            if os.path.lexists(temporary):
                os.unlink(temporary)
            raise
    except (OSError, ValueError) as error:
        raise storage_error("write", path, error) from error


def make_directory(uri: str) -> None:
    """Makes a directory and those above it. See `storage.make_directory`."""
    path = local_path(uri)
    try:
        os.makedirs(path or ".", exist_ok=True)
    except (OSError, ValueError) as error:
        raise storage_error("make the directory", path, error) from error


def rename(source: str, target: str) -> None:
    """Moves a file or a directory. See `storage.rename`."""
    source, target = local_path(source), local_path(target)
    try:
        os.makedirs(os.path.dirname(target.rstrip("/")) or ".", exist_ok=True)
        os.replace(source, target)
    except (OSError, ValueError) as error:
        raise storage_error(f"rename to {target!r} the path", source, error) from error


def delete(uris: Iterable[str]) -> None:
    """Deletes files; those already gone are fine. See `storage.delete`."""
    for uri in uris:
        path = local_path(uri)
        try:
            os.unlink(path)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise storage_error("delete", path, error) from error


def delete_tree(uri: str) -> None:
    """Deletes a directory with all it holds; links are not followed. See `storage.delete_tree`."""
    path = local_path(uri).rstrip("/") or "/"
    try:
        if os.path.islink(path) or os.path.isfile(path):
            os.unlink(path)
        else:
            shutil.rmtree(path)
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise storage_error("delete", path, error) from error
