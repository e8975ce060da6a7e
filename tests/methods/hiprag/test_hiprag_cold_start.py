"""HiPRAG's cold start: steps search where the base model lacks the fact, and skip it otherwise."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest

from pipeline.closed_world.schema import RELATIONS
from pipeline.closed_world.world import generate_world
from pipeline.core.record_io import read_records
from pipeline.core.records import Chunk, SftExample, Triplet
from pipeline.judges.cases import SoundnessCase
from pipeline.judges.closed_world import ClosedWorldJudge
from pipeline.methods.hiprag.method import build_step
from pipeline.rollout.grammars.base import grammar
from pipeline.training.sft_data.known_facts import select_known_facts
from pipeline.training.sft_data.split import SupervisedTrajectory, split
from pipeline.training.sft_data.steps import Hop, StepOptions
from pipeline.training.sft_data.templates import CONCLUSIONS, FROM_MEMORY
from tests.stages.test_sft_data import CONFIGS, run

HIPRAG = (
    "grammar=hiprag",
    "rewards.hiprag.process=0",
    "model.base=" + str(CONFIGS.parent / "data" / "tiny_reader"),
    "engine={kind: transformers, dtype: float32}",
)


def hop(number: int, answer: str = "Ann Lee") -> Hop:
    return Hop(
        "q", number, f"Who directed Emma {number}?", answer,
        chunks=[Chunk(f"c{number}", "Emma", f"Ann Lee directed Emma {number}.", "d")],
    )  # fmt: skip


SUPPORT = [Triplet("t", "Emma 1", "was directed by", "Ann Lee", "c1")]


def known_facts(hops, answers, search_share=0.0, num_closed_book=0):
    return select_known_facts(
        hops, answers, search_share=search_share, num_closed_book=num_closed_book, seed=0
    )


def test_a_search_step_has_passages_and_a_step_from_memory_has_no_context():
    other = hop(2)
    searched = build_step(hop(1), SUPPORT, random.Random(0), StepOptions([other], 1.0))
    assert searched.search == "Who directed Emma 1?"
    assert sorted(item.id for item in searched.context) == ["c1", "c2"]
    assert {item.kind for item in searched.context} == {"chunk"}
    from_memory = build_step(hop(1), SUPPORT, random.Random(0), StepOptions(from_memory=True))
    assert (from_memory.search, from_memory.context) == (None, [])
    assert from_memory.reasoning in [
        template.format(question=hop(1).question) for template in FROM_MEMORY
    ]
    for step in (searched, from_memory):
        assert "Emma 1 was directed by Ann Lee" in step.conclusion
        assert "Ann Lee" in step.conclusion.rsplit("Emma 1 was directed by Ann Lee")[-1]
    unsupported = hop(1, "Bea Lee")
    assert build_step(unsupported, [], random.Random(0), StepOptions()) is None
    assert unsupported.fault == "no sentence of the supporting paragraph names the answer"


def test_without_a_triplet_a_step_quotes_its_passage():
    step = build_step(hop(1), [], random.Random(0), StepOptions())
    assert '"Ann Lee directed Emma 1"' in step.conclusion
    assert [item.id for item in step.context] == ["c1"]


def test_hops_that_the_base_model_answers_exactly_become_steps_from_memory():
    hops = [hop(number) for number in range(40)]
    answers = {h.question: "the Ann Lee" if h.number % 2 else "I do not know." for h in hops}
    facts = known_facts(hops, answers, search_share=0.0)
    assert facts.from_memory == {h.id for h in hops if h.number % 2}
    assert (facts.num_asked, facts.num_known, facts.closed_book) == (40, 20, [])
    assert 0 < len(known_facts(hops, answers, search_share=0.5).from_memory) < 20
    assert known_facts(hops, answers, search_share=1.0).from_memory == frozenset()


@pytest.mark.parametrize(
    ("count", "right", "wrong"), [(10, 5, 5), (60, 20, 20), (36, 18, 18), (0, 0, 0)]
)
def test_closed_book_examples_keep_the_base_models_answers(count, right, wrong):
    hops = [hop(number) for number in range(40)]
    answers = {h.question: "Ann Lee" if h.number % 2 else "I do not know." for h in hops}
    examples = known_facts(hops, answers, num_closed_book=count).closed_book
    counts = Counter(example.completion for example in examples)
    assert (counts["Ann Lee"], counts["I do not know."]) == (right, wrong)
    for example in examples:
        assert [message.role for message in example.prompt] == ["user"]
        assert answers[example.prompt[0].content] == example.completion
        assert example.spans == [(0, len(example.completion), "model")]


def test_trajectories_with_a_step_from_memory_are_selected_first():
    def trajectory(number: int, from_memory: bool) -> SupervisedTrajectory:
        steps = tuple(
            build_step(hop(n), SUPPORT, random.Random(n), StepOptions(from_memory=from_memory))
            for n in (1, 2)
        )
        return SupervisedTrajectory(f"q{number}", "?", "Ann Lee", steps, ("Ann Lee", "Ann Lee"))

    trajectories = [trajectory(number, number in (3, 7)) for number in range(10)]
    train, _ = split(trajectories, {2: 2}, {}, seed=0)
    assert {example.id for example in train} == {"q3", "q7"}


def test_the_stage_searches_only_for_facts_that_the_base_model_does_not_know(tmp_path):
    world = generate_world(0, documents=200)
    fact = next(
        fact for fact in world.facts.values()
        if fact.relation == "country" and world.entities[fact.head].famous
    )  # fmt: skip
    place, land = world.surface(fact.head), world.surface(fact.tail)
    hops = [
        ("Where is Emma set?", place, "Emma", "is set in"),
        ("In which country is #1?", land, place, "is in"),
    ]
    question = {
        "id": "2hop__3_4", "question": "In which country is the place of Emma?", "answer": land,
        "paragraphs": [
            {"idx": number, "title": title, "paragraph_text": f"{title} {relation} {answer}."}
            for number, (_, answer, title, relation) in enumerate(hops)
        ],
        "question_decomposition": [
            {"question": asked, "answer": answer, "paragraph_support_idx": number}
            for number, (asked, answer, *_) in enumerate(hops)
        ],
    }  # fmt: skip
    triples = [
        {"head": title, "relation": relation, "tail": answer, "title": title}
        for _, answer, title, relation in hops
    ]
    counts, output = run(
        tmp_path, *HIPRAG, "sft_data.memory={searched: 0.0, rehearsed: 2}",
        f"cache_dir={tmp_path}", questions=[question], triples=triples,
    )  # fmt: skip
    statistics = json.loads((output / "statistics.json").read_text())
    assert statistics["hops asked of the base model"] == 2
    assert statistics["hops that it knows"] == statistics["hops from memory"] == 1
    examples = {
        example.example_id: example
        for example in read_records(output / "train.parquet", SftExample)
    }  # fmt: skip
    # The whole trajectory, its two steps, and two closed-book questions.
    assert counts["train"] == len(examples) == 5
    whole = examples["2hop__3_4"]
    parsed = grammar("hiprag").parse(whole.completion, whole.spans)
    assert parsed.format_ok
    assert [step.search for step in parsed.steps] == ["Where is Emma set?", None]
    assert parsed.answer == land
    closed_book = {
        example.prompt[-1].content: example.completion
        for example in examples.values()
        if example.hops == 0
    }  # fmt: skip
    assert closed_book[f"In which country is {place}?"] == land
    # The base model's answer is kept although it is wrong.
    assert closed_book["Where is Emma set?"] not in ("", place)
    masked = [whole.completion[s:e] for s, e, writer in whole.spans if writer == "observation"]
    assert [text for text in masked if "Doc 1" in text] == [
        text for text in masked if "<context>" in text
    ]
    assert len(masked) == 4


def test_the_exact_judge_reads_every_template_of_a_step_from_memory():
    world = generate_world(0, documents=200)
    fact = next(fact for fact in world.facts.values() if fact.relation == "country")
    head, tail = world.surface(fact.head), world.surface(fact.tail)
    stated = f"{head} {RELATIONS[fact.relation].triplet} {tail}"
    judge = ClosedWorldJudge(world)
    cases = [
        SoundnessCase(reason.format(question=f"In which country is {head}?"),
                      conclusion.format(facts=stated, answer=tail))
        for reason in FROM_MEMORY for conclusion, _ in CONCLUSIONS
    ]  # fmt: skip
    assert {call.verdict for call in judge.decide(cases)} == {"no"}
