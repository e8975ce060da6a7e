"""Supporting triplets, key entities and the simulated context of one step."""

import random

from pipeline.core.records import Chunk, Triplet
from pipeline.methods.tearag.cold_start import build_step, key_entities
from pipeline.training.sft_data.steps import Hop, StepOptions, supporting_facts

CHUNK = Chunk("c", "Emma (film)", "Emma was directed by Ann Lee. Ann Lee likes Emma Stone.", "d")


def triplets(*texts: tuple[str, str, str]) -> list[Triplet]:
    return [Triplet(f"c:{n}", *text, chunk_id="c") for n, text in enumerate(texts)]


def hop(question: str, answer: str, *texts: tuple[str, str, str], earlier: str = "") -> Hop:
    answers = (earlier,) if earlier else ()
    return Hop("q", 1, question, answer, answers, CHUNK.title, [CHUNK], triplets(*texts))


DIRECTOR = hop(
    "Who directed the film emma?",
    "Ann Lee",
    ("Ann Lee", "likes", "Emma Stone"),
    ("Emma", "stars", "Ann Lee"),
    ("Emma", "was directed by", "Ann Lee"),
    ("Emma", "was directed by", "Ann Leeds"),
)


def test_the_supporting_triplet_answers_the_question() -> None:
    assert [fact.text for fact in supporting_facts(DIRECTOR)] == ["Emma was directed by Ann Lee"]


def test_a_triplet_that_contains_the_answer_by_chance_is_not_supporting() -> None:
    neighbor = hop(
        "What does Jefferson County share a border with?",
        "Dodge County",
        ("Dodge County", "is in", "Wisconsin"),
    )
    assert supporting_facts(neighbor) == []
    assert build_step(neighbor, [], random.Random(0), StepOptions()) is None
    assert neighbor.fault == "no supporting triplet"


def test_key_entities_are_named_in_the_subquery_and_never_the_answer() -> None:
    supporting = supporting_facts(DIRECTOR)
    # In the subquery's spelling; "Ann Lee" is unknown before retrieval.
    assert key_entities(DIRECTOR, supporting) == ["emma"]


def test_earlier_answers_and_the_title_replace_entities_that_the_subquery_does_not_name() -> None:
    average = hop(
        "What is the usual snowfall in Seattle?",
        "6.8 inches",
        ("Sea-Tac", "received", "6.8 inches of snowfall"),
        earlier="Seattle",
    )
    assert key_entities(average, supporting_facts(average)) == ["Seattle"]
    part = hop("Where did Hayek study?", "Vienna", ("Friedrich Hayek", "did study in", "Vienna"))
    assert key_entities(part, supporting_facts(part)) == ["Hayek"]


def test_the_context_holds_the_gold_chunk_and_triplets_at_random_positions_only() -> None:
    supporting = supporting_facts(DIRECTOR)
    orders = set()
    for seed in range(20):
        step = build_step(DIRECTOR, supporting, random.Random(seed), StepOptions())
        assert step is not None
        assert {item.text for item in step.context} == {CHUNK.text, "Emma was directed by Ann Lee"}
        orders.add(tuple(item.kind for item in step.context))
    assert orders == {("chunk", "triplet"), ("triplet", "chunk")}


def test_a_context_holds_only_the_kinds_that_retrieval_shows() -> None:
    """A policy that learned to copy triplets misreads passages."""
    supporting = supporting_facts(DIRECTOR)
    for kind, text in (("chunk", CHUNK.text), ("triplet", "Emma was directed by Ann Lee")):
        step = build_step(DIRECTOR, supporting, random.Random(0), StepOptions(kinds=(kind,)))
        assert step is not None
        assert [(item.kind, item.text) for item in step.context] == [(kind, text)]
        assert "Emma was directed by Ann Lee" in step.summary


def test_a_context_gains_only_gold_of_its_question_and_keeps_its_supporting_evidence() -> None:
    supporting = supporting_facts(DIRECTOR)
    page = Chunk("e", "Ann Lee", "Ann Lee was born in York.", "e")
    born = Hop("q", 2, "Where was Ann Lee born?", "York", ("Ann Lee",), page.title, [page], [])
    missing = Hop("q", 3, "Who?", "nobody")  # its paragraph is not in the corpus
    sizes = set()
    for seed in range(60):
        step = build_step(
            DIRECTOR,
            supporting,
            random.Random(seed),
            StepOptions([born, missing], other_paragraph=0.5, other_facts=0.5),
        )
        assert step is not None
        texts = [item.text for item in step.context]
        assert len(set(texts)) == len(texts)
        assert {CHUNK.text, "Emma was directed by Ann Lee"} <= set(texts)
        assert set(texts) <= {CHUNK.text, page.text, *(fact.text for fact in DIRECTOR.facts)}
        sizes.add(len(texts))
    assert sizes == {2, 3, 4, 5, 6}


def test_the_size_of_a_context_is_independent_of_the_number_of_hops() -> None:
    def mean_size(others: int) -> float:
        pages = [Chunk(f"e{n}", f"P{n}", f"Page {n}.", "e") for n in range(others)]
        other_hops = [Hop("q", n + 2, "?", "a", (), c.title, [c], []) for n, c in enumerate(pages)]
        steps = [
            build_step(
                DIRECTOR,
                supporting_facts(DIRECTOR),
                random.Random(seed),
                StepOptions(other_hops, other_paragraph=0.5),
            )
            for seed in range(400)
        ]
        return sum(len(step.context) for step in steps if step is not None) / len(steps)

    assert abs(mean_size(1) - 2.5) < 0.1
    assert abs(mean_size(1) - mean_size(3)) < 0.1
