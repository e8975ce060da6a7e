"""Every row and sentence of the two pages on faults and trust names tests, and these tests exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")
# The parts of the pages that promise something; the others describe the suite, and give measured figures.
PROMISES = {
    "SECURITY.md": ("Trusted", "Not trusted", "Known limits", "Secrets"),
    "docs/reliability.md": ("What is promised", "How it is tested"),
}


def parts() -> dict[str, str]:
    """Every row, item and paragraph of the promises, by page and beginning."""
    found = {}
    for page, sections in PROMISES.items():
        text = (ROOT / page).read_text(encoding="utf-8")
        for section in sections:
            body = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
            blocks = re.split(r"\n\n|\n(?=- )", body.strip())
            for block in blocks:
                rows = block.splitlines()[2:] if block.startswith("|") else [block]
                found.update({f"{page}, {row[:60]}": row for row in rows})
    return found


@cache
def functions_of(file: str) -> frozenset[str]:
    """The names of the tests in a file below ``tests/``."""
    path = ROOT / "tests" / file
    if not path.is_file():
        return frozenset()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("name", parts())
def test_a_promise_names_tests_that_exist(name: str) -> None:
    named = NAMED.findall(parts()[name])
    assert named
    assert [f"{file}::{test}" for file, test in named if test not in functions_of(file)] == []
