"""The cache of part files: what several processes store, what a kill leaves, and where it is used."""

import signal
import sqlite3
import stat
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from pipeline.core import cache_copy, content_cache
from pipeline.core.content_cache import ContentCache, digest, open_cache
from pipeline.core.errors import StoreError
from pipeline.core.file_systems import on_network
from pipeline.core.part_cache import PartCache
from tests.waiting import LIMIT, ending

KEYS = [digest(str(number)) for number in range(4)]


def test_stored_values_are_found_by_the_next_process(tmp_path: Path) -> None:
    first, second = PartCache(tmp_path / "c"), PartCache(tmp_path / "c")
    first.put([(KEYS[0], b"one"), (KEYS[1], b"")])
    second.put([(KEYS[2], b"three")])
    second.put([(KEYS[2], b"other")])  # values that are stored are kept
    assert second.get(KEYS) == {KEYS[2]: b"three"}  # as it was opened
    assert PartCache(tmp_path / "c").get(KEYS) == {
        KEYS[0]: b"one", KEYS[1]: b"", KEYS[2]: b"three",
    }  # fmt: skip
    assert len(list((tmp_path / "c").glob("*.part"))) == 2  # each process has its own


@pytest.mark.parametrize("lost", [1, 5, 30])
def test_what_a_kill_left_incomplete_is_not_stored(tmp_path: Path, lost: int) -> None:
    cache = PartCache(tmp_path)
    cache.put([(KEYS[0], b"one")])
    cache.put([(KEYS[1], b"two")])
    [part] = tmp_path.glob("*.part")
    part.write_bytes(part.read_bytes()[:-lost])
    after = PartCache(tmp_path)
    assert after.get(KEYS) == {KEYS[0]: b"one"}
    after.put([(KEYS[1], b"again")])
    assert PartCache(tmp_path).get(KEYS) == {KEYS[0]: b"one", KEYS[1]: b"again"}


def test_a_damaged_value_is_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    PartCache(tmp_path).put([(KEYS[0], b"one"), (KEYS[1], b"two")])
    [part] = tmp_path.glob("*.part")
    part.write_bytes(part.read_bytes().replace(b"one", b"oNe"))
    cache = PartCache(tmp_path)
    assert cache.get(KEYS) == {KEYS[1]: b"two"}
    assert "a stored value is damaged" in caplog.text
    cache.put([(KEYS[0], b"one")])
    assert cache.get(KEYS[:1]) == {KEYS[0]: b"one"}


def test_removed_values_stay_removed_and_new_ones_are_stored(tmp_path: Path) -> None:
    PartCache(tmp_path).put([(KEYS[0], b"one")])
    cache = PartCache(tmp_path)
    cache.remove(KEYS)
    assert PartCache(tmp_path).get(KEYS) == {}
    cache.put([(KEYS[0], b"new")])
    assert PartCache(tmp_path).get(KEYS) == {KEYS[0]: b"new"}
    cache.clear()
    assert cache.get(KEYS) == {}
    assert not list(tmp_path.iterdir())


def test_a_private_cache_is_for_its_owner_alone(tmp_path: Path) -> None:
    PartCache(tmp_path / "c", private=True).put([(KEYS[0], b"answer")])
    [part] = (tmp_path / "c").iterdir()
    assert stat.S_IMODE(part.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "c").stat().st_mode) == 0o700


def test_a_place_that_is_no_directory_raises_store_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    with pytest.raises(StoreError, match="cache cannot be used"):
        PartCache(tmp_path / "file")


MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
server:/home {home} nfs4 rw 0 0
/dev/sdb1 {home}/scratch\\040disk xfs rw 0 0
gluster {home}/data fuse.glusterfs rw 0 0
"""


def test_the_mount_that_holds_a_path_decides(tmp_path: Path) -> None:
    home, mounts = tmp_path / "home", tmp_path / "mounts"
    mounts.write_text(MOUNTS.format(home=home))
    assert on_network(home / "runs/cache/chat.sqlite", mounts)
    assert on_network(home / "data", mounts)
    assert not on_network(home / "scratch disk" / "cache", mounts)
    assert not on_network(tmp_path / "homes", mounts)
    assert not on_network(home, tmp_path / "no such file")


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of a cache of two values in SQLite, on a file system that counts as one of a network."""
    path = tmp_path / "chat.sqlite"
    earlier = open_cache(path)
    assert isinstance(earlier, ContentCache)
    earlier.put([(KEYS[0], b"paid"), (KEYS[1], b"too")])
    earlier.close()
    monkeypatch.setattr(content_cache, "on_network", lambda path: True)
    return path


PAID = {KEYS[0]: b"paid", KEYS[1]: b"too"}


def test_caches_on_a_network_file_system_are_part_files_with_what_sqlite_held(
    network: Path,
) -> None:
    cache = open_cache(network, private=True)
    assert isinstance(cache, PartCache)
    assert cache.get(KEYS) == PAID
    with sqlite3.connect(network) as connection:
        connection.execute("DELETE FROM items")
    assert open_cache(network).get(KEYS) == PAID
    assert stat.S_IMODE((network.with_suffix(".parts")).stat().st_mode) == 0o700


COPY = """
import os, signal, sys
from contextlib import ExitStack
from pathlib import Path
from pipeline.core import cache_copy, content_cache
content_cache.on_network = lambda path: True
if sys.argv[2] == "killed":
    cache_copy._PER_BLOCK = 1
    stored = cache_copy._stored_in
    def one(path):
        yield next(stored(path))
        os.kill(os.getpid(), signal.SIGKILL)
    cache_copy._stored_in = one
content_cache.open_cache(Path(sys.argv[1]))
"""


def copying(path: Path, kind: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", COPY, str(path), kind])


def test_a_copy_that_was_killed_is_made_again(network: Path) -> None:
    with ending(copying(network, "killed")) as process:
        assert process.wait(LIMIT) == -signal.SIGKILL
    assert PartCache(network.with_suffix(".parts")).get(KEYS) == {KEYS[0]: b"paid"}
    assert open_cache(network).get(KEYS) == PAID


def test_several_processes_copy_once(network: Path) -> None:
    with ExitStack() as stack:
        processes = [stack.enter_context(ending(copying(network, "whole"))) for _ in range(4)]
        assert [process.wait(LIMIT) for process in processes] == [0] * 4
    parts = network.with_suffix(".parts")
    assert len(list(parts.glob("*.part"))) == 1
    assert PartCache(parts).get(KEYS) == PAID


def test_a_sqlite_cache_in_use_is_copied_when_it_is_free(
    network: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as by stages of the machine that exports the directory, where it is on a local disk."""
    monkeypatch.setattr(cache_copy, "_BUSY_SECONDS", 0.1)
    local = ContentCache(network)
    local.get(KEYS)
    cache = open_cache(network)
    assert cache.get(KEYS) == {}
    assert "chat.sqlite is in use by a process that keeps SQLite files" in caplog.text
    cache.put([(KEYS[0], b"new")])
    local.close()
    assert open_cache(network).get(KEYS) == {KEYS[0]: b"new", KEYS[1]: b"too"}


def test_a_file_that_is_no_cache_is_not_copied(network: Path) -> None:
    network.write_text("no database, but long enough to have a header" * 20)
    with pytest.raises(StoreError, match=r"chat\.sqlite: cache cannot be copied to part files"):
        open_cache(network)
