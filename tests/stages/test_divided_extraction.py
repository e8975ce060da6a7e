"""Extraction by a model in one piece and in three shards: the same bytes, and nothing asked twice."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.errors import EngineError, InputError
from pipeline.core.records import Chunk
from pipeline.engine.context import StageContext
from pipeline.engine.files import extraction
from pipeline.knowledge.corpus.chunk import write_chunks
from tasks import graph, hypergraph
from tests.llm.fake_endpoint import FakeEndpoint, Response, completion, refusal
from tests.smallest import small_config
from tests.stages.divided import content, run_divided, run_shard, run_whole

# The first and the last chunk have the same text, and are in different shards.
CHUNKS = [Chunk(f"c{n}", f"T{n % 7}", f"Person {n % 7} sings.", "d") for n in range(8)]


def answer(text: str, earlier: int) -> Any:
    number = int(text.split("Person ")[1].split()[0])
    if number == 3:
        return "There is no list here."
    if number == 4:
        return Response(body=completion('[["Person 4", "sings', finish="length"))
    facts = [[f"Person {number} sings.", [f"Person {number}", "song"]]]
    triples = [[f"Person {number}", "sings", "song"], ["Person 1", "knows", f"Person {number}"]]
    return json.dumps(facts if "asks for facts" in text else triples)


@pytest.fixture
def server() -> Iterator[FakeEndpoint]:
    with FakeEndpoint(answer) as server:
        yield server


def context_of(root: Path, server: FakeEndpoint, stage: str, **settings: Any) -> StageContext:
    prices = {"prompt": 0.3, "completion": 0.7}
    endpoint = {"base_url": server.url, "model": "m", "retries": 0, "concurrency": 1}
    block = {
        "source": "llm",
        "endpoint": {**endpoint, "prices": prices, "token_ceiling": 10**9},
        **settings,
    }
    blocks = {"graph": {"source": "none"}, "retrieval": {"variant": "none"}, stage: block}
    config = small_config(cache_dir=str(root / "cache"), **blocks)
    if not (root / "corpus").exists():
        write_chunks(root / "corpus", CHUNKS)
    inputs = {"corpus": root / "corpus"}
    return StageContext(config, stage, root, root, inputs)


@pytest.mark.parametrize(
    ("module", "cached_chunks"), [(graph, 1_000_000), (hypergraph, 1_000_000), (hypergraph, 0)]
)
def test_the_bytes_do_not_depend_on_the_division(
    tmp_path: Path,
    server: FakeEndpoint,
    module: Any,
    cached_chunks: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(extraction, "CACHED_CHUNKS", cached_chunks)
    stage = module.__name__.rpartition(".")[2]
    if module is hypergraph:
        server.script = lambda text, earlier: answer(f"asks for facts {text}", earlier)
    whole_context = context_of(tmp_path / "a", server, stage)
    divided_context = context_of(tmp_path / "b", server, stage)
    counts, whole = run_whole(whole_context, tmp_path / "a", module.run)
    asked = server.request_counts.total()
    assert counts["entities"] > 5
    assert counts["rejects"] == 2
    assert json.loads((whole / "chat.json").read_text())["answers"] == 7
    joined_counts, joined = run_divided(
        divided_context, tmp_path / "b", 3, shard=module.run_shard, merge=module.run
    )
    assert joined_counts == counts
    assert content(joined) == content(whole)
    # Without the cache of answers, the two shards with the same text ask about it once each.
    assert server.request_counts.total() - asked == asked + (cached_chunks == 0)
    assert (tmp_path / "a/cache/chat.sqlite").exists() == (cached_chunks > 0)


def test_only_candidates_are_asked_about_and_wider_ones_ask_about_the_new_chunks_alone(
    tmp_path: Path, server: FakeEndpoint
) -> None:
    context = context_of(tmp_path, server, "graph")
    for count, asked in ((3, 3), (5, 5), (2, 5)):
        write_chunks(tmp_path / str(count), CHUNKS[:count])
        context.inputs["candidates"] = tmp_path / str(count)
        _, output = run_whole(context, tmp_path / f"{count} whole", graph.run)
        assert server.request_counts.total() == asked
        assert json.loads((output / "statistics.json").read_text())["chunks"] == count


def test_a_killed_shard_of_a_large_corpus_asks_only_about_the_remaining_chunks(
    tmp_path: Path, server: FakeEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extraction, "CACHED_CHUNKS", 0)
    context = context_of(tmp_path, server, "graph")

    def ends(text: str, earlier: int) -> Any:
        return refusal(401, "no key") if "Person 2" in text else answer(text, earlier)

    server.script = ends
    with pytest.raises(EngineError, match="no key"):
        run_shard(graph.run_shard, context, tmp_path / "shard", 0, 2)
    assert not list((tmp_path / "shard/output").iterdir())
    server.script = answer
    server.request_counts.clear()
    shard = run_shard(graph.run_shard, context, tmp_path / "shard", 0, 2)
    # One request is in flight at a time, so the first two replies had been stored.
    assert sorted(text[-15:-7] for text in server.request_counts) == ["Person 2", "Person 3"]
    again = run_shard(graph.run_shard, context, tmp_path / "shard", 0, 2)
    assert server.request_counts.total() == 2  # all answers are in the checkpoint
    assert content(again) == content(shard)
    with closing(sqlite3.connect(tmp_path / "shard/checkpoints/replies.sqlite")) as unfinished:
        assert unfinished.execute("SELECT count(*) FROM items").fetchone() == (0,)


@pytest.mark.parametrize("module", [graph, hypergraph])
def test_a_model_whose_answers_cannot_be_read_is_not_asked_about_all_chunks(
    tmp_path: Path, server: FakeEndpoint, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extraction, "TRIAL", 3)
    server.script = lambda text, earlier: (
        "There is no list here." if "Person 0" in text or "Person 1" in text else "[]"
    )
    stage = module.__name__.rpartition(".")[2]
    context = context_of(tmp_path, server, stage)
    problem = rf"{stage}: 1 of the first 3 answers .* fewer than 50%"
    for _ in range(2):  # again from the checkpoint, without asking
        with pytest.raises(InputError, match=f"{problem}.*2: answer has no list of lists"):
            run_shard(module.run_shard, context, tmp_path / "shard", 0, 1)
        assert server.request_counts.total() == 3
    monkeypatch.setattr(extraction, "MIN_READABLE", 0.3)
    run_shard(module.run_shard, context, tmp_path / "shard", 0, 1)
    assert server.request_counts.total() == 7  # the first and the last chunk have the same text
