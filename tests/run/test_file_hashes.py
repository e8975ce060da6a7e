"""Records of files, and the three depths of the check."""

from pathlib import Path

import pytest

from pipeline.engine.file_hashes import (
    FileRecord,
    hash_problems,
    parse_records,
    seal,
    size_problems,
)

EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"  # SHA-256 of no bytes


def test_files_in_subdirectories_are_recorded_by_relative_name(tmp_path: Path) -> None:
    (tmp_path / "adapter" / "empty").mkdir(parents=True)
    (tmp_path / "adapter" / "weights").write_bytes(b"")
    assert seal(tmp_path) == {"adapter/weights": FileRecord(0, EMPTY)}


def test_each_check_finds_what_it_reads(tmp_path: Path) -> None:
    for name in ("absent", "flipped", "longer", "whole"):
        (tmp_path / name).write_bytes(b"text")
    records = seal(tmp_path)
    (tmp_path / "absent").unlink()
    (tmp_path / "flipped").write_bytes(b"tuxt")
    (tmp_path / "longer").write_bytes(b"texts")
    assert size_problems(tmp_path, records) == [
        "absent is missing",
        "longer has 5 bytes instead of 4",
    ]
    assert [line.split()[0] for line in hash_problems(tmp_path, records)] == ["flipped", "longer"]


@pytest.mark.parametrize("name", ["/etc/passwd", "../outside", "a/../../outside"])
def test_a_recorded_name_outside_the_directory_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="has no size and sha256"):
        parse_records({name: {"size": 0, "sha256": EMPTY}})
