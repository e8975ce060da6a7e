"""Section "Calls of language models" of the report: calls, tokens and cost by stage and model.

Input: the ``chat.json`` of graph extraction, SFT data and judges. Output: one `Calls` per stage and
model. ``chat.json`` counts every answer, cached ones included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.engine.store import read_output
from pipeline.evaluation.policy_names import policy_title
from pipeline.look.report.data import rounds_of

_CHATS = {"chat.json": "chat", "extraction_chat.json": "extraction"}  # by file
_MODELS = {
    "chat": "model",
    "extraction": "extraction of triplets",
    "judge": "judge",
    "over": "judge of over-search",
    "under": "judge of under-search",
    "policy": "policy, closed-book answers",
}
_JUDGE = "judge-"


@dataclass(frozen=True)
class Calls:
    """The calls of one model in one stage; ``cost`` is None if no prices are set."""

    stage: str
    model: str
    calls: int
    prompt_tokens: int
    completion_tokens: int
    cost: float | None


def usages(inputs: Mapping[str, Path]) -> list[Calls]:
    """The calls of all stages that asked a language model, in stage order.

    Models without calls are left out. Raises StoreError when a file is broken.
    """
    totals = [
        (stage, name, read_output(path))
        for stage in ("graph", "sft-data")
        for file, name in _CHATS.items()
        if stage in inputs and (path := inputs[stage] / file).is_file()
    ]
    totals += [
        (title, name, total)
        for title, directory in judgings(inputs).items()
        if (path := directory / "chat.json").is_file()
        for name, total in read_output(path).items()
    ]
    return [
        Calls(
            stage, _MODELS.get(name, name), total["answers"], total["prompt_tokens"],
            total["completion_tokens"], total["cost"] or None,
        )
        for stage, name, total in totals
        if total["answers"]
    ]  # fmt: skip


def judgings(inputs: Mapping[str, Path]) -> dict[str, Path]:
    """The directories of the stages that judge, by title: rounds first, then evaluated policies."""
    judged = {f"Judging of round {n}": path for n, path in rounds_of(inputs, "judge").items()}
    for name, path in inputs.items():
        if name.startswith(_JUDGE) and path not in judged.values():
            judged[f"Judging of {policy_title(name.removeprefix(_JUDGE))}, evaluated"] = path
    return judged
