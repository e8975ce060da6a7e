"""The check of a completed output: is everything there that its manifest records?

Input: the directory of an output, and how deep to look. Output: one line for every problem.
"""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path

from pipeline.core.errors import StoreError
from pipeline.run.file_hashes import (
    footer_problems,
    hash_problems,
    parse_records,
    size_problems,
)
from pipeline.run.store import MANIFEST, read_manifest


class Depth(IntEnum):
    """What a check reads."""

    SIZES = 0  # no content: for `steep status`
    FOOTERS = 1  # the ends of Parquet files too: before a stage reads them
    HASHES = 2  # everything: before training, and for `steep verify`


def problems(directory: Path, depth: Depth) -> list[str]:
    """One line for every problem of a completed output; empty when none was found."""
    try:
        manifest = read_manifest(directory)
    except StoreError as error:
        return [f"{MANIFEST} is damaged: {error}"]
    try:
        records = parse_records(manifest["files"])
        found = size_problems(directory, records)
        if depth >= Depth.FOOTERS and not found:
            found += footer_problems(directory)
        if depth >= Depth.HASHES and not found:
            found += hash_problems(directory, records)
    except OSError as error:
        found = [f"{error.filename} cannot be read: {error.strerror}"]
    if manifest["fingerprint"] != directory.name:
        found.append(f"{MANIFEST} belongs to the output {manifest['fingerprint']}")
    return found
