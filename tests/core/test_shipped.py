"""Shipped configurations and models are found by name, after files of the current directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.core.model_files import find_model
from pipeline.core.shipped import (
    CONFIGURATIONS,
    ROOT,
    find_configuration,
    shipped_configuration,
)


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["embedded", "embedded.yaml", "configs/embedded.yaml"])
def test_three_forms_of_a_name_are_one_configuration(name: str) -> None:
    assert find_configuration(name) == CONFIGURATIONS / "embedded.yaml"


def test_a_file_of_the_current_directory_comes_first(empty_folder: Path) -> None:
    (empty_folder / "embedded").write_text("name: mine\n")
    assert find_configuration("embedded") == Path("embedded")
    (empty_folder / "data" / "tiny_reader").mkdir(parents=True)
    assert find_model("data/tiny_reader") == "data/tiny_reader"


@pytest.mark.parametrize("name", ["absent", "../setup.py", "/etc/passwd", "", "configs"])
def test_other_names_are_no_shipped_configuration(name: str) -> None:
    assert shipped_configuration(name) is None


def test_the_tiny_reader_is_found_from_any_directory() -> None:
    assert find_model("data/tiny_reader") == ROOT / "data" / "tiny_reader"
    assert find_model(Path("data/tiny_reader")) == ROOT / "data" / "tiny_reader"


@pytest.mark.parametrize("name", ["data/absent", "Qwen/Qwen2.5-3B", "data/../pipeline", "configs"])
def test_names_of_other_models_are_unchanged(name: str) -> None:
    assert find_model(name) == name
