"""Sections of the report: recall of golden evidence, terms against answers, calls, settings, links."""

from __future__ import annotations

import itertools
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import load
from pipeline.config.writing import differing_settings
from pipeline.core.record_io import write_parquet
from pipeline.core.records import ContextItem, Decomposed, Question, Trajectory
from pipeline.core.trajectory_file import FILE
from pipeline.evaluation.measured import merge_policies
from pipeline.look.report import recall_section as recall
from pipeline.look.report import rewards_section as rewards
from pipeline.look.report.page import run
from pipeline.look.report.usage_section import usages
from pipeline.methods import method
from pipeline.methods.search_r1.reward import SearchR1Rewards
from pipeline.methods.tearag.reward import TeaRagRewards
from tests.report.test_report_page import Page
from tests.smallest import write_paired, write_scored
from tests.stages.fabricated_run import (
    preference_pair,
    trajectory,
    write_evaluation,
    write_run,
)

DECOMPOSED = [
    Decomposed("Where was Ann born?", "Vell", "Ann"),
    Decomposed("In which country is #1?", "Ostar", "Vell"),
]


def retrieving(number: int, *texts: str) -> Trajectory:
    """A trajectory about Ann's country of birth whose only search found passages with these texts."""
    record = trajectory(f"q{number}", "Ostar", name=f"t{number}")
    record.question = "In which country was Ann born?"
    record.evidence = []
    record.steps[0].context = [ContextItem("chunk", "c", "", text, 0.5) for text in texts]
    return record


def write(
    folder: Path, trajectories: list[Trajectory], questions: list[Question]
) -> dict[str, Path]:
    write_scored(folder / "score" / "trajectories.parquet", trajectories)
    write_parquet(folder / "questions" / "questions.parquet", questions, Question)
    return {"score-1": folder / "score", "questions-sampling": folder / "questions"}


def question(number: int) -> Question:
    text = "In which country was Ann born?"
    return Question(
        f"q{number}", "musique", text, ["Ostar"], "multi", hops=2, decomposition=DECOMPOSED
    )


def test_recall_is_the_share_of_gold_hops_that_an_item_states(tmp_path: Path) -> None:
    """Both hops, the first alone, and none: three of six hops, and one of three trajectories."""
    trajectories = [
        retrieving(0, "Ann was born in Vell.", "Vell is a city in Ostar."),
        retrieving(1, "Ann was born in Vell."),
        retrieving(2, "Bo is from Ostar."),
    ]
    inputs = write(tmp_path, trajectories, [question(number) for number in range(3)])
    [found] = recall.values(inputs, "test")["recalls"]
    assert found.by_dataset["musique"] == {"n": 3, "recall": 0.5, "whole": pytest.approx(1 / 3)}
    assert found.by_hops == {"2-hop": {"n": 3, "recall": 0.5, "whole": pytest.approx(1 / 3)}}
    assert found.every == 1


def test_questions_in_any_order_are_found_and_missing_ones_do_without(tmp_path: Path) -> None:
    trajectories = [
        retrieving(n, "Ann was born in Vell.", "Vell is a city in Ostar.") for n in (2, 0, 9, 1)
    ]
    inputs = write(tmp_path, trajectories, [question(number) for number in range(3)])
    [found] = recall.values(inputs, "test")["recalls"]
    # Without its question, only the last hop of q9 can be checked, and an item has its answer.
    assert found.by_dataset["all"] == {"n": 4, "recall": 1.0, "whole": 1.0}
    assert found.without_question == 1


def test_a_round_with_questions_of_its_own_is_checked_with_them(tmp_path: Path) -> None:
    """Of the question's two hops one is retrieved; without its question only the last can be checked."""
    inputs = write(tmp_path, [retrieving(1, "Ann was born in Vell.")], [question(0)])
    [without] = recall.values(inputs, "test")["recalls"]
    assert (without.without_question, without.by_dataset["all"]["recall"]) == (1, 0.0)
    write_parquet(tmp_path / "own" / "questions.parquet", [question(1)], Question)
    [found] = recall.values(inputs | {"questions-sampling-1": tmp_path / "own"}, "test")["recalls"]
    assert (found.without_question, found.by_dataset["all"]["recall"]) == (0, 0.5)


def test_of_many_trajectories_evenly_spaced_ones_are_checked(tmp_path: Path) -> None:
    right = "Ann was born in Vell.", "Vell is a city in Ostar."
    trajectories = [retrieving(n, *(right if n % 3 == 0 else ())) for n in range(9)]
    inputs = write(tmp_path, trajectories, [question(number) for number in range(9)])
    [found] = recall.values(inputs, "test", most=3)["recalls"]
    assert found.every == 3
    assert found.by_dataset["all"] == {"n": 3, "recall": 1.0, "whole": 1.0}


def test_the_report_says_when_em_and_cover_em_part_and_tests_all_answer_measures(
    tmp_path: Path,
) -> None:
    """Round 1 answers in one word what SFT answered in four."""
    context = write_run(tmp_path / "run")
    directories = {}
    for policy, answer in (("sft", "It is Ostar now"), ("round-1", "Ostar")):
        trajectories = [trajectory(f"q{n}", answer if n % 2 else "Vell") for n in range(20)]
        directories[policy] = write_evaluation(tmp_path / policy, trajectories)
    context.inputs["evaluate"] = tmp_path / "evaluate"
    merge_policies(directories, tmp_path / "evaluate")
    run(context)
    [sentence] = json.loads((context.output / "report.json").read_text())["parted"]
    assert sentence.startswith(
        "Policy 0 (SFT) to policy 1: EM and CEM part, so EM alone misleads (EM +50.0, p"
    )
    text = Page((context.output / "report.html").read_text()).text
    assert sentence in text
    assert "EM F1 CEM Words Well-formed Steps Tokens p (EM) p (F1) p (CEM) " in text
    assert "CEM difference p Words difference p Steps difference p" in text
    assert " +0.0 1.000 −1.50 [" in text


def scored(
    number: int, sample: int, *, right: bool, process: float, hop: str = "multi"
) -> Trajectory:
    record = trajectory(f"q{number}", "Ostar" if right else "Vell", name=f"q{number}-{sample}")
    record.hop = hop  # type: ignore[assignment]
    record.rewards = {"outcome": float(right), "format": 1.0, "process": process}
    return record


def of_rounds(
    folder: Path, *rounds: list[Trajectory], terms: type = TeaRagRewards
) -> dict[str, Path]:
    """Scored rounds whose pairs are the first two trajectories of each question."""
    inputs = {}
    for number, samples in enumerate(rounds, start=1):
        score, pair = folder / f"score-{number}", folder / f"pair-{number}"
        write_scored(score / FILE, samples, terms)
        pairs = [
            preference_pair("easy", first, second, number)
            for first, second in itertools.pairwise(samples)
            if first.question_id == second.question_id
        ]
        write_paired(pair / "pairs.parquet", pairs, terms)
        inputs |= {f"score-{number}": score, f"pair-{number}": pair}
    return inputs


def questions_with(process_of_right: float, process_of_wrong: float) -> list[Trajectory]:
    """Twelve multi-hop questions with one right and one wrong answer each, and one with both equal."""
    sides = ((True, process_of_right), (False, process_of_wrong))
    return [
        scored(n, sample, right=right, process=0.5 if n == 0 else process)
        for n in range(13)
        for sample, (right, process) in enumerate(sides)
    ]


def reward_values(inputs: dict[str, Path]) -> dict[str, Any]:
    return rewards.values(inputs, method("tearag").reward_titles)


def test_single_hop_questions_without_a_process_do_not_count_against_it(tmp_path: Path) -> None:
    """Right answers to easy single-hop questions have process 0; pooled, the AUC would be 0.499."""
    single = [scored(100 + n, 0, right=True, process=0.0, hop="single") for n in range(13)]
    found = reward_values(of_rounds(tmp_path, [*questions_with(0.7, 0.4), *single]))
    process = found["reward_answers"]["multi"]["Process (eq. 13)"][1]
    assert process["auc"] == pytest.approx(168.5 / 169)
    assert process["within"] == 12.5 / 13
    of_single = found["reward_answers"]["single"]["Process (eq. 13)"][1]
    assert (of_single["auc"], of_single["within"], of_single["n_right"]) == (None, None, 13)
    assert found["reward_verdict"].startswith("In round 1 the process reward prefers right answers")


def test_the_verdict_compares_the_last_round_with_the_first_and_counts_pairs(
    tmp_path: Path,
) -> None:
    inputs = of_rounds(tmp_path, questions_with(0.7, 0.4), questions_with(0.4, 0.7))
    assert reward_values(inputs)["reward_verdict"] == (
        "In round 2 the process reward prefers wrong answers: of a right and a wrong answer to one "
        "multi-hop question, the right one has the higher value in 3.8 % of 13 comparisons "
        "(95 % interval 0.0 to 11.4, 50 by chance, 96.2 in round 1); in 12 of 13 multi-hop pairs the "
        "rejected side has the higher value."
    )
    assert reward_values(inputs)["reward_order"] == [
        {"round": 1, "hop": "multi", "term": "process", "pairs": 13, "rejected_higher": 0},
        {"round": 2, "hop": "multi", "term": "process", "pairs": 13, "rejected_higher": 12},
    ]


def test_too_few_questions_give_no_verdict(tmp_path: Path) -> None:
    found = reward_values(of_rounds(tmp_path, questions_with(0.7, 0.4)[:8]))["reward_verdict"]
    assert found == (
        "Round 1 cannot tell whether the process reward prefers right answers: 4 multi-hop questions "
        "have both right and wrong answers, and at least 10 are needed."
    )


def test_a_method_without_a_process_reward_is_judged_by_its_total(tmp_path: Path) -> None:
    samples = questions_with(0.7, 0.4)
    for sample in samples:
        sample.rewards = {"answer": 1.0, "total": sample.rewards["process"]}  # type: ignore[index]
    titles = method("search-r1").reward_titles
    found = rewards.values(of_rounds(tmp_path, samples, terms=SearchR1Rewards), titles)
    assert found["reward_verdict"].startswith("In round 1 the reward prefers right answers")
    assert found["reward_order"][0]["term"] == "total"


@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        ("tearag", "pairs.terms=outcome-format"),
        ("hiprag", "rewards.hiprag.process=0"),
        ("prograph", "rewards.prograph.structure=0"),
        ("search-r1", None),
    ],
)
def test_the_control_of_a_reward_differs_in_the_reward_alone(
    kind: str, changed: str | None
) -> None:
    """Its command loads; a run with the settings of the control is told that it is one."""
    file = {"tearag": "embedded"}.get(kind, f"embedded-{kind}")
    run = load(file, ("runs_dir=my runs",))
    command = rewards.control(run, method(kind).control)["control"]
    if changed is None:
        assert command is None
        return
    assert changed in command
    fork, run_control = map(shlex.split, command.split("; "))
    assert fork == ["steep", "fork", f"my runs/{file}", f"{file}-control"]
    assert run_control[:4] == ["steep", "run", "--config", f"my runs/{file}/config.yaml"]
    overrides = tuple(word for before, word in itertools.pairwise(run_control) if before == "--set")
    control = load(file, (*overrides, "runs_dir=my runs"))
    assert control.name == f"{file}-control"
    assert rewards.control(control, method(kind).control) == {"is_control": True, "control": None}
    differing = {
        name for name, value in run.model_dump().items() if control.model_dump()[name] != value
    }
    assert differing <= {"name", "pairs", "rewards", "grpo"}


def test_calls_tokens_and_cost_are_listed_by_stage_and_model(tmp_path: Path) -> None:
    total = {"answers": 8, "prompt_tokens": 900, "completion_tokens": 70, "cost": 0.25}
    judged = {"over": total, "policy": {**total, "answers": 0}, "under": {**total, "cost": 0}}
    for name, chats in (("graph", total), ("judge", judged)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "chat.json").write_text(json.dumps(chats))
    found = usages({"graph": tmp_path / "graph", "judge-2": tmp_path / "judge"})
    assert [(row.stage, row.model, row.calls, row.cost) for row in found] == [
        ("graph", "model", 8, 0.25),
        ("Judging of round 2", "judge of over-search", 8, 0.25),
        ("Judging of round 2", "judge of under-search", 8, None),
    ]


def test_settings_are_compared_with_the_base_file_the_shipped_file_or_the_defaults(
    tmp_path: Path,
) -> None:
    of_round = "per_round={2: {pairs: {margin: 9}}}"
    based = differing_settings("configs/embedded-hiprag.yaml", ("seed=3", "workers=1", of_round))
    assert based["reference"] == "embedded.yaml"
    assert {"key": "seed", "value": 3, "before": 0} in based["settings"]
    assert "per_round" in {row["key"] for row in based["settings"]}
    assert not {"workers", "name"} & {row["key"] for row in based["settings"]}
    assert differing_settings("embedded") == {"reference": "embedded.yaml", "settings": []}
    own = tmp_path / "own.yaml"
    own.write_text(Path("configs/embedded.yaml").read_text())
    against_defaults = differing_settings(own)
    assert against_defaults["reference"] == "the defaults"
    assert {"key": "sampling.temperature", "value": 0.8, "before": 1.0} in against_defaults[
        "settings"
    ]
