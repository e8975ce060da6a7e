"""A whole run in the tools format: a small model that calls a tool samples, is scored, paired, trained.

The model has the architecture and the chat template of Qwen2.5. It learns the form of conversations
in seconds, and draws its answers from the answers of a few questions, so that samples differ.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from pipeline.core import shipped
from pipeline.core.record_io import read_records
from pipeline.core.records import Pair, SftExample, Trajectory
from pipeline.core.spans import pieces
from pipeline.llm.tokenizer import model_tokenizer
from pipeline.rollout.conversations.chat_template import ChatTemplate
from pipeline.rollout.conversations.steps import tool_format
from tests.published.language_models import encode_conversation, write_language_model

R = TypeVar("R")
SYSTEM = "Search, then write Answer: and the answer."
SETTINGS = """
base: {configs}/embedded-search-r1.yaml
name: tools
rounds: 1
workers: 1
shards: 1
start: base
format: tools
model: {{base: {model}}}
data:
  closed_world:
    documents: 300
    musique_train: 1
    nq_sampling: 8
    hotpotqa_sampling: 0
    musique_sampling: 0
    nq_dev: 2
    nq_test: 4
    hotpotqa_test: 0
    wiki2_test: 0
    musique_dev: 0
    hotpotqa_dev: 0
    musique_test: 0
  sampling: [{{dataset: nq, path: nq_sampling.jsonl}}]
  validation: [{{dataset: nq, path: nq_dev.jsonl}}]
  test: [{{dataset: nq, path: nq_test.jsonl}}]
prompt: {{system: "{system}"}}
sampling: {{samples: 16, temperature: 1.0, max_segment_tokens: 120}}
dpo: {{processes: 1, batch_size: 4, per_device_batch_size: 2, dtype: float32}}
"""

SEARCH: Any = tool_format("search-r1").tool


def conversation(question: str, answer: str, found: Sequence[str]) -> list[dict[str, Any]]:
    """A call for each text of ``found``, and the answer."""
    made = {"type": "function", "function": {"name": "search", "arguments": {"query": "who?"}}}
    turns: list[dict[str, Any]] = []
    for text in found:
        turns.append({"role": "assistant", "content": "I search.", "tool_calls": [made]})
        turns.append({"role": "tool", "content": text})
    return [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": question},
        *turns,
        {"role": "assistant", "content": f"It is said.\nAnswer: {answer}"},
    ]


def prepare(work: Path, stage: str) -> list[dict[str, Any]]:
    """Run up to ``stage`` with ``tools.yaml``, which names a model in ``work``; the questions."""
    settings = SETTINGS.format(configs=shipped.CONFIGURATIONS, model=work / "model", system=SYSTEM)
    (work / "tools.yaml").write_text(settings, encoding="utf-8")
    steep(work, "run", stage)
    return rows_of(work, "nq_sampling.jsonl")


def rows_of(work: Path, name: str) -> list[dict[str, Any]]:
    [file] = work.rglob(name)
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def write_model(work: Path, questions: Sequence[Mapping[str, Any]], tool: Any = SEARCH) -> None:
    """A model that calls the tool once or twice, and answers like one of the questions.

    It has seen texts of the corpus below ``work`` as results; other tokens would disturb it.
    """
    chance, asked = random.Random(0), [each["question"] for each in questions]
    answers = [each["answer"][0] for each in questions[:4]]
    rows = rows_of(work, "corpus.jsonl")
    texts = [f'Doc 1(Title: "{row["title"]}") {row["text"]}' for row in rows]
    lessons = [
        conversation(
            chance.choice(asked), chance.choice(answers),
            ["\n".join(chance.sample(texts, 3)) for _ in range(1 + number % 2)],
        )
        for number in range(64)
    ]  # fmt: skip
    source = Path(os.environ["STEEP_DATA"]) / "tokenizers/qwen2.5"
    tokenizer: Any = model_tokenizer(source)
    chat = ChatTemplate(tokenizer, [tool])
    encoded = [encode_conversation(chat, lesson) for lesson in lessons]
    write_language_model(work / "model", "qwen2.5", tokenizer, encoded, steps=160)


def steep(work: Path, *arguments: str, settings: Sequence[str] = ()) -> str:
    named = () if {"import", "--variant"} & {*arguments} else ("-c", "tools.yaml")
    changed = (word for setting in settings for word in ("--set", setting))
    environment = {**os.environ, "PYTHONPATH": str(shipped.ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pipeline.cli", *arguments, *changed, *named],
        cwd=work, env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    logs = sorted(work.rglob("*.log"), key=lambda path: path.stat().st_mtime)
    assert done.returncode == 0, done.stdout + (logs[-1].read_text()[-4000:] if logs else "")
    return done.stdout


def stored(work: Path, run: str, file: str, record: type[R]) -> list[R]:
    """The records of the only output ``file`` of a run."""
    [path] = (work / "runs" / run / "store").glob(file)
    return read_records(path, record)


def policies(work: Path, run: str) -> set[str]:
    """The policies that a run has evaluated."""
    rows = json.loads((work / "runs" / run / "metrics.json").read_text(encoding="utf-8"))
    return {row["policy"] for row in rows}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_policy_that_calls_tools_is_sampled_paired_trained_and_evaluated(tmp_path: Path) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed")
    write_model(tmp_path, prepare(tmp_path, "world"))
    steep(tmp_path, "run")
    trajectories = stored(tmp_path, "tools", "sample/*/trajectories.parquet", Trajectory)
    assert {trajectory.format for trajectory in trajectories} == {"tools"}
    well_formed = [trajectory for trajectory in trajectories if trajectory.format_ok]
    assert len(well_formed) > len(trajectories) / 2
    steps = [step for trajectory in well_formed for step in trajectory.steps]
    assert len(steps) > len(well_formed) / 2
    assert {step.subquery for step in steps} == {"who?"}
    assert all(step.context[0].id for step in steps)
    [pair, *_] = stored(tmp_path, "tools", "pair/*/pairs.parquet", Pair)
    assert {writer for *_, writer in pair.chosen_spans} == {"model", "observation", "frame"}
    assert len(pieces(pair.chosen_ids, pair.chosen_spans, "model")) > 1
    assert policies(tmp_path, "tools") >= {"base", "round-1"}
    # Its own right answers train policy 0.
    sampling = ("sft_data.rejection_sampling={samples: 16}", "rounds=0", "start=sft", "name=sft")
    data = "data.sft=[{dataset: nq, path: nq_sampling.jsonl}]"
    steep(tmp_path, "run", settings=(*sampling, data))
    examples = stored(tmp_path, "sft", "sft-data/*/train.parquet", SftExample)
    trajectories = stored(tmp_path, "sft", "sft-sample/*/trajectories.parquet", Trajectory)
    sampled = {one.trajectory_id: one for one in trajectories}
    for example in examples:
        assert example.token_ids == sampled[example.example_id].token_ids
        assert sampled[example.example_id].answer in sampled[example.example_id].answers
    assert policies(tmp_path, "sft") == {"sft"}


SMALL = (
    "data.closed_world.documents=600",
    "data.closed_world.musique_train=1000",
    *(f"data.closed_world.{name}_sampling=16" for name in ("nq", "hotpotqa")),
    *(f"data.closed_world.{name}_dev=4" for name in ("nq", "hotpotqa")),
    *(f"data.closed_world.{name}_test=6" for name in ("nq", "hotpotqa")),
    *(f"data.closed_world.{name}=0" for name in ("musique_sampling", "wiki2_test", "musique_test")),
    *(
        f"data.{split}=[{{dataset: nq, path: nq_{file}.jsonl}}, "
        f"{{dataset: hotpotqa, path: hotpotqa_{file}.json}}]"
        for split, file in (("sampling", "sampling"), ("validation", "dev"), ("test", "test"))
    ),
    "sft_data.sizes={1: 150, 2: 230, 3: 200, 4: 120}",
    "sft_data.test_sizes={}",
    "rounds=1",
    "workers=1",
    "shards=1",
    "sampling.samples=6",
)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ["hiprag-tools", "prograph-tools"])
def test_a_cold_start_teaches_calls_and_a_round_trains_on_them(name: str, tmp_path: Path) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed")
    steep(tmp_path, "run", "--variant", name, settings=SMALL)
    trajectories = stored(tmp_path, name, "sample/*/trajectories.parquet", Trajectory)
    assert len(trajectories) == 192
    assert {trajectory.format for trajectory in trajectories} == {"tools"}
    assert sum(trajectory.format_ok for trajectory in trajectories) > 20
    steps = [step for trajectory in trajectories for step in trajectory.steps]
    assert all(step.context for step in steps if step.retrieved)
    assert len({step.search or step.query for step in steps}) > 20
    assert policies(tmp_path, name) == {"sft", "round-1"}
    if name == "hiprag-tools":
        assert len(stored(tmp_path, name, "pair/*/pairs.parquet", Pair)) > 8
        assert any(not step.retrieved for step in steps)
    else:
        scored = stored(tmp_path, name, "score/*/trajectories.parquet", Trajectory)
        rewards = [trajectory.rewards for trajectory in scored]
        assert sum(len(terms["steps"]) > 1 for terms in rewards if terms) > 20
