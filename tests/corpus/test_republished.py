"""Questions in the forms of Search-R1 and FlashRAG give answers, evidence and hops."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.core.errors import InputError
from pipeline.core.records import Decomposed, Question
from pipeline.knowledge.corpus.documents import read_documents
from pipeline.knowledge.corpus.questions.load import dataset_of, load_questions
from tests.corpus.question_files import write_questions as write

PROMPT = "Answer the given question. For example, <answer> Beijing </answer>. Question: {}\n"


def search_r1(number: int, question: str, source: str = "nq") -> dict[str, Any]:
    """A row of Search-R1's ``scripts/data_process/qa_search_train_merge.py``, without the answers of FlashRAG."""
    return {
        "data_source": source,
        "prompt": [{"role": "user", "content": PROMPT.format(question)}],
        "ability": "fact-reasoning",
        "reward_model": {"style": "rule", "ground_truth": {"target": ["Ann", "Ann Lee"]}},
        "extra_info": {"split": "train", "index": number},
    }


FACTS = {
    "supporting_facts": {"title": ["A", "B"], "sent_id": [1, 0]},
    "context": {"title": ["A", "B"], "sentences": [["Long.", " A is a river."], ["B is a river."]]},
}
HOPS = [
    {"id": 1, "question": "Film >> maker", "answer": "Ann", "paragraph_support_idx": 1,
     "support_paragraph": {"idx": 1, "title": "Film", "paragraph_text": "Made by Ann.", "is_supporting": True}},
    {"id": 2, "question": "Where was #1 born?", "answer": "Rome", "paragraph_support_idx": 2,
     "support_paragraph": {"idx": 2, "title": "Ann", "paragraph_text": "Born in Rome.", "is_supporting": True}},
]  # fmt: skip


def flashrag(metadata: dict[str, Any], answers: list[str]) -> dict[str, Any]:
    return {"id": "dev_3", "question": "Are A and B rivers?", "golden_answers": answers, "metadata": metadata}  # fmt: skip


def test_search_r1s_parquet_gives_questions_of_its_data_sets(tmp_path: Path) -> None:
    path = tmp_path / "train.parquet"
    rows = [search_r1(0, "Who founded it?"), search_r1(0, "Who left it?", "searchR1_hotpotqa")]
    pq.write_table(pa.Table.from_pylist(rows), path)
    assert dataset_of(path) == "questions"
    assert load_questions(path, "questions") == [
        Question("nq-train_0", "nq", "Who founded it?", ["Ann", "Ann Lee"], "unknown"),
        Question("hotpotqa-train_0", "hotpotqa", "Who left it?", ["Ann", "Ann Lee"], "unknown"),
    ]


@pytest.mark.parametrize("truth", [["Ann"], "{'target': array(['Ann'], dtype=object)}"])
def test_the_ground_truth_of_verl_is_decoded_in_every_form(tmp_path: Path, truth: Any) -> None:
    """`test_own_questions` has all forms of answers."""
    row, reward = search_r1(3, "Who?"), {"style": "rule", "ground_truth": truth}
    forms = [row | {"reward_model": form} for form in (reward, json.dumps(reward))]
    assert [one.answers for one in load_questions(write(tmp_path, *forms), "mine")] == [["Ann"]] * 2


@pytest.mark.parametrize(("dataset", "hop"), [("hotpotqa", "multi"), ("questions", "multi")])
def test_flashrags_supporting_facts_are_evidence(tmp_path: Path, dataset: str, hop: str) -> None:
    context = {**FACTS["context"], "content": None}  # in one table with 2WikiMultiHopQA
    metadata = {"type": "comparison", "level": "hard", **FACTS, "context": context}
    path = write(tmp_path, flashrag(metadata, ["yes"]))
    (question,) = load_questions(path, dataset)
    assert question.evidence == ["A: A is a river.", "B: B is a river."]
    assert (question.hop, question.hops, question.type) == (hop, 2, "comparison")
    assert [document.title for document in read_documents(path, "questions", "hotpotqa")] == [
        "A",
        "B",
    ]


def test_flashrags_2wiki_calls_the_sentences_content(tmp_path: Path) -> None:
    context = FACTS["context"]
    renamed = {"title": context["title"], "content": context["sentences"], "sentences": None}
    path = write(tmp_path, flashrag({**FACTS, "context": renamed}, ["yes"]))
    (question,) = load_questions(path, "2wiki")
    assert question.evidence == ["A: A is a river.", "B: B is a river."]


def test_flashrags_decompositions_are_kept(tmp_path: Path) -> None:
    path = write(tmp_path, flashrag({"question_decomposition": HOPS, "answerable": True}, ["Rome"]))
    (question,) = load_questions(path, "musique")
    assert question.evidence == ["Film: Made by Ann.", "Ann: Born in Rome."]
    assert question.decomposition == [
        Decomposed("Film >> maker", "Ann", "Film", "Made by Ann."),
        Decomposed("Where was #1 born?", "Rome", "Ann", "Born in Rome."),
    ]


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        (search_r1(0, " "), "question"),
        (search_r1(0, "q") | {"reward_model": {"style": "rule"}}, "reward_model.ground_truth: missing"),
        (flashrag({"question_decomposition": [{"question": "a", "answer": "b"}]}, ["x"]),
         "metadata.question_decomposition.0.support_paragraph: expected an object"),
        (flashrag({**FACTS, "supporting_facts": {"title": ["A"], "sent_id": []}}, ["x"]),
         "metadata.supporting_facts: expected columns of one length"),
    ],
)  # fmt: skip
def test_malformed_rows_name_the_field(
    tmp_path: Path, record: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InputError, match=problem):
        load_questions(write(tmp_path, record), "questions")
