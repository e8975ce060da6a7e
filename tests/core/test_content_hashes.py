"""The cache of content hashes is rebuilt when it is damaged, and never decides whether a run works."""

import json
from pathlib import Path

import pytest

from pipeline.core.content_hashes import ContentHashes
from pipeline.core.model_files import file_hash

OLD = Path(json.__file__).resolve()  # it was changed long ago

DAMAGED = {
    "empty": "",
    "list": "[]",
    "null": '{"a": [[1, 2, 3], null]}',
    "deep": "[" * 5000,
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_cache_is_ignored_and_rebuilt(tmp_path: Path, text: str) -> None:
    cache = tmp_path / ".hashes.json"
    cache.write_text(text, encoding="latin-1")
    hashes = ContentHashes(cache)
    assert hashes.of(OLD) == file_hash(OLD)
    hashes.save()
    assert list(json.loads(cache.read_text())) == [str(OLD)]


def test_entries_that_are_whole_are_kept(tmp_path: Path) -> None:
    cache, file = tmp_path / ".hashes.json", tmp_path / "weights.bin"
    file.write_bytes(b"weights")
    status = file.stat()
    stamp = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
    cache.write_text(json.dumps({str(file): [stamp, "kept"], "other": 1}))
    assert ContentHashes(cache).of(file) == "kept"
