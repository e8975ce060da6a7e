"""A content-addressed cache of part files, which several hosts can share over a network file system.

Input and output are those of `pipeline.core.content_cache.ContentCache`. SQLite needs locks and shared
memory that network file systems do not give, so this cache has neither: each process appends to a file of
its own and reads those of all others. It knows what the others had stored when it opened the cache.
A record is the key (16 bytes), the length and the CRC of the value, the CRC of these, and the value. What a
kill left incomplete at the end of a file is ignored, and a record with another CRC counts as not stored.
Memory: about 200 bytes for each stored value.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
import threading
import uuid
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from pipeline.core.errors import StoreError

_FIELDS = struct.Struct("<16sII")  # key, length of the value, CRC of the value
_CHECK = struct.Struct("<I")  # CRC of the fields
_REMOVED = 0xFFFFFFFF  # as length: the stored value with this CRC is forgotten
_HEADER = _FIELDS.size + _CHECK.size
_Place = tuple[int, int, int, int]  # number of the file, offset, length, CRC of the value


class PartCache:
    """A key-value store of bytes in the directory ``path``; safe for threads, processes and hosts.

    Keys have 16 bytes. Only its owner can read and write a ``private`` cache. All methods raise StoreError
    when the directory cannot be read or written.
    """

    def __init__(self, path: Path, *, private: bool = False) -> None:
        self.path = path
        self._private = private
        self._lock = threading.Lock()
        self._files: list[Path] = []
        self._places: dict[bytes, _Place] = {}
        self._own: int | None = None  # the descriptor of this process's file, the last of `_files`
        self._size = 0  # bytes of that file
        try:
            path.mkdir(parents=True, exist_ok=True)
            if private and path.stat().st_uid == os.geteuid():
                path.chmod(0o700)
            self._read_parts()
        except OSError as error:
            raise self._broken(error) from None

    def get(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """The stored values by key; keys without a value are absent."""
        values: dict[bytes, bytes] = {}
        with self._lock:
            wanted = sorted((self._places[key], key) for key in set(keys) if key in self._places)
            number, stream = -1, None
            try:
                for (file, offset, length, check), key in wanted:
                    if file != number or stream is None:
                        if stream is not None:
                            stream.close()
                        number, stream = file, self._files[file].open("rb")
                    stream.seek(offset)
                    value = stream.read(length)
                    if zlib.crc32(value) == check:
                        values[key] = value
                    else:
                        logging.getLogger(__name__).warning(
                            "%s: a stored value is damaged; it is made again", self._files[file]
                        )
                        del self._places[key]
            except OSError as error:
                raise self._broken(error) from None
            finally:
                if stream is not None:
                    stream.close()
        return values

    def put(self, items: Iterable[tuple[bytes, bytes]]) -> None:
        """Append (key, value) items; values that are already stored are kept."""
        with self._lock:
            new = {key: value for key, value in items if key not in self._places}
            records, places = bytearray(), {}
            for key, value in new.items():
                check = zlib.crc32(value)
                records += _header(key, len(value), check)
                places[key] = (len(records), len(value), check)
                records += value
            if not records:
                return
            start, number = self._append(records), len(self._files) - 1
            for key, (offset, length, check) in places.items():
                self._places[key] = (number, start + offset, length, check)

    def remove(self, keys: Iterable[bytes]) -> None:
        """Forget the values of these keys, so that `put` stores new ones."""
        with self._lock:
            removed = {key: self._places.pop(key) for key in keys if key in self._places}
            if removed:
                self._append(
                    b"".join(_header(key, _REMOVED, place[3]) for key, place in removed.items())
                )

    def clear(self) -> None:
        """Remove all values and files; no other process may use the cache."""
        self.close()
        with self._lock:
            self._places.clear()
            for file in self._files:
                with suppress(FileNotFoundError):
                    file.unlink()
            self._files.clear()

    def close(self) -> None:
        """Flush the file of this process to the disk and close it; the next `put` begins another."""
        with self._lock:
            if self._own is None:
                return
            own, self._own = self._own, None
            try:
                os.fsync(own)
            except OSError as error:
                raise self._broken(error) from None
            finally:
                os.close(own)

    def _append(self, records: bytes | bytearray) -> int:
        """Write records to the end of this process's file; returns where they start."""
        try:
            if self._own is None:
                self._begin()
            assert self._own is not None
            start, remaining = self._size, memoryview(records)
            try:
                while remaining:
                    remaining = remaining[os.write(self._own, remaining) :]
            except OSError:
                os.ftruncate(self._own, start)
                raise
        except OSError as error:
            raise self._broken(error) from None
        self._size = start + len(records)
        return start

    def _begin(self) -> None:
        name = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}.part"
        mode = 0o600 if self._private else 0o666
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        self._own = os.open(self.path / name, flags, mode)
        self._files.append(self.path / name)
        self._size = 0

    def _read_parts(self) -> None:
        """Note where every value is, in the files of all processes."""
        removed: set[tuple[bytes, int]] = set()
        stored: list[tuple[bytes, _Place]] = []
        self._files = sorted(self.path.glob("*.part"))
        for number, file in enumerate(self._files):
            for key, offset, length, check in _records(file):
                if length == _REMOVED:
                    removed.add((key, check))
                else:
                    stored.append((key, (number, offset, length, check)))
        for key, place in stored:
            if (key, place[3]) not in removed:
                self._places.setdefault(key, place)

    def _broken(self, error: Exception) -> StoreError:
        return StoreError(
            f"{self.path}: cache cannot be used ({error}); check the disk, or delete the directory "
            "to rebuild it"
        )


def _header(key: bytes, length: int, check: int) -> bytes:
    fields = _FIELDS.pack(key, length, check)
    return fields + _CHECK.pack(zlib.crc32(fields))


def _records(file: Path) -> Iterator[tuple[bytes, int, int, int]]:
    """(key, offset, length, CRC) of the values of a file, up to its first incomplete record."""
    with file.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        while len(header := stream.read(_HEADER)) == _HEADER:
            fields = header[: _FIELDS.size]
            if _CHECK.unpack(header[_FIELDS.size :])[0] != zlib.crc32(fields):
                logging.getLogger(__name__).warning(
                    "%s is damaged; the values after byte %d are made again", file, stream.tell()
                )
                return
            key, length, check = _FIELDS.unpack(fields)
            offset = stream.tell()
            if length != _REMOVED:
                if offset + length > size:
                    return
                stream.seek(length, os.SEEK_CUR)
            yield key, offset, length, check
