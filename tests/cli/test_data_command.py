"""`steep data` checks its arguments, and says what to do where there is no network."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.malformed_inputs import refused, steep


def test_an_unknown_data_set_is_refused(tmp_path: Path) -> None:
    error = refused("data", "--data", tmp_path, "--dataset", "nqq")
    assert "--dataset nqq: expected one of musique, hotpotqa" in error
    assert not list(tmp_path.iterdir())


def test_without_a_network_the_sentence_names_page_and_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "")
    status, _, error = steep(["data", "--data", str(tmp_path), "--dataset", "bamboogle"])
    assert (status, error.count("\n")) == (2, 1)
    assert "by hand from https://huggingface.co/datasets/RUC-NLPIR/FlashRAG_datasets" in error
    assert f"to {tmp_path / 'bamboogle/test.jsonl'}" in error


def test_a_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "cannot hold the data sets" in refused("data", "--data", tmp_path / "file")
