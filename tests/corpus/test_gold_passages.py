"""Gold passages of every record shape."""

import json

import pytest

from pipeline.knowledge.corpus.questions.load import read_questions
from pipeline.knowledge.corpus.questions.passages import gold_passages
from pipeline.knowledge.corpus.raw_records import Document

MUSIQUE = {
    "id": "2hop__1_2",
    "question": "Where was the director of Up born?",
    "answer": "Rome",
    "paragraphs": [
        {"idx": 0, "title": "Up", "paragraph_text": "By Ann.", "is_supporting": True},
        {"idx": 1, "title": "Ann", "paragraph_text": "Of Rome.", "is_supporting": True},
        {"idx": 2, "title": "Bo", "paragraph_text": "Of Oslo.", "is_supporting": False},
    ],
    "question_decomposition": [
        {"question": "Up >> director", "answer": "Ann", "paragraph_support_idx": 0},
        {"question": "Where was #1 born?", "answer": "Rome", "paragraph_support_idx": 1},
    ],
}
HOTPOTQA = {
    "_id": "x",
    "question": "Is Up older than Down?",
    "answer": "yes",
    "context": [["Up", ["A film.", " By Ann."]], ["Bo", ["Sings."]]],
    "supporting_facts": [["Up", 0], ["Up", 1], ["Down", 0]],
}
EVIDENCE = {
    "id": "y",
    "question": "Who is the mother of Lothair?",
    "answer": "Ann",
    "evidence": [["Lothair II", "mother", "Ann"]],
}


@pytest.mark.parametrize(
    ("record", "dataset", "gold"),
    [
        (MUSIQUE, "musique", [("Up", "By Ann."), ("Ann", "Of Rome.")]),
        (HOTPOTQA, "hotpotqa", [("Up", "A film. By Ann."), ("Down", "")]),
        (HOTPOTQA, "2wiki", [("Up", "A film. By Ann."), ("Down", "")]),
        (EVIDENCE, "2wiki", [("Lothair II", "")]),
        ({"question": "Who?", "answer": ["Ann"]}, "nq", []),
        (
            {"question": "Who?", "answer": "Ann", "evidence": ["Up: Two: By Ann.", "Bo: Sings."]},
            "nq",
            [[("Up", "Two: By Ann."), ("Up: Two", "By Ann.")], [("Bo", "Sings.")]],
        ),
        ({"question": "Who?", "answer": "Ann", "evidence": ["By Ann.", "Bo: Sings."]}, "nq", []),
        ({"question": "Who?", "answer": "Ann", "evidence": [": By Ann."]}, "nq", []),
    ],
)
def test_gold_passages_of_a_record(tmp_path, record, dataset, gold):
    path = tmp_path / "questions.json"
    path.write_text(json.dumps([record]))
    row, question = next(iter(read_questions(path, dataset)))
    readings = [passage if isinstance(passage, list) else [passage] for passage in gold]
    assert gold_passages(row, question) == [
        tuple(Document(title, text) for title, text in passage) for passage in readings
    ]
