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
        ("a.html", PAGE, "Lina Marsh", "An artist.\nOne\nTwo"),
        ("a.htm", "<p>One<br>two<script>x</script>", "a", "One\ntwo"),
        ("a.html", "<h2>Life</h2><p>One", "Life", "One"),
        ("a.txt", "Zürich".encode("utf-8-sig"), "a", "Zürich"),
        ("a.txt", "Zürich".encode("utf-16"), "a", "Zürich"),
        ("a.html", '<meta charset="latin-1"><p>Zürich'.encode("latin-1"), "a", "Zürich"),
    ],
)  # fmt: skip
def test_running_text_has_a_title_and_plain_text_in_the_encoding_that_it_names(
    tmp_path: Path, name: str, content: str | bytes, title: str, text: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    (document,) = read_documents(path)
    assert (document.title, document.text) == (title, text)


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


def test_each_page_of_a_pdf_is_a_document_and_each_content_is_converted_once(
    tmp_path: Path,
) -> None:
    pytest.importorskip("pypdf")
    kept = CountingCache(tmp_path / "kept.sqlite")

    def pages() -> list[tuple[str, str, list[str]]]:
        documents = read_documents(find_files(tmp_path, "*.pdf")[0], kept=kept)
        return [(one.title, one.source, one.text.split()) for one in documents]

    _write_pdf(tmp_path / "a.pdf", "One page", "Another page")
    assert pages() == [
        ("a", "a.pdf#page=1", ["One", "page"]),
        ("a", "a.pdf#page=2", ["Another", "page"]),
    ]
    (tmp_path / "a.pdf").rename(tmp_path / "b.pdf")
    assert pages() == [
        ("b", "b.pdf#page=1", ["One", "page"]),
        ("b", "b.pdf#page=2", ["Another", "page"]),
    ]
    assert kept.stored == 1
    _write_pdf(tmp_path / "b.pdf", "A third page")
    assert pages() == [("b", "b.pdf#page=1", ["A", "third", "page"])]
    assert kept.stored == 2


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


@pytest.mark.parametrize("name", ["docs/**.md", "docs/a**/*.md", "**x", "docs/***", "d*/**[x]"])
def test_a_glob_with_a_misplaced_double_star_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError) as error:
        find_files(tmp_path, name)
    assert str(error.value) == (
        f"{tmp_path / name}: ** stands for folders alone; write **/* for files below"
    )
