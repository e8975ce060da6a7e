"""Report page: well-formed, escaped and complete for finished, partial and broken runs."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from pipeline.core.errors import StoreError
from pipeline.core.text import visible
from pipeline.engine.context import StageContext
from pipeline.evaluation.measured import merge_policies
from pipeline.look.report.page import run
from tasks import evaluate
from tests.stages.fabricated_run import trajectory, write_evaluation, write_run

HOSTILE = '</style></span><script>alert("steep")</script><img src=x onerror=alert(1)>{{ 7 * 7 }}'
CONTROLS = "\x1b[2J\x00\u202egpj.exe\u2066\u200f\u061c\x9b\U000e0041"
VOID = {"meta", "link", "br", "img", "input", "hr", "wbr"}


class Page(HTMLParser):
    """Tags, attributes and text of a page; ``misnested`` lists tags closed out of order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.ids: list[str] = []
        self.open: list[str] = []
        self.misnested: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self.ids += [value for name, value in attrs if name == "id" and value]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.misnested.append(tag)

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> StageContext:
    """A report with a hostile name and data set, and where it is."""
    root = tmp_path_factory.mktemp("run")
    context = write_run(root / "run", rounds=2)
    hostile = replace(trajectory("q", "Vell"), dataset=HOSTILE)
    policies = ("sft", "round-1", "round-2")
    evaluated = {policy: write_evaluation(root / policy, [hostile]) for policy in policies}
    merge_policies(evaluated, context.inputs["evaluate"])
    config = context.config.model_copy(update={"name": f"{HOSTILE} x{CONTROLS} שלום"})
    context = replace(context, config=config)
    run(context)
    return context


@pytest.fixture(scope="module")
def page(written: StageContext) -> str:
    return (written.output / "report.html").read_text()


def test_markup_in_a_name_is_escaped(page: str) -> None:
    parsed = Page(page)
    assert HOSTILE in "".join(parsed.words)
    [failures] = re.findall(r'<section id="failure-modes">.*?</section>', page, re.DOTALL)
    assert HOSTILE in "".join(Page(failures).words)  # as a data set
    assert not {"script", "img"} & set(parsed.tags)
    assert not [name for name, _ in parsed.attributes if name.startswith("on")]
    assert parsed.tags.count("style") == page.count("<style")


def test_controls_in_untrusted_text_are_written_out(page: str) -> None:
    assert visible(page) == page
    assert "\\u202egpj.exe\\u2066\\u200f\\u061c" in page
    assert "שלום" in page


def test_the_page_is_well_formed_and_has_no_external_resources(page: str) -> None:
    parsed = Page(page)
    assert (parsed.misnested, parsed.open) == ([], [])
    assert len(parsed.ids) == len(set(parsed.ids))
    links = [
        value or "" for name, value in parsed.attributes if name in ("href", "src", "xlink:href")
    ]
    inside = {link[1:] for link in links if link.startswith("#")}
    assert inside
    assert inside <= set(parsed.ids)
    beside = [link for link in links if not link.startswith("#")]
    assert beside == []
    assert "@import" not in page
    assert re.findall(r"url\((?!#)", page) == []


def test_the_page_of_a_run_without_rounds_names_the_missing_parts(tmp_path: Path) -> None:
    context = write_run(tmp_path, rounds=0)
    run(context)
    text = Page((context.output / "report.html").read_text()).text
    for sentence in (
        "The run has no rounds.",
        "The run has only one policy, so there is no comparison.",
        "Learning curves need the evaluation of policy 0 and of at least one round",
        "The run has no sampled and scored round.",
        "The run has no round with pair selection.",
        "The run has no trained round.",
    ):
        assert sentence in text


def test_a_run_that_stopped_before_training_has_a_page(tmp_path: Path) -> None:
    context = write_run(tmp_path, rounds=1)
    inputs = {name: context.inputs[name] for name in ("score-1", "pair-1")}
    config = context.config.model_copy(update={"until": "pair"})
    assert run(replace(context, inputs=inputs, config=config))["rows"] == 0
    text = Page((context.output / "report.html").read_text()).text
    assert "No policy was evaluated, because the run stopped before training (until: pair)." in text
    assert "The inputs of this report include no training log." in text
    assert "Kind of pair, and why it is one" in text
    assert json.loads((context.output / "metrics.json").read_text()) == []


def test_a_broken_upstream_file_is_named_in_the_error(tmp_path: Path) -> None:
    context = write_run(tmp_path, rounds=1)
    broken = context.inputs["pair-1"] / "funnel.json"
    broken.write_text("{")
    with pytest.raises(StoreError, match=r"pair-1/funnel\.json:1: not valid JSON.*--force"):
        run(context)


def test_the_last_policy_has_its_rows_on_the_final_split_and_no_other_policy(
    tmp_path: Path,
) -> None:
    context = write_run(tmp_path)
    trajectories = [trajectory(f"t{n}", "Ostar", dataset="popqa") for n in range(4)]
    final = write_evaluation(tmp_path / "final", trajectories)
    rows = json.loads((final / "rows.json").read_text())
    (final / "rows.json").write_text(json.dumps({**rows, "split": "validation"}))
    inputs = {name: tmp_path / f"evaluate-{name}" for name in ("sft", "round-1")}
    context.inputs["evaluate"] = tmp_path / "evaluated again"
    merging = replace(
        context,
        output=context.inputs["evaluate"],
        inputs={**inputs, "final-round-1": final},
    )
    merging.output.mkdir()
    evaluate.run(merging)
    tests = json.loads((merging.output / "comparison.json").read_text())
    assert {test["split"] for test in tests} == {"test"}
    run(context)
    metrics = json.loads((context.output / "metrics.json").read_text())
    found = [(row["policy"], row["dataset"]) for row in metrics if row["split"] == "validation"]
    assert ("round-1", "popqa") in found
    assert {policy for policy, _ in found} == {"round-1"}
    page = (context.output / "report.html").read_text()
    table = page.partition("The last policy on the")[2].partition("</table>")[0]
    assert table.count("Policy 1") == 3  # the data set, and both averages
    assert "Policy 0" not in table
