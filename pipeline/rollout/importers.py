"""Import result files of other systems, such as Search-R1 and Graph-R1, as trajectories.

Input: JSONL with a question, gold answers and the whole model output per line, under any of the
common field names. Output: trajectories that can be parsed, scored and paired like sampled ones,
but without token ids. A line that cannot be imported is reported with its reason.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core.errors import InputError
from pipeline.core.input_files import read_jsonl
from pipeline.core.methods import DEFAULT_IMPORT
from pipeline.core.records import GrammarName, HopType, Stop, Trajectory
from pipeline.grammars import Grammar, ParsedOutput, grammar

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
# Graph-R1 puts knowledge into a separate chat turn; here a trajectory is one turn.
_KNOWLEDGE_TURN = re.compile(
    r"\s*<\|im_end\|>\s*<\|im_start\|>(?:user|tool)\s*(<knowledge>.*?</knowledge>)\s*"
    r"<\|im_end\|>\s*<\|im_start\|>assistant[ \t]*\n?",
    re.DOTALL,
)
_TURN = "<|im_start|>assistant"
_TURN_END = "<|im_end|>"


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


def import_outputs(
    paths: Sequence[Path | str],
    *,
    grammar_name: GrammarName = DEFAULT_IMPORT,
    hop: HopType | None = None,
) -> tuple[list[Trajectory], list[SkippedLine]]:
    """The trajectories of all files, and the lines that were skipped.

    The policy of a trajectory is the stem of its file. The same question in several files keeps one
    ``question_id``, so that trajectories of several policies can be paired. ``hop`` is used where
    neither the row nor its data set determines it. Raises InputError for a file that is missing,
    holds invalid JSON, or has no line that can be imported.
    """
    parser = grammar(grammar_name)
    imported: list[Trajectory] = []
    skipped: list[SkippedLine] = []
    samples: Counter[str] = Counter()
    for path in paths:
        imported_before = len(imported)
        skipped_here: list[SkippedLine] = []
        policy = "stdin" if str(path) == "-" else Path(path).stem
        for line, row in read_jsonl(path):
            try:
                trajectory = _trajectory(row, parser, grammar_name, policy, hop)
            except _ImportProblem as problem:
                skipped_here.append(SkippedLine(str(path), line, str(problem)))
                continue
            trajectory.sample = samples[trajectory.question_id]
            samples[trajectory.question_id] += 1
            trajectory.trajectory_id = f"{trajectory.question_id}/{policy}/{trajectory.sample}"
            imported.append(trajectory)
        if skipped_here and len(imported) == imported_before:
            raise InputError(
                f"{skipped_here[0]}; no line of this file can be imported as {grammar_name}"
            )
        skipped += skipped_here
    return imported, skipped


def _trajectory(
    row: dict[str, Any],
    parser: Grammar,
    grammar_name: GrammarName,
    policy: str,
    hop: HopType | None,
) -> Trajectory:
    question = _text(row, _QUESTION, "question")
    output = _assistant_turn(_text(row, _OUTPUT, "model output"))
    tags = _REQUIRED_TAGS.get(grammar_name, ())
    if tags and not any(tag in output for tag in tags):
        raise _ImportProblem(
            f"the output has none of {', '.join(tags)}, so its grammar is not {grammar_name}"
        )
    dataset = str(row.get("dataset") or row.get("data_source") or "").lower()
    spans = parser.spans(output)
    parsed = parser.parse(output, spans)
    digest = hashlib.sha256(f"{dataset}\n{question}".encode()).hexdigest()[:12]
    return Trajectory(
        trajectory_id="",
        question_id=str(row.get("question_id") or f"{dataset or 'question'}-{digest}"),
        dataset=dataset,
        question=question,
        hop=_hop(row, dataset, hop),
        answers=_answers(row),
        evidence=_strings(row.get("evidence") or [], "evidence"),
        grammar=grammar_name,
        output=output,
        policy=policy,
        spans=spans,
        steps=parsed.steps,
        answer=parsed.answer,
        format_ok=parsed.format_ok,
        format_error=parsed.format_error,
        stop=_stop(parsed, output),
    )


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
    hop: HopType | None = stated if stated in ("single", "multi") else _HOPS.get(dataset, fallback)
    if hop is None:
        raise _ImportProblem(
            f"data set {dataset or '(none)'!r} is neither a known single-hop nor multi-hop data set; "
            "add hop to the row or pass --hop"
        )
    return hop


def _assistant_turn(text: str) -> str:
    """The assistant's part of a text that may begin with its chat prompt, knowledge turns included."""
    text = _KNOWLEDGE_TURN.sub(r"\n\1\n", text)
    return text.rpartition(_TURN)[2].split(_TURN_END)[0].lstrip("\n") if _TURN in text else text


def _stop(parsed: ParsedOutput, output: str) -> Stop:
    if parsed.answer is not None:
        return "answer"
    ends_observed = output.rstrip().endswith(("</information>", "</knowledge>"))
    return "max_steps" if ends_observed else "malformed"
