"""Word files in the smallest form that the format allows."""

from __future__ import annotations

from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

_SPACE = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
STYLES = f"""<w:styles xmlns:w="{_SPACE}">
<w:style w:styleId="Titel"><w:name w:val="Title"/></w:style>
<w:style w:styleId="berschrift1"><w:name w:val="heading 1"/></w:style>
<w:style w:styleId="Titelzeile"><w:name w:val="caption"/></w:style></w:styles>"""


def paragraph(text: str, style: str = "") -> str:
    """A paragraph, with the id of its style."""
    styled = f'<w:pPr><w:pStyle w:val="{style}"/></w:pPr>' if style else ""
    return f"<w:p>{styled}<w:r><w:t>{text}</w:t></w:r></w:p>"


def table(rows: list[list[str]], properties: str = "") -> str:
    """A table whose cells are the XML of paragraphs and tables."""
    lines = ("".join(f"<w:tc>{cell}</w:tc>" for cell in row) for row in rows)
    body = "".join(f"<w:tr>{line}</w:tr>" for line in lines)
    return f"<w:tbl><w:tblPr>{properties}</w:tblPr>{body}</w:tbl>"


def write_word(path: Path, body: str, title: str = "", **parts: str) -> Path:
    """Write a file; ``parts`` are further parts of its folder ``word`` by name."""
    with ZipFile(path, "w", ZIP_DEFLATED) as file:
        for name, root, inside in [
            ("document", "document", f"<w:body>{body}</w:body>"),
            *((name, name, text) for name, text in parts.items()),
        ]:
            xml = f'<w:{root} xmlns:w="{_SPACE}">{inside}</w:{root}>'
            file.writestr(f"word/{name}.xml", inside if inside.startswith("<w:styles") else xml)
        if title:
            core = (
                f'<c xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>{title}</dc:title></c>'
            )
            file.writestr("docProps/core.xml", core)
    return path
