"""SearchAgentReview's files (arXiv 2605.27881) as published, and the records of its data sets by id."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from pipeline.core.errors import InputError
from pipeline.knowledge.corpus.official import OFFICIAL
from pipeline.knowledge.corpus.questions.load import Notes, load_questions

FOLDER = "search_agent_review"
TRAIN = "train_mixed_9000-cleaned.jsonl"


def gold(data: Path, **names: str) -> dict[str, Path]:
    return {dataset: data / name for dataset, name in names.items()}


def test_records_with_the_ids_give_evidence_and_hops_and_leave_text_and_answers(
    real_data: Path,
) -> None:
    """The real samples of three data sets share 26 questions with the split, MuSiQue's with hops."""
    path = real_data / FOLDER / TRAIN
    files = gold(
        real_data,
        hotpotqa="hotpotqa/hotpotqa_train100.json",
        musique="musique/musique_train100.json",
    )
    plain, notes = load_questions(path, "questions"), Notes()
    found = load_questions(path, "questions", gold=files, for_training=True, notes=notes)
    assert [(one.question_id, one.question, one.answers) for one in found] == [
        (one.question_id, one.question, one.answers) for one in plain
    ]
    [published] = [file.records for file in OFFICIAL if file.path == f"{FOLDER}/{TRAIN}"]
    assert len(plain) == published
    known = [one for one in found if one.evidence]
    assert Counter(one.dataset for one in known) == {"hotpotqa": 6, "musique": 10}
    assert all(one.hop == "multi" and one.hops and one.type for one in known)
    assert all(one.decomposition for one in known if one.dataset == "musique")
    assert notes.counts["questions of unknown hops without golden evidence"] == 5674 - 16


def test_a_repeated_question_has_the_record_too_and_another_name_of_the_data_set_is_given_up(
    real_data: Path, tmp_path: Path
) -> None:
    """113 ids of MuSiQue are there twice in the test; 2Wiki is called 2wikimultihopqa."""
    lines = (real_data / FOLDER / TRAIN).read_text(encoding="utf-8").splitlines()
    official = json.loads((real_data / "musique/musique_train100.json").read_text())
    name = {row["id"] for row in official}
    [line, *_] = [line for line in lines if json.loads(line)["id"] in name]
    path = tmp_path / "twice.jsonl"
    path.write_text(f"{line}\n{line}\n")
    found = load_questions(
        path, "questions", gold=gold(real_data, musique="musique/musique_train100.json")
    )
    assert [one.question_id.endswith("-2") for one in found] == [False, True]
    assert found[0].decomposition == found[1].decomposition != []
    wiki = gold(real_data, **{"2wiki": "2wiki/2wiki_dev973_evidence.json"})
    test = load_questions(real_data / FOLDER / "test_all.jsonl", "questions", gold=wiki)
    known = [one for one in test if one.evidence]
    assert {one.dataset for one in known} == {"2wiki"}
    assert len(known) > 50


def test_a_file_that_holds_none_of_the_questions_is_refused(real_data: Path) -> None:
    other = gold(real_data, nq="single-hop/nq_open_gold_1326.jsonl")
    with pytest.raises(InputError, match=r"nq_open_gold_1326.jsonl: gold: no question has an id"):
        load_questions(real_data / FOLDER / "val_mixed_900.jsonl", "questions", gold=other)
