"""Pages, tables and help texts have the words of the glossary."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lxml import html
from typer.main import get_command

from pipeline.cli.app import app
from pipeline.engine.context import StageContext
from pipeline.look.report.page import run as write_report
from tests.browse.linked_pages import linked_pages
from tests.browse.stored_run import TINY_READER, browsed, write_stored_run
from tests.docs.vocabulary import wrong_titles, wrong_words
from tests.stages.fabricated_run import write_run

ROOT = Path(__file__).resolve().parents[2]
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
TERMS = re.findall(r"^\*\*(.+?)\*\*", GLOSSARY, re.MULTILINE)


# The log is left out: its entries are dated, and quote what was printed on their day.
LOG = {ROOT / "docs" / "log.md", *(ROOT / "docs" / "log").rglob("*.md")}
PAGES = sorted({ROOT / "README.md", *(ROOT / "docs").rglob("*.md")} - LOG)
CODE = re.compile(r"^ *```.*?^ *```|`[^`\n]*`|\]\([^)]*\)|<!--.*?-->", re.DOTALL | re.MULTILINE)


def faults_of_page(text: str) -> list[str]:
    """The faults of an HTML page; code, and texts of trajectories, are not prose."""
    root = html.fromstring(text.encode())
    for part in root.xpath("//code | //pre | //script | //style | //bdi | //*[@class='text']"):
        part.drop_tree()
    shown = [root.text_content(), *root.xpath("//@title | //@aria-label | //@placeholder")]
    faults = [fault for one in shown for fault in wrong_words(one)]
    for table in root.iter("table"):
        rows = [
            [" ".join(cell.text_content().split()) for cell in row.iter("th", "td")]
            for row in table.iter("tr")
        ]
        faults += wrong_titles(rows)
    exact = [" ".join(part.text_content().split()) for part in root.xpath("//option | //h1 | //h2")]
    return faults + [f"{one!r} is no title of a policy" for one in exact if one in ("SFT", "sft")]


def test_the_glossary_is_short_and_in_alphabetical_order() -> None:
    assert len(GLOSSARY.split()) <= 700
    assert sorted(TERMS, key=str.casefold) == TERMS
    named = {name for term in TERMS for name in re.split(r", | pair$", term)}
    assert named >= {
        "CEM", "checkpoint", "chunk", "cold start", "control", "document", "easy", "EM", "F1",
        "failure mode", "fork", "format", "hard", "interval", "observation", "outcome reward",
        "pairing outcome", "passage", "policy", "process reward", "round", "SFT", "stale",
        "trajectory", "variant",
    }  # fmt: skip


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> StageContext:
    """A finished run and its report."""
    context = write_run(tmp_path_factory.mktemp("run"), rounds=2)
    write_report(context)
    return context


def test_the_report_has_the_words_of_the_glossary(report: StageContext) -> None:
    text = (report.output / "report.html").read_text(encoding="utf-8")
    assert "Policy 0 (SFT)" in text
    assert faults_of_page(text) == []


def test_every_page_of_the_browser_has_the_words_of_the_glossary(tmp_path: Path) -> None:
    with browsed(write_stored_run(tmp_path), base_model=TINY_READER) as client:
        pages = linked_pages(client, most=1)
    assert pages.keys() >= {"/pairs", "/trajectories", "/ask"}
    faults = [fault for texts in pages.values() for text in texts for fault in faults_of_page(text)]
    assert faults == []


def help_texts(command: Any, name: str) -> Iterator[tuple[str, str]]:
    yield name, command.help or ""
    yield from (
        (f"{name} {one.name}", one.help) for one in command.params if getattr(one, "help", None)
    )
    for word, below in getattr(command, "commands", {}).items():
        yield from help_texts(below, f"{name} {word}")


def test_help_texts_have_the_words_of_the_glossary() -> None:
    texts = list(help_texts(get_command(app), "steep"))
    assert len(texts) > 100
    assert [f"{name}: {fault}" for name, text in texts for fault in wrong_words(text)] == []


@pytest.mark.parametrize("kind", ["settings", "stages"])
def test_settings_and_stages_are_described_in_the_words_of_the_glossary(kind: str) -> None:
    from docs.settings_page import page
    from tasks import STAGES

    text = page() if kind == "settings" else "\n".join(stage.help for stage in STAGES.values())
    assert [*wrong_words(re.sub(r"`[^`]*`", "", text))] == []


def faults_of_markdown(text: str) -> Iterator[str]:
    prose = CODE.sub("", text)
    yield from wrong_words(prose)
    for table in re.findall(r"(?:^\|.*\|\n?)+", prose, re.MULTILINE):
        lines = [line.strip().strip("|").split("|") for line in table.splitlines()]
        yield from wrong_titles([[cell.strip(" *") for cell in line] for line in lines])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_the_words_of_the_glossary(page: Path) -> None:
    assert list(faults_of_markdown(page.read_text(encoding="utf-8"))) == []
