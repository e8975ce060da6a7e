"""Gold passages of every record shape."""

import json

import pytest

from pipeline.knowledge.corpus.questions.load import read_questions
from pipeline.knowledge.corpus.questions.passages import gold_passages
from pipeline.knowledge.corpus.raw_records import Document
from tests.corpus.test_question_loaders import HOTPOTQA, MUSIQUE

FACTS = [("A", "Long. A is a river."), ("B", "B is a river."), ("C", "")]
EVIDENCE = {
    "id": "y",
    "question": "Who is the mother of Lothair?",
    "answer": "Ann",
    "evidence": [["Lothair II", "mother", "Ann"]],
}


@pytest.mark.parametrize(
    ("record", "dataset", "gold"),
    [
        (MUSIQUE, "musique", [("Film", "Made by Ann."), ("Ann", "Born in Rome.")]),
        (HOTPOTQA, "hotpotqa", FACTS),
        (HOTPOTQA, "2wiki", FACTS),
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
