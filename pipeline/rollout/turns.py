"""Cut a trajectory into turns, for step-level rewards and advantages (ProGraph-R1 3.3).

Input: a trajectory with spans. Output: turns, where turn t is one span of model text with the
observations after it: one, or in a conversation one for each of its tool calls. The last turn
answers, or is the turn in which the trajectory ended. `before_turn` restores the state before a
turn, from which the sampler can continue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.core.input_files import parse_json
from pipeline.core.records import ContextItem, Question, Span, Trajectory, asked
from pipeline.rollout.conversations.messages import Message, messages_before
from pipeline.rollout.conversations.steps import tool_format
from pipeline.rollout.partial import PartialTrajectory


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn: model ``text``, the ``items`` retrieved for it, and its tokens [start, end)."""

    text: str
    items: tuple[ContextItem, ...]
    tokens: tuple[int, int]  # of the model text, not of the observation


def turns_of(trajectory: Trajectory) -> list[Turn]:
    """The turns in order; without token spans (imported outputs) every token range is empty.

    Each step with a query has one retrieval, so items are assigned to turns in the order of steps.
    The calls of a conversation's turn say how many there are. A last model span that holds only the
    token that ends the sequence is a turn without text.
    """
    contexts = iter([step.context for step in trajectory.steps if step.retrieved])
    token_ranges = iter(
        [(start, end) for start, end, writer in trajectory.token_spans if writer == "model"]
    )
    calls = iter(_calls(trajectory))
    turns: list[Turn] = []
    for number, (start, end, writer) in enumerate(trajectory.spans):
        if writer != "model":
            continue
        observed = number + 1 < len(trajectory.spans)
        count = next(calls, 0) if trajectory.messages else int(observed)
        items = tuple(item for _ in range(count) for item in next(contexts, ()))
        turns.append(Turn(trajectory.output[start:end], items, next(token_ranges, (0, 0))))
    return turns + [Turn("", (), token_range) for token_range in token_ranges]


def before_turn(
    trajectory: Trajectory, number: int, *, sample: int, seed: int
) -> PartialTrajectory:
    """The trajectory up to the observation before turn ``number``, as a `PartialTrajectory`.

    ``number`` 0 is the question alone. Requires the token ids of a sampled trajectory.
    """
    spans = _first_turns(trajectory.spans, number)
    token_spans = _first_turns(trajectory.token_spans, number)
    characters, tokens = _length(spans), _length(token_spans)
    messages = messages_before(_messages(trajectory), number)
    turns = [message for message in messages if message["role"] == "assistant"]
    form = tool_format(trajectory.grammar)
    retrievals = sum(_calls(trajectory)[:number]) if trajectory.messages else number
    contexts = [step.context for step in trajectory.steps if step.retrieved][:retrievals]
    return PartialTrajectory(
        question=Question(**asked(trajectory)),
        sample=sample,
        seed=seed,
        prompt_ids=trajectory.prompt_ids,
        output=trajectory.output[:characters],
        spans=spans,
        token_ids=trajectory.token_ids[:tokens],
        token_spans=token_spans,
        logprobs=trajectory.logprobs[:tokens],
        contexts=contexts,
        per_retrieval=trajectory.tokens.per_retrieval[:retrievals],
        segments=number,
        messages=messages,
        malformed_calls=sum(map(form.malformed, turns)),
        other_calls=sum(map(form.others, turns)),
    )


def _messages(trajectory: Trajectory) -> list[Message]:
    messages: list[Message] = parse_json(trajectory.messages or "[]", "messages")
    return messages


def _calls(trajectory: Trajectory) -> list[int]:
    """The number of searches in each turn of a conversation."""
    turns = (each for each in _messages(trajectory) if each["role"] == "assistant")
    return [len(tool_format(trajectory.grammar).searches(turn)) for turn in turns]


def _first_turns(spans: Sequence[Span], count: int) -> list[Span]:
    """The spans of the first ``count`` turns, with the observations after them."""
    kept: list[Span] = []
    model_spans = 0
    for span in spans:
        model_spans += span[2] == "model"
        if model_spans > count:
            break
        kept.append(span)
    return kept


def _length(spans: Sequence[Span]) -> int:
    return spans[-1][1] if spans else 0
