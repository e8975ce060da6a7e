"""Download and unpack the official data sets, verified.

Input: rows of `pipeline.corpus.official` and the directory of data. Output: the files below it, and
``data.lock.json`` with the size and SHA-256 of every file and download. A broken connection is continued. A
file takes its name only when it is complete and its checksum is the published one, or where none is published
the one that the lock recorded when it was first downloaded.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import shutil
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core.atomic import replacing, write_json
from pipeline.core.errors import DependencyError, InputError
from pipeline.core.input_files import read_json
from pipeline.corpus.official import Download, OfficialFile
from pipeline.corpus.raw_records import brief

LOCK = "data.lock.json"
_UNFINISHED = ".downloads"  # the directory of the download that is not complete yet
_BLOCK = 1 << 20  # bytes read at once
_TRIES = 4
_PAUSE = 1.0  # seconds before the second try; twice as long before each further one
_SECONDS = 60.0  # without a byte, after which a connection counts as broken
_SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Fetched:
    """What became of one file: ``state`` is "present", "recorded" or "fetched"; ``records`` was counted
    in files of lines (None: not counted)."""

    path: str
    state: str
    bytes: int
    sha256: str
    records: int | None


def fetch(
    files: Sequence[OfficialFile],
    root: Path,
    report: Callable[[str], None] = print,
    *,
    pause: float = _PAUSE,
) -> tuple[list[Fetched], list[str]]:
    """Make sure that every file is below ``root``; returns what became of them, and the faults.

    A fault of one download does not stop the others. Each fault is one sentence with the file and the
    remedy. ``report`` receives a line per file. ``pause`` is the seconds before a second try.
    Raises InputError when ``root`` is no directory, cannot be written, or another process fills it.
    """
    import filelock

    try:
        (root / _UNFINISHED).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError.at(root, None, f"cannot hold the data sets: {error.strerror}") from None
    by_download: dict[Download, list[OfficialFile]] = {}
    for file in files:
        by_download.setdefault(file.download, []).append(file)
    done: list[Fetched] = []
    faults: list[str] = []
    try:
        with filelock.FileLock(root / _UNFINISHED / "lock", timeout=0):
            directory = _Directory(root, report, pause)
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
            root, None, "another `steep data` fills this directory; wait for it"
        ) from None
    return done, faults


class _Directory:
    """The directory of data with its lock."""

    def __init__(self, root: Path, report: Callable[[str], None], pause: float) -> None:
        self.root = root
        self.report = report
        self.pause = pause
        self.lock = _read_lock(root / LOCK)

    def fetch(self, download: Download, files: list[OfficialFile]) -> list[Fetched]:
        """The files of one download."""
        done, missing = [], []
        for file in files:
            path = self.root / file.path
            if path.is_file():
                state = "present" if file.path in self.lock else "recorded"
                done.append(self._record(file, path, state))
            else:
                missing.append(file)
        if not missing:
            return done
        packed = missing[0].path != download.name
        by_hand, source = self.root / download.name, self.root / _UNFINISHED / "download"
        try:
            if packed and by_hand.is_file():
                source = by_hand
            else:
                self._download(download, missing, source)
            if packed:
                self._verify(download.name, source, download, download.sha256)
            for file in missing:
                with replacing(self.root / file.path) as temporary:
                    if packed:
                        self._unpack(source, file, temporary)
                    else:
                        source.replace(temporary)
                    done.append(self._record(file, temporary, "fetched"))
        finally:
            if source != by_hand:
                source.unlink(missing_ok=True)
        return done

    def _record(self, file: OfficialFile, path: Path, state: str) -> Fetched:
        """Verify the content of a file, which is at ``path`` now, and report it."""
        plain = file.path == file.download.name
        published = file.download.sha256 if plain else None
        sha256, size, lines = self._verify(file.path, path, file.download, published)
        records = None
        if file.path.endswith((".jsonl", ".tsv")):
            records = lines - file.path.endswith(".tsv")  # a header
        line = f"{file.path}: {state}, {size:,} bytes, SHA-256 {sha256[:8]}…"
        if records not in (None, file.records):
            line += f"; warning: {records:,} records, {file.records:,} are published"
        self.report(line)
        return Fetched(file.path, state, size, sha256, records)

    def _verify(
        self, name: str, path: Path, download: Download, published: str | None
    ) -> tuple[str, int, int]:
        """SHA-256, bytes and lines of a file that is as published and as recorded; they are recorded."""
        sha256, size, lines = _hashed(path)
        recorded = self.lock.get(name, {}).get("sha256")
        for expected, origin in ((published, "is published"), (recorded, f"{LOCK} recorded")):
            if expected not in (None, sha256):
                raise InputError.at(
                    self.root / name, None,
                    f"the SHA-256 from {download.url} is {sha256}, expected {expected} as {origin}; "
                    f"remove the file, or its entry in {LOCK}, and run steep data again, or see "
                    f"{download.page}",
                )  # fmt: skip
        self.lock[name] = {"bytes": size, "sha256": sha256, "url": download.url}
        write_json(self.root / LOCK, self.lock)
        return sha256, size, lines

    def _unpack(self, source: Path, file: OfficialFile, target: Path) -> None:
        try:
            _unpack(source, file.member, target)
        except (zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError, KeyError) as error:
            self.lock.pop(file.download.name, None)
            write_json(self.root / LOCK, self.lock)
            raise InputError.at(
                file.path, None,
                f"{file.download.name} from {file.download.url} cannot be unpacked ({_brief(error)}); "
                f"download it by hand from {file.download.page} to {self.root / file.download.name}",
            ) from None  # fmt: skip

    def _download(self, download: Download, files: list[OfficialFile], target: Path) -> None:
        import httpx

        self.report(f"{download.name}: downloading from {download.url}")
        try:
            _transfer(download.url, target, self.pause)
        except httpx.HTTPError as error:
            names = ", ".join(file.path for file in files)
            raise DependencyError(
                f"{names}: {download.url} cannot be downloaded ({_brief(error)}); run this where there "
                f"is a network, or download it by hand from {download.page} to "
                f"{self.root / download.name}"
            ) from None


def _read_lock(path: Path) -> dict[str, dict[str, Any]]:
    """The entries of the lock. Raises InputError for a file that this module did not write."""
    entries = read_json(path) if path.is_file() else {}
    for name, entry in entries.items():
        recorded = entry.get("sha256") if isinstance(entry, dict) else None
        if not isinstance(recorded, str) or not _SHA256.fullmatch(recorded):
            raise InputError.at(
                path, None,
                f"{brief(name)}: expected an object with a SHA-256 of 64 hexadecimal digits, got "
                f"{brief(entry)}; remove the entry to record the file anew",
            )  # fmt: skip
    return entries


def _transfer(url: str, target: Path, pause: float) -> None:
    """Download ``url`` to ``target``; a broken connection is continued if the content is the same.

    Not with ``http_get`` of huggingface_hub, which gives up when a connection is reset; the largest file
    has 4.7 GB.
    """
    import httpx
    from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

    retrying = Retrying(
        stop=stop_after_attempt(_TRIES),
        wait=wait_exponential(multiplier=pause),
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


def _unpack(source: Path, member: str | None, target: Path) -> None:
    """Unpack a gzip file, or ``member`` of a ZIP archive."""
    with target.open("wb") as stream:
        if member is None:
            with gzip.open(source) as packed:
                shutil.copyfileobj(packed, stream, _BLOCK)
            return
        with zipfile.ZipFile(source) as archive:
            # Some archives hold their files in another folder than the authors' page says.
            name = member.rpartition("/")[2]
            found = [
                entry
                for entry in archive.namelist()
                if entry.rpartition("/")[2] == name and not entry.startswith("__MACOSX")
            ]
            if not found:
                raise KeyError(f"it holds no {name}")
            with archive.open(min(found, key=len)) as unpacked:
                shutil.copyfileobj(unpacked, stream, _BLOCK)


def _hashed(path: Path) -> tuple[str, int, int]:
    """SHA-256, bytes and lines of a file."""
    digest, size, lines, last = hashlib.sha256(), 0, 0, b"\n"
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
            size += len(block)
            lines += block.count(b"\n")
            last = block[-1:]
    return digest.hexdigest(), size, lines + (last != b"\n")


def _brief(error: BaseException) -> str:
    text = " ".join(str(error.args[0] if error.args else error).split())[:150]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
