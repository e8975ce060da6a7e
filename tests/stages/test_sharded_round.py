"""A round with one shard and with four: the same bytes from ``sample`` to the batches of ``train``.

The engine is scripted: what it writes is a function of the prompt and the seed, as vLLM's output is on
a CPU. Everything else is what the stages run.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from pipeline import config
from pipeline.core.model_files import model_hash
from pipeline.core.record_io import read_records, write_parquet
from pipeline.core.records import Pair, Question
from pipeline.llm.scripted_engine import ScriptedEngine
from pipeline.run.context import StageContext
from pipeline.run.store import StageKey
from pipeline.stages import pair, sample, score, shards
from pipeline.stages.training_data import TRAINING, encode_pair_data
from pipeline.training.lineage import Lineage
from tests.training.tiny_policy import byte_tokenizer, write_base

QUESTIONS = [Question(f"q{n}", "nq", f"Question {n}?", ["Rome"], "single") for n in range(10)]
Stage = Callable[[StageContext], dict[str, int]]


def answers(prompt: str, request: Any) -> str:
    """Right and wrong answers of several lengths, so that trajectories finish in another order."""
    wrong = "Paris " + "x" * (request.seed % 23)
    return "Rome" if request.seed % 3 else wrong


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("round") / "base")


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(settings: Any, *_: object, **__: object) -> ScriptedEngine:
        return ScriptedEngine(answers, byte_tokenizer(), max_num_seqs=settings.max_num_seqs)

    monkeypatch.setattr("pipeline.stages.policy.open_engine", opened)


def context_of(root: Path, base: Path, **sampling: int) -> StageContext:
    values: dict[str, Any] = {
        "name": "toy",
        "cache_dir": str(root / "cache"),
        "data": {},
        "corpus": {"files": [{"path": "unused"}]},
        "graph": {"source": "none"},
        "index": {"embedder": {"model": "none"}},
        "retrieval": {"variant": "none", "reranker": {"kind": "biencoder"}},
        "model": {"base": str(base)},
        "engine": {"max_num_seqs": sampling.pop("max_num_seqs", 256)},
        "prompt": {"system": "S"},
        "grammar": "search-r1",
        "rewards": {"kind": "search-r1"},
        "pairs": {"limit": 5},
        "sft_data": {"sizes": {1: 1}},
        "sft": {"learning_rate": 0.1, "batch_size": 1},
        "dpo": {"learning_rate": 0.1, "batch_size": 1, "over_long": "drop"},
        "sampling": {"samples": 4, "max_segment_tokens": 60, **sampling},
    }
    policy = root / "policy"
    policy.mkdir(parents=True)
    sha = model_hash(base)
    Lineage("p", str(base), sha, None, None, 0, "sft", {}, 0, {}).write(policy)
    write_parquet(root / "questions" / "questions.parquet", QUESTIONS, Question)
    inputs = {"questions": root / "questions", "policy": policy}
    return StageContext(
        config.Config.model_validate(values), "sample", root / "out", root / "checkpoints", inputs,
        round=1, seed=5,
    )  # fmt: skip


def in_directory(context: StageContext, folder: Path, **changes: Any) -> StageContext:
    (folder / "output").mkdir(parents=True)
    (folder / "checkpoints").mkdir()
    return replace(
        context, output=folder / "output", checkpoint_dir=folder / "checkpoints", **changes
    )


def run_stage(stage: str, run: Stage, context: StageContext, root: Path, count: int) -> Path:
    """The output of a stage that is run whole, or in shards that are joined."""
    if count == 1:
        whole = in_directory(context, root / stage, stage=stage)
        run(whole)
        return whole.output
    joined: dict[str, Path] = {}
    for number in range(count):
        name = f"shard-{number:03d}"
        part = in_directory(context, root / stage / name, shard=number, shards=count)
        key = asdict(StageKey(f"{stage}-shard", 1, {}))
        manifest = {"fingerprint": name, "key": key, "counts": run(part)}
        (part.output / "manifest.json").write_text(json.dumps(manifest))
        joined[name] = part.output
    merged = in_directory(context, root / stage / "joined", stage=stage, inputs=joined)
    shards.merge(merged)
    return merged.output


def round_of(root: Path, base: Path, count: int, **sampling: int) -> dict[str, bytes]:
    """The bytes of the files of a round, by stage and name; those about seconds are left out."""
    context = context_of(root, base, **sampling)
    sampled = run_stage("sample", sample.run, context, root, count)
    inputs = {**context.inputs, "sample": sampled}
    scored = run_stage("score", score.run, replace(context, inputs=inputs), root, count)
    inputs = {**inputs, "score": scored}
    paired = run_stage("pair", pair.run, replace(context, inputs=inputs), root, 1)
    inputs = {**inputs, "pair": paired}
    training = in_directory(context, root / "train", stage="train", inputs=inputs)
    encode_pair_data(training)
    files = {
        f"{stage}/{path.name}": path.read_bytes()
        for stage, folder in (("sample", sampled), ("score", scored), ("pair", paired))
        for path in sorted(folder.iterdir())
        if path.name not in ("timing.json", "manifest.json")
    }
    return {**files, TRAINING: (training.checkpoint_dir / TRAINING).read_bytes()}


@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize(
    ("count", "sampling"),
    [(4, {}), (3, {"batch": 1}), (1, {"in_flight": 3, "batch": 2}), (1, {"max_num_seqs": 2})],
)
def test_bytes_do_not_depend_on_how_the_work_is_divided(
    base: Path, tmp_path: Path, count: int, sampling: dict[str, int]
) -> None:
    whole = round_of(tmp_path / "whole", base, 1)
    pairs = read_records(tmp_path / "whole" / "pair" / "output" / "pairs.parquet", Pair)
    assert len(pairs) == 5
    assert {"sample/trajectories.parquet", "score/trajectories.parquet", TRAINING} < whole.keys()
    assert round_of(tmp_path / "divided", base, count, **sampling) == whole
