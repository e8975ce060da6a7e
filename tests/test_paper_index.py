"""The paper index names code and tests that exist, and every equation of TeaRAG."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
INDEX = ROOT / "docs" / "paper_index.md"
HEADER = ["Paper", "What", "Code", "Test", "Departures and decisions"]
EQUATIONS = re.compile(r"eq\. (\d+)(?:–(\d+))?")
DEFINITION = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def rows(text: str) -> list[list[str]]:
    """Cells of every row of every table of code, headers and rules left out."""
    text = re.sub(r"## Protocols\n.*?\n(?=## )", "", text, flags=re.DOTALL)
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]
    assert cells[0] == HEADER
    return [row for row in cells if row != HEADER and set("".join(row)) != {"-"}]


@cache
def definitions(path: Path) -> frozenset[str]:
    """Functions and classes of a file, methods as ``Class.method``; nothing is imported."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, DEFINITION):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{one.name}" for one in node.body if isinstance(one, DEFINITION)}
    return frozenset(found)


def code_fault(entry: str) -> str | None:
    """Why ``module:name`` names nothing, or None."""
    module, _, name = entry.partition(":")
    path = ROOT.joinpath(*module.split("."))
    files = [one for one in (path.with_suffix(".py"), path / "__init__.py") if one.is_file()]
    if not files:
        return f"{entry}: no such module"
    return None if name in definitions(files[0]) else f"{entry}: not defined there"


def pin_fault(entry: str) -> str | None:
    """Why ``tests/file.py::test_name`` names no test, or None."""
    file, _, name = entry.partition("::")
    if not (file.startswith("tests/") and (ROOT / file).is_file()):
        return f"{entry}: no such file of tests"
    known = name.startswith("test_") and name in definitions(ROOT / file)
    return None if known else f"{entry}: no such test"


def faults(row: list[str]) -> list[str]:
    """Everything that is wrong with one row."""
    if len(row) != len(HEADER) or not all(row):
        return [f"{row}: expected {len(HEADER)} cells with something in each"]
    found = []
    for cell, check in ((row[2], code_fault), (row[3], pin_fault)):
        entries = re.findall(r"`([^`]+)`", cell)
        if cell != ", ".join(f"`{entry}`" for entry in entries):
            found.append(f"{cell}: expected names in backticks, separated by commas")
        found += [fault for entry in entries if (fault := check(entry)) is not None]
    return found


def test_every_entry_of_the_index_exists() -> None:
    assert [fault for row in rows(INDEX.read_text(encoding="utf-8")) for fault in faults(row)] == []


def test_every_equation_of_tearag_is_listed() -> None:
    section = INDEX.read_text(encoding="utf-8").partition("## TeaRAG")[2].partition("\n## ")[0]
    listed: set[int] = set()
    for row in rows(section):
        for first, last in EQUATIONS.findall(row[0]):
            listed |= set(range(int(first), int(last or first) + 1))
    assert listed == set(range(1, 18))


CODE = "`pipeline.core.answer_metrics:f1`"
TEST = "`tests/core/test_answer_metrics.py::test_metrics`"


@pytest.mark.parametrize(
    ("code", "test", "fault"),
    [
        ("`pipeline.core.answer_metrics:f2`", TEST, "answer_metrics:f2: not defined there"),
        ("`pipeline.rewards.reply:f1`", TEST, "reply:f1: no such module"),
        (CODE, "`tests/core/test_answer_metrics.py::test_gone`", "test_gone: no such test"),
        (CODE, "`tests/rewards/test_gone.py::test_metrics`", "no such file of tests"),
        (CODE, "see the code", "expected names in backticks"),
        (CODE, "", "something in each"),
    ],
)
def test_a_stale_entry_is_found(code: str, test: str, fault: str) -> None:
    assert faults(["eq. 5", "F1", CODE, TEST, "None."]) == []
    (found,) = faults(["eq. 5", "F1", code, test, "None."])
    assert fault in found


def test_every_test_that_a_page_names_exists() -> None:
    named = {
        entry
        for page in (ROOT / "docs").rglob("*.md")
        for entry in re.findall(r"tests/[\w/]+\.py::\w+", page.read_text(encoding="utf-8"))
    }
    assert len(named) > 20
    assert [fault for entry in sorted(named) if (fault := pin_fault(entry))] == []
