"""The stages of the questions drop overlapping training questions and report them."""

import itertools
import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from pipeline import config
from pipeline.config import Config
from pipeline.core.errors import InputError
from pipeline.core.record_io import read_records, write_jsonl
from pipeline.core.records import Question
from tests.stages.question_stages import run_questions

CONFIGS = Path(__file__).parents[2] / "configs"
TEXTS = ["who wrote emma", "who painted guernica", "when did rome fall", "where is lake tovel"]
SAMPLING = "data.sampling=[{dataset: nq, path: nq.jsonl}]"
TEST = "data.test=[{dataset: nq, path: test.jsonl}]"


def write_questions(path: Path, texts: Iterable[str]) -> None:
    write_jsonl(path, ({"question": text, "answer": ["x"]} for text in texts))


def settings(tmp_path: Path, *overrides: str) -> Config:
    write_questions(tmp_path / "nq.jsonl", TEXTS)
    write_questions(tmp_path / "test.jsonl", [TEXTS[1].replace("guernica", "Guernica?")])
    return config.load(CONFIGS / "embedded.yaml", ("data={}", f"data.root={tmp_path}", *overrides))


def read(output: Path) -> list[Question]:
    return read_records(output / "questions.parquet", Question)


def test_overlapping_question_is_dropped_from_sampling_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stage, counts = run_questions(settings(tmp_path, SAMPLING, TEST), tmp_path, "sampling")
    assert counts == {"questions": 3, "overlaps": 1}
    said = "data.sampling: 1 questions repeat one of data.test; left out\n"
    assert capsys.readouterr().out == said
    assert [row.question for row in read(stage.output)] == [TEXTS[0], TEXTS[2], TEXTS[3]]
    report = json.loads((stage.output / "overlap.json").read_text())
    assert report["counts"] == {
        "sampling in validation": {"exact": 0, "near": 0},
        "sampling in test": {"exact": 1, "near": 0},
    }
    (dropped,) = report["dropped"]
    assert (dropped["split"], dropped["heldout_split"]) == ("sampling", "test")
    assert (dropped["kind"], dropped["heldout"]) == ("exact", "who painted Guernica?")


def test_other_test_questions_leave_the_training_questions_as_they_are(tmp_path: Path) -> None:
    """Byte for byte, unless they repeat a training question."""
    written = []
    for number, text in enumerate(("who rules narnia", "what is a quark", TEXTS[0])):
        folder = tmp_path / str(number)
        folder.mkdir()
        values = settings(folder, SAMPLING, TEST)
        write_questions(folder / "test.jsonl", [text])
        stage, _ = run_questions(values, folder, "sampling")
        written.append((stage.output / "questions.parquet").read_bytes())
    assert written[0] == written[1] != written[2]


def test_a_limit_counts_what_share_and_held_out_questions_leave(tmp_path: Path) -> None:
    """Random choices of one file for test and training were parts of each other."""
    of_file = "dataset: nq, path: all.jsonl, select: random"
    test, training = f"data.test=[{{{of_file}, limit: 30}}]", f"{of_file}, share: [0.5, 1]"
    names = [f"who wrote {name}" for name in map("".join, itertools.product("abcd", repeat=3))]

    def taken(limit: int) -> tuple[set[str], set[str], int]:
        values = settings(tmp_path, test, f"data.sampling=[{{{training}, limit: {limit}}}]")
        write_questions(tmp_path / "all.jsonl", names)
        stage, counts = run_questions(values, tmp_path, "sampling")
        report = json.loads((stage.output / "overlap.json").read_text())
        assert counts["overlaps"] == len(report["dropped"])
        held = {row.question for row in read(tmp_path / "questions-test")}
        return {row.question for row in read(stage.output)}, held, counts["overlaps"]

    every, held, left_out = taken(64)
    assert 0 < left_out < len(held) == 30
    few, _, _ = taken(8)
    assert few < every - held
    assert len(few) == 8


def test_training_on_the_test_questions_raises_input_error(tmp_path: Path) -> None:
    same = settings(tmp_path, SAMPLING, SAMPLING.replace("sampling", "test"))
    with pytest.raises(InputError, match=r"every question repeats one of data\.test"):
        run_questions(same, tmp_path, "sampling")


def test_repeated_question_in_a_split_raises_input_error(tmp_path: Path) -> None:
    twice = "data.test=[{dataset: nq, path: test.jsonl}, {dataset: nq, path: %s}]"
    chosen = settings(tmp_path, twice % "other.jsonl")
    with pytest.raises(InputError, match=r"occurs twice in data\.test"):
        run_questions(settings(tmp_path, twice % "test.jsonl"), tmp_path, "test")
    write_questions(tmp_path / "test.jsonl", TEXTS[:1] * 2)
    write_questions(tmp_path / "other.jsonl", TEXTS[:1])
    stage, _ = run_questions(chosen, tmp_path, "test")  # repeats in a set are kept
    first, *repeats = [row.question_id for row in read(stage.output)]
    assert repeats == [f"{first}-2", f"{first}-3"]
    other = {"id": first, "question": "why", "answer": ["x"]}
    (tmp_path / "other.jsonl").write_text(json.dumps(other))
    with pytest.raises(InputError, match=rf"other\.jsonl: question id {first} occurs twice"):
        run_questions(chosen, tmp_path, "test")


FACTS = {
    "question": "who wrote lake tovel",
    "answer": "Ann",
    "context": [["Emma", ["By Ann."]]],
    "supporting_facts": [["Nobody", 0], ["Emma", 7]],
}


def hotpotqa(tmp_path: Path, *facts: list[list[object]]) -> str:
    rows = [{**FACTS, "_id": str(n), "supporting_facts": pair} for n, pair in enumerate(facts)]
    rows = [row | {"question": f"{row['question']} {n * 'x'}"} for n, row in enumerate(rows)]
    (tmp_path / "hotpotqa.json").write_text(json.dumps(rows))
    return "[{dataset: hotpotqa, path: hotpotqa.json}]"


def test_question_without_evidence_is_counted_and_left_out_of_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = hotpotqa(tmp_path, [["Nobody", 0], ["Emma", 7]], [["Emma", 0], ["Bo", 0]])
    values = settings(tmp_path, f"data.sampling={file}")
    stage, counts = run_questions(values, tmp_path, "sampling")
    assert counts["questions"] == 1
    (kept,) = read(stage.output)
    assert kept.evidence == ["Emma: By Ann."]
    assert stage.notes["questions"] == {
        "supporting facts that name no sentence": 3,
        "questions none of whose supporting facts names a sentence": 1,
    }
    assert "whose supporting facts names a sentence; left out" in capsys.readouterr().out


def test_answers_that_cannot_score_are_dropped_and_questions_without_others_not_trained_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = settings(tmp_path, SAMPLING)
    answers = (["The", "Ann", "..."], ["Bo"], ["The"], ["---", "a"])
    rows = [{"question": TEXTS[n], "answer": gold} for n, gold in enumerate(answers)]
    write_jsonl(tmp_path / "nq.jsonl", rows)
    stage, _ = run_questions(values, tmp_path, "sampling")
    assert [row.answers for row in read(stage.output)] == [["Ann"], ["Bo"]]
    assert stage.notes["questions"] == {
        "answers of articles and punctuation alone, beside others": 2,
        "questions whose answers are articles and punctuation alone": 2,
    }
    assert f"left out; the first: {tmp_path / 'nq.jsonl'}:3" in capsys.readouterr().out


def test_repeated_questions_of_a_split_are_counted_named_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = settings(tmp_path, TEST)
    rows = [
        {"id": name, "question": text, "answer": ["x"]}
        for name, text in (("p", "Who wrote Emma?"), ("q", TEXTS[1]), ("r", "who wrote EMMA"))
    ]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    stage, counts = run_questions(values, tmp_path, "test")
    assert counts == {"questions": 3}
    reason = "questions with the text of an earlier question of the set"
    assert stage.notes["questions"] == {reason: 1}
    said = f"data.test: 1 {reason}; all are kept; the first: r, as p\n"
    assert capsys.readouterr().out == said
