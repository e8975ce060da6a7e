"""An empty folder of an export; `test_export_command.py` has those that are refused."""

from __future__ import annotations

from pathlib import Path

from pipeline.training.export.directory import new_directory


def test_an_empty_folder_is_filled_through_a_symbolic_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "out")
    for _ in range(2):  # a link to nothing, and to an empty folder
        with new_directory(tmp_path / "link") as folder:
            (folder / "pairs.jsonl").write_text("new")
        (tmp_path / "out" / "pairs.jsonl").unlink()
    assert (tmp_path / "link").is_symlink()
