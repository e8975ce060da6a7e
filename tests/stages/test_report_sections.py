"""Sections of the report: recall of gold evidence, terms against answers, calls, settings, links."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from pipeline.config.differences import differing_settings
from pipeline.core.record_io import read_records, write_parquet
from pipeline.core.records import ContextItem, Decomposed, Pair, Question, Trajectory
from pipeline.pairs.anchors import pair_anchor
from pipeline.run.store import StageKey
from pipeline.stages import report_recall
from pipeline.stages.report import run
from pipeline.stages.report_usage import usages
from pipeline.stages.trajectory_columns import FILE, iterate_trajectories
from tests.stages.fabricated_run import trajectory, write_run
from tests.stages.test_report_page import HOSTILE, Page

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
    write_parquet(folder / "score" / "trajectories.parquet", trajectories, Trajectory)
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
    [found] = report_recall.values(inputs, "test")["recalls"]
    assert found.by_dataset["musique"] == {"n": 3, "recall": 0.5, "whole": pytest.approx(1 / 3)}
    assert found.by_hops == {"2-hop": {"n": 3, "recall": 0.5, "whole": pytest.approx(1 / 3)}}
    assert found.every == 1


def test_questions_in_any_order_are_found_and_missing_ones_do_without(tmp_path: Path) -> None:
    trajectories = [
        retrieving(n, "Ann was born in Vell.", "Vell is a city in Ostar.") for n in (2, 0, 9, 1)
    ]
    inputs = write(tmp_path, trajectories, [question(number) for number in range(3)])
    [found] = report_recall.values(inputs, "test")["recalls"]
    # Without its question, only the last hop of q9 can be checked, and an item has its answer.
    assert found.by_dataset["all"] == {"n": 4, "recall": 1.0, "whole": 1.0}
    assert found.without_question == 1


def test_samples_of_a_missing_question_do_not_cost_other_trajectories_their_question(
    tmp_path: Path,
) -> None:
    trajectories = [replace(retrieving(9), trajectory_id=f"q9-{n}") for n in range(5)]
    inputs = write(tmp_path, [*trajectories, retrieving(1)], [question(1)])
    [found] = report_recall.values(inputs, "test")["recalls"]
    assert (found.without_question, found.by_hops["2-hop"]["n"]) == (5, 6)


def test_a_round_with_questions_of_its_own_is_checked_with_them(tmp_path: Path) -> None:
    """Of the question's two hops one is retrieved; without its question only the last can be checked."""
    inputs = write(tmp_path, [retrieving(1, "Ann was born in Vell.")], [question(0)])
    [without] = report_recall.values(inputs, "test")["recalls"]
    assert (without.without_question, without.by_dataset["all"]["recall"]) == (1, 0.0)
    write_parquet(tmp_path / "own" / "questions.parquet", [question(1)], Question)
    [found] = report_recall.values(inputs | {"questions-sampling-1": tmp_path / "own"}, "test")[
        "recalls"
    ]
    assert (found.without_question, found.by_dataset["all"]["recall"]) == (0, 0.5)


def test_of_many_trajectories_evenly_spaced_ones_are_checked(tmp_path: Path) -> None:
    right = "Ann was born in Vell.", "Vell is a city in Ostar."
    trajectories = [retrieving(n, *(right if n % 3 == 0 else ())) for n in range(9)]
    inputs = write(tmp_path, trajectories, [question(number) for number in range(9)])
    [found] = report_recall.values(inputs, "test", most=3)["recalls"]
    assert found.every == 3
    assert found.by_dataset["all"] == {"n": 3, "recall": 1.0, "whole": 1.0}


def test_files_whose_last_batch_has_no_chosen_trajectory_are_read(tmp_path: Path) -> None:
    """A batch has 256 rows, and row 256 is no multiple of 3."""
    inputs = write(tmp_path, [retrieving(n) for n in range(257)], [])
    chosen = iterate_trajectories(inputs["score-1"] / FILE, ("question_id", "steps"), 3)
    assert [record.question_id for record in chosen] == [f"q{n}" for n in range(0, 257, 3)]


def test_the_page_and_report_json_have_the_same_figures(tmp_path: Path) -> None:
    context = write_run(tmp_path, rounds=2)
    differing = {
        "reference": "embedded.yaml",
        "settings": [{"key": "seed", "value": 1, "before": 0}],
    }
    run(replace(context, facts={"differing": differing}))
    figures = json.loads((context.output / "report.json").read_text())
    text = Page((context.output / "report.html").read_text()).text
    assert figures["settings"] == differing
    assert "1 setting differs from embedded.yaml" in text.replace(" .", ".")
    assert {row["title"] for row in figures["recall"]} == {
        "Sampling of round 1",
        "Sampling of round 2",
    }
    terms = {(row["round"], row["term"]): row for row in figures["rewards"]}
    assert terms[1, "subquery"]["n_right"] == terms[1, "subquery"]["n_wrong"] == 20
    for row in figures["rewards"]:
        for key in ("right", "wrong", "auc"):
            assert row[key] is None or f"{row[key]:.3f}" in text


def test_calls_tokens_cost_and_cached_share_are_listed_by_stage_and_model(tmp_path: Path) -> None:
    graph, judge, shard = (
        tmp_path / "graph" / "g",
        tmp_path / "judge" / "j",
        tmp_path / "judge-shard",
    )
    total = {"answers": 8, "prompt_tokens": 900, "completion_tokens": 70, "cost": 0.25}
    for folder, chats, manifest in (
        (graph, total, {"work": {"chat.calls": 8, "chat.cached_calls": 2}}),
        (
            judge,
            {"over": total, "policy": {**total, "answers": 0}, "under": {**total, "cost": 0}},
            {"made_from": {"shard-0": "a", "shard-1": "b"}, "work": {}},
        ),
        (shard / "a", None, {"work": {"over.calls": 4, "over.cached_calls": 4}}),
        (shard / "b", None, {"work": {"over.calls": 4, "over.cached_calls": 0}}),
    ):
        folder.mkdir(parents=True)
        whole = {
            "fingerprint": "", "key": asdict(StageKey("judge", 1, {})), "counts": {"rows": 8},
            **manifest,
        }  # fmt: skip
        (folder / "manifest.json").write_text(json.dumps(whole))
        if chats is not None:
            (folder / "chat.json").write_text(json.dumps(chats))
    found = usages({"graph": graph, "judge-2": judge})
    assert [(row.stage, row.model, row.calls, row.cached, row.cost) for row in found] == [
        ("graph", "model", 8, 0.25, 0.25),
        ("Judging of round 2", "judge of over-search", 8, 0.5, 0.25),
        ("Judging of round 2", "judge of under-search", 8, None, None),
    ]


def test_settings_are_compared_with_the_base_file_the_shipped_file_or_the_defaults(
    tmp_path: Path,
) -> None:
    based = differing_settings("configs/embedded-hiprag.yaml", ("seed=3", "workers=1"))
    assert based["reference"] == "embedded.yaml"
    assert {"key": "seed", "value": 3, "before": 0} in based["settings"]
    assert not {"workers", "name"} & {row["key"] for row in based["settings"]}
    assert differing_settings("embedded") == {"reference": "embedded.yaml", "settings": []}
    own = tmp_path / "own.yaml"
    own.write_text(Path("configs/embedded.yaml").read_text())
    against_defaults = differing_settings(own)
    assert against_defaults["reference"] == "the defaults"
    assert {"key": "sampling.temperature", "value": 0.8, "before": 1.0} in against_defaults[
        "settings"
    ]


def test_hostile_settings_and_titles_are_escaped(tmp_path: Path) -> None:
    context = write_run(tmp_path, rounds=1)
    rows = [{"key": "prompt.system", "value": HOSTILE, "before": "Answer."}]
    run(replace(context, facts={"differing": {"reference": HOSTILE, "settings": rows}}))
    parsed = Page((context.output / "report.html").read_text())
    assert not {"script", "img"} & set(parsed.tags)
    assert "".join(parsed.words).count(HOSTILE) >= 2


def test_pairs_of_the_page_link_to_their_anchors_in_the_export(tmp_path: Path) -> None:
    context = write_run(tmp_path, rounds=1)
    run(context)
    page = (context.output / "report.html").read_text()
    linked = set(re.findall(r'href="pairs\.html#(pair-[0-9a-f]{16})"', page))
    pairs = read_records(context.inputs["pair-1"] / "pairs.parquet", Pair)
    anchors = {pair_anchor(1, pair.kind, pair.chosen_id, pair.rejected_id) for pair in pairs}
    assert len(linked) == 6
    assert linked <= anchors
    assert "steep browse --config runs/fabricated/config.yaml --export" in page
