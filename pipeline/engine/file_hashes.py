"""Sizes and content hashes of a stage's files, and the check of files against them.

Input: a stage's directory, and for the check the records of its manifest. Output: records by file
name, or one line for every file that differs. `size_problems` reads no content, and `hash_problems`
reads everything (about 1 GB/s for each core).
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core.atomic import sync
from pipeline.core.model_files import sha256

_THREADS = 4  # hashlib releases the interpreter's lock


@dataclass(frozen=True)
class FileRecord:
    """The size in bytes and the SHA-256 of a file's content, as hexadecimal digits."""

    size: int
    sha256: str


def seal(directory: Path) -> dict[str, FileRecord]:
    """Flush all files below ``directory`` to the disk; returns their records by relative name."""
    paths = _files(directory)
    with ThreadPoolExecutor(_THREADS) as pool:
        records = list(pool.map(_seal, paths))
    for folder in sorted({path.parent for path in paths} | {directory}):
        sync(folder)
    names = [path.relative_to(directory).as_posix() for path in paths]
    return dict(zip(names, records, strict=True))


def parse_records(value: Any) -> dict[str, FileRecord]:
    """The records of a manifest's ``files``. Raises ValueError when they have another shape."""
    if not isinstance(value, dict):
        raise ValueError("files is not a JSON object")
    records = {}
    for name, record in value.items():
        match record:
            case {"size": int(size), "sha256": str(digest)} if not _leaves_directory(name):
                records[name] = FileRecord(size, digest)
            case _:
                raise ValueError(f"files.{name} has no size and sha256")
    return records


def size_problems(directory: Path, records: Mapping[str, FileRecord]) -> list[str]:
    """One line for every recorded file that is missing or has another size."""
    problems = []
    for name, record in records.items():
        path = directory / name
        if not path.is_file():
            problems.append(f"{name} is missing")
        elif (size := path.stat().st_size) != record.size:
            problems.append(f"{name} has {size:,} bytes instead of {record.size:,}")
    return problems


def hash_problems(directory: Path, records: Mapping[str, FileRecord]) -> list[str]:
    """One line for every recorded file whose content has another hash, except absent files."""

    present = [name for name in records if (directory / name).is_file()]
    with ThreadPoolExecutor(_THREADS) as pool:
        found = pool.map(sha256, (directory / name for name in present))
    return [
        f"{name} has other content (SHA-256 {digest[:16]} instead of {records[name].sha256[:16]})"
        for name, digest in zip(present, found, strict=True)
        if digest != records[name].sha256
    ]


def _files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def _leaves_directory(name: str) -> bool:
    return name.startswith("/") or ".." in name.split("/")


def _seal(path: Path) -> FileRecord:
    record = FileRecord(path.stat().st_size, sha256(path))
    sync(path)
    return record
