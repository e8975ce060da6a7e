"""`steep data` checks its arguments, and says what to do where there is no network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.knowledge.corpus.official import OFFICIAL
from tests.cli.malformed_inputs import finished, refused, steep


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


def test_files_that_are_there_need_no_network(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    for file in OFFICIAL:
        if file.dataset == "nq":
            path = tmp_path / file.path
            path.parent.mkdir(exist_ok=True)
            path.write_text('{"question": "q"}\n')
    printed = finished("data", "--data", tmp_path, "--dataset", "nq", "--json")
    assert [(row["state"], row["records"]) for row in json.loads(printed)] == [("recorded", 1)] * 3


def test_a_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "cannot hold the data sets" in refused("data", "--data", tmp_path / "file")
