"""Retrieval by cosine and BM25, and by links, with scores computed by hand."""

import numpy as np
import pytest

from pipeline.knowledge.graph.links import Links, write_links
from pipeline.knowledge.index.faiss_index import VectorIndex
from pipeline.knowledge.retrieval.linked import FusedRetrieval, LinkedRetrieval
from tests.graph.test_links import FILMS
from tests.retrieval.fake_columns import FakeColumns

QUESTION = "Who directed The Tide?"


class FixedEmbedder:
    """Every query is the first axis."""

    def encode(self, texts, role):
        assert role == "query"
        return np.tile(np.array([[1, 0]], dtype=np.float32), (len(texts), 1))


class FixedBm25:
    """The same scores for every query."""

    def __init__(self, *scores):
        self.scores_N = np.array(scores, dtype=np.float32)

    def scores(self, query):
        return self.scores_N


def parts(*cosines):
    vectors_ND = np.array([[c, np.sqrt(1 - c * c)] for c in cosines], dtype=np.float32)
    rows = [(f"c{n}", *film) for n, film in enumerate(FILMS[: len(cosines)])]
    return FakeColumns(rows), VectorIndex.build(vectors_ND), vectors_ND, FixedEmbedder()


def ranked(retrieval, question=QUESTION):
    [chunks] = retrieval.retrieve([question])
    return {chunk.id: round(chunk.score, 5) for chunk in chunks}


def test_fused_is_the_average_of_scaled_cosine_and_bm25():
    """Cosines over .8, negative ones as 0, and BM25 over 2."""
    fused = FusedRetrieval(*parts(0.8, 0.2, 0.2, -0.4), FixedBm25(2, 0, 0.5, 1), top_k=3)
    found = ranked(fused)
    assert found == {"c0": 1.0, "c2": 0.25, "c3": 0.25}
    assert list(found) == ["c0", "c2", "c3"]


def test_linked_adds_titles_in_the_question_and_links_of_the_best_passages(tmp_path):
    """The film leads to its director.

    a = 1, .125, .25, .0625. The question names The Tide (film) without its qualifier, so t of c0 is
    1/2. "Ada Borg" is in c0 and c1, "Corte" in c1 and c3, so both have w = (1 - ln 2 / ln 4)² = 1/4.
    F of c1 = G of c1 = 1.5 / 4; G of c0 = F of c3 = G of c3 = .125 / 4.
    """
    write_links(tmp_path, FILMS)
    linked = LinkedRetrieval(
        *parts(0.8, 0.2, 0.2, 0.1), FixedBm25(2, 0, 0.5, 0), links=Links(tmp_path), top_k=4
    )
    found = ranked(linked)
    assert found == {
        "c0": pytest.approx(1.5 + 0.4 * 0.125 / 4, abs=1e-5),
        "c1": pytest.approx(0.125 + 0.9 * 1.5 / 4, abs=1e-5),
        "c2": 0.25,
        "c3": pytest.approx(0.0625 + 0.9 * 0.125 / 4, abs=1e-5),
    }
    assert list(found) == ["c0", "c1", "c2", "c3"]
    assert ranked(linked, QUESTION.lower()) == found


def test_a_name_in_the_question_is_no_shared_name(tmp_path):
    """c0 and c1 share Ada Borg, who is in the question: only the link to her title counts.

    x = 1, 1.125, .25, .0625, and G of c1 = .0625 / 4, because it shares Corte with c3.
    """
    write_links(tmp_path, FILMS)
    linked = LinkedRetrieval(
        *parts(0.8, 0.2, 0.2, 0.1), FixedBm25(2, 0, 0.5, 0), links=Links(tmp_path), top_k=4
    )
    found = ranked(linked, "What did Ada Borg direct?")
    assert found["c1"] == pytest.approx(1.125 + 0.5 * 1.0 / 4 + 0.4 * 0.0625 / 4, abs=1e-5)
    assert found["c0"] == 1.0


def test_without_titles_names_or_scores_linked_is_fused(tmp_path):
    chunks, *rest = parts(0.0, 0.0)
    chunks = FakeColumns([("c0", "", "a"), ("c1", "", "b")])
    write_links(tmp_path, [("", "a"), ("", "b")])
    bm25 = FixedBm25(0, 0)
    linked = LinkedRetrieval(chunks, *rest, bm25, links=Links(tmp_path), top_k=2)
    assert ranked(linked, "?") == ranked(FusedRetrieval(chunks, *rest, bm25, top_k=2), "?")
    assert linked.retrieve([]) == []
