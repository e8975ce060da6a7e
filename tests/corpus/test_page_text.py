"""Tables, code and nesting of Markdown, HTML and Word files, and files that exhaust their readers."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.errors import InputError
from pipeline.knowledge.corpus.bounded import Exceeded, bounded
from pipeline.knowledge.corpus.chunk import chunk_documents, cut
from pipeline.knowledge.corpus.page_text import page_text, parsed_page
from pipeline.knowledge.corpus.prose import read_prose
from pipeline.knowledge.corpus.raw_records import Document
from tests.corpus.word_files import STYLES, paragraph, table, write_word


def read(path: Path, content: str) -> tuple[str, str]:
    """Title and text of a file with this content."""
    path.write_text(content, encoding="utf-8")
    [document] = read_prose(path)
    return document.title, document.text


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("<tr><th>Name<th>Year<tr><td>Ada<td>1969<tr><td>Bo<td>", "Name: Ada; Year: 1969\nName: Bo"),
        ("<tr><th>Born<td>1901<tr><th>Died<td>1950", "Born: 1901\nDied: 1950"),
        ("<tr><th><th>1969<th>1970<tr><th>Ada<td>x<td>y", "Ada: 1969: x; 1970: y"),
        ("<tr><th colspan=2>Towns<tr><th>Name<th>Port<tr><td>Aske<td>yes", "Towns\nName: Aske; Port: yes"),
        ("<caption>Towns</caption><tr><th rowspan=2>Name<th colspan=2>People<tr><th>2010<th>2020"
         "<tr><td>Aske<td>1<td>2",
         "Towns\nName: Aske; People 2010: 1; People 2020: 2"),
        ("<tr><th>Name<th>Year<tr><td rowspan=2>Ada<td>1<tr><td>2", "Name: Ada; Year: 1\nName: Ada; Year: 2"),
        ("<tr><th>A<th>B<tr><td colspan=2>both", "A, B: both"),
        ("<tr><th>A<th>B", "A; B"),
        ("<tr><th>A<tr><td>one<br>two <b>x</b>", "A: one two x"),
        ("<tr><td colspan=0 rowspan=x>a<td colspan=99999999999>b", "a; b"),
        ("loose<tr><td>a<td>b", "loose\na\nb"),
        ("<tr><td>a<table><tr><th>A<th>B<tr><td>1<td>2</table>z<td>b", "a\nA: 1; B: 2\nz\nb"),
        ("<tr><td><pre>x\n  y</pre>", "x\n  y"),
        ("<tr><th>A<th>B<tr><td>1<td><table><tr><th>C<tr><td>3<tr><td>4</table>5", "A: 1; B: C: 3 C: 4 5"),
    ],
)  # fmt: skip
def test_a_row_of_a_table_is_a_line_with_its_headers(html: str, text: str) -> None:
    assert page_text(parsed_page(f"<table>{html}</table>")) == ("", text)


def test_markdown_tables_name_the_header_of_each_value_and_code_keeps_its_lines(
    tmp_path: Path,
) -> None:
    content = (
        "# Ports\n\n| Name | Year |\n|---|--:|\n| Ada | 1969 |\n\n"
        "```python\ndef f(x):\n\n    return x\n```\n\n1. one\n\n       if x:\n         y\n"
    )
    assert read(tmp_path / "a.md", content) == (
        "Ports",
        "Name: Ada; Year: 1969\ndef f(x):\n\n    return x\none\nif x:\n  y",
    )


def test_a_page_keeps_the_text_between_what_is_not_seen(tmp_path: Path) -> None:
    content = "<title>Untitled</title><p>a<!-- c -->b <b>c</b>,<nav>n</nav>\n<script>s</script>d<pre> e\n  f</pre>"
    assert read(tmp_path / "page.html", content) == ("page", "ab c,\nd\n e\n  f")


def test_passages_keep_lines_of_tables_and_code_and_cut_few_of_them() -> None:
    rows = "\n".join(f"Name: n{number}; Year: {number}" for number in range(4))
    assert cut(rows, 10, lines=True) == [
        "Name: n0; Year: 0\nName: n1; Year: 1",
        "Name: n2; Year: 2\nName: n3; Year: 3",
    ]
    assert cut(rows, 10) == [" ".join(rows.split()[:10]), " ".join(rows.split()[10:])]
    code = "  if x:\n      y = 1\n  one two three"
    assert cut(code, 2, lines=True) == ["  if x:", "      y =", "1\n  one", "two three"]
    [chunk] = chunk_documents([Document("T", "a\n b", lines=True)], 9)
    assert chunk.text == "a\n b"


FIRST_ROW = '<w:tblLook w:val="04A0"/>'


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("<w:p><w:r><w:t>No style.</w:t></w:r></w:p>", "No style."),
        ("<w:p><w:ins><w:r><w:t>in</w:t></w:r></w:ins><w:del><w:r><w:delText>x</w:delText></w:r></w:del>"
         "<w:moveFrom><w:r><w:t>x</w:t></w:r></w:moveFrom><w:r><w:t>side</w:t></w:r></w:p>", "inside"),
        (f"<w:sdt><w:sdtContent>{paragraph('control')}</w:sdtContent></w:sdt>", "control"),
        ("<w:p><w:sdt><w:sdtContent><w:r><w:t>in line</w:t></w:r></w:sdtContent></w:sdt></w:p>", "in line"),
        ("<w:p><w:hyperlink><w:r><w:t>link</w:t></w:r></w:hyperlink><w:r><w:tab/><w:t>a</w:t><w:br/>"
         "<w:t>b</w:t></w:r></w:p>", "link a\nb"),
        (f"<w:p><w:r><w:pict><w:txbxContent>{paragraph('box')}</w:txbxContent></w:pict></w:r></w:p>", "box"),
        (f"<w:p><w:r><x><Fallback>{paragraph('box')}</Fallback></x><w:t>a</w:t></w:r></w:p>", "a"),
        (table([[paragraph("Name"), paragraph("Year")], [paragraph("Ada"), paragraph("1969")]], FIRST_ROW),
         "Name: Ada; Year: 1969"),
        (table([[paragraph("a"), paragraph("b")], [paragraph("1"), paragraph("2")]]), "a; b\n1; 2"),
        (table([[paragraph("a"), table([[paragraph("in")]])], [paragraph("1"), paragraph("2")]]),
         "a\nin\n1\n2"),
        ("<w:tbl><w:tr><w:trPr><w:tblHeader/></w:trPr><w:tc><w:tcPr><w:gridSpan w:val='2'/></w:tcPr>"
         f"{paragraph('A')}</w:tc><w:tc>{paragraph('B')}</w:tc></w:tr><w:tr>"
         f"<w:tc>{paragraph('1')}</w:tc><w:tc>{paragraph('2')}</w:tc><w:tc>{paragraph('3')}</w:tc></w:tr></w:tbl>",
         "A: 1; A: 2; B: 3"),
        ("<w:tbl><w:tr><w:tc><w:tcPr><w:vMerge w:val='restart'/></w:tcPr>"
         f"{paragraph('Ada')}</w:tc><w:tc>{paragraph('1')}</w:tc></w:tr><w:tr>"
         f"<w:tc><w:tcPr><w:vMerge/></w:tcPr><w:p/></w:tc><w:tc>{paragraph('2')}</w:tc></w:tr></w:tbl>",
         "Ada; 1\nAda; 2"),
    ],
)  # fmt: skip
def test_a_word_file_gives_the_text_that_its_reader_sees(
    tmp_path: Path, body: str, text: str
) -> None:
    [document] = read_prose(write_word(tmp_path / "a.docx", body))
    assert (document.title, document.text) == ("a", text)


@pytest.mark.parametrize(
    ("style", "title", "expected"),
    [
        ("berschrift1", "", ("Kiln", "One.")),
        ("Titelzeile", "", ("a", "One.\nKiln")),
        ("Heading2", "", ("Kiln", "One.")),
        ("Titel", "Guide", ("Guide", "One.\nKiln")),
        ("Titel", "Word Document", ("Kiln", "One.")),
    ],
)
def test_a_word_file_is_named_by_its_properties_its_heading_or_its_name(
    tmp_path: Path, style: str, title: str, expected: tuple[str, str]
) -> None:
    body = paragraph("One.") + paragraph("Kiln", style)
    [document] = read_prose(write_word(tmp_path / "a.docx", body, title, styles=STYLES))
    assert (document.title, document.text) == expected


def test_the_notes_of_a_word_file_stand_at_its_end(tmp_path: Path) -> None:
    notes = {
        "footnotes": paragraph("foot"),
        "endnotes": paragraph("end"),
        "header1": paragraph("x"),
    }
    [document] = read_prose(write_word(tmp_path / "a.docx", paragraph("One."), "", **notes))
    assert document.text == "One.\nfoot\nend"


BOMB = "---\n" + "\n".join(
    f"{name}: &{name} [{', '.join([f'*{before}' if before else 'x'] * 9)}]"
    for before, name in zip(["", *"abcdefgh"], "abcdefghi", strict=True)
)  # fmt: skip


@pytest.mark.parametrize(
    ("content", "title", "text"),
    [
        (BOMB + "\ntitle: *i\n---\nRome", "a", "Rome"),
        ("---\na: &a {b: c}\n<<: [*a, *a]\ntitle: T\n---\nRome", "T", "Rome"),
        ("---\ntitle: 12\ndate: 2024-01-01\n---\nRome", "12", "Rome"),
        ("---\ntitle: T\ndate: 2024-99-99\n---\nRome", "T", "Rome"),
        ("---\ntitle: ~\n---\nRome", "a", "Rome"),
        ("---\ntitle: " + "[" * 5000 + "\n---\nRome", "a", "title: " + "[" * 5000 + "\nRome"),
        ("---\ntitle: T\nx: " + "y" * 20_000 + "\n---\nRome", "a", "title: T x: " + "y" * 20_000 + "\nRome"),
    ],
)  # fmt: skip
def test_front_matter_gives_a_title_or_nothing_and_never_takes_long(
    tmp_path: Path, content: str, title: str, text: str
) -> None:
    assert read(tmp_path / "a.md", content) == (title, text)


@pytest.mark.parametrize(
    ("page", "title"),
    [
        ("<title>Aske</title><body><svg><title>Menu</title></svg><h1>Port", "Aske"),
        ("<body><SVG><g><title>Menu</title></g></SVG><h1>Port", "Port"),
        ("<body><svg><title>Menu</title></svg><title>Aske</title><h1>Port", "Aske"),
    ],
)
def test_the_title_of_a_picture_is_not_that_of_its_page(
    tmp_path: Path, page: str, title: str
) -> None:
    assert read(tmp_path / "a.html", f"{page}<p>x")[0] == title


@pytest.mark.parametrize("spans", ["rowspan=1000 colspan=100", "colspan=9999 rowspan=9999"])
def test_cells_that_span_too_many_places_are_lines_of_their_own(tmp_path: Path, spans: str) -> None:
    html = f"<table><tr>{f'<td {spans}>a' * 1000}<tr>{'<tr>' * 2000}</table>"
    assert bounded(lambda: read(tmp_path / "a.html", html), 4) == ("a", "\n".join("a" * 1000))
    few = f"<table><tr><th>A<th>B<tr><td {spans}>x<tr></table>"
    assert read(tmp_path / "a.html", few)[1] == "A, B: x\nA, B: x"


@pytest.mark.parametrize(
    ("name", "deep", "deepest"),
    [
        ("a.html", "<div>" * 1000 + "inner" + "</div>" * 1000 + "<p>after", "<div>" * 3000 + "inner"),
        ("a.html", "<b>" * 1000 + "inner" + "</b>" * 1000 + "<p>after", "<table><tr><td>" * 1000 + "inner"),
        ("a.md", ">" * 150 + " inner\n\nafter", ">" * 300 + " inner\n\nafter"),
        ("a.md", "- " * 90 + "inner\n\nafter", "- " * 300 + "inner\n\nafter"),
        ("a.md", "[" * 2000 + "inner\n\nafter", "1. > " * 200 + "inner\n\nafter"),
    ],
)  # fmt: skip
def test_deep_nesting_is_read_whole_or_refused(
    tmp_path: Path, name: str, deep: str, deepest: str
) -> None:
    text = read(tmp_path / name, deep)[1]
    assert text.lstrip("[").split() == ["inner", "after"]
    with pytest.raises(InputError, match=r"a\.\w+: nested too deeply"):
        read(tmp_path / name, deepest)


def test_a_word_file_that_unpacks_to_gigabytes_is_refused_before_it_is_read(
    tmp_path: Path,
) -> None:
    path = write_word(tmp_path / "a.docx", " " * 101_000_000)
    assert path.stat().st_size < 1_000_000
    problem = (
        "word/document.xml has 101,0.. bytes when it is unpacked; at most 100,000,000 are read"
    )
    with pytest.raises(InputError, match=problem.replace("..", r"\d\d,\d\d\d")):
        list(read_prose(path))


def test_entities_of_a_word_file_are_not_expanded(tmp_path: Path) -> None:
    from zipfile import ZipFile

    entities = "".join(f'<!ENTITY e{n + 1} "{f"&e{n};" * 20}">' for n in range(8))
    xml = f'<!DOCTYPE d [<!ENTITY e0 "ha">{entities}]><d><p><t>&e8; there</t></p></d>'
    with ZipFile(tmp_path / "a.docx", "w") as file:
        file.writestr("word/document.xml", xml)
    with pytest.raises(InputError, match=r"a\.docx: damaged: XMLSyntaxError"):
        list(read_prose(tmp_path / "a.docx"))


def _spin() -> None:
    while True:
        pass


def _crash() -> None:
    signal.raise_signal(signal.SIGKILL)


def _refuse() -> None:
    raise InputError("a sentence")


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (_spin, "takes over 1 s to read"),
        (lambda: bytearray(1 << 40), "takes over 2 GiB of memory to read"),
        (_crash, r"ends the process that reads it \(status -9\)"),
    ],
)
def test_a_reader_that_takes_too_much_or_crashes_ends_alone(function: object, problem: str) -> None:
    with pytest.raises(Exceeded, match=problem):
        bounded(function, seconds=1)  # type: ignore[arg-type]


def test_values_and_errors_of_a_bounded_function_are_its_own() -> None:
    assert bounded(lambda: "x" * 1_000_000) == "x" * 1_000_000
    with pytest.raises(InputError, match="a sentence"):
        bounded(_refuse)


WORDS = st.integers(0, 9999).map("word{}".format)


TAGS = [
    "p", "div", "b", "li", "td", "th", "tr", "table", "caption", "h1", "h3", "pre", "ul", "row", "thead",
    "tbody", "blockquote", "span", "dl", "section", "textarea", "center", "br", "form",
]  # fmt: skip


def _html(children: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    tags = st.sampled_from(TAGS)
    spans = st.sampled_from(["", " colspan=3", " rowspan=2"])
    return st.tuples(tags, spans, st.lists(children, max_size=4), st.booleans()).map(
        lambda made: f"<{made[0]}{made[1]}> {' '.join(made[2])} " + f"</{made[0]}>" * made[3]
    )


@settings(max_examples=60)
@given(st.lists(st.recursive(WORDS, _html, max_leaves=30), max_size=4).map(" ".join))
def test_no_word_of_a_generated_page_is_lost(html: str) -> None:
    page = parsed_page(f"<body>{html} end")
    title, text = page_text(page)
    assert set(html.split()) & _words(html) <= _words(f"{title} {text}")


def _words(text: str) -> set[str]:
    return {word.strip(":;,") for word in text.split() if word.startswith("word")}


def _word(children: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    wrap = st.sampled_from(
        ["w:sdt", "w:sdtContent", "w:ins", "w:customXml", "w:txbxContent", "w:p"]
    )
    wrapped = st.tuples(wrap, children).map(lambda made: f"<{made[0]}>{made[1]}</{made[0]}>")
    rows = st.lists(st.lists(children, min_size=1, max_size=3), min_size=1, max_size=3)
    looks = st.sampled_from(["", FIRST_ROW])
    tables = st.tuples(rows, looks).map(lambda made: table(*made))
    return st.one_of(wrapped, tables, st.lists(children, max_size=3).map("".join))


@settings(max_examples=12)
@given(st.recursive(WORDS.map(paragraph), _word, max_leaves=15))
def test_no_word_of_a_generated_word_file_is_lost(
    tmp_path_factory: pytest.TempPathFactory, body: str
) -> None:
    path = write_word(tmp_path_factory.getbasetemp() / "generated.docx", paragraph("word") + body)
    [document] = read_prose(path)
    assert _words(body.replace("<", " ").replace(">", " ")) <= _words(document.text)
