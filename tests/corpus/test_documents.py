"""Corpus files of every format give the same documents; malformed ones raise InputError."""

from pathlib import Path

import pytest

from pipeline.core.errors import InputError
from pipeline.corpus.documents import read_documents
from pipeline.corpus.raw_records import Document

TOVEL = "It turned red. Until 1964."

SHAPES = {
    "corpus.jsonl": '{"title": "Lake Tovel", "text": "It turned red. Until 1964."}\n',
    "corpus.json": '[{"title": "Lake Tovel", "text": "It turned red. Until 1964."}]',
    "lines.json": '{"title": "Lake Tovel", "text": "It turned red. Until 1964."}\n'
    '{"title": "Elster", "text": "A river."}\n',
    "search_r1.jsonl": '{"contents": "\\"Lake Tovel\\"\\nIt turned red. Until 1964."}\n',
    "titles_hotpotqa.json": '{"Lake Tovel": ["It turned red.", " Until 1964."]}',
    "titles_2wiki.json": '{"Lake Tovel": ["It turned red.", "Until 1964."]}',
    "psgs.tsv": "id\ttext\ttitle\n1\tIt turned red. Until 1964.\tLake Tovel\n",
}


@pytest.mark.parametrize("name", SHAPES)
def test_auto_format_is_detected_from_the_content(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(SHAPES[name], encoding="utf-8")
    first = next(read_documents(path))
    assert (first.title, first.text) == ("Lake Tovel", TOVEL)


def test_dpr_tsv_keeps_quoted_tabs_and_quotes(tmp_path: Path) -> None:
    path = tmp_path / "psgs_w100.tsv"
    path.write_text('id\ttext\ttitle\n7\t"""Aaron"" is a\tprophet"\tAaron\n', encoding="utf-8")
    assert list(read_documents(path)) == [Document("Aaron", '"Aaron" is a\tprophet', "7")]


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.jsonl", '{"title": "x", "text": "y"}\n{"title": "x"\n', ":2: not valid JSON"),
        ("a.json", '[{"title": "x",\n "text": }]', ":2: not valid JSON"),
        ("a.tsv", "id\ttext\ttitle\n", "empty table; expected a header line and records"),
        ("a.tsv", "id\ttitle\n1\tx\n", "expected `text` (and `title`), or `contents`"),
        ("a.rst", "Title\n=====\n", "not a kind of file that is read; convert it to .md"),
        ("a.json", '[{"question": "?", "context": []}]', "set format: questions and dataset"),
    ],
)
def test_malformed_corpus_raises_input_error_with_its_position(
    tmp_path: Path, name: str, content: str, problem: str
) -> None:
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError) as error:
        list(read_documents(path))
    assert str(path) in str(error.value)
    assert problem in str(error.value)


@pytest.mark.parametrize(
    ("file", "dataset", "documents"),
    [
        ("musique/musique_train100_corpus1890.json", None, 1890),
        ("hotpotqa/hotpotqa_train100_corpus994.json", None, 994),
        ("2wiki/2wiki_official100_corpus770.json", None, 770),
        ("2wiki/2wiki_corpus6119.json", None, 6119),
        ("musique/musique_train100.json", "musique", 2000),
        ("2wiki/prunerag_2wiki_bge_top10_271.jsonl", "2wiki", 2710),
        ("single-hop/bamboogle_e5_top21_58.jsonl", "bamboogle", 58 * 21),
        ("single-hop/popqa_gold_502.jsonl", "popqa", 1004),
        ("single-hop/nq_open_gold_1326.jsonl", "nq", 1326),
    ],
)
def test_real_corpora_are_recognized(
    real_data: Path, file: str, dataset: str | None, documents: int
) -> None:
    results = list(read_documents(real_data / file, "auto", dataset))
    assert len(results) == documents
    assert all(document.title and document.text for document in results)


def test_an_open_quote_does_not_swallow_the_rows_after_it(tmp_path: Path) -> None:
    path = tmp_path / "psgs.tsv"
    path.write_text('id\ttext\ttitle\n1\t"open\tA\n2\tx\tB\n3\ty\tC\n')
    with pytest.raises(InputError, match=r"psgs\.tsv:2: not readable as a table: .*quote"):
        list(read_documents(path))
