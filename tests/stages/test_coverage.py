"""Gold coverage of a run: the stage ``coverage``, ``corpus.add_gold``, and the report's section."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.core.atomic import write_json
from pipeline.core.record_io import read_records
from pipeline.core.records import Chunk, Question
from pipeline.engine.context import StageContext
from pipeline.knowledge.corpus.coverage import ADDED, COVERAGE
from pipeline.look.report.page import run as report
from tasks import corpus, coverage, questions
from tests.report.test_report_page import Page
from tests.smallest import small_config
from tests.stages.fabricated_run import trajectory, write_evaluation, write_run
from tests.stages.question_stages import run_stages

MUSIQUE = {"dataset": "musique", "path": "musique/musique_train100.json"}
NQ = {"dataset": "nq", "path": "single-hop/nq_search_1802.jsonl", "limit": 50}


def covered(
    folder: Path, data: Path, *, add_gold: bool, test: tuple[object, ...] = (MUSIQUE, NQ)
) -> tuple[Path, dict[str, int]]:
    """Run the stages over the corpus of 2Wiki; returns the folder of outputs, and the counts of the corpus."""
    config = small_config(
        data={"root": str(data), "test": list(test)},
        corpus={"files": [{"path": "2wiki/2wiki_corpus6119.json"}], "add_gold": add_gold},
    )
    folder.mkdir(exist_ok=True)
    inputs: dict[str, Path] = {}
    counts = run_stages(config, folder, inputs, {"questions-test": questions, "corpus": corpus})
    run_stages(config, folder, inputs, {"coverage": coverage})
    return folder, counts


def lacking(folder: Path) -> dict[str, tuple[int, int]]:
    """By data set, the questions without a gold passage and those without an answer."""
    rows = json.loads((folder / "coverage" / COVERAGE).read_text())["rows"]
    return {row["dataset"]: (row["without_passage"], row["without_answer"]) for row in rows}


def test_gold_of_another_sample_is_uncovered_and_added_from_the_question_file(
    tmp_path: Path, real_data: Path
) -> None:
    """MuSiQue's 100 questions have 234 supporting paragraphs; NQ of Search-R1 holds no paragraph."""
    folder, counts = covered(tmp_path / "plain", real_data, add_gold=False)
    assert "gold_passages_added" not in counts
    assert lacking(folder) == {"musique": (100, 0), "nq": (0, 36)}
    folder, counts = covered(tmp_path / "repaired", real_data, add_gold=True)
    assert lacking(folder)["musique"] == (0, 0)
    added = json.loads((folder / "corpus" / ADDED).read_text())
    assert counts["gold_passages_added"] == len(added) == 234
    chunks = read_records(folder / "corpus" / "chunks.parquet", Chunk)
    of_questions = {chunk.doc_id for chunk in chunks if chunk.source == MUSIQUE["path"]}
    assert len(of_questions) == 234


def test_gold_is_added_from_the_files_in_which_questions_without_passages_are_looked_up(
    tmp_path: Path, real_data: Path
) -> None:
    """Ten of SearchAgentReview's training questions are in the sample of MuSiQue."""
    split = {
        "path": "search_agent_review/train_mixed_9000-cleaned.jsonl",
        "gold": {"musique": MUSIQUE["path"]},
    }
    folder, counts = covered(tmp_path, real_data, add_gold=True, test=(split,))
    found = read_records(folder / "questions-test" / "questions.parquet", Question)
    titles = {hop.support_title for question in found for hop in question.decomposition}
    added = json.loads((folder / "corpus" / ADDED).read_text())
    assert {one["title"] for one in added} == titles
    assert 20 <= counts["gold_passages_added"] < 50
    assert lacking(folder)["musique"][0] == 0


@pytest.fixture
def two_policies(tmp_path: Path) -> StageContext:
    """A fabricated run; SFT answers q0 of q0 to q3, round 1 answers q0 and q1."""
    context = write_run(tmp_path, questions=4)
    for policy, right in (("sft", 1), ("round-1", 2)):
        answers = ["Ostar" if n < right else "Vell" for n in range(4)]
        trajectories = [trajectory(f"q{n}", answer) for n, answer in enumerate(answers)]
        context.inputs[f"evaluate-{policy}"] = write_evaluation(
            tmp_path / "own" / policy, trajectories
        )
    return context


def test_the_report_has_em_over_answerable_questions_beside_em(two_policies: StageContext) -> None:
    """Without q2 and q3, EM is 1 of 2 and 2 of 2."""
    directory = two_policies.output.parent
    row = {"split": "test", "dataset": "musique", "n": 4, "by_passage": 3, "by_answer": 0}
    row |= {"without_passage": 2, "without_answer": 0}
    found = {"rows": [row], "uncovered": {"test": ["q2", "q3"]}, "titles": ["<b>Ime"]}
    for name, file, value in (
        ("coverage", COVERAGE, found),
        ("corpus", ADDED, [{"title": "Ost", "file": "q.json"}]),
    ):
        two_policies.inputs[name] = directory / name
        write_json(directory / name / file, value)
    report(two_policies)
    figures = json.loads((two_policies.output / "report.json").read_text())
    answerable = {
        r["policy"]: (r["n"], r["em"]) for r in figures["answerable"] if r["dataset"] == "all"
    }
    assert answerable == {"sft": (2, 0.5), "round-1": (2, 1.0)}
    assert (figures["coverage"], figures["added_gold"]) == ([row], 1)
    text = Page((two_policies.output / "report.html").read_text()).text
    assert "over the 2 questions whose gold passages or answers are in the corpus" in text
    assert " test musique 4 50.0 % 2 of 3 0 of 0 1 " in text
    assert "the first: <b>Ime" in text
    assert "added 1 gold passages from the question files" in text


def test_a_report_without_uncovered_questions_has_no_second_em(two_policies: StageContext) -> None:
    row = {"split": "test", "dataset": "musique", "n": 4, "by_passage": 4, "by_answer": 0}
    row |= {"without_passage": 0, "without_answer": 0}
    two_policies.inputs["coverage"] = two_policies.output.parent / "coverage"
    two_policies.inputs["corpus"] = two_policies.output.parent / "corpus"
    found = {"rows": [row], "uncovered": {"test": []}, "titles": []}
    write_json(two_policies.inputs["coverage"] / COVERAGE, found)
    report(two_policies)
    text = Page((two_policies.output / "report.html").read_text()).text
    assert "EM, answerable" not in text
    assert " test musique 4 0.0 % 0 of 4 " in text
