"""Every figure of the report is one of the store."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from pipeline.core.record_io import iterate_records, write_parquet
from pipeline.core.records import Pair, Question, Trajectory
from pipeline.engine.context import StageContext
from pipeline.engine.store import StageKey
from pipeline.evaluation.failures import LEGEND, FailureMode
from pipeline.evaluation.measured import merge_policies
from pipeline.knowledge.corpus.coverage import CoverageRow
from pipeline.look.report.page import run
from tests.report.figures_of_the_store import Store, faults
from tests.report.test_report_page import Page
from tests.smallest import write_paired, write_scored
from tests.stages.fabricated_run import write_evaluation, write_run

DIFFERING = {"reference": "embedded.yaml", "settings": [{"key": "seed", "value": 1, "before": 0}]}
OTHERS = (
    "1 setting differs from embedded.yaml. Settings that only say how work is executed are left "
    "out; the whole configuration is at the end of the page.",
    "Judging of round 1: all 90 verdicts on over-search are 'no': either every step is alike or "
    "the judge does not judge; read some in calls.parquet, and measure it with steep calibrate",
)
# Verdicts that are all the same are named from 50 cases on.
CASES = {"judge-1": 50, "judge-2": 49}
CALLS = {"answers": 1234, "prompt_tokens": 56789, "completion_tokens": 4321, "cost": 1.25}


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> StageContext:
    """A fabricated run with both kinds of questions, shards, coverage and calls, and its report."""
    root = tmp_path_factory.mktemp("run")
    written = write_run(root / "run", rounds=2, questions=24)
    inputs = dict(written.inputs)
    policies = ("sft", "round-1", "round-2")
    for policy in policies:
        records = read(root / "run" / f"evaluate-{policy}" / "trajectories.parquet")
        inputs[f"evaluate-{policy}"] = write_evaluation(
            root / f"evaluate-{policy}",
            [single_hop(t) if t.dataset == "nq" else t for t in records],
            {f"q{n}": "unseen" for n in range(0, 24, 2)},
        )
        write_manifest(inputs[f"evaluate-{policy}"], "evaluate-policy", policies.index(policy))
    inputs["evaluate"] = root / "evaluate"
    inputs["evaluate"].mkdir()
    merge_policies({p: inputs[f"evaluate-{p}"] for p in policies}, root / "evaluate")
    for number in (1, 2):
        make_single_hop(inputs[f"score-{number}"], inputs[f"pair-{number}"])
        write_manifest(inputs[f"score-{number}"], "score", number, shards=2)
    inputs |= {name: root / name for name in ("graph", "coverage", "corpus", "questions-sampling")}
    for name in ("graph", "coverage", "corpus", "questions-sampling"):
        inputs[name].mkdir()
        write_manifest(inputs[name], name, None)
    (inputs["graph"] / "chat.json").write_text(json.dumps(CALLS))
    rows = [asdict(CoverageRow("sampling", "nq", 30, 20, 9, 3, 1))]
    for name, cases in CASES.items():
        inputs[name] = root / name
        inputs[name].mkdir()
        statistics = {
            "over": {"yes": 0, "no": 90, "unknown": 3},
            "under": {"yes": 9, "no": 99, "unknown": 0},
            "calls": {"over": cases, "under": 108},
        }
        (inputs[name] / "statistics.json").write_text(json.dumps(statistics))
    found = {"rows": rows, "uncovered": {}, "titles": []}
    (inputs["coverage"] / "coverage.json").write_text(json.dumps(found))
    asked = [Question(f"s{n}", "musique", "Where?", ["Ostar"], "multi") for n in range(15)]
    write_parquet(inputs["questions-sampling"] / "questions.parquet", asked, Question)
    made = replace(written, inputs=inputs, facts={"differing": DIFFERING})
    run(made)
    return made


@pytest.fixture(scope="module")
def store(context: StageContext) -> Store:
    return Store(context)


@pytest.fixture(scope="module")
def page(context: StageContext) -> str:
    return (context.output / "report.html").read_text(encoding="utf-8")


def read(path: Path) -> list[Trajectory]:
    return list(iterate_records(path, Trajectory))


def single_hop(trajectory: Trajectory) -> Trajectory:
    return replace(trajectory, hop="single", evidence=[])


def make_single_hop(score: Path, pair: Path) -> None:
    """Give every third question of a round a single hop, and half of the pairs the other order."""
    path = score / "trajectories.parquet"
    records = [single_hop(t) if int(t.question_id[1:]) % 3 == 0 else t for t in read(path)]
    write_scored(path, records)
    pairs = list(iterate_records(pair / "pairs.parquet", Pair))
    for one in pairs[::2]:
        one.chosen_rewards, one.rejected_rewards = one.rejected_rewards, one.chosen_rewards
    write_paired(pair / "pairs.parquet", pairs)


def write_manifest(directory: Path, stage: str, number: int | None, shards: int = 0) -> None:
    parts = {
        f"shard-{n:03d}": {"wall_seconds": 700.0 * (n + 1), "peak_memory_mb": 900.0 if n else None}
        for n in range(shards)
    }
    facts = {
        "fingerprint": "f" * 16,
        "key": asdict(StageKey(stage, 1, {}, round=number)),
        "wall_seconds": 12.0,
        "peak_memory_mb": 456.0,
        "counts": {"trajectories": 1234},
        "files": {},
        "device": "cpu",
        "shards": parts,
    }
    (directory / "manifest.json").write_text(json.dumps(facts))


def test_every_figure_of_the_report_is_that_of_the_store(store: Store, page: str) -> None:
    assert faults(store, page, OTHERS) == []
    parsed = Page(page)
    assert (parsed.misnested, parsed.open) == ([], [])


def test_metrics_and_settings_are_written_beside_the_page_as_they_are_shown(
    context: StageContext,
) -> None:
    written = (context.output / "metrics.json").read_text()
    assert json.loads(written) == json.loads(
        (context.inputs["evaluate"] / "metrics.json").read_text()
    )
    assert json.loads((context.output / "report.json").read_text())["settings"] == DIFFERING


def test_a_wrong_figure_and_a_wrong_point_of_a_chart_are_found(store: Store, page: str) -> None:
    wrong = page.replace("1,234", "1,243", 1)
    assert faults(store, wrong, OTHERS) != []
    line = re.compile(r"(L [\d.]+ )([\d.]+)( \n?\"? *clip-path)")
    found = next(
        one
        for one in line.finditer(page, page.index("SFT loss</figcaption>"))
        if "var(--line)" not in page[one.end() : one.end() + 90]
    )
    changed = page[: found.start(2)] + "1.5" + page[found.end(2) :]
    assert len(faults(store, changed, OTHERS)) == 1


def test_the_failure_modes_that_occur_are_explained_and_each_has_a_colour(
    store: Store, page: str
) -> None:
    [html] = re.findall(r'<section id="failure-modes">.*?</section>', page, re.DOTALL)
    counts = {m: sum(row["failure_modes"][m]["n"] for row in store.main) for m in FailureMode}
    assert 4 <= sum(map(bool, counts.values())) < len(FailureMode)
    style = page.split("</style>")[0]
    for mode, count in counts.items():
        name = f"--{mode.value.replace('_', '-')}"
        assert (LEGEND[mode] in Page(html).text) == (f"var({name})" in html) == bool(count)
        assert style.count(f" {name}: ") == 2  # light and dark
