"""Training questions that repeat a held-out question are found; questions of one template are not."""

import math
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.records import Question
from pipeline.core.text import tokenize
from pipeline.knowledge.corpus.overlap import find_overlaps


def questions(prefix: str, texts: list[str]) -> list[Question]:
    return [Question(f"{prefix}{n}", "d", text, ["a"], "multi") for n, text in enumerate(texts)]


def test_case_and_punctuation_do_not_hide_an_exact_overlap() -> None:
    overlaps = find_overlaps(
        questions("train", ["who wrote “Emma” ?", "who wrote Persuasion?"]),
        questions("test", ["Who lives here?", "WHO WROTE EMMA"]),
    )
    assert [(first.question_id, first.heldout_id, first.kind) for first in overlaps] == [
        ("train0", "test1", "exact")
    ]


def test_reworded_question_is_a_near_overlap_and_a_template_is_not() -> None:
    names = ["Alva", "Brom", "Cato", "Dunja", "Edda", "Falk", "Gerd", "Hilde"]
    templated = [f"In which city was the director of {name} born?" for name in names]
    train = [*templated[:4], "The director of Falk was born in which city?"]
    overlaps = find_overlaps(questions("train", train), questions("test", templated[4:]))
    assert [(first.question_id, first.heldout_id, first.kind) for first in overlaps] == [
        ("train4", "test1", "near")
    ]


texts = st.lists(
    st.lists(st.sampled_from(["a", "b", "c", "d", "e", "f"]), min_size=1, max_size=6).map(" ".join),
    max_size=6,
)


@given(texts, texts)
def test_rare_token_search_equals_a_comparison_of_all_pairs(
    first: list[str], second: list[str]
) -> None:
    """Against the definition, computed over all pairs."""
    both = [set(tokenize(text)) for text in first + second]
    frequency = Counter(token for text in both for token in text)
    weight = {token: math.log(1 + len(both) / count) for token, count in frequency.items()}

    def jaccard(a: set[str], b: set[str]) -> float:
        return sum(weight[t] for t in a & b) / sum(weight[t] for t in a | b)

    expected = {
        f"x{n}"
        for n, text in enumerate(both[: len(first)])
        if any(jaccard(text, other) >= 0.8 + 1e-9 for other in both[len(first) :])
    }
    overlaps = find_overlaps(questions("x", first), questions("y", second))
    assert expected <= {overlap.question_id for overlap in overlaps}
    assert all(overlap.similarity >= 0.8 - 1e-4 for overlap in overlaps)
