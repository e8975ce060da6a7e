"""``steep init``: a copy of a shipped configuration loads to the same settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config import load
from pipeline.config.variants import variants
from pipeline.core.shipped import configuration_names
from tests.cli.malformed_inputs import accepted, refused


@pytest.mark.parametrize("name", ["embedded", "tearag-llama3-8b", "graph-r1", "recall/musique"])
def test_a_copy_has_the_settings_of_the_shipped_configuration(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    accepted("init", name)
    (copy,) = tmp_path.iterdir()
    assert copy.name == f"{Path(name).name}.yaml"
    assert load(copy) == load(name)
    assert copy.read_text().startswith("# ")


def test_it_says_how_to_run_the_copy_and_refuses_to_overwrite_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    output = accepted("init", "--output", "mine.yaml")
    assert "wrote mine.yaml" in output
    assert "steep run --config mine.yaml\n" in output
    (tmp_path / "mine.yaml").write_text("rounds: 1\n")
    assert "mine.yaml: the file exists" in refused("init", "--output", "mine.yaml")
    assert (tmp_path / "mine.yaml").read_text() == "rounds: 1\n"
    assert "--config tearag-llama3-8b.yaml --data DIR" in accepted("init", "tearag-llama3-8b")
    assert "steep recall --config 2wiki.yaml --data DIR" in accepted("init", "recall/2wiki")


def test_a_base_beside_the_copy_comes_before_the_shipped_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    accepted("init", "embedded-hiprag")
    accepted("init", "embedded")
    copy = tmp_path / "embedded.yaml"
    copy.write_text(copy.read_text().replace("rounds: 3", "rounds: 1"))
    assert load("embedded-hiprag.yaml").rounds == 1
    copy.unlink()
    assert load("embedded-hiprag.yaml").rounds == 3


def test_the_list_gives_every_configuration_with_its_first_comment() -> None:
    lines = dict(line.split(maxsplit=1) for line in accepted("init", "--list").splitlines())
    assert lines["embedded"].startswith("The whole TeaRAG method on a laptop")
    assert lines["hiprag-lambda-0.2"].startswith("lambda_p 0.2")
    assert list(lines) == [*configuration_names(), *variants()]


@pytest.mark.parametrize("name", ["absent", "../embedded", "", "a" * 5000, "a\0b"])
def test_an_unknown_name_is_refused(name: str) -> None:
    assert "; steep init --list shows them" in refused("init", name)
