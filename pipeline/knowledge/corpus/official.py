"""The official files of the published configurations, and where their authors publish them.

`OFFICIAL` (``official.toml``) is the one list of names, sources, sizes, checksums and licences.
`steep data` downloads from it, and docs/data.md shows it. A size or checksum is given only where a
public source states it. Of all other files, `pipeline.knowledge.corpus.fetch` records the checksum
of the first download.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Download:
    """One file on a server: the data itself, a gzip file, or a ZIP archive of several files.

    ``name`` is its name on the user's disk, ``page`` the page where people find it. ``sha256`` is
    the published checksum. ``size`` is the published size: bytes, or text such as "9.96 MB" if the
    page rounds.
    """

    name: str
    url: str
    page: str
    size: int | str | None = None
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class OfficialFile:
    """A file that published configurations read.

    ``path`` is its name below the directory of data, ``dataset`` the name that `steep data
    --dataset` takes, ``records`` the number of questions or passages. ``member`` is its name inside
    a ZIP archive.
    """

    path: str
    dataset: str
    download: Download
    records: int
    licence: str
    member: str | None = None


def _read(path: Path) -> tuple[OfficialFile, ...]:
    """The files of a table of downloads, each with the files that it holds."""
    files = []
    for table in tomllib.loads(path.read_text(encoding="utf-8"))["downloads"]:
        members = table.pop("files")
        files += [OfficialFile(download=Download(**table), **member) for member in members]
    return tuple(files)


OFFICIAL = _read(Path(__file__).with_suffix(".toml"))
DATASETS = tuple(dict.fromkeys(file.dataset for file in OFFICIAL))
