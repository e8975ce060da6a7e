"""Corpus files of every format give the same documents; malformed ones raise InputError."""

import datetime
import decimal
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from pipeline.core.errors import InputError
from pipeline.core.row_files import BadRows
from pipeline.knowledge.corpus.documents import read_documents
from pipeline.knowledge.corpus.raw_records import Document

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
    "table.csv": 'title,text\nLake Tovel,"It turned red. Until 1964."\n',
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
        ("a.jsonl", '{"title": "x"\n[]\n', ":1: not valid JSON"),
        ("a.json", '[{"title": "x",\n "text": }]', ":2: not valid JSON"),
        ("a.tsv", "id\ttext\ttitle\n", "empty; expected records"),
        (
            "a.tsv",
            "id\ttitle\n1\tx\n",
            "expected `text` (or content, body, page_content, contents), and `title`; the record has id, title",
        ),
        ("a.rst", "Title\n=====\n", "not a kind of file that is read; convert it to .md"),
        ("a.json", '[{"question": "?", "context": []}]', "set format: questions and dataset"),
        ("a.md", "\n \n", "no text"),
        ("a.html", "<html><script>x</script></html>", "no text"),
        ("a.txt", b"a\nZ\xfcrich", ":2: not UTF-8 text (invalid start byte); save it as UTF-8"),
        ("a.txt", "a\0b", "not a text file: it has NUL characters"),
        ("a.pdf", "%PDF-1.4 broken", "damaged: "),
        ("a.docx", "PK broken", "damaged: "),
    ],
)
def test_an_unusable_file_raises_input_error_with_its_position_and_the_reason(
    tmp_path: Path, name: str, content: str | bytes, problem: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError) as error:
        list(read_documents(path))
    assert str(error.value).startswith(str(path))
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


def test_an_open_quote_costs_its_row_alone(tmp_path: Path) -> None:
    path = tmp_path / "psgs.tsv"
    path.write_text('id\ttext\ttitle\n1\t"open\tA\n2\tx\tB\n3\ty\tC\n')
    bad = BadRows()
    assert [one.title for one in read_documents(path, bad=bad)] == ["B", "C"]
    assert str(bad.first).startswith(f"{path}:2: not readable as a table: ")


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"title": None, "text": "x"}, Document("d", "x")),
        ({"title": 1984, "text": "x", "id": 7.0}, Document("1984", "x", "7")),
        ({" Title": "T", "TEXT": "x", "when": float("nan"), "half": "\ud800"}, Document("T", "x")),
        ({"body": 1969}, Document("d", "1969")),
        ({"title": "T", "text": None}, Document("T", "")),
        (
            {"page_content": "x", "metadata": {"title": "T", "source": "a.md", "page": 3}},
            Document("T", "x", source="a.md"),
        ),
        ({"content": "x", "meta": {"url": "http://a", "title": None}}, Document("d", "x", source="http://a")),
        (
            {"text": None, "content": "x", "id": "", "doc_id": "d1", "url": None, "source": "a.md"},
            Document("d", "x", "d1", "a.md"),
        ),
        ({"text": "", "contents": "T\nx", "url": " ", "source": "a"}, Document("T", "x", source="a")),
        ({"page_content": "x", "title": "Own", "metadata": {"title": "T"}}, Document("Own", "x")),
    ],
)  # fmt: skip
def test_a_row_is_a_document_whatever_its_columns_hold(
    tmp_path: Path, row: dict[str, Any], expected: Document
) -> None:
    path, bad = tmp_path / "d.jsonl", BadRows()
    path.write_text(json.dumps({"text": [1]}) + "\n" + json.dumps(row) + "\n")
    assert list(read_documents(path, bad=bad)) == [expected]
    assert (bad.count, str(bad.first)) == (
        1,
        f"{path}:1: text: expected a non-empty string, got [1]",
    )


def test_columns_that_nobody_reads_refuse_no_document(tmp_path: Path) -> None:
    rows = {
        "title": ["A", None], "text": [b"x", b"y"], "when": [datetime.datetime(2026, 1, 1), None],
        "price": [decimal.Decimal("1.5"), None], "bytes": [b"\xff", b""], "far": [float("inf"), 1.0],
        "tags": [{"a": datetime.date(2026, 1, 1)}, {"a": None}],
    }  # fmt: skip
    for name in ("d.parquet", "d.arrow"):
        write = pq.write_table if name == "d.parquet" else feather.write_feather
        write(pa.table(rows), str(tmp_path / name))
        found = [(one.title, one.text) for one in read_documents(tmp_path / name)]
        assert found == [("A", "x"), ("d", "y")]
