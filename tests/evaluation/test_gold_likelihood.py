"""The likelihood of gold answers and the information gain of retrievals, under the shipped tiny reader."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from pipeline import config
from pipeline.core.errors import InputError
from pipeline.core.model_files import local_directory
from pipeline.core.records import ContextItem, Step, Trajectory
from pipeline.evaluation.gold_likelihood import GoldLikelihood, add_likelihood
from pipeline.evaluation.information_gain import add_information_gain
from pipeline.llm.tokens import observation_ids, prompt_ids
from pipeline.llm.transformers_engine import TransformersEngine
from pipeline.rollout.grammars import grammar
from pipeline.training.lora import load_tokenizer
from tests.smallest import small_trajectory

SETTINGS = config.load("embedded")
BASE = local_directory("data/tiny_reader")


@pytest.fixture(scope="module")
def engine() -> Iterator[TransformersEngine]:
    settings = SETTINGS.engine.model_copy(update={"dtype": "float32"})
    with closing(TransformersEngine(settings, BASE)) as opened:
        yield opened


def likelihood(engine: TransformersEngine, name: str) -> GoldLikelihood:
    tokenizer = load_tokenizer(BASE, SETTINGS.model)
    return GoldLikelihood(engine, tokenizer, grammar(name), SETTINGS.prompt)


def step(name: str, text: str, conclusion: str = "") -> Step:
    items = [ContextItem("chunk", "", "Bern", text, 1.0)] if text else []
    if name == "tearag":
        return Step(entities=["Bern"], subquery="Where is Bern?", context=items, summary=conclusion)
    if name == "hiprag":
        return Step(reasoning="I look.", search="Bern", context=items, conclusion=conclusion)
    if name == "prograph":
        return Step(think="I look.", query="Bern", context=items)
    return Step(think="I look.", subquery="Where is Bern?", context=items, summary=conclusion)


def trajectory(number: int, answer: str, *steps: Step) -> Trajectory:
    return small_trajectory(
        trajectory_id=f"q{number}/0",
        question_id=f"q{number}",
        question="Where is Bern?",
        answers=[answer],
        steps=list(steps),
    )


ANSWERS = ["Switzerland", "a", "in <answer>", "ß 東京"]


@pytest.mark.parametrize("name", ["tearag", "hiprag", "prograph", "search-r1"])
def test_the_likelihood_is_that_of_the_answers_tokens_alone(
    name: str, engine: TransformersEngine
) -> None:
    """Of one sequence without padding; the answer may stand in the passages and in closing tags."""
    rows = [
        trajectory(n, a, step(name, f"Bern is {a} land.", "So.")) for n, a in enumerate(ANSWERS)
    ]
    steps = rows[0].steps
    others = [trajectory(8, "Rome"), trajectory(9, "x " * 40, *steps, *steps)]
    found = likelihood(engine, name).of([(each, each.steps) for each in (*rows, *others)])
    assert found[:4] == pytest.approx([by_hand(engine, name, one) for one in rows], rel=1e-3)


def by_hand(engine: TransformersEngine, name: str, one: Trajectory) -> float:
    """The mean log-probability of the gold answer, from the logits of its sequence alone."""
    import torch

    form, tokenizer, [answer] = grammar(name), engine.tokenizer, one.answers
    text, spans = form.render(one.steps, answer)
    ids = prompt_ids(load_tokenizer(BASE, SETTINGS.model), SETTINGS.prompt.messages(one.question))
    for start, end, writer in spans[:-1]:
        encode = observation_ids if writer == "observation" else own
        ids += encode(tokenizer, text[start:end])
    after = form.render([], "QQQ")[0].rpartition("QQQ")[2]
    last = text[spans[-1][0] :].removesuffix(after)
    assert last.endswith(form.clean(answer))
    whole, before = own(tokenizer, last), own(tokenizer, last[: -len(form.clean(answer))])
    same = [a == b for a, b in zip(whole, before, strict=False)]
    shared = [*same, False].index(False)
    with torch.no_grad():
        logits = engine._model(torch.tensor([[*ids, *whole]])).logits[0].float().log_softmax(-1)
    own_tokens = [*enumerate(whole, start=len(ids) - 1)][shared:]
    wanted = [float(logits[place, token]) for place, token in own_tokens]
    return sum(wanted) / len(wanted)


def own(tokenizer, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def test_a_step_has_what_it_adds_and_the_trajectory_the_likelihood_at_its_end(
    engine: TransformersEngine,
) -> None:
    first, second = step("tearag", "Bern is in Rome.", "Rome."), step("tearag", "", "Oslo.")
    one = trajectory(0, "Oslo", first, second)
    rewards: dict = {"total": 1.0, "steps": [{"match": 0.5}]}
    measured = likelihood(engine, "tearag")
    add_likelihood([(one, rewards)], measured)
    none, half, whole = measured.of([(one, one.steps[:count]) for count in range(3)])
    assert rewards["likelihood"] == pytest.approx(whole)
    assert [terms["likelihood"] for terms in rewards["steps"]] == pytest.approx(
        [half - none, whole - half]
    )
    assert (rewards["total"], rewards["steps"][0]["match"]) == (1.0, 0.5)


def test_passages_that_state_the_answer_gain_and_those_of_other_questions_are_random(
    engine: TransformersEngine,
) -> None:
    """The conclusion is left out, and a step without passages has no gain."""
    right = step("tearag", "Bern is a city in Switzerland.", "Bern is in Switzerland.")
    silent = step("tearag", "", "Switzerland.")
    rows = [
        (trajectory(0, "Switzerland", right, silent), {}),
        *((trajectory(n, "Peru", step("tearag", f"Lima has {n} rivers.")), {}) for n in (1, 2, 3)),
    ]
    measured = likelihood(engine, "tearag")
    add_information_gain(rows, measured, seed=0)
    gain, none = (terms["information_gain"] for terms in rows[0][1]["steps"])
    assert none is None
    assert gain > 0.1
    plain = replace(right, summary="")
    rivers = [step("tearag", f"Lima has {n} rivers.").context for n in (1, 2, 3)]
    shown = [plain, *(replace(plain, context=passages) for passages in rivers)]
    seen, *others = measured.of([(rows[0][0], [one]) for one in shown])
    assert seen - max(others) - 0.01 <= gain <= seen - min(others) + 0.01
    alone = [(trajectory(0, "Switzerland", right), {})]
    add_information_gain(alone, measured, seed=0)
    assert alone[0][1] == {}  # there is no other question


def test_a_conversation_is_refused(engine: TransformersEngine) -> None:
    one = replace(trajectory(0, "Oslo"), messages="[]", format="tools")
    with pytest.raises(InputError, match="is a conversation"):
        likelihood(engine, "tearag").of([(one, [])])
    assert math.isfinite(likelihood(engine, "tearag").of([(replace(one, messages=""), [])])[0])
