"""Content hashes of files and model directories, cached between runs."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

from pipeline.core.atomic import write_text
from pipeline.core.errors import InputError
from pipeline.core.input_files import read_json
from pipeline.core.model_files import file_hash, model_hash

_SETTLED = 2_000_000_000  # nanoseconds; a later edit then has another time on any file system


class ContentHashes:
    """Hashes of files and models, cached by path, size, inode, and modification and change times.

    A 16 GB model is hashed once instead of at every ``make run``. The time of change (ctime) also
    tells an edit after which size and modification time were restored. The hash of a file that was
    changed less than two seconds ago is not kept, because the next edit could have the same times.
    """

    def __init__(self, cache_file: Path) -> None:
        """Load ``cache_file`` when it exists; broken entries are computed again."""
        self._cache_file = cache_file
        self._hashes: dict[str, list[Any]] = {}  # resolved path -> [stamp, hash]
        self._changed = False
        with contextlib.suppress(InputError):
            self._hashes = {
                path: entry for path, entry in read_json(cache_file).items() if _is_entry(entry)
            }

    def of(self, path: Path) -> str:
        """The hash of a file (`file_hash`), or of a model directory (`model_hash`).

        Raises InputError when ``path`` does not exist or cannot be read.
        """
        try:
            if path.is_file():
                return self._file(path)
            if path.is_dir():
                return model_hash(path, self._file)
        except OSError as error:
            where = error.filename or path
            raise InputError.at(where, f"cannot be read: {error.strerror}") from None
        kind = "not a regular file" if path.exists() else "no such file or directory"
        raise InputError.at(path, kind)

    def _file(self, path: Path) -> str:
        started, status = time.time_ns(), path.stat()
        name, stamp = str(path.resolve()), _stamp(status)
        cached = self._hashes.get(name)
        if cached and cached[0] == stamp:
            return str(cached[1])
        value = file_hash(path)
        if status.st_ctime_ns < started - _SETTLED and _stamp(path.stat()) == stamp:
            self._hashes[name] = [stamp, value]
            self._changed = True
        return value

    def save(self) -> None:
        """Write the cache file when a hash was computed since it was loaded.

        A directory that cannot be written only costs time: the hashes are computed again.
        """
        if self._changed:
            with contextlib.suppress(OSError):
                write_text(self._cache_file, json.dumps(self._hashes))
            self._changed = False


def _stamp(status: os.stat_result) -> list[int]:
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _is_entry(entry: Any) -> bool:
    """Whether a value of the cache file is [`_stamp`, hash]."""
    match entry:
        case [[int(), int(), int(), int()], str()]:
            return True
    return False
