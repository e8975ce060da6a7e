"""Pages, tables and help texts have the words of the glossary."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lxml import html
from starlette.testclient import TestClient
from typer.main import get_command

from pipeline.cli.app import app
from pipeline.cli.run import result_lines
from pipeline.engine.store import read_output
from pipeline.evaluation.comparison_tables import tables
from pipeline.evaluation.measured import read_outcomes
from pipeline.evaluation.run_comparison import RunResults, compare_runs
from pipeline.look.browse.app import create_app
from pipeline.look.browse.site import RunEntry, Site
from pipeline.look.report.page import run as write_report
from tests.browse.stored_run import NAME, TINY_READER, write_stored_run
from tests.docs.vocabulary import wrong_titles, wrong_words
from tests.stages.fabricated_run import write_run

ROOT = Path(__file__).resolve().parents[2]
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
TERMS = re.findall(r"^\*\*(.+?)\*\*", GLOSSARY, re.MULTILINE)


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


def test_the_check_finds_other_words_and_titles() -> None:
    for text in ("Roll-outs of round-2", "the policy after round 2", "share of gold evidence"):
        assert [*wrong_words(text)]
    table = "<tr><th>Policy<th>EM</tr><tr><td>{}<td>1</tr>"
    for title in ("SFT", "Round 2", "round-2"):
        assert faults_of_page(f"<table>{table.format(title)}</table>")
    assert not faults_of_page(f"<table>{table.format('Policy 2')}</table>")
    assert [*wrong_titles([["EM", "SFT", "round 1"]])]
    assert faults_of_page("<select><option>SFT</select>")
    assert not faults_of_page("<p>EM after round 2, <code>round-2</code>: policy 2 (SFT)</p>")


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


def test_the_report_has_the_words_of_the_glossary(tmp_path: Path) -> None:
    context = write_run(tmp_path, rounds=2)
    write_report(context)
    text = (context.output / "report.html").read_text(encoding="utf-8")
    assert "Policy 0 (SFT)" in text
    assert faults_of_page(text) == []


def test_every_page_of_the_browser_has_the_words_of_the_glossary(tmp_path: Path) -> None:
    store = write_stored_run(tmp_path) / "store"
    entry = RunEntry(NAME, store, base_model=TINY_READER)
    seen, todo, faults = {"/"}, ["/"], list[str]()
    with TestClient(
        create_app(Site({NAME: entry}, tmp_path / "cache")), base_url="http://localhost"
    ) as client:
        while todo and len(seen) < 120:
            response = client.get(todo.pop(0))
            faults += [f"{response.url}: {fault}" for fault in faults_of_page(response.text)]
            for link in html.fromstring(response.content).xpath("//a/@href"):
                url = response.url.join(link)
                target = f"{url.path}?{url.query.decode()}"
                if target not in seen:
                    seen.add(target)
                    todo.append(target)
    assert {"pairs", "trajectories", "ask"} <= {path.rpartition("/")[2][:-1] for path in seen}
    assert faults == []


def test_tables_in_the_terminal_have_the_titles_of_policies(tmp_path: Path) -> None:
    context = write_run(tmp_path, rounds=1)
    write_report(context)
    rows = read_output(context.output / "metrics.json")
    outcomes = {
        policy: {
            one.question_id: one for one in read_outcomes(tmp_path / f"evaluate-{policy}").outcomes
        }
        for policy in ("sft", "round-1")
    }
    results = [
        RunResults(name, 0, {"top_k": name}, "test", "same", rows, outcomes)
        for name in ("first", "second")
    ]
    for shown in tables(compare_runs(results), "all"):
        assert [*wrong_titles([[*shown.header], *map(list, shown.rows)])] == []
        assert [*wrong_words(f"{shown.title} {shown.note}")] == []
    lines = list(result_lines(context.output))
    assert [line.split("  ")[0] for line in lines[1:3]] == ["Policy 0 (SFT)", "Policy 1"]
    assert [*wrong_words("\n".join(lines))] == []


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
