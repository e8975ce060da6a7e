"""Section "Calls of language models" of the report: calls, tokens and cost by stage and model.

Input: the ``chat.json`` of graph extraction, SFT data and judges, and the manifests of these stages
and of their shards. Output: one `Calls` per stage and model. ``chat.json`` counts every answer,
cached ones included. The number of cached answers is in the manifests, if they still are in the
store.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.evaluation.policy_names import policy_title
from pipeline.report.data import read_json, rounds_of
from pipeline.run.store import MANIFEST, read_manifest

_CHATS = {"chat.json": "chat", "extraction_chat.json": "extraction"}  # the name in the stage's work
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
    """The calls of one model in one stage.

    ``cached`` is the share of its answers that came from the cache, None if it is not recorded.
    ``cost`` is None if no prices are set.
    """

    stage: str
    model: str
    calls: int
    prompt_tokens: int
    completion_tokens: int
    cached: float | None
    cost: float | None


def usages(inputs: Mapping[str, Path]) -> list[Calls]:
    """The calls of all stages that asked a language model, in stage order.

    Models without calls are left out. Raises StoreError when a file is broken.
    """
    return [calls for calls in _usages(inputs) if calls.calls]


def _usages(inputs: Mapping[str, Path]) -> Iterator[Calls]:
    for stage in ("graph", "sft-data"):
        if stage not in inputs:
            continue
        for file, name in _CHATS.items():
            path = inputs[stage] / file
            if path.is_file():
                yield _calls(stage, name, read_json(path), _work(inputs[stage]))
    for title, directory in judgings(inputs).items():
        if (directory / "chat.json").is_file():
            work = _work(directory)
            for name, total in read_json(directory / "chat.json").items():
                yield _calls(title, name, total, work)


def judgings(inputs: Mapping[str, Path]) -> dict[str, Path]:
    """The directories of the stages that judge, by title: rounds first, then evaluated policies."""
    judged = {f"Judging of round {n}": path for n, path in rounds_of(inputs, "judge").items()}
    for name, path in inputs.items():
        if name.startswith(_JUDGE) and path not in judged.values():
            judged[f"Judging of {policy_title(name.removeprefix(_JUDGE))}, evaluated"] = path
    return judged


def _calls(stage: str, name: str, total: Mapping[str, Any], work: Mapping[str, float]) -> Calls:
    calls = work.get(f"{name}.calls")
    return Calls(
        stage,
        _MODELS.get(name, name),
        total["answers"],
        total["prompt_tokens"],
        total["completion_tokens"],
        work[f"{name}.cached_calls"] / calls if calls else None,
        total["cost"] or None,
    )


def _work(directory: Path) -> Counter[str]:
    """The work of a stage: the sum over its shards if it was divided."""
    work: Counter[str] = Counter()
    outputs = [directory]
    if (directory / MANIFEST).is_file():
        shards = directory.parent.with_name(f"{directory.parent.name}-shard")
        made_from = read_manifest(directory).get("made_from", {})
        outputs += [
            shards / fingerprint
            for name, fingerprint in made_from.items()
            if name.startswith("shard-")
        ]
    for output in outputs:
        if (output / MANIFEST).is_file():
            amounts = read_manifest(output).get("work", {})
            work.update({name: value for name, value in amounts.items() if value})
    return work
