import multiprocessing

import pytest

from pipeline.core.content_cache import ContentCache, LruCache, digest
from pipeline.core.errors import StoreError


def write_many(path, start):
    cache = ContentCache(path)
    for number in range(start, start + 50):
        cache.put([(digest(str(number)), str(number).encode())])


def test_several_processes_write_to_one_cache(tmp_path):
    path = tmp_path / "cache.sqlite"
    context = multiprocessing.get_context("spawn")
    # Overlapping ranges: both store 25..49.
    workers = [context.Process(target=write_many, args=(path, start)) for start in (0, 25)]
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


def test_lru_cache_drops_the_least_recently_used_value():
    cache = LruCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (1, None, 3)
