"""`steep data` checks its arguments, and says what to do where there is no network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.cli.app import main
from pipeline.corpus.official import OFFICIAL


def steep(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["steep", "data", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)


def test_an_unknown_data_set_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert steep(monkeypatch, "--data", str(tmp_path), "--dataset", "nqq") == 2
    assert "--dataset nqq: expected one of musique, hotpotqa" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_without_a_network_the_sentence_names_page_and_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "")
    assert steep(monkeypatch, "--data", str(tmp_path), "--dataset", "bamboogle") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "by hand from https://huggingface.co/datasets/RUC-NLPIR/FlashRAG_datasets" in error
    assert f"to {tmp_path / 'bamboogle/test.jsonl'}" in error


def test_files_that_are_there_need_no_network(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    for file in OFFICIAL:
        if file.dataset == "nq":
            path = tmp_path / file.path
            path.parent.mkdir(exist_ok=True)
            path.write_text('{"question": "q"}\n')
    assert steep(monkeypatch, "--data", str(tmp_path), "--dataset", "nq", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["state"], row["records"]) for row in rows] == [("recorded", 1)] * 3


def test_a_directory_that_is_a_file_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    assert steep(monkeypatch, "--data", str(tmp_path / "file")) == 2
    assert "cannot hold the data sets" in capsys.readouterr().err
