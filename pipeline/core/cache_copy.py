"""Copy a SQLite cache into part files, once for all machines that share the directory.

Input: the file of a `ContentCache` on a network file system. Output: its values in a `PartCache`. A lock lets one
process copy while the others wait. A mark is written when everything is on the disk, so a copy that a kill
interrupted is made again. SQLite reads the file in its exclusive locking mode, in which it needs no memory that
machines would have to share. A file that another process has open is not copied, and the next process tries again.
"""

from __future__ import annotations

import fcntl
import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from pipeline.core.errors import StoreError
from pipeline.core.part_cache import PartCache

_MARK, _LOCK = "copied", "copying.lock"  # files of the directory
_PER_BLOCK = 500  # values
_BUSY_SECONDS = 10.0


def copy_once(path: Path, parts: Path, *, private: bool) -> None:
    """Copy the SQLite cache ``path`` into the `PartCache` ``parts``, unless that was done.

    Raises StoreError when a file cannot be read or written.
    """
    mark = parts / _MARK
    if mark.exists() or not path.exists():
        return
    cache = PartCache(parts, private=private)  # makes the directory
    try:
        with (parts / _LOCK).open("a+b") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if mark.exists():
                return
            for items in _stored_in(path):
                cache.put(items)
            cache.close()
            mark.touch()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
            raise _not_copied(path, error) from None
        logging.getLogger(__name__).warning(
            "%s is in use by a process that keeps SQLite files, so its values are not used; "
            "end that process, and the next stage copies them",
            path,
        )
    except (sqlite3.Error, OSError) as error:
        raise _not_copied(path, error) from None
    finally:
        cache.close()


def _stored_in(path: Path) -> Iterator[list[tuple[bytes, bytes]]]:
    """All items of a SQLite cache, in blocks."""
    with closing(sqlite3.connect(path, timeout=_BUSY_SECONDS)) as connection:
        connection.execute("PRAGMA locking_mode=EXCLUSIVE")
        items = connection.execute("SELECT key, value FROM items")
        while block := items.fetchmany(_PER_BLOCK):
            yield block


def _not_copied(path: Path, error: Exception) -> StoreError:
    return StoreError(
        f"{path}: cache cannot be copied to part files ({error}); check the disk, or delete the file to rebuild it"
    )
