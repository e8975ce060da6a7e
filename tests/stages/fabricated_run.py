"""A small fabricated run: stage directories with invented numbers, written as the stages do.

None of it was sampled or trained.
"""

from __future__ import annotations

import json
import random
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline.config import Config
from pipeline.core.record_io import write_parquet
from pipeline.core.records import (
    ChatMessage,
    ContextItem,
    Message,
    Pair,
    Span,
    Step,
    TokenCounts,
    Trajectory,
)
from pipeline.core.spans import extend
from pipeline.engine.context import StageContext
from pipeline.engine.store import StageKey
from pipeline.evaluation.measured import merge_policies
from pipeline.evaluation.metrics import measure
from tests.smallest import small_config, small_pair, small_trajectory, write_paired, write_scored

DOCUMENT = "Vell is a harbour city in the north of Ostar, on the river Ime."


def configuration(rounds: int = 1) -> Config:
    training = {"learning_rate": 1e-3, "batch_size": 8}
    return small_config(
        name="fabricated",
        rounds=rounds,
        model={"base": "invented"},
        prompt={"system": "Answer."},
        sft=training,
        dpo=training,
    )


def trajectory(
    question_id: str,
    answer: str | None,
    *,
    steps: int = 1,
    document: str = DOCUMENT,
    dataset: str = "musique",
    name: str = "",
    rewards: dict[str, Any] | None = None,
) -> Trajectory:
    """A trajectory about an invented city, with gold answer Ostar and correct character spans."""
    output = ""
    spans: list[Span] = []
    done = []
    for number in range(1, steps + 1):
        item = ContextItem("chunk", "c1", "Vell", document, 0.5)
        summary = "The fact Vell is in Ostar logically implies the answer: Ostar."
        pieces = (
            ("model", f"Step {number}:\nImportant entity: Vell\nSubquery: Where is Vell?\n"),
            ("model", "<Reference>"),
            ("observation", f'\nEvidence 1: Title: "Vell" Text: {document}\n</Reference>\n'),
            ("model", f"Summary: {summary}\n"),
        )
        for writer, text in pieces:
            spans = extend(spans, len(text), writer)  # type: ignore[arg-type]
            output += text
        done.append(Step(["Vell"], "Where is Vell?", [item], summary))
    ended: dict[str, Any] = {"format_error": "expected 'Final answer:'", "stop": "max_tokens"}
    if answer is not None:
        closing = f"Final answer: {answer}"
        spans = extend(spans, len(closing), "model")
        output += closing
        ended = {"answer": answer, "format_ok": True, "stop": "answer"}
    return small_trajectory(
        trajectory_id=name or f"{question_id}-0", question_id=question_id, dataset=dataset,
        question="Which country is the city of Vell in?", hop="multi", answers=["Ostar"],
        evidence=["Vell is in Ostar."], output=output, spans=spans, steps=done, rewards=rewards,
        tokens=TokenCounts(20 * steps, 30 * steps, [30] * steps), **ended,
    )  # fmt: skip


def write_evaluation(
    directory: Path, trajectories: list[Trajectory], parts: dict[str, str] | None = None
) -> Path:
    """Write the files of the stage ``evaluate-policy``; returns ``directory``."""
    directory.mkdir(parents=True)
    write_parquet(directory / "trajectories.parquet", trajectories, Trajectory)
    outcomes = [asdict(measure(t, (parts or {}).get(t.question_id))) for t in trajectories]
    seconds = {"semantic": 1.5, "graph": 2.0, "ppr": 0.1, "generation": 30.0, "total": 33.0}
    rows = {"split": "test", "seconds": seconds, "outcomes": outcomes}
    (directory / "rows.json").write_text(json.dumps(rows))
    return directory


def write_run(
    root: Path, *, rounds: int = 1, questions: int = 6, document: str = DOCUMENT, seed: int = 0
) -> StageContext:
    """Write all directories that the report reads; returns the context of the stage ``report``."""
    chance = random.Random(seed)
    policies = ["sft", *(f"round-{number}" for number in range(1, rounds + 1))]
    shards = {}
    for strength, policy in enumerate(policies):
        trajectories = []
        for number in range(questions):
            right = chance.random() < 0.6 + 0.08 * strength
            answer = "Ostar" if right else chance.choice(["Vell", "Ostar city", None])
            dataset = ("musique", "hotpotqa", "nq")[number % 3]
            steps = chance.choice([1, 2, 2, 3, 4][: max(2, 5 - strength)])
            trajectories.append(
                trajectory(f"q{number}", answer, steps=steps, dataset=dataset, document=document)
            )
        parts = {f"q{number}": "unseen" for number in range(0, questions, 2)}
        shards[policy] = write_evaluation(root / f"evaluate-{policy}", trajectories, parts)
    evaluate = root / "evaluate"
    evaluate.mkdir()
    merge_policies(shards, evaluate)
    inputs = {"evaluate": evaluate, "sft": _trained(root / "sft", chance, preference=False)}
    for number in range(1, rounds + 1):
        inputs |= _round(root, number, document, chance)
    for position, (name, path) in enumerate(inputs.items()):
        _manifest(path, name, 10.0 + 40 * position)
    output = root / "report"
    output.mkdir()
    return StageContext(
        config=configuration(rounds),
        stage="report",
        output=output,
        checkpoint_dir=root / "checkpoints",
        inputs=inputs,
    )


def _round(root: Path, number: int, document: str, chance: random.Random) -> dict[str, Path]:
    score, pair = root / f"score-{number}", root / f"pair-{number}"
    score.mkdir()
    pair.mkdir()
    trajectories = []
    for index in range(40):
        terms = {
            "outcome": chance.choice([0.0, 0.0, 0.5, 1.0, 1.0]),
            "format": 1.0,
            "consistency": chance.choice([0.5, 1.0]),
            "subquery": chance.betavariate(2 + number, 2),
            "context": chance.betavariate(4, 2),
            "summary": chance.betavariate(2 + number, 3),
            "process": chance.betavariate(3 + number, 2),
            "total": 1.5,
            "memory": {"subquery": [0.5], "context": [0.5], "summary": [0.5]},
        }
        trajectories.append(
            trajectory(
                f"s{index // 2}",
                "Ostar" if index % 2 == 0 else "Vell",
                steps=1 + index % 2,
                document=document,
                name=f"s{index // 2}-{index % 2}",
                rewards=terms,
            )
        )
    write_scored(score / "trajectories.parquet", trajectories)
    kinds = ["format", "easy", "easy", "hard"]
    pairs = [
        preference_pair(
            kinds[index % 4], trajectories[2 * index], trajectories[2 * index + 1], number
        )
        for index in range(12)
    ]
    write_paired(pair / "pairs.parquet", pairs)
    bins = {"chosen": 12, "rejected": 12, "no_partner": 10, "duplicate": 6}
    (pair / "funnel.json").write_text(json.dumps({"bins": bins, "datasets": {}}))
    train = _trained(root / f"train-{number}", chance, preference=True)
    return {f"score-{number}": score, f"pair-{number}": pair, f"train-{number}": train}


def preference_pair(kind: str, chosen: Trajectory, rejected: Trajectory, number: int) -> Pair:
    return small_pair(
        question_id=chosen.question_id,
        prompt=[Message("system", "Answer."), Message("user", chosen.question)],
        chosen=[ChatMessage("assistant", chosen.output)],
        rejected=[ChatMessage("assistant", rejected.output)],
        chosen_id=chosen.trajectory_id,
        rejected_id=rejected.trajectory_id,
        kind=kind,
        chosen_rewards=chosen.rewards or {},
        rejected_rewards=rejected.rewards or {},
        policy="invented",
        round=number,
    )


def _trained(directory: Path, chance: random.Random, *, preference: bool) -> Path:
    directory.mkdir()
    history = []
    for step in range(1, 21):
        entry = {"step": step, "epoch": step / 20, "loss": 2 / step + chance.random() / 10}
        if preference:
            entry |= {
                "rewards/margins": step / 10 + chance.random() / 4,
                "rewards/accuracies": 0.5 + step / 50,
                "logps/chosen": -30 - step / 10,
                "logps/rejected": -34 - step / 2,
                "logps/chosen_below_reference": step / 10,
            }
        history.append(entry)
    (directory / "log.json").write_text(json.dumps({"history": history}))
    return directory


def _manifest(directory: Path, name: str, seconds: float) -> None:
    facts = {
        "fingerprint": f"{abs(hash(name)):016x}"[:16],
        "key": asdict(StageKey(name, 1, {})),
        "wall_seconds": seconds,
        "peak_memory_mb": 812.0,
        "counts": {"trajectories": 1234, "questions": 40},
        "files": {},
        "device": "cpu",
        "versions": {"torch": "0.0", "transformers": "0.0"},
    }
    (directory / "manifest.json").write_text(json.dumps(facts))
