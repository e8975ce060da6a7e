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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.core.errors import InputError, Place
from pipeline.core.record_io import parse_record
from pipeline.core.records import (
    GrammarName,
    Question,
    Span,
    Stop,
    TokenCounts,
    Trajectory,
    asked,
)
from pipeline.core.row_files import read_jsonl
from pipeline.core.spans import cover_error, joined
from pipeline.llm.engine import FinishReason
from pipeline.rollout.answering import LONGEST_QUESTION, question_record
from pipeline.rollout.conversations.messages import ROLES
from pipeline.rollout.conversations.steps import parse, tool_format
from pipeline.rollout.grammars.base import ParsedOutput

BEGINNINGS = ('{"turn": "', '{"conversation": "')  # of the lines that `steep record` appends
_ENDS: dict[str, Stop] = {"length": "max_tokens", "stop": "malformed"}
_ROUNDING = 1e-3  # by which a log-probability may exceed 0


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
    finish: FinishReason
    problem: str | None  # why the turn is malformed
    seed: int
    temperature: float
    top_p: float
    constrained: bool = False  # sampled under the grammar of tool_choice or response_format
    question: Question | None = None  # with gold answers, if they are known
    hashes: str = ""  # of the question with the reply, and of the conversation up to it
    calls: list[str] = field(default_factory=list)  # the ids of calls that the client got

    def faults(self, continued: Mapping[str, str | None]) -> Iterator[str]:
        """What no recording has.

        ``continued`` are the turns before this one, each with the turn that continues it.
        """
        if self.turn in continued:
            yield f"turn: {self.turn!r} occurs twice; name each file once"
        if self.after is None and not self.prompt_ids:
            yield "prompt_ids: empty; expected the ids of the prompt"
        if self.after is not None and self.after not in continued:
            yield f"after: no turn {self.after!r} before this line; name all files, in their order"
        if self.after is not None and continued[self.after] is not None:
            yield f"after: the turn {continued[self.after]!r} continues {self.after!r} already"
        if min((*self.prompt_ids, *self.token_ids), default=0) < 0:
            yield "prompt_ids, token_ids: an id is negative"
        for spans, name in ((self.spans, "output"), (self.token_spans, "token_ids")):
            if problem := cover_error(spans, len(getattr(self, name))):
                yield f"spans of {name}: {problem}"
        writers = [who for start, end, who in self.token_spans for _ in range(start, end)]
        sampled = [value for value in self.logprobs if value is not None]
        if "model" not in writers:
            yield "token_spans: no token is the model's"
        if [value is not None for value in self.logprobs] != [who == "model" for who in writers]:
            yield "logprobs: expected a number for each token of the model, null for the others"
        if max(sampled) > _ROUNDING:
            yield f"logprobs: {max(sampled)} is above 0, and logarithms of probabilities are not"
        if min(self.retrieved, default=0) < 0 or sum(self.retrieved) > writers.count("observation"):
            yield "retrieved: expected the tokens of each tool result, which are observation"
        if not all(each.get("role") in ROLES and _text(each, "content") for each in self.messages):
            yield f"messages: expected role, one of {', '.join(ROLES)}, and content, a text"
        if not self.messages or self.messages[-1]["role"] != "assistant":
            yield "messages: the last is not the sampled message of the assistant"
        if not all(_text(tool.get("function"), "name") for tool in self.tools):
            yield "tools: expected function.name, a text"
        if self.question is not None and not all(map(str.strip, self.question.answers or [""])):
            yield "question.answers: expected at least one text, and none that is empty"


def _text(value: Any, key: str) -> bool:
    return isinstance(value, dict) and isinstance(value.get(key), str)


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
    constrained: int = 0  # turns that were sampled under a grammar
    without_answers: int = 0  # conversations with neither gold answers nor a reward
    reasons: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        of_them = f" ({self.constrained:,} under a grammar)" if self.constrained else ""
        reasons = ", ".join(f"{count} {name}" for name, count in self.reasons.most_common())
        return (
            f"{self.turns:,} turns{of_them} of {self.conversations:,} conversations: "
            f"{self.trajectories:,} trajectories ({reasons or 'all turns joined'}); left out, "
            f"without gold answers or a reward: {self.without_answers:,} conversations"
        )


def read_recordings(
    paths: Sequence[Path | str],
) -> Iterator[tuple[Place, RecordedTurn | RecordedReward]]:
    """The lines of recordings with their places; ``-`` is standard input.

    A last line that a kill cut off is left out. Raises InputError for a malformed line, and for a
    turn that does not fit the turns before it.
    """
    continued: dict[str, str | None] = {}
    kind: type[RecordedTurn | RecordedReward]
    for path in paths:
        for number, value in read_jsonl(path, cut_off=BEGINNINGS):
            kind = RecordedTurn if "turn" in value else RecordedReward
            with Place(path, number) as place:
                row = parse_record(kind, value)
                if isinstance(row, RecordedTurn):
                    problem = next(row.faults(continued), None)
                    if "reward" in value:
                        problem = "reward: belongs on a line of its own, with conversation"
                    if problem is not None:
                        raise InputError(problem)
                    continued |= {row.turn: None} | ({row.after: row.turn} if row.after else {})
            yield place, row


def recorded_trajectories(
    paths: Sequence[Path | str], grammar: GrammarName
) -> tuple[list[Trajectory], Recording]:
    """The trajectories of recordings, by question, and counts.

    ``grammar`` names the method that reads the steps. Raises what `read_recordings` raises, and
    InputError for a reward of a conversation that is not there.
    """
    rows = list(read_recordings(paths))
    given = [(place, row) for place, row in rows if isinstance(row, RecordedReward)]
    turns = {row.turn: row for _, row in rows if isinstance(row, RecordedTurn)}
    places = {row.turn: place for place, row in rows if isinstance(row, RecordedTurn)}
    named = {turn.conversation: turn.conversation for turn in turns.values()}
    named |= {turn.turn: turn.conversation for turn in turns.values()}
    rewards: dict[str, float] = {}
    for place, row in given:
        if row.conversation not in named:
            problem = f"conversation: {row.conversation!r:.80} has no turn in the files; name all"
            raise place.error(InputError(problem))
        rewards[named[row.conversation]] = row.reward
    chains: dict[str, list[RecordedTurn]] = {}  # by the last turn
    for turn in turns.values():
        chains[turn.turn] = [*chains.pop(turn.after or "", []), turn]
    last = {turns[end].conversation: end for end in chains}
    questions = {
        turns[end].conversation: chain[0].question
        for end, chain in reversed(chains.items())
        if chain[0].question is not None
    }
    counts = Recording(len(turns), len(last))
    counts.constrained = sum(turn.constrained for turn in turns.values())
    counts.reasons = Counter(turn.reason for turn in turns.values() if turn.reason)
    made: dict[str, Trajectory] = {}  # by the last turn
    for name, chain in chains.items():
        first, end = chain[0], chain[-1]
        reward, ends = rewards.get(end.conversation), name == last[end.conversation]
        question = first.question or questions.get(end.conversation)
        if question is None and reward is None:
            counts.without_answers += ends
            continue
        with places[name]:
            trajectory = _trajectory(chain, question or asked_question(first.messages), grammar)
        if not ends:  # its conversation went on
            trajectory.format_ok, trajectory.format_error = end.problem is None, end.problem
        trajectory.reward = reward
        made[name] = trajectory
    by_question: dict[str, list[Trajectory]] = {}
    prompts: dict[str, dict[tuple[int, ...], int]] = {}  # the prompts of a question, numbered
    for name, trajectory in made.items():
        trajectory.answer = made[last[turns[name].conversation]].answer
        known = prompts.setdefault(trajectory.question_id, {})
        if number := known.setdefault(tuple(trajectory.prompt_ids), len(known)):
            trajectory.question_id += f"~{number + 1}"
        group = by_question.setdefault(trajectory.question_id, [])
        trajectory.sample = len(group)
        of_policy = f"{trajectory.sample}@{trajectory.policy[:12]}"
        trajectory.trajectory_id = f"{trajectory.question_id}/{of_policy}"
        group.append(trajectory)
    counts.trajectories = len(made)
    return [each for group in by_question.values() for each in group], counts


def asked_question(messages: Sequence[Mapping[str, Any]]) -> Question:
    """A question without gold answers, from the first message of the user."""
    users = (message["content"] for message in messages if message["role"] == "user")
    text = next(filter(str.strip, users), "a conversation without a user")
    return question_record(text[:LONGEST_QUESTION])


def _trajectory(
    chain: Sequence[RecordedTurn], question: Question, grammar: GrammarName
) -> Trajectory:
    first, end = chain[0], chain[-1]
    token_spans = joined(*(turn.token_spans for turn in chain))
    called = end.messages[-1].get("tool_calls")
    ended = _ENDS.get(end.finish, "max_steps" if called else "answer")
    return Trajectory(
        trajectory_id="",
        **asked(question),
        grammar=grammar,
        format="tools",
        output="".join(turn.output for turn in chain),
        messages=json.dumps([m for turn in chain for m in turn.messages], ensure_ascii=False),
        tools=json.dumps(first.tools, ensure_ascii=False),
        policy=first.policy,
        seed=first.seed,
        spans=joined(*(turn.spans for turn in chain)),
        prompt_ids=first.prompt_ids,
        token_ids=[token_id for turn in chain for token_id in turn.token_ids],
        token_spans=token_spans,
        logprobs=[value for turn in chain for value in turn.logprobs],
        **vars(_parsed(chain, grammar)),
        stop="malformed" if end.problem else ended,
        tokens=TokenCounts.of(token_spans, [n for turn in chain for n in turn.retrieved]),
    )


def _parsed(chain: Sequence[RecordedTurn], grammar: GrammarName) -> ParsedOutput:
    """Steps, answer and verdict of the turns of a trajectory, without the history before them."""
    opening = [m for m in chain[0].messages[:-1] if m["role"] in ("system", "user")]
    own = [chain[0].messages[-1], *(m for turn in chain[1:] for m in turn.messages)]
    parsed = parse(tool_format(grammar), [*opening, *own], tools=chain[0].tools)
    problem = next((turn.problem for turn in chain if turn.problem), None)
    if problem is None and chain[-1].finish != "eos":
        problem = "the last turn is cut off"
    if problem is not None:
        parsed.answer, parsed.format_ok, parsed.format_error = None, False, problem
    return parsed
