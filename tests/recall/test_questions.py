"""Questions and sub-questions with the documents of their gold passages."""

import json

import pytest

from pipeline.core.errors import InputError
from pipeline.knowledge.corpus.chunk import chunk_documents
from pipeline.knowledge.corpus.documents import read_documents
from pipeline.knowledge.corpus.raw_records import Document
from pipeline.look.recall.questions import RecallQuery, read_recall_questions
from tests.corpus.test_gold_passages import EVIDENCE, HOTPOTQA, MUSIQUE

CORPUS = [
    Document("Film", "Made by Ann.", "film"),
    Document("Film", "Another film.", "film2"),
    Document("Ann", "Born in Rome.", "ann"),
    Document("Lothair II", "King.", "l1"),
    Document("Lothair II", "Still king.", "l2"),
    Document("Film: Two", "Again by Ann.", "two"),
    Document("", "Untitled.", "no"),
]
CHUNKS = list(chunk_documents(CORPUS, 100))


def read(tmp_path, *records, dataset=None, **options):
    path = tmp_path / "questions.json"
    path.write_text(json.dumps(list(records)))
    return read_recall_questions(path, dataset, CHUNKS, **options)


def gold(*names):
    return tuple(frozenset(name.split()) for name in names)


def test_earlier_answers_are_filled_into_sub_questions(tmp_path):
    result = read(tmp_path, MUSIQUE)
    assert (result.dataset, result.skipped) == ("musique", 0)
    assert result.questions == [RecallQuery("2hop__1_2", MUSIQUE["question"], gold("film", "ann"))]
    assert result.sub_questions[1] == RecallQuery("2hop__1_2", "Where was Ann born?", gold("ann"))
    assert "Film" in result.sub_questions[0].query
    assert result.sub_questions[0].gold == gold("film")  # not the other document of that title


def test_a_gold_passage_with_only_a_title_matches_all_documents_of_that_title(tmp_path):
    assert read(tmp_path, EVIDENCE).questions[0].gold == gold("l1 l2")


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        (["Film: Two: Again by Ann.", "Ann: Born in Rome.", "Ann: Born"], gold("two", "ann")),
        (["Film: Two: Other words."], gold("two")),
        (["Film: Another film."], gold("film2")),
        ([": Nothing."], (frozenset(),)),
        (["Untitled."], (frozenset(),)),
    ],
)
def test_evidence_is_read_with_every_title_and_counts_a_document_once(tmp_path, evidence, expected):
    """Without a title there is no gold passage, and no document states "Bo"."""
    record = {"question_id": "q", "question": "Who?", "answers": ["Bo"], "evidence": evidence}
    assert read(tmp_path, record, dataset="questions").questions[0].gold == expected


def test_a_question_without_its_gold_passages_in_the_corpus_is_skipped_and_counted(tmp_path):
    with pytest.raises(InputError, match="lacks gold passages of all 1 questions"):
        read(tmp_path, HOTPOTQA, dataset="hotpotqa")
    other = {**EVIDENCE, "id": "z", "evidence": [["Nobody", "mother", "Ann"]]}
    result = read(tmp_path, other, EVIDENCE)
    assert (len(result.questions), result.skipped) == (1, 1)


def test_a_question_without_gold_passages_wants_a_document_that_states_an_answer(tmp_path):
    """ "king" is in both documents of Lothair II, as a whole word, "Rom" in none.

    "No" may be in any.
    """
    path = tmp_path / "questions.jsonl"
    path.write_text(
        '{"question": "What was he?", "answers": ["emperor", "the King"]}\n'
        '{"question": "Is he?", "answer": "No."}\n{"question": "Who?"}\n{bad\n{"question": "Where?", "answer": "Rom"}\n{bad\n'
    )
    result = read_recall_questions(path, None, CHUNKS, limit=2)
    malformed, unanswered = reversed(list(result.notes.lines("f")))
    assert unanswered.startswith("f: 1 rows without an answer, which are left out")
    assert malformed.startswith(f"f: 1 malformed rows, which are left out; the first: {path}:4:")
    assert [query.gold for query in result.questions] == [gold("l1 l2"), (frozenset(),)]
    assert (result.by_answer, result.unstated, result.skipped) == (2, 1, 1)


@pytest.mark.parametrize(
    ("dataset", "questions", "corpus", "sub_questions"),
    [
        ("musique", "musique/musique_train100.json", "musique/musique_train100_corpus1890.json", 237),
        ("hotpotqa", "hotpotqa/hotpotqa_train100.json", "hotpotqa/hotpotqa_train100_corpus994.json", 0),
        ("2wiki", "2wiki/2wiki_official100.json", "2wiki/2wiki_official100_corpus770.json", 0),
    ],
)  # fmt: skip
def test_every_gold_passage_of_real_questions_matches_one_document(
    real_data, dataset, questions, corpus, sub_questions
):
    chunks = list(chunk_documents(read_documents(real_data / corpus), 100))
    result = read_recall_questions(real_data / questions, None, chunks)
    assert (result.dataset, len(result.questions), result.skipped) == (dataset, 100, 0)
    assert len(result.sub_questions) == sub_questions
    assert all(len(passage) == 1 for query in result.questions for passage in query.gold)
