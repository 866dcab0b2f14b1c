"""Lists, reads and writes files on local disk, S3, GCS or any Beam filesystem.

Names are literal everywhere but in `glob`: `[1-3].jpg` is one file. A file that
cannot be used raises ImageRejectedError; a fault of the environment (no
credentials, no such bucket, unreachable, disk full) raises StorageError.
Importing this package loads neither Beam nor any cloud library.
"""

from beam_pipeline.storage.api import (
    delete,
    delete_tree,
    exists,
    glob,
    list_directory,
    make_directory,
    open_read,
    open_write,
    read_bytes,
    rename,
    stat,
    walk,
    write_bytes,
)
from beam_pipeline.storage.beam_options import beam_options, config_from_options, configure_beam
from beam_pipeline.storage.config import StorageConfig, configure
from beam_pipeline.storage.globbing import has_magic
from beam_pipeline.storage.paths import Entry, basename, is_local, join, parent

__all__ = [
    "Entry",
    "StorageConfig",
    "basename",
    "beam_options",
    "config_from_options",
    "configure",
    "configure_beam",
    "delete",
    "delete_tree",
    "exists",
    "glob",
    "has_magic",
    "is_local",
    "join",
    "list_directory",
    "make_directory",
    "open_read",
    "open_write",
    "parent",
    "read_bytes",
    "rename",
    "stat",
    "walk",
    "write_bytes",
]
