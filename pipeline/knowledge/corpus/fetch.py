"""Download and unpack the official data sets, verified.

Input: rows of `pipeline.knowledge.corpus.official` and the directory of data. Output: the files
below it, and ``data.lock.json`` with the size and SHA-256 of every file. A broken connection is
continued. A file takes its name only when it is complete and its checksum matches. The expected
checksum is the published one, or else the checksum that the lock recorded at the first download.
"""

from __future__ import annotations

import gzip
import hashlib
import shutil
import zipfile
import zlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core.atomic import replacing, write_json
from pipeline.core.errors import DependencyError, InputError
from pipeline.core.input_files import read_json
from pipeline.core.text import one_line
from pipeline.knowledge.corpus.official import Download, OfficialFile
from pipeline.knowledge.corpus.raw_records import brief

LOCK = "data.lock.json"
_UNFINISHED = ".downloads"  # the directory of the download that is not complete yet
_BLOCK = 1 << 20  # bytes read at once
_TRIES = 4
_SECONDS = 60.0  # without a byte, after which a connection counts as broken


@dataclass(frozen=True, slots=True)
class Fetched:
    """The outcome for one file.

    ``state`` is "present", "recorded" or "fetched"; ``records`` is the number of lines, or None if
    records are not lines.
    """

    path: str
    state: str
    bytes: int
    sha256: str
    records: int | None


def fetch(
    files: Sequence[OfficialFile], root: Path, report: Callable[[str], None] = print
) -> tuple[list[Fetched], list[str]]:
    """Fetch every file that is missing below ``root``; returns their outcomes, and the faults.

    A fault of one download does not stop the others. Each fault is one sentence with the file and
    the remedy. ``report`` receives a line per file. Raises InputError when ``root`` is not a
    directory or cannot be written, or when another process fills it.
    """
    import filelock

    try:
        (root / _UNFINISHED).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError.at(root, f"cannot hold the data sets: {error.strerror}") from None
    by_download: dict[Download, list[OfficialFile]] = {}
    for file in files:
        by_download.setdefault(file.download, []).append(file)
    done: list[Fetched] = []
    faults: list[str] = []
    try:
        with filelock.FileLock(root / _UNFINISHED / "lock", timeout=0):
            directory = _Directory(root, report, _read_lock(root / LOCK))
            for download, members in by_download.items():
                try:
                    done += directory.fetch(download, members)
                except (DependencyError, InputError) as error:
                    faults.append(str(error))
                except OSError as error:
                    faults.append(
                        f"{download.name}: {error}; correct that, and run steep data again"
                    )
    except filelock.Timeout:
        raise InputError.at(
            root, "another `steep data` fills this directory; wait for it"
        ) from None
    return done, faults


@dataclass
class _Directory:
    """The directory of data with its lock."""

    root: Path
    report: Callable[[str], None]
    lock: dict[str, dict[str, Any]]

    def fetch(self, download: Download, files: list[OfficialFile]) -> list[Fetched]:
        """The files of one download."""
        missing = [file for file in files if not (self.root / file.path).is_file()]
        done = [
            self._verified(
                file, self.root / file.path, "present" if file.path in self.lock else "recorded"
            )
            for file in files
            if file not in missing
        ]
        if not missing:
            return done
        packed = missing[0].path != download.name
        by_hand, target = self.root / download.name, self.root / _UNFINISHED / "download"
        source = by_hand if packed and by_hand.is_file() else target
        try:
            if source == target:
                self._download(download, missing, target)
            for file in missing:
                with replacing(self.root / file.path) as temporary:
                    if packed:
                        _unpack(source, file, temporary)
                    else:
                        source.replace(temporary)
                    done.append(self._verified(file, temporary, "fetched"))
        finally:
            target.unlink(missing_ok=True)
        return done

    def _verified(self, file: OfficialFile, path: Path, state: str) -> Fetched:
        """Compare the file at ``path`` with its published and recorded checksum; record it."""
        with path.open("rb") as stream:
            sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
        size, download = path.stat().st_size, file.download
        published = download.sha256 if file.path == download.name else None
        recorded = self.lock.get(file.path, {}).get("sha256")
        for expected, origin in ((published, "is published"), (recorded, f"{LOCK} recorded")):
            if expected not in (None, sha256):
                raise InputError.at(
                    self.root / file.path,
                    f"the SHA-256 from {download.url} is {sha256}, expected {expected} as "
                    f"{origin}; remove the file, or its entry in {LOCK}, and run steep data "
                    f"again, or see {download.page}",
                )  # fmt: skip
        self.lock[file.path] = {"bytes": size, "sha256": sha256, "url": download.url}
        write_json(self.root / LOCK, self.lock)
        records = None
        if file.path.endswith((".jsonl", ".tsv")):
            with path.open("rb") as stream:
                records = sum(1 for _ in stream) - file.path.endswith(".tsv")  # a header
        line = f"{file.path}: {state}, {size:,} bytes, SHA-256 {sha256[:8]}…"
        if records not in (None, file.records):
            line += f"; warning: {records:,} records, {file.records:,} are published"
        self.report(line)
        return Fetched(file.path, state, size, sha256, records)

    def _download(self, download: Download, files: list[OfficialFile], target: Path) -> None:
        import httpx

        self.report(f"{download.name}: downloading from {download.url}")
        try:
            _transfer(download.url, target)
        except httpx.HTTPError as error:
            names = ", ".join(file.path for file in files)
            raise DependencyError(
                f"{names}: {download.url} cannot be downloaded ({_shown(error)}); run this where "
                f"there is a network, or download it by hand from {download.page} to "
                f"{self.root / download.name}"
            ) from None


def _read_lock(path: Path) -> dict[str, dict[str, Any]]:
    """The entries of the lock. Raises InputError for a file that this module did not write."""
    entries: dict[str, dict[str, Any]] = read_json(path) if path.is_file() else {}
    for name, entry in entries.items():
        if not isinstance(entry, dict) or not isinstance(entry.get("sha256"), str):
            problem = f"{brief(name)}: expected an object with a SHA-256, got {brief(entry)}"
            raise InputError.at(path, f"{problem}; remove the entry to record the file anew")
    return entries


def _transfer(url: str, target: Path) -> None:
    """Download ``url`` to ``target``; a broken connection is continued if the content is the same.

    ``http_get`` of huggingface_hub is not used: it gives up when a connection is reset, and the
    largest file has 4.7 GB.
    """
    import httpx
    from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

    retrying = Retrying(
        stop=stop_after_attempt(_TRIES),
        wait=wait_exponential(multiplier=1),
        retry=retry_if_exception_type(
            (httpx.ReadError, httpx.RemoteProtocolError, httpx.ReadTimeout)
        ),
        reraise=True,
    )
    tag = ""
    with (
        target.open("wb") as stream,
        httpx.Client(follow_redirects=True, timeout=_SECONDS) as client,
    ):
        for attempt in retrying:
            headers = {"Accept-Encoding": "identity"}
            if tag and not tag.startswith("W/"):
                headers |= {"Range": f"bytes={stream.tell()}-", "If-Range": tag}
            with attempt, client.stream("GET", url, headers=headers) as reply:
                reply.raise_for_status()
                if reply.headers.get("content-type", "").startswith("text/html"):
                    raise httpx.UnsupportedProtocol("a web page instead of the file")
                if reply.status_code != httpx.codes.PARTIAL_CONTENT:
                    stream.seek(0)
                    stream.truncate()
                tag = reply.headers.get("etag", "")
                for block in reply.iter_raw():
                    stream.write(block)


def _unpack(source: Path, file: OfficialFile, target: Path) -> None:
    """Unpack a gzip file, or one member of a ZIP archive. Raises InputError."""
    try:
        with target.open("wb") as unpacked, ExitStack() as stack:
            if file.member is None:
                stream: Any = stack.enter_context(gzip.open(source))
            else:
                archive = stack.enter_context(zipfile.ZipFile(source))
                # Some archives hold their files in another folder than the authors' page says.
                name = Path(file.member).name
                found = [one for one in archive.namelist() if Path(one).name == name]
                found = [one for one in found if not one.startswith("__MACOSX")]
                stream = stack.enter_context(archive.open(min(found, key=len, default=name)))
            shutil.copyfileobj(stream, unpacked, _BLOCK)
    except (zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError, KeyError) as error:
        download = file.download
        raise InputError.at(
            file.path,
            f"{download.name} from {download.url} cannot be unpacked ({_shown(error)}); "
            f"download it by hand from {download.page} and place it beside {LOCK}",
        ) from None  # fmt: skip


def _shown(error: BaseException) -> str:
    return one_line(f"{type(error).__name__}: {error}", 150)
