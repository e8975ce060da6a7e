"""Content-addressed caches: `ContentCache` on disk, `LruCache` in memory.

They avoid repeated computation of embeddings, scores and answers across samples, rounds and runs.
Input: keys that are digests of everything that a value depends on (model content, prefix, text),
and of no file path. Output: the stored bytes. `ContentCache` is SQLite with its rollback journal,
so processes share it on one machine, and across machines if their file system has working locks.
Write-ahead mode would save half a millisecond per write, but needs memory that machines do not
share.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from pipeline.core.errors import StoreError

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
_PER_STATEMENT = 500  # parameters of one SQL statement; old SQLite builds allow 999
_WAIT_SECONDS = 120.0


def digest(*parts: str) -> bytes:
    """A 16-byte key of a sequence of texts: ("ab", "c") and ("a", "bc") have different keys."""
    hasher = hashlib.blake2b(digest_size=16)
    for part in parts:
        encoded = part.encode("utf-8", "surrogatepass")
        hasher.update(len(encoded).to_bytes(8, "little"))
        hasher.update(encoded)
    return hasher.digest()


class ContentCache:
    """A key-value store of bytes in one file; safe for threads and processes.

    Only its owner can read and write a ``private`` cache, such as one of prompts and answers. All
    methods raise StoreError when the file is not a cache or cannot be read or written.
    """

    def __init__(self, path: Path, *, private: bool = False) -> None:
        self.path = path
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if private:  # the journal gets the same mode
                os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            self._connection = sqlite3.connect(
                path, timeout=_WAIT_SECONDS, check_same_thread=False, isolation_level=None
            )
            self._connection.execute(
                "CREATE TABLE IF NOT EXISTS items (key BLOB PRIMARY KEY, value BLOB NOT NULL)"
            )
        except (sqlite3.Error, OSError) as error:
            raise self._broken(error) from None

    def get(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """The stored values by key; keys without a value are absent."""
        values: dict[bytes, bytes] = {}
        with self._lock:
            for start in range(0, len(keys), _PER_STATEMENT):
                part = keys[start : start + _PER_STATEMENT]
                marks = ",".join("?" * len(part))
                try:
                    values.update(
                        self._connection.execute(
                            f"SELECT key, value FROM items WHERE key IN ({marks})", part
                        )
                    )
                except sqlite3.Error as error:
                    raise self._broken(error) from None
        return values

    def put(self, items: Iterable[tuple[bytes, bytes]]) -> None:
        """Store (key, value) items in one transaction; values that are already stored are kept."""
        self._execute("INSERT OR IGNORE INTO items VALUES (?, ?)", items)

    def remove(self, keys: Iterable[bytes]) -> None:
        """Forget the values of these keys, so that `put` stores new ones."""
        self._execute("DELETE FROM items WHERE key = ?", ((key,) for key in keys))

    def clear(self) -> None:
        """Remove all values."""
        self._execute("DELETE FROM items", [()])

    def _execute(self, statement: str, rows: Iterable[tuple[bytes, ...]]) -> None:
        """Execute a statement for every row in one transaction."""
        with self._lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                try:
                    self._connection.executemany(statement, rows)
                except BaseException:
                    self._connection.execute("ROLLBACK")
                    raise
                self._connection.execute("COMMIT")
            except sqlite3.Error as error:
                raise self._broken(error) from None

    def close(self) -> None:
        """Close the file; the cache must not be used afterwards."""
        self._connection.close()

    def _broken(self, error: Exception) -> StoreError:
        return StoreError(
            f"{self.path}: cache cannot be used ({error}); check the disk, or delete the file "
            "to rebuild it"
        )


def open_cache(cache_dir: Path | str) -> ContentCache:
    """The cache of embeddings, scores and converted documents below ``cache_dir``, for all runs."""
    return ContentCache(Path(cache_dir) / "content.sqlite")


class LruCache(Generic[K, V]):
    """An LRU cache of at most ``size`` values; not safe for threads."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._items: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K) -> V | None:
        """The value, which becomes the most recent; None when it is not cached."""
        value = self._items.get(key)
        if value is not None:
            self._items.move_to_end(key)
        return value

    def put(self, key: K, value: V) -> None:
        """Store a value and drop the least recent ones beyond ``size``."""
        self._items[key] = value
        self._items.move_to_end(key)
        while len(self._items) > self._size:
            self._items.popitem(last=False)
