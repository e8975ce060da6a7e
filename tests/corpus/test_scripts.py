"""Documents, questions and answers in scripts without spaces or without capitals."""

from __future__ import annotations

import pytest

from pipeline.core.answer_metrics import cover_exact_match, exact_match, f1
from pipeline.knowledge.corpus.chunk import cut
from pipeline.knowledge.index.bm25 import Bm25

# A passage, its number of words, a question about it, and the answer.
TEXTS = {
    "Thai": ("กรุงเทพมหานครเป็นเมืองหลวงของไทย", 29, "เมืองหลวงของไทยคืออะไร", "กรุงเทพมหานคร"),
    "Khmer": ("ភ្នំពេញជារាជធានីនៃកម្ពុជា", 13, "រាជធានីនៃកម្ពុជាគឺអ្វី", "ភ្នំពេញ"),
    "Lao": ("ວຽງຈັນເປັນນະຄອນຫຼວງຂອງລາວ", 22, "ນະຄອນຫຼວງຂອງລາວແມ່ນຫຍັງ", "ວຽງຈັນ"),
    "Chinese": ("巴黎是法国的首都。", 8, "法国的首都是哪里？", "巴黎"),
    "Arabic": ("القاهرة هي عاصمة مصر", 4, "ما عاصمة مصر؟", "القاهرة"),
}


@pytest.mark.parametrize("script", TEXTS)
def test_passages_are_cut_and_answers_compared_by_words(script: str) -> None:
    text, words, _, answer = TEXTS[script]
    pieces = cut(text, 3)
    assert len(pieces) == -(-words // 3)
    assert "".join(pieces).replace(" ", "") == text.replace(" ", "")
    assert exact_match(f" {answer}。", [answer]) == 1
    assert cover_exact_match(text, [answer]) == 1
    assert 0 < f1(text, [answer]) < 1


def test_bm25_finds_the_passage_of_a_question_in_every_script() -> None:
    pytest.importorskip("bm25s")
    index = Bm25.build([*(text for text, *_ in TEXTS.values()), "Paris is the capital of France."])
    for row, (_, _, question, _) in enumerate(TEXTS.values()):
        scores = index.scores(question)
        assert scores.argmax() == row
        assert scores[row] > 0
        assert sorted(scores)[-2] == 0
