"""Salted 64-bit hashes of keys: the only source of randomness in a dataset.

Splits and the global order come from here and from nothing else. Changing the
function, the salts or the digest size moves images between splits and shards of
every dataset that is converted again; it needs a new major version.
"""

from __future__ import annotations

import functools
import hashlib
import zlib
from collections.abc import Iterable

HASH_BITS = 64


def hash64(salt: str, text: str) -> int:
    """A uniform integer in [0, 2**64), a function of `salt` and `text` alone.

    Args:
      salt: at most 64 bytes of UTF-8; separates uses that must be independent.
      text: any valid UTF-8 string.
    """
    digest = _salted(salt).copy()
    digest.update(text.encode())
    return int.from_bytes(digest.digest(), "big")


@functools.lru_cache(maxsize=64)
def _salted(salt: str) -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=8, key=salt.encode())


def order_hash(seed: int, key: str) -> int:
    """Where an image stands in the global shuffle of the dataset."""
    return hash64(_order_salt(seed), key)


def order_hashes(seed: int, keys: Iterable[str]) -> list[int]:
    """The order_hash of many keys; half of the time is spent once."""
    copy, number = _salted(_order_salt(seed)).copy, int.from_bytes
    hashes = []
    for key in keys:
        digest = copy()
        digest.update(key.encode())
        hashes.append(number(digest.digest(), "big"))
    return hashes


def _order_salt(seed: int) -> str:
    return f"imagebeam order {seed}"


def split_hash(seed: int, group: str) -> int:
    """Which split an image belongs to; `group` is its group key, else its key."""
    return hash64(f"imagebeam split {seed}", group)


def bucket_hash(key: str, buckets: int) -> int:
    """In which of `buckets` groups a key is compared with its possible duplicates.

    Nothing that is written depends on it, so it may be a fast one.
    """
    return zlib.crc32(key.encode()) % buckets
