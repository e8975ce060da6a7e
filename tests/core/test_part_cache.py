"""The cache of part files: what several processes store, what a kill leaves, and where it is used."""

import sqlite3
import stat
from pathlib import Path

import pytest

from pipeline.core import content_cache
from pipeline.core.content_cache import ContentCache, digest, open_cache
from pipeline.core.errors import StoreError
from pipeline.core.file_systems import on_network
from pipeline.core.part_cache import PartCache

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


def test_caches_on_a_network_file_system_are_part_files_with_what_sqlite_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(open_cache(tmp_path / "chat.sqlite"), ContentCache)
    earlier = ContentCache(tmp_path / "chat.sqlite")
    earlier.put([(KEYS[0], b"paid")])
    earlier.close()
    monkeypatch.setattr(content_cache, "on_network", lambda path: True)
    cache = open_cache(tmp_path / "chat.sqlite", private=True)
    assert isinstance(cache, PartCache)
    assert cache.get(KEYS) == {KEYS[0]: b"paid"}
    with sqlite3.connect(tmp_path / "chat.sqlite") as connection:
        connection.execute("DELETE FROM items")
    assert open_cache(tmp_path / "chat.sqlite").get(KEYS) == {KEYS[0]: b"paid"}
