"""Figures on a page of the documentation, between two marks; the rest of the page stays."""

from __future__ import annotations

from pathlib import Path

from pipeline.core.atomic import write_text

BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"


def write_between_marks(page: Path, figures: str) -> None:
    """Replace the text between the two marks of a page; a new page has nothing else."""
    text = page.read_text(encoding="utf-8") if page.is_file() else f"{BEGIN}\n{END}\n"
    before_text, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    write_text(page, f"{before_text}{BEGIN}\n{figures}{END}{after}")


def number(value: float | str) -> str:
    """A value with three or four digits."""
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
