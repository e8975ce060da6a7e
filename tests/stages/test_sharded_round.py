"""A round with one shard and with four: the same bytes from ``sample`` to the batches of ``train``.

The engine is scripted: what it writes is a function of the prompt and the seed, as vLLM's output is on
a CPU. Everything else is what the stages run.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.model_files import model_hash
from pipeline.core.record_io import read_records, write_parquet
from pipeline.core.records import Pair, Question
from pipeline.engine.context import StageContext
from pipeline.engine.files.training_data import TRAINING, encode_pair_data
from pipeline.knowledge.graph.build import Extracted
from pipeline.knowledge.graph.facts import Facts
from pipeline.knowledge.graph.tables import write_hyperedges
from pipeline.training.lineage import Lineage
from tasks import evaluate_policy, pair, sample, score
from tests.llm.scripted_engine import ScriptedEngine
from tests.smallest import small_config
from tests.stages.divided import content, in_directory, run_divided, run_whole
from tests.training.tiny_policy import byte_tokenizer, write_base

QUESTIONS = [Question(f"q{n}", "nq", f"Question {n}?", ["Rome"], "single") for n in range(10)]


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

    monkeypatch.setattr("pipeline.llm.models.open_engine", opened)


def context_of(root: Path, base: Path, method: str = "search-r1", **sampling: int) -> StageContext:
    settings = small_config(
        cache_dir=str(root / "cache"),
        graph={"source": "annotated" if method == "prograph" else "none"},
        retrieval={"variant": "none"},
        model={"base": str(base)},
        engine={"max_num_seqs": sampling.pop("max_num_seqs", 256)},
        grammar=method,
        dpo={"over_long": "drop"},
        sampling={"samples": 4, "max_segment_tokens": 60, **sampling},
    )
    policy = root / "policy"
    policy.mkdir(parents=True)
    sha = model_hash(base)
    Lineage("p", str(base), sha, None, None, 0, "sft", {}, 0, {}).write(policy)
    write_parquet(root / "questions" / "questions.parquet", QUESTIONS, Question)
    inputs = {"questions": root / "questions", "policy": policy}
    return StageContext(
        settings, "sample", root / "out", root / "checkpoints", inputs,
        round=1, seed=5,
    )  # fmt: skip


def run_stage(stage: Any, context: StageContext, root: Path, count: int) -> Path:
    """The output of a stage that is run whole, or in shards that are joined."""
    name = stage.__name__.rpartition(".")[2]
    named = replace(context, stage=name)
    if count == 1:
        return run_whole(named, root / name, stage.run)[1]
    return run_divided(named, root / name, count, shard=stage.run, merge=stage.merge)[1]


def round_of(root: Path, base: Path, count: int, **sampling: int) -> dict[str, bytes]:
    """The bytes of the files of a round, by stage and name; those about seconds are left out."""
    context = context_of(root, base, **sampling)
    sampled = run_stage(sample, context, root, count)
    inputs = {**context.inputs, "sample": sampled}
    scored = run_stage(score, replace(context, inputs=inputs), root, count)
    inputs = {**inputs, "score": scored}
    paired = run_stage(pair, replace(context, inputs=inputs), root, 1)
    inputs = {**inputs, "pair": paired}
    training = in_directory(context, root / "train", stage="train", inputs=inputs)
    encode_pair_data(training)
    files = {
        f"{stage}/{name}": written
        for stage, folder in (("sample", sampled), ("score", scored), ("pair", paired))
        for name, written in content(folder).items()
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
    pairs = read_records(tmp_path / "whole/pair/whole/output/pairs.parquet", Pair)
    assert len(pairs) == 7
    assert {"sample/trajectories.parquet", "score/trajectories.parquet", TRAINING} < whole.keys()
    assert round_of(tmp_path / "divided", base, count, **sampling) == whole


@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize(("count", "samples"), [(3, 3), (12, 1)])
def test_an_evaluation_does_not_depend_on_its_division(
    base: Path, tmp_path: Path, count: int, samples: int
) -> None:
    """Twelve shards are more than the ten questions."""
    context = context_of(tmp_path, base)
    context = replace(context, stage="evaluate-policy", facts={"samples": samples})
    counts, whole = run_whole(context, tmp_path / "a", evaluate_policy.run)
    joined_counts, joined = run_divided(
        context, tmp_path / "b", count, shard=evaluate_policy.run, merge=evaluate_policy.merge
    )
    assert joined_counts == counts == {"questions": 10, "trajectories": 10 * samples}
    before, after = content(whole), content(joined)
    rows = [json.loads(files.pop("rows.json")) for files in (before, after)]
    seconds = [row.pop("seconds") for row in rows]
    assert seconds[0].keys() == seconds[1].keys() >= {"generation", "total"}
    assert rows[0] == rows[1]
    assert before == after


@pytest.mark.usefixtures("scripted")
def test_continuations_do_not_depend_on_the_division(base: Path, tmp_path: Path) -> None:
    """The samples of a question share a state, which one shard continues."""
    context = context_of(tmp_path, base, "prograph")
    sampled = run_stage(sample, context, tmp_path, 1)
    facts = Facts()
    extracted = [Extracted("c", "T", ["Ann met Bo.", ["Ann", "Bo"]])]
    (tmp_path / "graph").mkdir()
    write_hyperedges(tmp_path / "graph", facts.edges(extracted), facts.entities)
    inputs = {**context.inputs, "sample": sampled, "graph": tmp_path / "graph"}
    outputs = []
    for count in (1, 12):  # more shards than the ten questions
        config_of = context.config.model_copy(update={"cache_dir": str(tmp_path / f"c{count}")})
        scoring = replace(context, inputs=inputs, config=config_of)
        outputs.append(content(run_stage(score, scoring, tmp_path / str(count), count)))
    assert outputs[0] == outputs[1]
    cost = json.loads(outputs[0]["progress.json"])
    assert (cost["distinct"], cost["continuations"]) == (10, 40)
