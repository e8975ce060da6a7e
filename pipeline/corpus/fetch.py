"""Download and unpack the official data sets, resumably and verified.

Input: rows of `pipeline.corpus.official` and the directory of data. Output: the files below it, and
``data.lock.json`` with the size and SHA-256 of every file and download. A download that breaks off is
continued. A file takes its name only when it is complete and its checksum is the published one, or where
none is published the one that the lock recorded when it was first downloaded.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pipeline.core.atomic import replacing, write_json
from pipeline.core.errors import DependencyError, InputError
from pipeline.core.input_files import read_json
from pipeline.corpus.official import Download, OfficialFile
from pipeline.corpus.raw_records import brief

LOCK = "data.lock.json"
_PARTS = ".downloads"  # unfinished downloads, and archives whose files are being unpacked
_BLOCK = 1 << 20  # bytes read at once
_TRIES = 4
_PAUSE = 1.0  # seconds before the second try; twice as long before each further one
_SECONDS = 60.0  # without a byte, after which a connection counts as broken
_SHA256 = re.compile("[0-9a-f]{64}")
_GZIP = b"\x1f\x8b"


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
        (root / _PARTS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError.at(root, None, f"cannot hold the data sets: {error.strerror}") from None
    try:
        with filelock.FileLock(root / _PARTS / "lock", timeout=0):
            return _Fetching(root, report, pause).all(files)
    except filelock.Timeout:
        raise InputError.at(
            root, None, "another `steep data` fills this directory; wait for it"
        ) from None


class _Fetching:
    def __init__(self, root: Path, report: Callable[[str], None], pause: float) -> None:
        self.root = root
        self.report = report
        self.pause = pause
        self.lock = _read_lock(root / LOCK)

    def all(self, files: Sequence[OfficialFile]) -> tuple[list[Fetched], list[str]]:
        done: list[Fetched] = []
        faults: list[str] = []
        by_download: dict[Download, list[OfficialFile]] = {}
        for file in files:
            by_download.setdefault(file.download, []).append(file)
        for download, members in by_download.items():
            try:
                done += self._group(download, members)
            except (DependencyError, InputError) as error:
                faults.append(str(error))
        return done, faults

    def _group(self, download: Download, files: list[OfficialFile]) -> list[Fetched]:
        """The files of one download."""
        done = [self._present(file) for file in files if (self.root / file.path).is_file()]
        missing = [file for file in files if not (self.root / file.path).is_file()]
        if not missing:
            return done
        by_hand = self.root / download.name
        archived = missing[0].path != download.name
        given = archived and by_hand.is_file()
        source = by_hand if given else self._download(download, missing)
        self._check(source, download, keep=given)
        for file in missing:
            target = self.root / file.path
            if archived:
                with self._unpacking(source, file, keep=given), replacing(target) as temporary:
                    _unpack(source, file, temporary)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                source.replace(target)
            done.append(self._record(file, "fetched"))
        if archived and not given:
            source.unlink(missing_ok=True)
        return done

    def _present(self, file: OfficialFile) -> Fetched:
        return self._record(file, "present" if file.path in self.lock else "recorded")

    def _record(self, file: OfficialFile, state: str) -> Fetched:
        """Hash a file, compare it with the checksum that is known, and record it."""
        path = self.root / file.path
        sha256, size, lines = _hashed(path)
        plain = file.path == file.download.name
        published = file.download.sha256 if plain else None
        recorded = self.lock.get(file.path, {}).get("sha256")
        if published not in (None, sha256):
            raise InputError.at(
                path, None,
                f"its SHA-256 is {sha256}, the published one is {published}; remove the file and run "
                "steep data again",
            )  # fmt: skip
        if recorded not in (None, sha256):
            raise InputError.at(
                path, None,
                f"its SHA-256 is {sha256}, {LOCK} recorded {recorded}; remove the file to download it again, "
                "or its entry to accept it",
            )  # fmt: skip
        self.lock[file.path] = {"bytes": size, "sha256": sha256, "url": file.download.url}
        write_json(self.root / LOCK, self.lock)
        records = None
        if path.suffix in (".jsonl", ".tsv"):
            records = lines - (path.suffix == ".tsv")  # a header
        line = f"{file.path}: {state}, {size:,} bytes, SHA-256 {sha256[:8]}…"
        if records not in (None, file.records):
            line += f"; warning: {records:,} records, {file.records:,} are published"
        self.report(line)
        return Fetched(file.path, state, size, sha256, records)

    def _check(self, source: Path, download: Download, *, keep: bool) -> None:
        """Compare a download with its published checksum; archives also with the lock."""
        sha256, size, _ = _hashed(source)
        known = download.sha256 or self.lock.get(download.name, {}).get("sha256")
        if known not in (None, sha256):
            if not keep:
                source.unlink()
            raise InputError.at(
                download.name, None,
                f"{download.url} has SHA-256 {sha256}, expected {known}"
                + ("" if download.sha256 else f" as {LOCK} recorded")
                + f"; run steep data again, or see {download.page}",
            )  # fmt: skip
        self.lock[download.name] = {"bytes": size, "sha256": sha256, "url": download.url}

    @contextmanager
    def _unpacking(self, source: Path, file: OfficialFile, *, keep: bool) -> Iterator[None]:
        try:
            yield
        except (zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError, KeyError) as error:
            if not keep:
                source.unlink(missing_ok=True)
            self.lock.pop(file.download.name, None)
            raise InputError.at(
                file.path, None,
                f"{file.download.name} from {file.download.url} cannot be unpacked ({_brief(error)}); "
                f"download it by hand from {file.download.page} to {self.root / file.download.name}",
            ) from None  # fmt: skip

    def _download(self, download: Download, files: list[OfficialFile]) -> Path:
        """The complete download below the directory of parts."""
        import httpx
        from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential

        path = self.root / _PARTS / download.name.replace("/", "_")
        retrying = Retrying(
            stop=stop_after_attempt(_TRIES),
            wait=wait_exponential(multiplier=self.pause),
            retry=retry_if_exception(_transient),
            reraise=True,
        )
        try:
            with httpx.Client(follow_redirects=True, timeout=_SECONDS) as client:
                retrying(_transfer, client, download.url, path, self.report)
        except httpx.HTTPError as error:
            names = ", ".join(str(self.root / file.path) for file in files)
            target = names if files[0].path == download.name else self.root / download.name
            raise DependencyError(
                f"{', '.join(file.path for file in files)}: {download.url} cannot be downloaded "
                f"({_brief(error)}); run this where there is a network, or download it by hand from "
                f"{download.page} to {target}"
            ) from None
        return path


def _read_lock(path: Path) -> dict[str, dict[str, Any]]:
    """The entries of the lock. Raises InputError for a file that this module did not write."""
    entries = read_json(path) if path.is_file() else {}
    if not isinstance(entries, dict):
        raise InputError.at(path, None, "expected an object; remove the file to record anew")
    for name, entry in entries.items():
        recorded = entry.get("sha256") if isinstance(entry, dict) else None
        if not isinstance(recorded, str) or not _SHA256.fullmatch(recorded):
            raise InputError.at(
                path, None,
                f"{brief(name)}: expected an object with a SHA-256 of 64 hexadecimal digits, got "
                f"{brief(entry)}; remove the entry to record the file anew",
            )  # fmt: skip
    return entries


def _transfer(client: Any, url: str, path: Path, report: Callable[[str], None]) -> None:
    """Download ``url`` to ``path``, from where an earlier attempt of the same content ended."""
    import httpx

    part = path.with_name(f"{path.name}.part")
    about = path.with_name(f"{path.name}.etag")
    start = part.stat().st_size if part.is_file() and about.is_file() else 0
    headers = {"Accept-Encoding": "identity"}
    if start:
        headers |= {"Range": f"bytes={start}-", "If-Range": about.read_text(encoding="utf-8")}
    with client.stream("GET", url, headers=headers) as reply:
        if reply.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
            part.unlink()
            raise httpx.RemoteProtocolError("the server has less than was downloaded before")
        reply.raise_for_status()
        if reply.headers.get("content-type", "").startswith("text/html"):
            raise httpx.UnsupportedProtocol(
                "the server answered with a web page instead of the file"
            )
        continued = reply.status_code == httpx.codes.PARTIAL_CONTENT
        start = start if continued else 0
        length = reply.headers.get("content-length")
        total = None if length is None else start + int(length)
        _check_room(path, total, start)
        _remember(about, reply.headers)
        report(
            f"{path.name}: downloading {_size(total)}" + (f" from byte {start:,}" if start else "")
        )
        with part.open("ab" if continued else "wb") as stream:
            for block in reply.iter_raw():
                stream.write(block)
        received = part.stat().st_size
        if total is not None and received != total:
            raise httpx.RemoteProtocolError(f"{received:,} bytes arrived, expected {total:,}")
    part.replace(path)
    about.unlink(missing_ok=True)


def _remember(about: Path, headers: Any) -> None:
    """Store what identifies the content, so that another one is never appended to it."""
    tag = headers.get("etag") or headers.get("last-modified")
    if tag and not tag.startswith("W/"):
        about.write_text(tag, encoding="utf-8")
    else:
        about.unlink(missing_ok=True)


def _check_room(path: Path, total: int | None, start: int) -> None:
    free = shutil.disk_usage(path.parent).free
    if total is not None and total - start > free:
        raise InputError.at(
            path.name, None,
            f"the download needs {_size(total - start)}, and {path.parent} has {_size(free)}; free some, or "
            "name another directory",
        )  # fmt: skip


def _transient(error: BaseException) -> bool:
    """Whether a second try can help: broken connections and overloaded servers."""
    import httpx

    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code == 429 or error.response.status_code >= 500
    final = (httpx.ConnectError, httpx.UnsupportedProtocol)  # no network, or no file
    return isinstance(error, httpx.TransportError) and not isinstance(error, final)


def _unpack(source: Path, file: OfficialFile, target: Path) -> None:
    with source.open("rb") as stream:
        start = stream.read(2)
    if file.member is None:
        if start != _GZIP:
            raise gzip.BadGzipFile("it is no gzip file")
        with gzip.open(source) as packed:
            _copy(packed, target)
        return
    with zipfile.ZipFile(source) as archive:
        # Some archives hold their files in another folder than the authors' page says.
        name = file.member.rpartition("/")[2]
        found = [
            entry
            for entry in archive.namelist()
            if entry.rpartition("/")[2] == name and not entry.startswith("__MACOSX")
        ]
        if not found:
            raise KeyError(f"it holds no {name}")
        with archive.open(min(found, key=len)) as packed:
            _copy(packed, target)


def _copy(packed: gzip.GzipFile | IO[bytes], target: Path) -> None:
    with target.open("wb") as stream:
        shutil.copyfileobj(packed, stream, _BLOCK)


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


def _size(count: int | None) -> str:
    from rich.filesize import decimal

    return "an unknown size" if count is None else decimal(count)


def _brief(error: BaseException) -> str:
    text = " ".join(str(error.args[0] if error.args else error).split())[:150]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
