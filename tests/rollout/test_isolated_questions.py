"""An exception at one question is its own answer: the questions beside it are rolled out as ever."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config.policy import Prompt
from pipeline.core.records import ContextItem, Question
from pipeline.knowledge.retrieval.base import Query
from pipeline.llm.engine import EngineEnded, GenerationRequest
from pipeline.rollout.partial import PartialTrajectory
from pipeline.rollout.policy import RolloutSettings
from pipeline.rollout.sampler import Rollout, answer_questions
from pipeline.rollout.tags import TaggedText
from tests.llm.scripted_engine import ScriptedEngine
from tests.llm.small_models import TEMPLATE, small_tokenizer
from tests.rollout.test_sampler import TEARAG, Documents, two_steps

TOKENIZER = small_tokenizer()
TOKENIZER.chat_template = (
    "{% if 'template?' in messages[-1]['content'] %}{{ raise_exception('no such question') }}"
    "{% endif %}" + TEMPLATE
)
PLACES = ["template", "first turn", "second turn", "watch"]


def question(number: int, place: str) -> Question:
    return Question(f"q{number}", "toy", f"Q{number} {place}?", ["Rome"], "multi", [])


def script(prompt: str, request: GenerationRequest) -> str:
    turns = prompt.count("</Reference>")
    if ("first turn?" in prompt and turns == 0) or ("second turn?" in prompt and turns == 1):
        raise TypeError("the engine cannot take this")
    if "the engine?" in prompt:
        raise EngineEnded("the engine's process was killed")
    return two_steps(prompt, request)


def watch(trajectory: PartialTrajectory) -> None:
    if "watch?" in trajectory.question.question and trajectory.output:
        raise KeyError("watch")


def answered(
    questions: list[Question], failed: Callable[[Question, Exception], object], retriever: Any
) -> dict[str, str]:
    """The stop of each question that got a trajectory."""
    rollout = Rollout(
        engine=ScriptedEngine(script, TOKENIZER), format=TaggedText(TOKENIZER, TEARAG),
        retriever=retriever, settings=RolloutSettings(prompt=Prompt(system="S"), in_flight=3), policy="p",
    )  # fmt: skip
    rolled = answer_questions(rollout, iter(questions), seed=0, watch=watch, failed=failed)
    return {trajectory.question_id: trajectory.stop for trajectory in rolled}


@settings(max_examples=25)
@given(st.lists(st.sampled_from([*PLACES, "ordinary"]), min_size=1, max_size=8))
def test_each_question_is_answered_or_fails_alone(places: list[str]) -> None:
    failures: dict[str, str] = {}
    questions = [question(number, place) for number, place in enumerate(places)]
    stops = answered(
        questions, lambda asked, error: failures.update({asked.question_id: str(error)}), Documents()
    )  # fmt: skip
    ordinary = {f"q{number}" for number, place in enumerate(places) if place == "ordinary"}
    assert stops == dict.fromkeys(ordinary, "answer")
    assert failures.keys() == {one.question_id for one in questions} - ordinary
    for number, place in enumerate(places):
        if place in ("first turn", "second turn"):
            assert failures[f"q{number}"] == "the engine cannot take this"


class Crashing(Documents):
    """Fails at the first search of a question with an error that nobody expected."""

    def retrieve(self, queries: list[Query]) -> list[list[ContextItem]]:
        if any(query.subquery == "who?" for query in queries):
            raise ZeroDivisionError
        return super().retrieve(queries)


def test_a_search_at_which_the_retriever_crashes_ends_its_own_trajectory() -> None:
    stops = answered([question(0, "a"), question(1, "b")], pytest.fail, Crashing())
    assert stops == {"q0": "retrieval_error", "q1": "retrieval_error"}


def test_an_engine_that_has_ended_ends_all() -> None:
    with pytest.raises(EngineEnded, match="was killed"):
        answered([question(0, "a"), question(1, "the engine")], pytest.fail, Documents())
