"""Step progress through a scripted policy: states are continued once, shared, kept, and resumed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.core.content_cache import ContentCache
from pipeline.core.errors import RetrievalError
from pipeline.core.records import ContextItem, Question, Trajectory
from pipeline.llm.tokens import mismatch
from pipeline.methods.prograph.progress import ValueEstimator
from pipeline.rollout.grammars import grammar
from pipeline.rollout.partial import PartialTrajectory
from pipeline.rollout.policy import RolloutSettings
from pipeline.rollout.sampler import Rollout, continue_trajectories
from pipeline.rollout.tags import TaggedText
from pipeline.rollout.turns import before_turn, turns_of
from tests.llm.scripted_engine import ScriptedEngine
from tests.llm.small_models import small_tokenizer
from tests.rollout.rolled_out import rolled_out

TOKENIZER = small_tokenizer()
GRAMMAR = grammar("prograph", special_tokens=TOKENIZER.all_special_tokens)
ASK = "<think>a</think><query>who</query>"
AGAIN = "<think>b</think><query>where</query>"
RIGHT = "<think>c</think><answer>Rome</answer>"
WRONG = "<think>c</think><answer>Oslo</answer>"


class Facts:
    def retrieve(self, queries):  # type: ignore[no-untyped-def]
        return [[ContextItem("hyperedge", "c:f0", "", f"on {q.subquery}", 0.5)] for q in queries]


class Outage:
    def retrieve(self, queries):  # type: ignore[no-untyped-def]
        raise RetrievalError("the index is not reachable")


def sampled(*segments: str, sample: int = 0) -> Trajectory:
    """A trajectory of the scripted policy that writes these segments."""

    def script(prompt: str, _: object) -> str:
        return segments[prompt.count("</knowledge>")]

    [trajectory] = rolled_out(
        [Question("q", "toy", "Where?", ["Rome"], "multi")],
        engine=ScriptedEngine(script, TOKENIZER),
        grammar=GRAMMAR,
        retriever=Facts(),
    )
    return replace(trajectory, trajectory_id=f"q/{sample}", sample=sample)


class Continuing:
    """Continues states with a scripted policy, and records them in ``states``.

    From the question the policy writes a query; later it answers, correctly if its seed is odd. Raises
    KeyboardInterrupt after ``lives`` finished trajectories.
    """

    def __init__(self, retriever: object = None, lives: int | None = None) -> None:
        self.retriever = retriever or Facts()
        self.lives = lives
        self.states: list[PartialTrajectory] = []

    def __call__(self, trajectories: Iterable[PartialTrajectory]) -> Iterator[Trajectory]:
        def script(prompt: str, request) -> str:  # type: ignore[no-untyped-def]
            if "</knowledge>" not in prompt:
                return ASK
            return RIGHT if request.seed % 2 else WRONG

        def counted() -> Iterator[PartialTrajectory]:
            for trajectory in trajectories:
                self.states.append(deepcopy(trajectory))  # the sampler appends to the original
                yield trajectory

        rollout = Rollout(
            engine=ScriptedEngine(script, TOKENIZER),
            format=TaggedText(TOKENIZER, GRAMMAR),
            retriever=self.retriever,  # type: ignore[arg-type]
            settings=RolloutSettings(in_flight=4),
            policy="p",
        )
        for number, trajectory in enumerate(continue_trajectories(rollout, counted())):
            if number == self.lives:
                raise KeyboardInterrupt
            yield trajectory


def progress(resume: Continuing, cache: Path, identity: str = "policy") -> ValueEstimator:
    return ValueEstimator(resume, ContentCache(cache / "progress.sqlite"), identity, 4, seed=0)


def test_a_trajectory_is_continued_from_every_turn_with_its_sampled_ids() -> None:
    trajectory = sampled(ASK, AGAIN, RIGHT)
    assert [turn.text for turn in turns_of(trajectory)] == [ASK, AGAIN, RIGHT]
    for number in range(3):
        state = before_turn(trajectory, number, sample=0, seed=1)
        assert trajectory.output.startswith(state.output)
        assert trajectory.token_ids[: len(state.token_ids)] == state.token_ids
        assert len(state.contexts) == len(state.per_retrieval) == state.segments == number
        [continued] = Continuing()([state])
        assert continued.output.startswith(state.output)
        problem = mismatch(
            TOKENIZER, continued.output, continued.spans, continued.token_ids, continued.token_spans
        )
        assert problem is None
        assert continued.format_ok
        assert len(continued.steps) == max(number, 1) + 1
    tokens = [trajectory.token_ids[slice(*turn.tokens)] for turn in turns_of(trajectory)]
    assert TOKENIZER.decode(tokens[1]) == AGAIN


def test_a_value_is_the_mean_of_continuations_and_the_last_value_is_the_trajectorys_outcome(
    tmp_path: Path,
) -> None:
    resume = Continuing()
    measured = progress(resume, tmp_path)
    [values] = measured.values([sampled(ASK, AGAIN, RIGHT)])
    assert len(values) == 4
    assert values[-1] == 1.0
    assert set(values[:-1]) <= {0, 0.25, 0.5, 0.75, 1}
    # Twelve continuations: the same seeds give the same answers in any order.
    outcomes = {
        trajectory.sample: trajectory.answer == "Rome" for trajectory in Continuing()(resume.states)
    }
    expected = sorted(sum(outcomes[4 * n + m] for m in range(4)) / 4 for n in range(3))
    assert sorted(values[:-1]) == expected
    assert (measured.cost.states, measured.cost.continuations) == (3, 12)


def test_states_shared_by_trajectories_are_continued_once(tmp_path: Path) -> None:
    trajectories = [
        sampled(ASK, RIGHT),
        sampled(ASK, WRONG, sample=1),
        sampled(AGAIN, RIGHT, sample=2),
    ]
    resume = Continuing()
    measured = progress(resume, tmp_path)
    values = measured.values(trajectories)
    # The question, what follows ASK, what follows AGAIN: 3 states of 6, 4 continuations each.
    assert (measured.cost.states, measured.cost.distinct, len(resume.states)) == (6, 3, 12)
    assert values[0][0] == values[1][0] == values[2][0]
    assert values[0][1] == values[1][1]
    assert (values[0][2], values[1][2]) == (1.0, 0.0)


def test_cached_continuations_are_not_sampled_again(tmp_path: Path) -> None:
    trajectories = [sampled(ASK, RIGHT)]
    first = progress(Continuing(), tmp_path).values(trajectories)
    again = Continuing()
    measured = progress(again, tmp_path)
    assert measured.values(trajectories) == first
    assert (again.states, measured.cost.known) == ([], 2)
    assert measured.cost.generated_tokens > 0  # cached continuations are counted too
    other = [replace(trajectories[0], answers=["Oslo"])]
    assert progress(again, tmp_path).values(other)[0][:2] == [1 - value for value in first[0][:2]]
    assert again.states == []  # another gold answer, the same continuations
    progress(again, tmp_path, "another policy").values(trajectories)
    assert len(again.states) == 8


def test_a_killed_stage_continues_only_the_unfinished_states(tmp_path: Path) -> None:
    trajectories = [sampled(f"<think>{n}</think><query>who</query>", RIGHT) for n in range(60)]
    trajectories = [
        replace(trajectory, trajectory_id=f"q/{n}") for n, trajectory in enumerate(trajectories)
    ]
    whole = progress(Continuing(), tmp_path / "whole").values(trajectories)
    with pytest.raises(KeyboardInterrupt):
        progress(Continuing(lives=200), tmp_path / "killed").values(trajectories)
    resume = Continuing()
    assert progress(resume, tmp_path / "killed").values(trajectories) == whole
    assert len(resume.states) <= 4 * 61 - 4 * 32


def test_a_state_whose_retrieval_fails_throughout_stops_the_stage(tmp_path: Path) -> None:
    with pytest.raises(RetrievalError, match=r"every continuation of q/0, turn 0"):
        progress(Continuing(Outage()), tmp_path).values([sampled(ASK, RIGHT)])
