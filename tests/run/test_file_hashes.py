"""Records of files; `tests/tasks/test_damaged_outputs.py` checks files against them."""

from pathlib import Path

import pytest

from pipeline.engine.file_hashes import FileRecord, parse_records, seal

EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"  # SHA-256 of no bytes


def test_files_in_subdirectories_are_recorded_by_relative_name(tmp_path: Path) -> None:
    (tmp_path / "adapter" / "empty").mkdir(parents=True)
    (tmp_path / "adapter" / "weights").write_bytes(b"")
    assert seal(tmp_path) == {"adapter/weights": FileRecord(0, EMPTY)}


@pytest.mark.parametrize("name", ["/etc/passwd", "../outside", "a/../../outside"])
def test_a_recorded_name_outside_the_directory_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="has no size and sha256"):
        parse_records({name: {"size": 0, "sha256": EMPTY}})
