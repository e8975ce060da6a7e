"""BM25 over passages: built, saved and memory-mapped."""

import pytest

from pipeline.knowledge.index.bm25 import Bm25

TEXTS = [
    "Alba a city on the river Nera",
    "Bruno the painter Bruno was born in Alba",
    "Corte mountains and snow",
]


@pytest.fixture
def saved(tmp_path):
    pytest.importorskip("bm25s")
    Bm25.build(iter(TEXTS)).save(tmp_path / "bm25")
    return tmp_path / "bm25"


def test_bm25_scores_rare_shared_words_and_no_stop_words(saved):
    index = Bm25.load(saved)
    alba, bruno, corte = index.scores("the painter of Alba").tolist()
    assert bruno > alba > corte == 0
    assert len(index) == 3
    for query in ("zebra", "the", ""):
        assert index.scores(query).tolist() == [0, 0, 0]


def test_bm25_of_texts_without_words_is_zero(tmp_path):
    pytest.importorskip("bm25s")
    Bm25.build(["", "the"]).save(tmp_path)
    assert Bm25.load(tmp_path).scores("Alba").tolist() == [0, 0]
