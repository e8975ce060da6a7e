"""Import result files of other systems, such as Search-R1 and Graph-R1, as trajectories.

Input: JSONL or Parquet with a question, gold answers and the whole model output per line, under any
of the common field names, or ``messages`` with tool calls as agents log them. Output: trajectories
that can be parsed, scored and paired like sampled ones, but without token ids. A line that cannot
be imported is reported with its reason. So is a line whose policy text and retrieved text cannot be
separated with certainty (`imported_text`).
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pipeline.conversations.messages import by_turns, prompt_and_turns
from pipeline.conversations.steps import parse
from pipeline.core.errors import InputError
from pipeline.core.input_files import source_name
from pipeline.core.methods import DEFAULT_IMPORT
from pipeline.core.record_io import iterate_input
from pipeline.core.records import GrammarName, HopType, Span, Stop, Trajectory
from pipeline.grammars import Grammar, ParsedOutput, grammar
from pipeline.grammars.spans import covering, extend
from pipeline.rollout.imported_text import UncertainWriter, separate

_QUESTION = ("question", "query", "problem")
_ANSWERS = ("golden", "golden_answers", "answers", "gold", "ground_truth", "target", "answer")
_OUTPUT = ("full_output", "output", "response", "generation", "sequences_str", "completion")
_HOPS: dict[str, HopType] = {
    "nq": "single",
    "popqa": "single",
    "triviaqa": "single",
    "hotpotqa": "multi",
    "2wiki": "multi",
    "2wikimultihopqa": "multi",
    "musique": "multi",
    "bamboogle": "multi",
}
# By grammar: tags of which every output must contain at least one.
_REQUIRED_TAGS: dict[str, tuple[str, ...]] = {
    "search-r1": ("<think>", "<search>", "<answer>"),
    "prograph": ("<think>", "<query>", "<answer>"),
}


@dataclass(frozen=True)
class SkippedLine:
    """A line that could not be imported."""

    path: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.reason}"


class _ImportProblem(Exception):
    """Why a row cannot be imported; caught inside this module."""


def iterate_outputs(
    paths: Sequence[Path | str],
    *,
    grammar_name: GrammarName = DEFAULT_IMPORT,
    hop: HopType | None = None,
) -> Iterator[Trajectory | SkippedLine]:
    """The trajectory of every line of all files, or the reason why it was skipped.

    The policy of a trajectory is the stem of its file. The same question in several files keeps one
    ``question_id``, so that trajectories of several policies can be paired. ``hop`` is used where
    neither the row nor its data set determines it. Only one line at a time is in memory, with the
    number of samples of every question. Raises InputError for a file that is missing or malformed,
    or has no line that can be imported.
    """
    parser = grammar(grammar_name)
    samples: Counter[str] = Counter()
    for path in paths:
        imported, first_skipped = 0, None
        policy = "stdin" if str(path) == "-" else Path(path).stem
        for line, row in iterate_input(path, Trajectory):
            try:
                trajectory = _trajectory(row, parser, grammar_name, policy, hop)
            except _ImportProblem as problem:
                skipped = SkippedLine(str(source_name(path)), line, str(problem))
                first_skipped = first_skipped or skipped
                yield skipped
                continue
            imported += 1
            trajectory.sample = samples[trajectory.question_id]
            samples[trajectory.question_id] += 1
            trajectory.trajectory_id = f"{trajectory.question_id}/{policy}/{trajectory.sample}"
            yield trajectory
        if first_skipped is not None and not imported:
            raise InputError(
                f"{first_skipped}; no line of this file can be imported as {grammar_name}"
            )


def _trajectory(
    row: dict[str, Any],
    parser: Grammar,
    grammar_name: GrammarName,
    policy: str,
    hop: HopType | None,
) -> Trajectory:
    if row.get("messages"):
        question, read = _conversation(row, grammar_name)
    else:
        question, read = _text(row, _QUESTION, "question"), _tagged(row, parser, grammar_name)
    dataset = (_name(row, "dataset") or _name(row, "data_source")).lower()
    parsed = read.parsed
    identity = f"{dataset}\n{question}".encode(errors="surrogatepass")
    digest = hashlib.sha256(identity).hexdigest()[:12]
    return Trajectory(
        trajectory_id="",
        question_id=_name(row, "question_id") or f"{dataset or 'question'}-{digest}",
        dataset=dataset,
        question=question,
        hop=_hop(row, dataset, hop),
        answers=_answers(row),
        evidence=_strings(row.get("evidence") or [], "evidence"),
        grammar=grammar_name,
        output=read.output,
        format="tools" if read.messages else "tags",
        messages=read.messages,
        policy=policy,
        spans=read.spans,
        steps=parsed.steps,
        answer=parsed.answer,
        format_ok=parsed.format_ok,
        format_error=parsed.format_error,
        stop=_stop(parsed, read.spans),
    )


@dataclass(frozen=True)
class _Read:
    """The parsed text of a row; ``messages`` are the JSON text of a conversation."""

    output: str
    spans: list[Span]
    parsed: ParsedOutput
    messages: str = ""


def _tagged(row: dict[str, Any], parser: Grammar, grammar_name: GrammarName) -> _Read:
    output, observations = _separated(row, grammar_name)
    tags = _REQUIRED_TAGS.get(grammar_name, ())
    if tags and not any(tag in output for tag in tags):
        raise _ImportProblem(
            f"the output has none of {', '.join(tags)}, so its grammar is not {grammar_name}"
        )
    spans = _spans(output, observations, parser)
    return _Read(output, spans, parser.parse(output, spans))


def _conversation(row: dict[str, Any], grammar_name: GrammarName) -> tuple[str, _Read]:
    """The question, by default the last message of the user before the first turn, and the rest."""
    try:
        prompt, turns = prompt_and_turns(row["messages"])
        parsed = parse(grammar_name, [*prompt, *turns])
    except InputError as problem:
        raise _ImportProblem(str(problem)) from None
    output, spans = "", list[Span]()
    for text, writer in by_turns(turns):
        output, spans = output + text, extend(spans, len(text), writer)
    asked = [message["content"] for message in prompt if message["role"] == "user"]
    question = _text({"question": asked[-1] if asked else ""} | row, _QUESTION, "question")
    messages = json.dumps([*prompt, *turns], ensure_ascii=False)
    return question, _Read(output, spans, parsed, messages)


def _separated(row: dict[str, Any], grammar_name: GrammarName) -> tuple[str, list[tuple[int, int]]]:
    """The output without its prompt, and the ranges of retrieved text in it."""
    searches = row.get("searches")
    if isinstance(searches, bool) or not isinstance(searches, int):
        searches = None
    try:
        text = separate(_text(row, _OUTPUT, "model output"), grammar_name, searches)
    except UncertainWriter as problem:
        raise _ImportProblem(str(problem)) from None
    return text.output, text.observations


def _spans(output: str, retrieved: Sequence[tuple[int, int]], parser: Grammar) -> list[Span]:
    """Spans with all retrieved text, and the text that the grammar's rollout adds around it.

    The grammar alone does not suffice, because it finds no documents after a format error.
    """
    added = [(start, end) for start, end, writer in parser.spans(output) if writer != "model"]
    merged: list[tuple[int, int]] = []
    for start, end in sorted([*added, *retrieved]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return covering(len(output), merged)


def _name(row: dict[str, Any], field: str) -> str:
    value = row.get(field)
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise _ImportProblem(f"{field} is not text")
    return str(value)


def _text(row: dict[str, Any], names: Sequence[str], description: str) -> str:
    for name in names:
        value = row.get(name)
        if isinstance(value, str) and value.strip():
            return value
    raise _ImportProblem(f"no {description}; looked for {', '.join(names)}")


def _answers(row: dict[str, Any]) -> list[str]:
    for name in _ANSWERS:
        value = row.get(name)
        if isinstance(value, dict):  # Search-R1's reward_model: {"target": [...]}
            value = value.get("target")
        if value:
            return _strings([value] if isinstance(value, str) else value, name)
    raise _ImportProblem(f"no gold answers; looked for {', '.join(_ANSWERS)}")


def _strings(value: Any, name: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _ImportProblem(f"{name} is not a list of strings")
    return value


def _hop(row: dict[str, Any], dataset: str, fallback: HopType | None) -> HopType:
    stated = row.get("hop")
    hop: HopType | None = stated if stated in get_args(HopType) else _HOPS.get(dataset, fallback)
    if hop is None:
        raise _ImportProblem(
            f"data set {dataset or '(none)'!r} is neither a known single-hop nor multi-hop data "
            "set; add hop to the row or pass --hop"
        )
    return hop


def _stop(parsed: ParsedOutput, spans: Sequence[Span]) -> Stop:
    if parsed.answer is not None:
        return "answer"
    return "max_steps" if spans and spans[-1][2] == "observation" else "malformed"
