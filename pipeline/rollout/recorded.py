"""A recording of an agent's conversations, and its trajectories.

`steep record` appends a line for each sampled turn (`RecordedTurn`) and for each reward from
outside (`RecordedReward`). Turns that continue each other are one trajectory. A turn that does not
continue the turn before starts a new trajectory. Trajectories of one conversation share its answer,
because none is right if the answer is wrong.

Input: files of these lines. Output: trajectories that can be scored, paired and trained like
sampled ones. Trajectories of a question with another prompt are another question (``id~2``),
because both sides of a pair need the same prompt.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.conversations.steps import parse
from pipeline.core.input_files import parse_json
from pipeline.core.record_io import parse_record
from pipeline.core.records import GrammarName, Question, Span, Stop, TokenCounts, Trajectory
from pipeline.grammars.base import ParsedOutput
from pipeline.grammars.spans import extend
from pipeline.rollout.answering import question_record

_ENDS: dict[str, Stop] = {"length": "max_tokens", "stop": "malformed"}


@dataclass(slots=True)
class RecordedTurn:
    """A sampled turn.

    ``output``, ``spans``, ``token_ids``, ``token_spans`` and ``logprobs`` hold what follows the
    prompt, or the turn that it continues (``after``): the frame, then the sampled turn.
    """

    turn: str  # the id of the completion
    conversation: str
    after: str | None  # the turn that it continues
    reason: str | None  # why it starts a new trajectory; None for a first turn
    policy: str  # fingerprint
    messages: list[dict[str, Any]]  # the whole conversation, or what follows ``after``
    tools: list[dict[str, Any]]
    prompt_ids: list[int]  # empty for a turn that continues another
    output: str
    spans: list[Span]
    token_ids: list[int]
    token_spans: list[Span]
    logprobs: list[float | None]
    retrieved: list[int]  # tokens of each tool result
    finish: str  # as in `pipeline.llm.engine.GenerationResult`
    problem: str | None  # why the turn is malformed
    seed: int
    temperature: float
    top_p: float
    question: Question | None = None  # with gold answers, if they are known


@dataclass(slots=True)
class RecordedReward:
    """A reward in place of the measured outcome, for all trajectories of a conversation."""

    conversation: str  # its id, or the id of a turn in it
    reward: float


@dataclass
class Recording:
    """What a recording holds; ``reasons`` count trajectories that started within conversations."""

    turns: int = 0
    conversations: int = 0
    trajectories: int = 0
    without_answers: int = 0  # conversations with neither gold answers nor a reward
    reasons: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        reasons = ", ".join(f"{count} {name}" for name, count in self.reasons.most_common())
        return (
            f"{self.turns:,} turns of {self.conversations:,} conversations: {self.trajectories:,} "
            f"trajectories ({reasons or 'all turns joined'}); left out, without gold answers or a "
            f"reward: {self.without_answers:,} conversations"
        )


def read_recording(path: Path | str) -> Iterator[RecordedTurn | RecordedReward]:
    """The lines of a recording, without a last line that a kill cut off.

    Raises InputError for a malformed line.
    """
    with Path(path).open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.endswith("\n"):
                row = parse_json(line, path, number)
                if isinstance(row, dict) and "reward" in row:
                    yield parse_record(RecordedReward, row, path, number)
                else:
                    yield parse_record(RecordedTurn, row, path, number)


def recorded_trajectories(
    paths: Sequence[Path | str], grammar: GrammarName
) -> tuple[list[Trajectory], Recording]:
    """The trajectories of recordings, by question, and counts.

    ``grammar`` names the method that reads the steps. Raises what `read_recording` raises.
    """
    turns: dict[str, RecordedTurn] = {}
    rewards: dict[str, float] = {}
    for row in (row for path in paths for row in read_recording(path)):
        if isinstance(row, RecordedTurn):
            turns[row.turn] = row
        else:
            known = turns.get(row.conversation)
            rewards[known.conversation if known else row.conversation] = row.reward
    continued = {turn.after for turn in turns.values()}
    last = {turn.conversation: turn.turn for turn in turns.values()}
    counts = Recording(len(turns), len(last))
    counts.reasons.update(turn.reason for turn in turns.values() if turn.reason)
    made: dict[str, Trajectory] = {}  # by the last turn
    for end in turns.values():
        if end.turn in continued:
            continue
        chain = [end]
        while (before := chain[0].after) is not None:
            chain.insert(0, turns[before])
        reward, question = rewards.get(end.conversation), chain[0].question
        if question is None and reward is None:
            counts.without_answers += end.turn == last[end.conversation]
            continue
        trajectory = _trajectory(chain, question or _asked(chain[0]), grammar)
        if end.turn != last[end.conversation]:  # its conversation went on
            trajectory.format_ok, trajectory.format_error = end.problem is None, end.problem
        trajectory.reward = reward
        made[end.turn] = trajectory
    by_question: dict[str, list[Trajectory]] = {}
    prompts: dict[str, list[list[int]]] = {}
    for name, trajectory in made.items():
        trajectory.answer = made[last[turns[name].conversation]].answer
        prompt, known_prompts = (
            trajectory.prompt_ids,
            prompts.setdefault(trajectory.question_id, []),
        )
        if prompt not in known_prompts:
            known_prompts.append(prompt)
        if place := known_prompts.index(prompt):
            trajectory.question_id += f"~{place + 1}"
        group = by_question.setdefault(trajectory.question_id, [])
        trajectory.sample = len(group)
        of_policy = f"{trajectory.sample}@{trajectory.policy[:12]}"
        trajectory.trajectory_id = f"{trajectory.question_id}/{of_policy}"
        group.append(trajectory)
    counts.trajectories = len(made)
    return [each for group in by_question.values() for each in group], counts


def _asked(turn: RecordedTurn) -> Question:
    """A question without gold answers, from the first message of the user."""
    users = (message["content"] for message in turn.messages if message["role"] == "user")
    return question_record(next(users, "a conversation without a user"))


def _trajectory(
    chain: Sequence[RecordedTurn], question: Question, grammar: GrammarName
) -> Trajectory:
    first, end = chain[0], chain[-1]
    parsed = _parsed(chain, grammar)
    spans, token_spans = list[Span](), list[Span]()
    for turn in chain:
        for start, stop, writer in turn.spans:
            spans = extend(spans, stop - start, writer)
        for start, stop, writer in turn.token_spans:
            token_spans = extend(token_spans, stop - start, writer)
    per_retrieval = [length for turn in chain for length in turn.retrieved]
    calls = bool(end.messages[-1].get("tool_calls"))
    return Trajectory(
        trajectory_id="",
        question_id=question.question_id,
        dataset=question.dataset,
        question=question.question,
        hop=question.hop,
        answers=question.answers,
        evidence=question.evidence,
        grammar=grammar,
        format="tools",
        output="".join(turn.output for turn in chain),
        messages=json.dumps([m for turn in chain for m in turn.messages], ensure_ascii=False),
        tools=json.dumps(first.tools, ensure_ascii=False),
        policy=first.policy,
        seed=first.seed,
        spans=spans,
        prompt_ids=first.prompt_ids,
        token_ids=[token_id for turn in chain for token_id in turn.token_ids],
        token_spans=token_spans,
        logprobs=[value for turn in chain for value in turn.logprobs],
        steps=parsed.steps,
        answer=parsed.answer,
        format_ok=parsed.format_ok,
        format_error=parsed.format_error,
        stop="malformed"
        if end.problem
        else _ENDS.get(end.finish, "max_steps" if calls else "answer"),
        tokens=TokenCounts(
            thinking=sum(stop - start for start, stop, who in token_spans if who == "model"),
            retrieved=sum(per_retrieval),
            per_retrieval=per_retrieval,
        ),
    )


def _parsed(chain: Sequence[RecordedTurn], grammar: GrammarName) -> ParsedOutput:
    """Steps, answer and verdict of the turns of a trajectory, without the history before them."""
    opening = [m for m in chain[0].messages[:-1] if m["role"] in ("system", "user")]
    own = [chain[0].messages[-1], *(m for turn in chain[1:] for m in turn.messages)]
    parsed = parse(grammar, [*opening, *own], tools=chain[0].tools)
    problem = next((turn.problem for turn in chain if turn.problem), None)
    if problem is None and chain[-1].finish != "eos":
        problem = "the last turn is cut off"
    if problem is not None:
        parsed.answer, parsed.format_ok, parsed.format_error = None, False, problem
    return parsed
