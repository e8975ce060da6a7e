"""Folders of exports: new or empty, or refused as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.core.errors import InputError
from pipeline.training.export.directory import new_directory


def made(path: Path) -> None:
    with new_directory(path) as folder:
        (folder / "pairs.jsonl").write_text("new")


@pytest.mark.parametrize("name", ["pairs.jsonl", "notes.txt", ".hidden"])
def test_a_folder_that_holds_anything_is_kept(tmp_path: Path, name: str) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text("precious")
    (tmp_path / "link").symlink_to(tmp_path / "out")
    for path in (tmp_path / "out", tmp_path / "link", tmp_path / "out" / name):
        with pytest.raises(InputError, match="exists; name a new directory"):
            made(path)
    assert (tmp_path / "out" / name).read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "out"]


def test_an_empty_folder_is_filled_through_a_symbolic_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "out")
    for _ in range(2):  # a link to nothing, and to an empty folder
        made(tmp_path / "link")
        (tmp_path / "out" / "pairs.jsonl").unlink()
    assert (tmp_path / "link").is_symlink()
