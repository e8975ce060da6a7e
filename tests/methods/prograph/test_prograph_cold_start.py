"""ProGraph-R1's cold start: turns whose knowledge has the kind that the retrieval returns."""

from __future__ import annotations

import random
from pathlib import Path

from pipeline import config
from pipeline.closed_world.write import write_closed_world
from pipeline.core.record_io import read_records
from pipeline.core.records import Chunk, Hyperedge, SftExample
from pipeline.methods.prograph.cold_start import build_step, turns
from pipeline.rollout.grammars.base import grammar
from pipeline.training.sft_data.steps import Hop, StepOptions, supporting_facts
from tasks import corpus, sft_data
from tasks import hypergraph as hyper_stage
from tests.stages.question_stages import run_questions, run_stages
from tests.stages.test_sft_data import CONFIGS

PROGRAPH = ("grammar=prograph",)
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


def test_the_stage_writes_trajectories_over_the_closed_worlds_hyperedges(tmp_path: Path) -> None:
    write_closed_world(tmp_path / "world", seed=1, documents=200, sizes={"musique_train": 20})
    settings = config.load(
        CONFIGS / "embedded.yaml",
        (
            *PROGRAPH,
            "retrieval.variant=prograph",
            "hypergraph={source: annotated, path: hyperedges.jsonl}",
            "sft_data.sizes={1: 2, 2: 4, 3: 4}",
            "sft_data.test_sizes={}",
            *(f"data.{name}=[]" for name in ("sampling", "validation", "test")),
        ),
    )
    world = tmp_path / "world"
    questions, _ = run_questions(settings, tmp_path, "sft", world)
    inputs = {"world": world, "questions": questions.output}
    stages = {"corpus": corpus, "graph": hyper_stage, "sft-data": sft_data}
    run_stages(settings, tmp_path, inputs, stages)
    edges = read_records(tmp_path / "graph" / "hyperedges.parquet", Hyperedge)
    facts = {edge.text for edge in edges}
    examples = read_records(tmp_path / "sft-data" / "train.parquet", SftExample)
    assert len(examples) >= 6
    for example in examples:
        text, spans = example.completion, example.spans
        parsed = grammar("prograph").parse(text, spans)
        assert parsed.format_ok
        assert [bool(step.query) for step in parsed.steps] == [True] * example.hops + [False]
        items = [item for step in parsed.steps for item in step.context]
        assert {item.kind for item in items} == {"hyperedge"}
        assert {item.text for item in items} <= facts
        masked = "".join(text[s:e] for s, e, writer in spans if writer == "observation")
        assert masked.count("<knowledge>") == text.count("<knowledge>") == example.hops
