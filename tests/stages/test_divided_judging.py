"""Judging in one piece and in three shards: the same bytes, each case asked once, and failed verdicts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.errors import JudgeError, StoreError
from pipeline.core.record_io import write_parquet
from pipeline.core.records import Step, Trajectory
from pipeline.engine.context import StageContext
from pipeline.llm.replies import REPLIES
from tasks import judge
from tests.graph.character_tokenizer import CharacterTokenizer
from tests.judges.known_judges import trajectory
from tests.llm.fake_endpoint import FakeEndpoint
from tests.llm.scripted_engine import ScriptedEngine
from tests.smallest import small_config
from tests.stages.divided import content, in_directory, run_divided, run_shard, run_whole

NAMES = ["Ann", "Bo", "Cy", "Di", "Ed", "Flo", "Gus"]
TRAJECTORIES = [
    trajectory(
        f"t{number}",
        "hiprag",
        Step(reasoning="r", search=f"Who is {NAMES[number % 5]}?", conclusion=NAMES[number % 3]),
        Step(reasoning=f"I know {NAMES[number % 4]}.", conclusion=NAMES[number % 7]),
    )
    for number in range(12)
]


def verdict(text: str, earlier: int) -> str:
    if "Flo" in text and earlier == 0:
        return "I am not sure."  # the second try at this case is readable
    return f"<answer>{'Ann' in text}</answer>"


@pytest.fixture
def server() -> Iterator[FakeEndpoint]:
    with FakeEndpoint(verdict) as server:
        yield server


@pytest.fixture(autouse=True)
def policy_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(*_: Any, **__: Any) -> ScriptedEngine:
        return ScriptedEngine(lambda prompt, request: prompt[-20:], CharacterTokenizer())

    monkeypatch.setattr("pipeline.llm.models.open_engine", opened)


def context_of(root: Path, server: FakeEndpoint, **settings: Any) -> StageContext:
    prices = {"prompt": 0.37, "completion": 0.71}
    endpoint = {
        "base_url": server.url,
        "model": "m",
        "retries": 0,
        "prices": prices,
        "token_ceiling": 10**9,
    }
    noisy = {"share": 0.3}
    over = {"backend": "openai", "endpoint": endpoint, "noisy": noisy}
    under = {"backend": "openai", "endpoint": endpoint}
    config = small_config(
        cache_dir=str(root / "cache"),
        runs_dir=str(root / "runs"),
        graph={"source": "none"},
        retrieval={"variant": "none"},
        grammar="hiprag",
        judges={"over": over, "under": under, **settings},
    )
    (root / "policy").mkdir(parents=True, exist_ok=True)
    (root / "policy" / "lineage.json").write_text('{"policy": "p"}')
    write_parquet(root / "paths" / "trajectories.parquet", TRAJECTORIES, Trajectory)
    inputs = {"paths": root / "paths", "policy": root / "policy"}
    return StageContext(config, "judge", root, root, inputs, round=1)


@pytest.mark.parametrize("count", [3, 14])
def test_the_bytes_do_not_depend_on_the_division(
    tmp_path: Path, server: FakeEndpoint, count: int
) -> None:
    """Fourteen shards are more than the trajectories."""
    counts, whole = run_whole(context_of(tmp_path / "a", server), tmp_path / "a", judge.run)
    asked = dict(server.request_counts)
    assert counts["steps"] == 24
    assert counts["unknown"] == 0
    assert 2 in asked.values()  # a case whose first reply cannot be read
    server.request_counts.clear()
    context = context_of(tmp_path / "b", server)
    joined_counts, joined = run_divided(
        context, tmp_path / "b", count, shard=judge.run_shard, merge=judge.run
    )
    assert joined_counts == counts
    assert content(joined) == content(whole)
    assert dict(server.request_counts) == asked
    chats = json.loads((joined / "chat.json").read_text())
    assert chats["over"]["cost"] > 0
    assert chats["policy"]["answers"] == 5


def test_a_joined_stage_with_too_many_unknown_verdicts_asks_for_them_again(
    tmp_path: Path, server: FakeEndpoint
) -> None:
    context = context_of(tmp_path, server)
    server.script = lambda text, earlier: "?" if "Gus" in text else verdict(text, earlier)
    with pytest.raises(JudgeError, match="1 of 24 steps have no verdict"):
        run_divided(context, tmp_path, 3, shard=judge.run_shard, merge=judge.run)
    server.script = verdict
    server.request_counts.clear()
    shards = {name: tmp_path / name / "output" for name in ("shard-000", "shard-001", "shard-002")}
    joined = in_directory(context, tmp_path / "joined", inputs={**context.inputs, **shards})
    assert judge.run(joined)["unknown"] == 0
    assert server.request_counts.total() == 1


def test_shards_without_a_reply_to_a_prompt_are_refused(
    tmp_path: Path, server: FakeEndpoint
) -> None:
    context = context_of(tmp_path, server)
    shards = {
        f"shard-00{number}": run_shard(judge.run_shard, context, tmp_path / str(number), number, 2)
        for number in range(2)
    }
    (shards["shard-001"] / REPLIES).write_bytes((shards["shard-000"] / REPLIES).read_bytes())
    joined = in_directory(context, tmp_path / "j", inputs={**context.inputs, **shards})
    with pytest.raises(StoreError, match="hold no reply to a prompt of this stage"):
        judge.run(joined)
