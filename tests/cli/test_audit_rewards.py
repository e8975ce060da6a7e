"""``steep audit-rewards`` on the scored round of a run and on files, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import pytest

from benchmarks.support import main as support
from pipeline.core.record_io import as_json, write_jsonl
from pipeline.core.records import ContextItem, Step, Trajectory
from pipeline.core.row_files import read_jsonl
from pipeline.engine.run import run, write_resolved
from pipeline.llm import transformers_engine
from pipeline.training.sft_data.templates import fill
from tasks import task_for
from tests.cli.malformed_inputs import accepted, refused, steep
from tests.cli.test_pair_preview import commit
from tests.smallest import small_trajectory

TERMS = ("outcome", "format", "consistency", "subquery", "context", "summary", "process", "total")


def world_trajectories(world: Path) -> list[Trajectory]:
    """A gold trajectory and a lucky guess for each of ten questions of the closed world."""
    found = []
    for _, row in list(read_jsonl(world / "musique_sampling.jsonl"))[:10]:
        answers, steps = [], []
        for hop in row["question_decomposition"]:
            paragraph = row["paragraphs"][hop["paragraph_support_idx"]]
            texts = (paragraph["title"], paragraph["paragraph_text"])
            item = ContextItem("chunk", "", *texts, 0.0)
            summary = f"So the answer is {hop['answer']}."
            subquery = fill(hop["question"], answers)
            steps.append(Step(subquery=subquery, context=[item], summary=summary))
            answers.append(hop["answer"])
        for sample, own in enumerate((steps, [Step(subquery="What?", summary="No.")])):
            record = small_trajectory(
                trajectory_id=f"{row['id']}/{sample}",
                question_id=row["id"],
                hop="multi",
                answers=[row["answer"]],
                answer=row["answer"],
                steps=own,
                format_ok=True,
            )
            record.rewards = dict.fromkeys(TERMS, 1.0 - sample / 2)
            found.append(record)
    return found


def write_run() -> None:
    """Below the current directory, the embedded run has its world and a scored first round."""
    world = run(task_for("world", "embedded"))
    commit(task_for("score", "embedded", round=1), world_trajectories(world))
    write_jsonl("scored.jsonl", map(as_json, world_trajectories(world)))


@pytest.fixture(scope="module")
def directory(with_world: Path) -> Iterator[Path]:
    with chdir(with_world):
        write_run()
        yield with_world


def test_the_support_of_right_answers_is_printed_by_kind_of_question(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy_0 = task_for("evaluate-policy", "embedded", ("rounds=0",), round=0)
    commit(policy_0, world_trajectories(directory / task_for("world", "embedded").directory)[::2])
    write_resolved(policy_0.run_settings)
    support([policy_0.run_settings.run_dir])
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split()[-4:] == ["EM", "supported", "right", "steps"]
    assert {tuple(row.split()[:3]) for row in rows} >= {("embedded", "0", "all")}
    assert {tuple(row.split()[-3:]) for row in rows} == {("100.0", "100.0", "100.0")}


def test_a_round_and_its_file_have_the_same_figures(directory: Path) -> None:
    of_round = accepted("audit-rewards", "--json")
    assert accepted("audit-rewards", "scored.jsonl", "--json") == of_round
    rows = {(r["level"], r["truth"], r["reward"], r["hops"]): r for r in json.loads(of_round)}
    supported = rows["trajectory", "supported", "process", None]
    assert (supported["n"], supported["right"], supported["auc"]["value"]) == (20, 10, 1.0)
    assert rows["trajectory", "supported", "em", None]["auc"] is None  # every answer is right
    hops = [row["n"] for key, row in rows.items() if key[:3] == ("step", "right", "process")]
    assert hops[0] == sum(hops[1:])


@pytest.mark.slow
def test_the_likelihood_of_gold_answers_is_that_of_the_policy_that_sampled(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what loading a policy says, as merging does, stays out of the JSON."""
    found = transformers_engine.model_tokenizer
    monkeypatch.setattr(
        transformers_engine, "model_tokenizer", lambda path: print("merged") or found(path)
    )
    world = directory / task_for("world", "embedded").directory
    commit(task_for("score", "embedded", ("start=base",), round=1), world_trajectories(world)[:8])
    options = ("audit-rewards", "--likelihood", "--json", "--round", "1", "--set", "start=base")
    assert refused(*options).startswith("error: start is not done;")
    run(task_for("start", "embedded", ("start=base",)))
    status, printed, complaint = steep([*options])
    assert (status, complaint) == (0, "8 trajectories are read by policy 0\nmerged\n")
    rows = {(r["level"], r["truth"], r["reward"], r["hops"]): r for r in json.loads(printed)}
    for reward, level in (("likelihood", "trajectory"), ("step.information_gain", "step")):
        assert rows[level, "right", reward, None]["n"] > 0
    # The policy has read the passages of one of two samples of a question.
    assert rows["trajectory", "right", "likelihood", None]["within"]["value"] > 0.5
    assert "--likelihood cannot be used with FILE" in refused(
        "audit-rewards", "scored.jsonl", "--likelihood"
    )


def test_the_tables_are_printed_and_written(directory: Path) -> None:
    assert "Process (eq. 13)" in accepted("audit-rewards", "-o", "audit.md")
    text = (directory / "audit.md").read_text()
    assert text.startswith("## Step: ")
    assert "1.00 [1.00, 1.00]" in text


def test_what_has_no_truth_or_no_rewards_is_refused(directory: Path) -> None:
    assert "has no closed world" in refused("audit-rewards", "-c", "musique-sample")
    assert "score-2 is not done; run: steep run score --round 2" in refused(
        "audit-rewards", "--round", "2"
    )
    assert "--round cannot be used with FILE" in refused(
        "audit-rewards", "scored.jsonl", "--round", "1"
    )
    assert "name a .md file" in refused("audit-rewards", "-o", "audit.txt")
    rows = [json.loads(line) for line in Path("scored.jsonl").read_text().splitlines()]
    write_jsonl("unscored.jsonl", [{**row, "rewards": None} for row in rows])
    assert "no trajectory has rewards; add them with steep score" in refused(
        "audit-rewards", "unscored.jsonl"
    )
    write_jsonl("other.jsonl", [{**rows[0], "question_id": "x"}])
    assert "'x' is no question of this closed world" in refused("audit-rewards", "other.jsonl")
    for rewards in ("good", {"steps": 5}, {"steps": [0.5]}):
        write_jsonl("wrong.jsonl", [rows[0], {**rows[0], "rewards": rewards}])
        assert "wrong.jsonl:2: rewards: expected an object" in refused(
            "audit-rewards", "wrong.jsonl"
        )
    for rewards in ({"large": 10**400}, {"steps": [{"large": -(10**400)}]}):
        write_jsonl("wrong.jsonl", [rows[0], {**rows[0], "rewards": rewards}])
        said = refused("audit-rewards", "wrong.jsonl")
        assert "wrong.jsonl:2: rewards.large is " in said


def test_numbers_of_any_size_are_ranked(directory: Path) -> None:
    rows = [json.loads(line) for line in Path("scored.jsonl").read_text().splitlines()]
    for number, row in enumerate(rows):
        row["rewards"] = {"huge": (-1e308, 1e308)[number % 2], "tiny": number % 2 * 5e-324}
    write_jsonl("sizes.jsonl", rows)
    printed = accepted("audit-rewards", "sizes.jsonl", "--json")
    found = {row["reward"]: row for row in json.loads(printed) if row["truth"] == "supported"}
    assert (found["huge"]["auc"]["value"], found["tiny"]["auc"]) == (0.0, None)
    assert found["huge"]["calibration_error"] == 1.0


def test_a_run_without_its_world_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "world is not done; run: steep run world" in refused("audit-rewards")
