"""ProGraph-R1's cold start: turns whose knowledge has the kind that the retrieval returns."""

from __future__ import annotations

import random

from pipeline.core.records import Chunk, Hyperedge
from pipeline.methods.prograph.cold_start import build_step, turns
from pipeline.training.sft_data.steps import Hop, StepOptions, supporting_facts

EDGES = StepOptions(kinds=("hyperedge",))
FACTS = [
    Hyperedge("c:f0", "Ann Lee likes Emma Stone.", ["Ann Lee", "Emma Stone"], "c"),
    Hyperedge("c:f1", "In 1996 Ann Lee directed Emma.", ["1996", "Ann Lee", "Emma"], "c"),
]
ELSEWHERE = Hyperedge("d:f0", "Ann Lee was born in Rome.", ["Ann Lee", "Rome"], "d")


def hops() -> tuple[Hop, Hop]:
    emma = Chunk("c", "Emma", "Ann Lee likes Emma Stone. In 1996 Ann Lee directed Emma.", "c")
    ann = Chunk("d", "Ann Lee", "Ann Lee was born in Rome.", "d")
    first = Hop("q", 1, "Who directed Emma?", "Ann Lee", chunks=[emma], facts=FACTS)
    second = Hop("q", 2, "Where was Ann Lee born?", "Rome", chunks=[ann], facts=[ELSEWHERE])
    return first, second


def test_all_entities_of_a_hyperedge_count_for_support() -> None:
    assert supporting_facts(hops()[0]) == [FACTS[1]]


def test_the_knowledge_holds_supporting_facts_and_facts_of_the_same_paragraphs() -> None:
    first, second = hops()
    minimal = build_step(first, [FACTS[1]], random.Random(0), EDGES)
    assert [(item.kind, item.id) for item in minimal.context] == [("hyperedge", "c:f1")]
    extended = build_step(
        first, [FACTS[1]], random.Random(0), StepOptions([second], 1.0, 1.0, ("hyperedge",))
    )
    assert sorted(item.id for item in extended.context) == ["c:f0", "c:f1", "d:f0"]
    options = StepOptions(other_facts=1.0, kinds=("chunk",))
    passages = build_step(first, [FACTS[1]], random.Random(0), options)
    assert [(item.kind, item.id) for item in passages.context] == [("chunk", "c")]
    assert build_step(first, [], random.Random(0), EDGES) is None
    assert first.fault == "no supporting fact"


def test_a_turns_thought_states_the_previous_finding_and_nothing_still_unknown() -> None:
    steps = [build_step(hop, supporting_facts(hop), random.Random(0), EDGES) for hop in hops()]
    first, second, last = turns([step for step in steps if step is not None])
    assert (first.query, second.query, last.query) == (
        "Who directed Emma?", "Where was Ann Lee born?", None,
    )  # fmt: skip
    assert "Ann Lee" not in first.think
    assert second.think.index("n 1996 Ann Lee directed Emma") < second.think.index(second.query)
    assert "Rome" not in second.think
    assert last.think.rstrip(".").endswith("Rome")
