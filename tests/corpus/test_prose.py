"""Files of running text give plain text, a title and a source; folders and globs give their files."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from pipeline.core.content_cache import ContentCache
from pipeline.core.errors import InputError
from pipeline.knowledge.corpus.documents import read_documents
from pipeline.knowledge.corpus.folders import find_files
from pipeline.knowledge.corpus.raw_records import Document

PAGE = """<html><head><title>Lina Marsh</title><style>p {}</style>
<link rel="canonical" href="https://example.org/lina"></head>
<body><nav>Home</nav><h1>Lina Marsh</h1><p>An <b>art</b>ist.</p><ul><li>One<li>Two</ul></body></html>"""


@pytest.mark.parametrize(
    ("name", "content", "title", "text"),
    [
        ("a.txt", "One\r\ntwo.", "a", "One\ntwo."),
        ("a.md", "# Lina *Marsh*\n\nAn **art**ist, [born](x.md) in `T`.", "Lina Marsh", "An artist, born in T."),
        ("a.md", "---\ntitle: Lina\ntags: [x]\n---\n## Life\n\nOne.", "Lina", "Life\nOne."),
        ("a.md", "One.\n\n- two\n- three\n", "a", "One.\ntwo\nthree"),
        ("a.md", "| a | b |\n|---|---|\n| 1 | 2 |\n", "a", "a: 1; b: 2"),
        ("a.html", PAGE, "Lina Marsh", "An artist.\nOne\nTwo"),
        ("a.htm", "<p>One<br>two<script>x</script>", "a", "One\ntwo"),
        ("a.html", "<h2>Life</h2><p>One", "Life", "One"),
    ],
)  # fmt: skip
def test_running_text_has_a_title_and_plain_text(
    tmp_path: Path, name: str, content: str, title: str, text: str
) -> None:
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    (document,) = read_documents(path)
    assert (document.title, document.text) == (title, text)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_marked_encodings_are_read(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "a.txt"
    path.write_text("Zürich", encoding=encoding)
    assert next(read_documents(path)).text == "Zürich"


def test_a_page_is_read_in_the_encoding_that_it_names(tmp_path: Path) -> None:
    path = tmp_path / "a.html"
    path.write_text('<meta charset="latin-1"><p>Zürich', encoding="latin-1")
    assert next(read_documents(path)).text == "Zürich"


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.md", b"\n \n", "no text"),
        ("a.html", b"<html><script>x</script></html>", "no text"),
        ("a.txt", b"a\nZ\xfcrich", ":2: not UTF-8 text (invalid start byte); save it as UTF-8"),
        ("a.txt", b"a\0b", "not a text file: it has NUL characters"),
        ("a.pdf", b"%PDF-1.4 broken", "damaged: "),
        ("a.docx", b"PK broken", "damaged: "),
    ],
)
def test_unusable_files_raise_input_error_with_the_reason(
    tmp_path: Path, name: str, content: bytes, problem: str
) -> None:
    if name.endswith(".pdf"):
        pytest.importorskip("pypdf")
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError) as error:
        list(read_documents(path))
    assert str(error.value).startswith(str(path))
    assert problem in str(error.value)


def test_a_word_file_has_the_text_of_its_paragraphs_and_tables(tmp_path: Path) -> None:
    docx = pytest.importorskip("docx")
    written = docx.Document()
    written.add_heading("Lina Marsh", 1)
    written.add_paragraph("An artist.")
    written.add_table(1, 2).rows[0].cells[1].text = "Tollen"
    written.save(tmp_path / "a.docx")
    assert list(read_documents(find_files(tmp_path, "a.docx")[0])) == [
        Document("Lina Marsh", "An artist.\nTollen", None, "a.docx", lines=True)
    ]


def _write_pdf(path: Path, *texts: str) -> None:
    import matplotlib
    from matplotlib.backends.backend_pdf import PdfPages
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"pdf.fonttype": 42}), PdfPages(path) as pages:
        for text in texts:
            figure = Figure()
            figure.text(0.1, 0.5, text)
            pages.savefig(figure)


class CountingCache(ContentCache):
    """A cache that counts what is stored in it."""

    stored = 0

    def put(self, items: Iterable[tuple[bytes, bytes]]) -> None:
        self.stored += 1
        super().put(items)


def test_a_pdf_is_converted_once_for_each_content(tmp_path: Path) -> None:
    pytest.importorskip("pypdf")
    kept = CountingCache(tmp_path / "kept.sqlite")
    _write_pdf(tmp_path / "a.pdf", "One page", "Another page")
    plain = list(read_documents(tmp_path / "a.pdf"))
    assert list(read_documents(tmp_path / "a.pdf", kept=kept)) == plain
    (tmp_path / "a.pdf").rename(tmp_path / "b.pdf")
    again = list(read_documents(tmp_path / "b.pdf", kept=kept))
    assert [(one.title, one.text, one.source) for one in again] == [
        ("b", one.text, one.source) for one in plain
    ]
    assert kept.stored == 1
    _write_pdf(tmp_path / "b.pdf", "A third page")
    [changed] = read_documents(tmp_path / "b.pdf", kept=kept)
    assert (changed.text.split(), kept.stored) == (["A", "third", "page"], 2)


def test_each_page_of_a_pdf_is_a_document_with_its_number(tmp_path: Path) -> None:
    pytest.importorskip("pypdf")
    _write_pdf(tmp_path / "a.pdf", "One page", "Another page")
    documents = list(read_documents(find_files(tmp_path, "*.pdf")[0]))
    assert [(one.title, one.source) for one in documents] == [
        ("a", "a.pdf#page=1"),
        ("a", "a.pdf#page=2"),
    ]
    assert [one.text.split() for one in documents] == [["One", "page"], ["Another", "page"]]


def test_records_keep_their_address_and_take_the_name_of_the_file_as_title(tmp_path: Path) -> None:
    (tmp_path / "news.jsonl").write_text(
        '{"content": "One.", "url": "https://example.org/1"}\n{"title": "T", "text": "Two."}\n'
    )
    assert list(read_documents(find_files(tmp_path, "news.jsonl")[0])) == [
        Document("news", "One.", None, "https://example.org/1"),
        Document("T", "Two.", None, "news.jsonl"),
    ]


def test_tables_and_parquet_hold_documents(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = {"title": ["T"], "text": ["One, two."]}
    pq.write_table(pa.table(rows), tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text('title,text\nT,"One, two."\n')
    (tmp_path / "a.tsv").write_text("title\ttext\nT\tOne, two.\n")
    found = [next(read_documents(one.path)) for one in find_files(tmp_path, ".")]
    assert found == [Document("T", "One, two.")] * 3


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("docs", ["docs/a.md", "docs/sub/b.md", "docs/sub/c.txt"]),
        ("docs/**/*.md", ["docs/a.md", "docs/sub/b.md"]),
        ("docs/*", ["docs/a.md"]),
        ("docs/a.md", ["docs/a.md"]),
        ("docs/[x].md", []),
    ],
)
def test_a_name_stands_for_a_file_a_folder_or_a_glob(
    tmp_path: Path, name: str, expected: list[str]
) -> None:
    (tmp_path / "docs" / "sub" / ".git").mkdir(parents=True)
    for file in ("docs/a.md", "docs/sub/b.md", "docs/sub/c.txt", "docs/sub/.git/d.md"):
        (tmp_path / file).write_text("x")
    (tmp_path / "docs" / "loop").symlink_to(tmp_path / "docs")
    found = find_files(tmp_path, name)
    assert [one.name for one in found if one.problem is None] == expected
    assert {one.name for one in found if one.problem} <= {"docs/loop"}
