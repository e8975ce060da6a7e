"""Search-R1's cold start: searches with passages, each followed by the reasoning about them."""

from __future__ import annotations

import random
from pathlib import Path

from pipeline.core.record_io import read_records
from pipeline.core.records import Chunk, SftExample, Step, Triplet
from pipeline.methods.search_r1.method import build_step, turns
from pipeline.rollout.grammars.base import grammar
from pipeline.training.sft_data.steps import Hop, StepOptions
from tests.stages.test_sft_data import run

FACT = Triplet("c:0", "Emma", "was directed by", "Ann Lee", "c")


def hop() -> Hop:
    chunk = Chunk("c", "Emma", "Ann Lee directed Emma.", "d")
    return Hop("q", 1, "Who directed Emma?", "Ann Lee", chunks=[chunk], facts=[FACT])


def test_a_step_searches_for_the_hops_question_and_is_shown_passages_only() -> None:
    step = build_step(hop(), [FACT], random.Random(0), StepOptions())
    assert step is not None
    assert (step.subquery, step.retrieved, step.query) == ("Who directed Emma?", True, None)
    assert [(item.kind, item.id) for item in step.context] == [("chunk", "c")]
    assert "Who directed Emma?" in step.think
    assert "Ann Lee" not in step.think
    assert "Ann Lee" in step.summary


def test_the_reasoning_before_a_further_search_follows_the_summary_before_it() -> None:
    steps = [
        Step(subquery="a?", think="Find a.", summary="It is A."),
        Step(subquery="b?", think="Find b.", summary="It is B."),
    ]
    assert [(step.think, step.summary) for step in turns(steps)] == [
        ("Find a.", "It is A. Find b."),
        ("Find b.", "It is B."),
    ]


def test_the_stage_writes_well_formed_trajectories(tmp_path: Path) -> None:
    _, output = run(tmp_path, "grammar=search-r1", "retrieval.variant=semantic")
    examples = read_records(output / "train.parquet", SftExample)
    assert sorted(example.hops for example in examples) == [1, 1, 2]
    for example in examples:
        parsed = grammar("search-r1").parse(example.completion, example.spans)
        assert (parsed.format_error, len(parsed.steps)) == (None, example.hops)
        assert {item.kind for step in parsed.steps for item in step.context} == {"chunk"}
        masked = [example.completion[s:e] for s, e, who in example.spans if who == "observation"]
        assert len(masked) == example.hops
        assert all(text.strip().startswith("<information>") for text in masked)
