"""Example trajectories for the report and the terminal.

Input: outcomes of policies and Parquet files of their trajectories. Output: a few whole
trajectories, without token ids: the questions on which the first and the last policy differ most,
and failures of the last policy by failure mode. `segments` cuts the text of a trajectory by writer,
and `pair_sides` gives the two sides of a pair.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pipeline.conversations.messages import by_turns, prompt_and_turns, uniform
from pipeline.core.errors import InputError
from pipeline.core.input_files import iterate_parquet
from pipeline.core.record_io import as_json, parse_record
from pipeline.core.records import ChatMessage, Pair, Span, Trajectory, Writer
from pipeline.evaluation.failures import FailureMode
from pipeline.evaluation.metrics import Outcome
from pipeline.grammars.spans import cover_error

QUESTIONS_PER_KIND = 3
TRAJECTORIES_PER_FAILURE_MODE = 2
_TOKEN_COLUMNS = {"prompt_ids", "token_ids", "token_spans", "logprobs"}


class Segment(NamedTuple):
    """A stretch of text and its writer; "unknown" for imported records without spans."""

    text: str
    writer: Writer | Literal["unknown"]


def most_changed(
    outcomes: Mapping[str, Sequence[Outcome]], directories: Mapping[str, Path]
) -> list[Trajectory]:
    """Trajectories of the first and the last policy for the questions on which they differ most.

    Up to three questions each with the largest gain in F1, the largest loss in F1, and the largest
    saving in steps at equal, non-zero F1; ties are in order of the question id. The result
    alternates between the first and the last policy, and is empty for a single policy.
    """
    first, last = next(iter(outcomes)), list(outcomes)[-1]
    if first == last:
        return []
    before = {outcome.question_id: outcome for outcome in outcomes[first]}
    after = {outcome.question_id: outcome for outcome in outcomes[last]}
    gain = {i: after[i].f1 - before[i].f1 for i in sorted(before)}
    saved = {i: before[i].steps - after[i].steps for i in gain if gain[i] == 0 < after[i].f1}
    kinds: list[list[str]] = [
        sorted((i for i in gain if gain[i] > 0), key=lambda i: -gain[i]),
        sorted((i for i in gain if gain[i] < 0), key=lambda i: gain[i]),
        sorted((i for i in saved if saved[i] > 0), key=lambda i: -saved[i]),
    ]
    chosen = [i for kind in kinds for i in kind[:QUESTIONS_PER_KIND]]
    trajectories = {policy: _by_question(directories[policy], chosen) for policy in (first, last)}
    return [trajectories[policy][i] for i in chosen for policy in (first, last)]


def failed(
    outcomes: Sequence[Outcome], directory: Path
) -> tuple[list[dict[str, Any]], list[Trajectory]]:
    """Up to two trajectories of every failure mode, in order of the failure modes.

    The first list has ``failure_mode``, ``hop`` and ``hops`` of each. Data sets alternate, each in
    the order of its questions.
    """
    chosen: list[Outcome] = []
    for failure_mode in FailureMode:
        if failure_mode is FailureMode.RIGHT:
            continue
        by_dataset: dict[str, list[Outcome]] = {}
        for outcome in outcomes:
            if outcome.failure_mode is failure_mode:
                by_dataset.setdefault(outcome.dataset, []).append(outcome)
        alternating = [
            outcome
            for same_rank in zip_longest(*by_dataset.values())
            for outcome in same_rank
            if outcome
        ]
        chosen += alternating[:TRAJECTORIES_PER_FAILURE_MODE]
    ids = [outcome.question_id for outcome in chosen]
    trajectories = _by_question(directory, ids)
    facts = [{"failure_mode": o.failure_mode, "hop": o.failed_hop, "hops": o.hops} for o in chosen]
    return facts, [trajectories[i] for i in ids]


def read_trajectories(
    path: Path, key: Literal["trajectory_id", "question_id"], ids: Collection[str]
) -> dict[str, Trajectory]:
    """Read the trajectories whose ``key`` is among ``ids``, by that key, without token ids.

    Two passes over the file: the first reads the keys, and the second the rows up to the last
    match, a few hundred at a time. Raises InputError when the file is missing or unreadable.
    """
    import pyarrow.parquet as pq

    wanted = set(ids)
    rows = {n for n, row in enumerate(iterate_parquet(path, [key])) if row[key] in wanted}
    if not rows:
        return {}
    columns = [name for name in pq.read_schema(path).names if name not in _TOKEN_COLUMNS]
    found = {}
    for number, row in enumerate(islice(iterate_parquet(path, columns), max(rows) + 1)):
        if number in rows:
            record = parse_record(Trajectory, row, path, number + 1)
            found[getattr(record, key)] = record
    return found


def segments(text: str, spans: Sequence[Span]) -> list[Segment]:
    """Cut ``text`` at its character spans; text without spans is one "unknown" segment.

    Raises InputError when the spans do not cover the text exactly.
    """
    if not spans:
        return [Segment(text, "unknown")] if text else []
    problem = cover_error(spans, len(text))
    if problem:
        raise InputError(f"{problem}: spans must cover the text exactly")
    return [Segment(text[start:end], writer) for start, end, writer in spans if end > start]


def text_of(trajectory: Trajectory) -> list[Segment]:
    """The text of a trajectory by writer; a conversation by turns, with roles and calls.

    Turns of the assistant before the sampled ones are frame: the search of single-round retrieval,
    or what an agent had said before a recorded trajectory begins. Raises InputError when spans do
    not cover the output exactly.
    """
    if not trajectory.messages:
        return segments(trajectory.output, trajectory.spans)
    pieces = by_turns(prompt_and_turns(trajectory.messages)[1])
    if trajectory.spans:
        sampled = sum(writer == "model" for *_, writer in trajectory.spans)
        turns = [place for place, (_, writer) in enumerate(pieces) if writer == "model"]
        for place in turns[: max(0, len(turns) - sampled)]:
            pieces[place] = (pieces[place][0], "frame")
    return [Segment(*piece) for piece in pieces]


def texts_of(side: PairSide) -> list[Segment]:
    """The messages of a side of a pair, whose writers are unknown."""
    if any(message.role == "tool" for message in side.messages):
        turns = uniform([as_json(message) for message in side.messages])
        return [Segment(text, "unknown") for text, _ in by_turns(turns)]
    return [Segment(message.content, "unknown") for message in side.messages]


class PairSide(NamedTuple):
    """One side of a pair: its tokens with their spans, its messages and its reward terms."""

    name: str
    id: str
    ids: Sequence[int]
    spans: Sequence[Span]
    messages: Sequence[ChatMessage]
    rewards: Mapping[str, Any]


def pair_sides(pair: Pair) -> tuple[PairSide, PairSide]:
    """The chosen and the rejected side."""
    return (
        PairSide("chosen", pair.chosen_id, pair.chosen_ids, pair.chosen_spans,
                 pair.chosen, pair.chosen_rewards),
        PairSide("rejected", pair.rejected_id, pair.rejected_ids, pair.rejected_spans,
                 pair.rejected, pair.rejected_rewards),
    )  # fmt: skip


def question_of(pair: Pair) -> str:
    """The question of a pair, which is the last message of the user."""
    return next((m.content for m in reversed(pair.prompt) if m.role == "user"), "")


def _by_question(directory: Path, ids: Sequence[str]) -> dict[str, Trajectory]:
    return read_trajectories(directory / "trajectories.parquet", "question_id", ids)
