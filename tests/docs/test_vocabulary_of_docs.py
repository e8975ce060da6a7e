"""README and the pages of the documentation have the words of the glossary.

The log is left out: its entries are dated, and quote what was printed on their day.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.vocabulary import wrong_titles, wrong_words

ROOT = Path(__file__).resolve().parents[2]
LOG = {ROOT / "docs" / "log.md", *(ROOT / "docs" / "log").rglob("*.md")}
PAGES = sorted({ROOT / "README.md", *(ROOT / "docs").rglob("*.md")} - LOG)
CODE = re.compile(r"^ *```.*?^ *```|`[^`\n]*`|\]\([^)]*\)|<!--.*?-->", re.DOTALL | re.MULTILINE)


def faults(text: str) -> Iterator[str]:
    prose = CODE.sub("", text)
    yield from wrong_words(prose)
    for table in re.findall(r"(?:^\|.*\|\n?)+", prose, re.MULTILINE):
        lines = [line.strip().strip("|").split("|") for line in table.splitlines()]
        yield from wrong_titles([[cell.strip(" *") for cell in line] for line in lines])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_the_words_of_the_glossary(page: Path) -> None:
    assert list(faults(page.read_text(encoding="utf-8"))) == []


def test_code_is_no_prose_and_results_of_rounds_are_found() -> None:
    assert not list(faults("`round-2`\n\n```\nround-2\n```\n"))
    assert list(faults("| policy | EM |\n|---|---|\n| SFT | 1 |\n"))
    assert list(faults("| EM | SFT | round 1 |\n|---|---|---|\n| a | 1 | 2 |\n"))
    assert not list(faults("| pairs | round 1 | round 2 |\n|---|---|---|\n| a | 1 | 2 |\n"))
