import multiprocessing
from pathlib import Path

import pytest

from pipeline.core import content_cache
from pipeline.core.content_cache import ContentCache, LruCache, digest, on_network
from pipeline.core.errors import StoreError


def write_many(path, start, mounts):
    content_cache._MOUNTS = Path(mounts)
    cache = ContentCache(path)
    for number in range(start, start + 50):
        cache.put([(digest(str(number)), str(number).encode())])


def test_get_returns_stored_values_only(tmp_path):
    cache = ContentCache(tmp_path / "deep" / "cache.sqlite")
    cache.put([(digest("a"), b"one"), (digest("b"), b"two")])
    keys = [digest("a"), digest("c")]
    assert cache.get(keys) == {keys[0]: b"one"}
    assert ContentCache(tmp_path / "deep" / "cache.sqlite").get(keys) == {keys[0]: b"one"}


def test_get_handles_more_keys_than_one_sql_statement(tmp_path):
    cache = ContentCache(tmp_path / "cache.sqlite")
    keys = [digest(str(number)) for number in range(3000)]
    cache.put((key, key) for key in keys)
    assert cache.get(keys) == {key: key for key in keys}


MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
server:/home {home} nfs4 rw 0 0
/dev/sdb1 {home}/scratch\\040disk xfs rw 0 0
gluster {home}/data fuse.glusterfs rw 0 0
"""


def test_the_mount_that_holds_a_path_decides(tmp_path, monkeypatch):
    home, mounts = tmp_path / "home", tmp_path / "mounts"
    mounts.write_text(MOUNTS.format(home=home))
    monkeypatch.setattr(content_cache, "_MOUNTS", mounts)
    assert on_network(home / "runs/cache/chat.sqlite")
    assert on_network(home / "data")
    assert not on_network(home / "scratch disk" / "cache")
    assert not on_network(tmp_path / "homes")
    monkeypatch.setattr(content_cache, "_MOUNTS", tmp_path / "no such file")
    assert not on_network(home)


def test_a_cache_on_a_network_file_system_needs_no_shared_memory(tmp_path, monkeypatch):
    path = tmp_path / "cache.sqlite"
    ContentCache(path).put([(digest("a"), b"one")])  # as a machine with a local disk made it
    monkeypatch.setattr(content_cache, "on_network", lambda path: True)
    cache, other = ContentCache(path), ContentCache(path)
    other.put([(digest("b"), b"two")])
    assert cache.get([digest("a"), digest("b")]) == {digest("a"): b"one", digest("b"): b"two"}
    assert {file.name for file in tmp_path.iterdir()} <= {"cache.sqlite", "cache.sqlite-journal"}


@pytest.mark.parametrize("mounts", ["/proc/self/mounts", "network"])
def test_several_processes_write_to_one_cache(tmp_path, mounts):
    if mounts == "network":
        mounts = tmp_path / "mounts"
        mounts.write_text("server:/ / nfs4 rw 0 0\n")
    path = tmp_path / "cache.sqlite"
    context = multiprocessing.get_context("spawn")
    # Overlapping ranges: both store 25..49.
    workers = [context.Process(target=write_many, args=(path, start, mounts)) for start in (0, 25)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]
    keys = [digest(str(number)) for number in range(75)]
    assert sorted(ContentCache(path).get(keys).values(), key=int) == [
        str(number).encode() for number in range(75)
    ]


def test_failed_write_is_rolled_back_and_the_cache_stays_usable(tmp_path):
    def items():
        yield digest("a"), b"one"
        raise KeyError("interrupted")

    cache = ContentCache(tmp_path / "cache.sqlite")
    with pytest.raises(KeyError):
        cache.put(items())
    cache.put([(digest("b"), b"two")])
    assert cache.get([digest("a"), digest("b")]) == {digest("b"): b"two"}


def test_file_that_is_no_cache_raises_store_error(tmp_path):
    path = tmp_path / "cache.sqlite"
    path.write_text("no database, but long enough to have a header" * 20, encoding="utf-8")
    with pytest.raises(StoreError, match=r"cache\.sqlite: cache cannot be used .* delete the file"):
        ContentCache(path)


def test_digest_depends_on_the_boundaries_of_its_parts():
    assert digest("ab", "c") != digest("a", "bc")
    assert digest("ab") != digest("ab", "")


def test_lru_cache_drops_the_least_recently_used_value():
    cache = LruCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (1, None, 3)
