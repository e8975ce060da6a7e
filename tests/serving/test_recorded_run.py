"""The page about recording an agent, carried out: vLLM, an agent by `openai`, a trained round."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from pipeline.core import shipped
from pipeline.core.record_io import read_records, write_jsonl
from pipeline.core.records import Pair, Trajectory
from tests.docs.test_howto_pages import blocks
from tests.rollout.test_conversation_run import prepare, steep, stored, write_model
from tests.serving.test_any_request import try_bodies
from tests.waiting import LIMIT, ending

PAGE = "record-an-agent.md"


@contextmanager
def served(work: Path, *arguments: str) -> Iterator[tuple[str, list[str]]]:
    """The address of a service, and its output after the block, which ends it by a signal."""
    environment = {**os.environ, "PYTHONPATH": str(shipped.ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline.cli", *arguments, "-c", "tools.yaml", "--port", "0"],
        cwd=work, env=environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    output: list[str] = []
    with ending(process):
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.search(r"http://[0-9.]+:[0-9]+", line):
                break
        yield found[0], output  # type: ignore[index]
        process.send_signal(signal.SIGTERM)
        output += process.communicate(timeout=LIMIT)[0].splitlines()
    assert process.returncode == 0


def log_probabilities(model: Path, trajectory: Trajectory) -> Iterator[tuple[float, float]]:
    """The recorded and the model's log-probability of every sampled token, from its ids."""
    import torch
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    ids = torch.tensor([trajectory.prompt_ids + trajectory.token_ids])
    with torch.no_grad():
        scores = network(ids).logits[0].log_softmax(-1)
    for place, recorded in enumerate(trajectory.logprobs, start=len(trajectory.prompt_ids)):
        if recorded is not None:
            yield recorded, float(scores[place - 1, ids[0, place]])


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_an_agent_is_recorded_paired_and_trained_as_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed")
    monkeypatch.chdir(tmp_path)
    records = prepare(tmp_path, "world")
    write_jsonl("questions.jsonl", records)
    [program] = blocks(PAGE, "python")
    agent: dict[str, Any] = {}
    exec(program.partition("client = ")[0], agent)
    write_model(tmp_path, records, {"type": "function", "function": agent["SEARCH"]})

    options = ("record", "--policy", "base", "--questions", "questions.jsonl")
    with (
        served(tmp_path, "serve", "--policy", "none") as (index, _),
        served(tmp_path, *options, "-o", "recorded.jsonl") as (address, output),
    ):
        own = program.replace("http://127.0.0.1:8765", address)
        exec(own.replace("http://127.0.0.1:8766", index), agent)
        last = agent["answer"](records[0]["question"])
        given = {"conversation": last.id, "reward": 0.5}
        assert agent["httpx"].post(f"{address}/reward", json=given).json() == given
        assert agent["httpx"].get(f"{address}/v1/models", headers={"host": "x"}).status_code == 421
    count = 8 * len(records) + 1
    assert f"of {count} conversations: {count} trajectories (all turns joined)" in output[-1]

    steep(tmp_path, "import", "--recorded", "recorded.jsonl", "-o", "recorded-1.jsonl")
    trajectories = read_records("recorded-1.jsonl", Trajectory)
    assert len(trajectories) == count
    assert sum(trajectory.format_ok for trajectory in trajectories) > count / 2
    step = next(step for trajectory in trajectories for step in trajectory.steps)
    assert (step.subquery, bool(step.context[0].text)) == ("who?", True)
    longest = max(trajectories, key=lambda trajectory: len(trajectory.token_ids))
    assert len({writer for *_, writer in longest.token_spans}) == 3
    differences = [
        abs(one - other) for one, other in log_probabilities(tmp_path / "model", longest)
    ]
    assert max(differences) < 0.3  # bfloat16 in the engine
    assert sum(differences) / len(differences) < 0.03

    # In bfloat16, the default of some processors, merging would lose a tenth of so small an adapter.
    settings = ("sampling.recorded=recorded-1.jsonl", "engine.dtype=float32")
    recorded = tuple(word for one in settings for word in ("--set", one))
    steep(tmp_path, "run", "train", "--round", "1", *recorded)
    pairs = stored(tmp_path, "tools", "pair/*/pairs.parquet", Pair)
    assert {pair.kind for pair in pairs} <= {"easy", "format"}
    options = ("record", "--policy", "1", *recorded)
    with served(tmp_path, *options, "-o", "second.jsonl") as (address, _):
        agent["client"] = agent["client"].with_options(base_url=f"{address}/v1")
        agent["search"] = lambda query: "nothing"
        assert agent["answer"](records[0]["question"]).choices[0].message.role == "assistant"
        with httpx.Client(base_url=address, timeout=LIMIT) as client:
            try_bodies(client, 150)
