"""Official files arrive complete and verified, or not at all."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.core.errors import InputError
from pipeline.knowledge.corpus.fetch import LOCK, Fetched, fetch
from pipeline.knowledge.corpus.official import Download, OfficialFile
from tests.corpus.file_server import FileServer, serving

QUESTIONS = b'{"question": "a"}\n{"question": "b"}\n'


@pytest.fixture
def server() -> Iterator[FileServer]:
    """A server with the questions as ``nq/test.jsonl``."""
    with serving() as running:
        running.files["nq/test.jsonl"] = QUESTIONS
        yield running


def plain(
    server: FileServer, name: str = "nq/test.jsonl", sha256: str | None = None
) -> OfficialFile:
    download = Download(name, f"{server.url}{name}", "https://example.org/nq", None, sha256)
    return OfficialFile(name, "nq", download, 2, "CC0")


def run(root: Path, *files: OfficialFile) -> tuple[list[Fetched], list[str], list[str]]:
    lines: list[str] = []
    done, faults = fetch(files, root, lines.append)
    return done, faults, lines


def test_a_file_is_downloaded_recorded_and_then_present(server: FileServer, tmp_path: Path) -> None:
    done, faults, _ = run(tmp_path, plain(server))
    assert (faults, done[0].state, done[0].records) == ([], "fetched", 2)
    assert (tmp_path / "nq/test.jsonl").read_bytes() == QUESTIONS
    recorded = json.loads((tmp_path / LOCK).read_text())["nq/test.jsonl"]
    assert recorded["sha256"] == hashlib.sha256(QUESTIONS).hexdigest()
    assert run(tmp_path, plain(server))[0][0].state == "present"
    assert len(server.ranges) == 1
    left = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {"test.jsonl", LOCK, "lock"}


def test_a_broken_download_continues_where_it_ended(server: FileServer, tmp_path: Path) -> None:
    server.break_after["nq/test.jsonl"] = 10
    done, faults, _ = run(tmp_path, plain(server))
    assert (faults, done[0].state) == ([], "fetched")
    assert [asked for _, asked in server.ranges] == [None, "bytes=10-"]
    assert (tmp_path / "nq/test.jsonl").read_bytes() == QUESTIONS


def test_published_and_recorded_checksums_are_compared(server: FileServer, tmp_path: Path) -> None:
    done, faults, _ = run(tmp_path, plain(server, sha256="0" * 64))
    assert done == []
    assert "expected 0000" in faults[0]
    assert not (tmp_path / "nq/test.jsonl").exists()
    run(tmp_path, plain(server))
    (tmp_path / "nq/test.jsonl").write_bytes(QUESTIONS[:-5])
    done, faults, _ = run(tmp_path, plain(server))
    assert done == []
    assert f"{LOCK} recorded" in faults[0]


def test_a_malformed_lock_is_refused_and_kept(server: FileServer, tmp_path: Path) -> None:
    content = '{"nq/test.jsonl": 5}'
    (tmp_path / LOCK).write_text(content)
    with pytest.raises(InputError, match=r'data.lock.json: "nq/test.jsonl": expected an object'):
        run(tmp_path, plain(server))
    assert (tmp_path / LOCK).read_text() == content


def archive(**members: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as target:
        for name, content in members.items():
            target.writestr(name, content)
    return packed.getvalue()


def zipped(server: FileServer) -> tuple[OfficialFile, OfficialFile]:
    download = Download("all.zip", f"{server.url}all.zip", "https://example.org")
    return (
        OfficialFile("m_train.jsonl", "m", download, 2, "CC0", "data/m_train.jsonl"),
        OfficialFile("m/dev.json", "m", download, 1, "CC0", "dev.json"),
    )


def test_an_archive_is_downloaded_once_for_its_files(server: FileServer, tmp_path: Path) -> None:
    server.files["all.zip"] = archive(
        **{"data/m_train.jsonl": QUESTIONS, "folder/dev.json": b"[]", "__MACOSX/dev.json": b""}
    )
    done, faults, _ = run(tmp_path, *zipped(server))
    assert (faults, [row.path for row in done]) == ([], ["m_train.jsonl", "m/dev.json"])
    assert (tmp_path / "m/dev.json").read_bytes() == b"[]"
    assert len(server.ranges) == 1
    assert not list(tmp_path.rglob("*.zip"))


def test_an_archive_placed_by_hand_is_unpacked_and_kept(server: FileServer, tmp_path: Path) -> None:
    content = archive(**{"data/m_train.jsonl": QUESTIONS, "dev.json": b"[]"})
    (tmp_path / "all.zip").write_bytes(content)
    assert run(tmp_path, *zipped(server))[1] == []
    assert server.ranges == []
    assert (tmp_path / "all.zip").is_file()


@pytest.mark.parametrize(
    "content",
    [archive(other=b"x"), archive(**{"m_train.jsonl": QUESTIONS})[:-30]],
    ids=["no member", "cut off"],
)
def test_a_wrong_archive_is_one_fault_and_leaves_no_file(
    server: FileServer, tmp_path: Path, content: bytes
) -> None:
    server.files["all.zip"] = content
    done, faults, _ = run(tmp_path, *zipped(server))
    assert (done, len(faults)) == ([], 1)
    assert "cannot be unpacked" in faults[0]
    assert "by hand from https://example.org" in faults[0]
    assert not (tmp_path / "m_train.jsonl").exists()


def test_a_web_page_in_place_of_a_file_is_a_fault(server: FileServer, tmp_path: Path) -> None:
    server.content_type = "text/html; charset=utf-8"
    _, faults, _ = run(tmp_path, plain(server))
    assert "a web page instead of the file" in faults[0]


def test_a_fault_of_one_file_does_not_stop_the_others(server: FileServer, tmp_path: Path) -> None:
    server.files["b.jsonl"] = QUESTIONS
    unreachable = Download("a.jsonl", "http://127.0.0.1:9/a.jsonl", "https://example.org/a")
    missing = OfficialFile("a.jsonl", "a", unreachable, 1, "CC0")
    done, faults, _ = run(tmp_path, missing, plain(server, "b.jsonl"))
    assert [row.path for row in done] == ["b.jsonl"]
    assert "where there is a network" in faults[0]
    assert f"https://example.org/a to {tmp_path / 'a.jsonl'}" in faults[0]
