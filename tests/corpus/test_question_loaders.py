"""Records of every data set become the same `Question`, with evidence as in TeaRAG, section 5."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.errors import InputError
from pipeline.core.records import Decomposed, Question
from pipeline.knowledge.corpus.documents import read_documents
from pipeline.knowledge.corpus.questions.load import (
    MALFORMED,
    NO_ANSWER_IN_TEXT,
    Notes,
    dataset_of,
    load_questions,
    read_questions,
)
from pipeline.knowledge.corpus.questions.passages import gold_passages
from tests.corpus.question_files import write_questions

MUSIQUE = {
    "id": "2hop__1_2",
    "paragraphs": [
        {"idx": 0, "title": "Rome", "paragraph_text": "A city.", "is_supporting": False},
        {"idx": 1, "title": "Film", "paragraph_text": "Made by Ann.", "is_supporting": True},
        {"idx": 2, "title": "Ann", "paragraph_text": "Born in Rome.", "is_supporting": True},
    ],
    "question": "Where was the maker of Film born?",
    "question_decomposition": [
        {"id": 1, "question": "Film >> maker", "answer": "Ann", "paragraph_support_idx": 1},
        {"id": 2, "question": "Where was #1 born?", "answer": "Rome", "paragraph_support_idx": 2},
    ],
    "answer": "Rome",
    "answer_aliases": ["Roma", "Rome"],
    "answerable": True,
}
HOTPOTQA = {
    "_id": "5a7",
    "question": "Are A and B rivers?",
    "answer": "yes",
    "type": "comparison",
    "level": "hard",
    "supporting_facts": [["A", 1], ["B", 0], ["B", 9], ["C", 0]],
    "context": [["A", ["Long.", " A is a river."]], ["B", ["B is a river."]]],
}


def load(tmp_path: Path, dataset: str, *records: Any) -> list[Question]:
    path = tmp_path / "file.json"
    path.write_text(json.dumps(list(records)), encoding="utf-8")
    return load_questions(path, dataset)


def test_musique_evidence_is_the_supporting_paragraph_of_each_hop(tmp_path: Path) -> None:
    assert load(tmp_path, "musique", MUSIQUE) == [
        Question(
            question_id="2hop__1_2",
            dataset="musique",
            question="Where was the maker of Film born?",
            answers=["Rome", "Roma"],
            hop="multi",
            evidence=["Film: Made by Ann.", "Ann: Born in Rome."],
            hops=2,
            type="2hop",
            decomposition=[
                Decomposed("Film >> maker", "Ann", "Film", "Made by Ann."),
                Decomposed("Where was #1 born?", "Rome", "Ann", "Born in Rome."),
            ],
        )
    ]


def test_support_sentence_is_the_evidence_where_present(tmp_path: Path) -> None:
    hops = [
        dict(hop, support_sentence=f"S{n}.")
        for n, hop in enumerate(MUSIQUE["question_decomposition"])
    ]
    (question,) = load(tmp_path, "musique", MUSIQUE | {"question_decomposition": hops})
    assert question.evidence == ["S0.", "S1."]
    assert question.decomposition[0].support_text == "Made by Ann."


def test_hotpotqa_evidence_is_the_supporting_sentences_that_exist(tmp_path: Path) -> None:
    (question,) = load(tmp_path, "hotpotqa", HOTPOTQA)
    assert question.evidence == ["A: A is a river.", "B: B is a river."]
    assert (question.type, question.hop, question.answers) == ("comparison", "multi", ["yes"])


def test_2wiki_counts_hops_by_its_evidence_triples(tmp_path: Path) -> None:
    triples = [["A", "mouth", "X"], ["B", "mouth", "Y"], ["X", "in", "Z"], ["Y", "in", "Z"]]
    (question,) = load(tmp_path, "2wiki", HOTPOTQA | {"evidences": triples})
    assert question.hops == 4
    assert question.evidence == ["A: A is a river.", "B: B is a river."]


def test_passages_that_a_retriever_found_are_documents_and_no_evidence(tmp_path: Path) -> None:
    """DPR's results for NQ: the corpus of prograph-qwen2.5-3b-nq."""
    found = [
        {"id": str(n), "title": f"T{n}", "text": "x", "score": "8.1", "has_answer": n == 0}
        for n in range(5)
    ]
    path = tmp_path / "train_top5.jsonl"
    path.write_text(json.dumps({"question": "q?", "answers": ["x"], "ctxs": found}), "utf-8")
    [question] = load_questions(path, "nq")
    assert (question.question, question.answers, question.evidence) == ("q?", ["x"], [])
    documents = [(one.title, one.text) for one in read_documents(path, "questions", "nq")]
    assert documents == [(f"T{n}", "x") for n in range(5)]


@pytest.mark.parametrize(
    ("dataset", "record", "answers", "evidence"),
    [
        ("nq", {"question": "q", "answer": ["c", "b"]}, ["c", "b"], []),
        (
            "nq",
            {
                "question": "q",
                "answers": ["a"],
                "ctxs": [
                    {"title": "T", "text": "x", "isgold": True},
                    {"title": "U", "text": "y", "isgold": False},
                ],
            },
            ["a"],
            ["T: x"],
        ),
        ("nq", {"question": "q", "golden_answers": ["c", "c "]}, ["c"], []),
        (
            "popqa",
            {
                "question": "q",
                "possible_answers": '["politician", "pol"]',
                "paragraphs": "[{'title': \"T's\", 'text': 'x', 'is_supporting': True}]",
            },
            ["politician", "pol"],
            ["T's: x"],
        ),
        (
            "triviaqa",
            {"Question": "q", "Answer": {"Value": "Phar Lap", "Aliases": ["Pharlap"]}},
            ["Phar Lap", "Pharlap"],
            [],
        ),
        ("bamboogle", {"Question": "q", "Answer": "Titan IIIE"}, ["Titan IIIE"], []),
        (
            "musique",
            {"id": 3, "Question": "q", "answer": ["a"], "golden_context": ["T\n x", "U\ny"]},
            ["a"],
            ["T: x", "U: y"],
        ),
    ],
)
def test_answers_evidence_and_gold_passages_of_other_records(
    tmp_path: Path, dataset: str, record: dict[str, Any], answers: list[str], evidence: list[str]
) -> None:
    (question,) = load(tmp_path, dataset, record)
    assert (question.question, question.answers, question.evidence) == ("q", answers, evidence)
    [(row, read)] = read_questions(tmp_path / "file.json", dataset)
    assert [f"{gold.title}: {gold.text}" for (gold,) in gold_passages(row, read)] == evidence


def test_popqa_and_bamboogle_tables_are_read(tmp_path: Path) -> None:
    popqa = tmp_path / "popQA.tsv"
    popqa.write_text('id\tprop\tquestion\tpossible_answers\n4\tcolor\tq\t"[""red""]"\n')
    bamboogle = tmp_path / "bamboogle.csv"
    bamboogle.write_text('Question,Answer\n"q, then?",a\n')
    (first,) = load_questions(popqa, "popqa")
    (second,) = load_questions(bamboogle, "bamboogle")
    assert (first.question_id, first.type, first.answers) == ("popqa-4", "color", ["red"])
    assert (second.question, second.answers, second.hops) == ("q, then?", ["a"], 2)


def test_ids_are_unique_and_independent_of_the_order(tmp_path: Path) -> None:
    records = [{"question": text, "answer": ["a"]} for text in ("one", "two", "one")]
    ids = [item.question_id for item in load(tmp_path, "nq", *records)]
    assert len(set(ids)) == 3
    assert ids[2] == f"{ids[0]}-2"
    assert [item.question_id for item in load(tmp_path, "nq", records[1])] == [ids[1]]


def test_unanswerable_musique_questions_are_left_out_unless_a_filter_names_them(
    tmp_path: Path,
) -> None:
    hops = [dict(hop, paragraph_support_idx=None) for hop in MUSIQUE["question_decomposition"]]
    blind = MUSIQUE | {"question_decomposition": hops, "answerable": False}
    with pytest.raises(InputError, match="questions that their passages do not answer"):
        load(tmp_path, "musique", blind)
    path, notes = write_questions(tmp_path, blind, MUSIQUE), Notes()
    assert dataset_of(path) == "musique"
    [question] = load_questions(path, "musique", notes=notes)
    assert (question.question_id, question.hops) == ("2hop__1_2", 2)
    assert (notes.counts[NO_ANSWER_IN_TEXT], notes.counts[MALFORMED]) == (1, 0)
    assert load_questions(path, "musique", required={"answerable": 1}) == [question]
    with pytest.raises(InputError, match=r"paragraph_support_idx: expected the idx of one"):
        load_questions(path, "musique", required={"answerable": 0})


@pytest.mark.parametrize(
    ("file", "dataset", "count", "without_evidence"),
    [
        ("musique/musique_train100.json", "musique", 100, 0),
        ("musique/prunerag_musique_249.jsonl", "musique", 249, 0),
        ("hotpotqa/hotpotqa_train100.json", "hotpotqa", 100, 0),
        ("hotpotqa/prunerag_hotpotqa_276.jsonl", "hotpotqa", 276, 0),
        ("2wiki/2wiki_official100.json", "2wiki", 100, 0),
        ("2wiki/2wiki_dev973_evidence.json", "2wiki", 973, 0),
        ("2wiki/prunerag_2wiki_271.jsonl", "2wiki", 271, 0),
        ("single-hop/nq_open_gold_1326.jsonl", "nq", 1326, 0),
        ("single-hop/nq_search_1802.jsonl", "nq", 1802, 1802),
        ("single-hop/popqa_gold_502.jsonl", "popqa", 502, 0),
        ("single-hop/triviaqa_228.jsonl", "triviaqa", 228, 228),
        ("single-hop/bamboogle_58.jsonl", "bamboogle", 58, 58),
    ],
)
def test_real_question_files_are_read_completely(
    real_data: Path, file: str, dataset: str, count: int, without_evidence: int
) -> None:
    loaded = [question for _, question in read_questions(real_data / file, dataset)]
    assert len(loaded) == len({item.question_id for item in loaded}) == count
    assert sum(not item.evidence for item in loaded) == without_evidence
    assert all(item.answers and item.question and item.hops for item in loaded)
