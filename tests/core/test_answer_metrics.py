"""Exact match, F1 and cover exact match on literal cases."""

from __future__ import annotations

import pytest

from pipeline.core.answer_metrics import cover_exact_match, exact_match, f1, normalize


def test_normalization_deletes_punctuation_before_articles() -> None:
    assert normalize("  The  U.S.A., a\tLand ") == "usa land"
    assert normalize("A.N. Other") == "other"  # "a.n." becomes the article "an"
    assert normalize("Theatre") == "theatre"
    assert normalize("a-the") == "athe"


@pytest.mark.parametrize(
    ("composed", "decomposed"),
    [
        ("Brontë", "Bronte\u0308"),
        ("Škoda Öst", "S\u030ckoda O\u0308st"),
        ("각", "\u1100\u1161\u11a8"),
        ("a ≠ b", "a =\u0338 b"),  # its decomposition has an ASCII sign, which is deleted elsewhere
    ],
)
def test_composed_and_decomposed_spellings_are_the_same_answer(
    composed: str, decomposed: str
) -> None:
    assert composed != decomposed
    assert normalize(composed) == normalize(decomposed)
    for answer, gold in ((composed, decomposed), (decomposed, composed)):
        assert exact_match(answer, [gold]) == 1
        assert f1(f"{answer} x", [gold]) == f1(f"{gold} x", [gold])
        assert cover_exact_match(f"it is {answer}", [gold]) == 1


def test_accents_and_full_width_letters_still_distinguish_answers() -> None:
    assert exact_match("Bronte", ["Brontë"]) == 0
    assert exact_match("\uff21bc", ["Abc"]) == 0


@pytest.mark.parametrize(
    ("spelling", "gold"),
    [
        (
            "O’Neill’s 1914–18 “war”",
            "O'Neill's 1914-18 war",
        ),  # apostrophes, en dash, quotation marks
        ("OʼNeillʼs 1914‑18 «war»", "O'Neill's 1914-18 war"),  # letters, non-breaking hyphen
        ("O′Neill´s 1914−18 „war‟", "O'Neill's 1914-18 war"),  # prime, acute accent, minus sign
        ("¡O‘Neill`s 1914—18 war…!", "O'Neill's 1914-18 war"),
        ("Hawaiʻi", "Hawai'i"),
        ("anti\u00adbody\u200b \ufeffA\u2060", "antibody A"),  # characters without width
    ],
)
def test_typographic_spellings_are_the_same_answer(spelling: str, gold: str) -> None:
    assert exact_match(spelling, [gold]) == f1(spelling, [gold]) == 1
    for match in ("words", "substring"):
        assert cover_exact_match(f"it is {spelling}", [gold], match) == 1  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("answer", "gold", "words", "substring"),
    [
        ("Americans", "American", 0, 1),
        ("Jean Paul", "Jean-Paul", 0, 1),
        ("1000", "1,000", 1, 0),
        ("in 2010", "10", 0, 1),
        ("I know", "no", 0, 1),
        ("the Obama family", "Obama", 1, 1),
        ("U.S.", "US", 1, 0),
        ("an apple", "apples", 0, 0),
        ("the!", "the", 0, 0),  # an empty gold answer never matches
    ],
)
def test_cover_exact_match_of_whole_words_and_as_in_hiprags_code(
    answer: str, gold: str, words: float, substring: float
) -> None:
    assert cover_exact_match(answer, [gold]) == words
    assert cover_exact_match(answer, [gold], "substring") == substring


@pytest.mark.parametrize(
    ("answer", "golds", "em", "token_f1", "cem"),
    [
        ("The Paris", ["paris"], 1, 1, 1),
        ("Paris, France", ["Paris"], 0, 2 / 3, 1),
        ("Lyon", ["Paris", "lyon!"], 1, 1, 1),
        # tokens count with multiplicity: one "new" of two is common
        ("new york", ["new new york"], 0, 4 / 5, 0),
        ("york york", ["york"], 0, 2 / 3, 1),
        # whole words only
        ("no, never", ["no"], 0, 2 / 3, 1),
        ("tenth of May 1910", ["May 10"], 0, 1 / 3, 0),
        # nothing is left after normalization
        ("the best", ["The"], 0, 0, 0),
        ("!!!", ["!!!"], 0, 0, 0),
        ("", ["x"], 0, 0, 0),
        (None, ["x"], 0, 0, 0),
        ("x", [], 0, 0, 0),
        # scripts without spaces are compared by characters
        ("北京大学", ["《北京大学》。"], 1, 1, 1),
        ("北京", ["北京大学"], 0, 2 * 2 / 6, 0),
        ("首都是北京", ["北京"], 0, 2 * 2 / 7, 1),
        ("กรุงเทพ", ["กรุง"], 0, 2 * 3 / 9, 1),
        ("IBM 公司", ["公司"], 0, 2 * 2 / 5, 1),
    ],
)
def test_metrics(
    answer: str | None, golds: list[str], em: float, token_f1: float, cem: float
) -> None:
    assert exact_match(answer, golds) == em
    assert f1(answer, golds) == pytest.approx(token_f1)
    assert cover_exact_match(answer, golds) == cem
