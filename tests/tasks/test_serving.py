"""`steep serve` as a separate process, over real stages of four documents.

All vectors are in the cache before, so that no process imports torch and loads a model, which takes
many seconds; the model's directory holds no model. `tests/index` tests the embedding itself.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from pipeline import config
from pipeline.core.content_cache import open_cache
from pipeline.core.errors import ConfigError, RetrievalUnavailable, StoreError
from pipeline.engine.run import run
from pipeline.knowledge.index.embed import open_embedder
from pipeline.knowledge.retrieval.base import Query
from pipeline.knowledge.retrieval.factory import open_retriever
from pipeline.knowledge.retrieval.graph import entity_query
from pipeline.serving.serve import serve, token_for
from tasks import task_for
from tasks.policy import policy
from tasks.sample import open_remote_retriever
from tests.docs.test_howto_pages import blocks
from tests.llm.small_models import small_model
from tests.retrieval.small_encoders import BagOfWords
from tests.serving.test_any_request import try_bodies
from tests.tasks.small_run import commit_policy
from tests.waiting import LIMIT, ending, wait_until

ROOT = Path(__file__).resolve().parents[2]
FACTS = [
    ("Alba", "directed", "The Tide"),
    ("Bruno", "directed", "The River"),
    ("Corte", "crossed by", "the Nera"),
    ("Alba", "mother of", "Bruno"),
]
QUERIES = [Query("who directed the tide", ("Alba", "The Tide")), Query("which river")]
FIRST = Query("which models", ("are loaded",))  # the query that the service starts with
ASKED = ["Who directed The Tide?", "Who is the mother of Bruno?", "Which river crosses Corte?"]
SYSTEM = {"role": "system", "content": "x"}
SEVERAL = [f"Who crossed the Nera before crossing {number}?" for number in range(20)]


@pytest.fixture
def configuration(tmp_path: Path) -> Path:
    encoder = tmp_path / "encoder"
    encoder.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (encoder / name).write_text("{}")
    rows = [{"title": head, "text": f"{head} {relation} {tail}."} for head, relation, tail in FACTS]
    (tmp_path / "documents.jsonl").write_text("\n".join(map(json.dumps, rows)))
    docs = [{**row, "extracted_triples": [fact]} for row, fact in zip(rows, FACTS, strict=True)]
    (tmp_path / "triples.json").write_text(json.dumps({"docs": docs}))
    (tmp_path / "questions.jsonl").write_text('{"question": "who?", "answer": ["Alba"]}\n')
    path = tmp_path / "own.yaml"
    path.write_text(
        f"base: {ROOT}/configs/embedded.yaml\n"
        f"runs_dir: {tmp_path}/runs\n"
        f"cache_dir: {tmp_path}/cache\n"
        f"data: {{root: {tmp_path}, closed_world: null, sft: [], validation: [], test: [],\n"
        "       sampling: [{dataset: nq, path: questions.jsonl}]}\n"
        "corpus: {files: [{path: documents.jsonl, format: jsonl}]}\n"
        "graph: {source: openie, path: triples.json}\n"
        f"index: {{embedder: {{model: {encoder}, max_length: 64, dtype: float32}}}}\n"
    )
    _embed_all(path)
    return path


def _embed_all(path: Path) -> None:
    """Put the vectors of all texts that this module embeds into the configuration's cache."""
    texts = [f"{head} {head} {relation} {tail}." for head, relation, tail in FACTS]
    texts += [" ".join(fact) for fact in FACTS]
    texts += [end for head, _, tail in FACTS for end in (head, tail)]
    for query in (*QUERIES, FIRST, *(Query(text, (text,)) for text in ASKED + SEVERAL)):
        texts.append(query.subquery)
        texts += [entity_query(entity, query.subquery) for entity in query.entities]
    settings = config.load(path)
    with_cache = open_cache(settings.cache_dir)
    embedder = open_embedder(settings.index.embedder, with_cache)
    vectors = BagOfWords().encode(texts, "passage")
    with_cache.put(
        (embedder.cache_key(text), vector.tobytes())
        for text, vector in zip(texts, vectors, strict=True)
    )
    with_cache.close()


@contextmanager
def started(*arguments: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address and the process of `steep serve`, which ends with the block."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    with ending(
        subprocess.Popen(
            [sys.executable, "-m", "pipeline.cli", "serve", *arguments, "--port", "0"],
            stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment,
        )
    ) as process:  # fmt: skip
        assert process.stdout is not None
        ready = next(line for line in process.stdout if " at http://" in line)
        yield ready.split(" at ")[1].split(";")[0], process


@contextmanager
def serving(*arguments: str) -> Iterator[str]:
    """The address of `steep serve`, which ends with the block, by a signal."""
    with started(*arguments) as (url, process):
        try:
            yield url
        finally:
            process.send_signal(signal.SIGTERM)
            rest, _ = process.communicate(timeout=LIMIT)
        assert process.returncode == 0
        assert "retrieval ended" in rest


@pytest.mark.slow
def test_the_command_builds_the_index_serves_it_and_stops_at_a_signal(configuration):
    with serving("--config", str(configuration), "--policy", "none") as url:
        assert url.startswith("http://127.0.0.1:")
        served = task_for("sample", str(configuration), (f"retrieval.service={url}",))
        local = task_for("sample", str(configuration))
        assert served.key == local.key  # where retrieval runs changes no fingerprint
        assert set(local.requires()) - set(served.requires()) == {"corpus", "graph", "index"}

        client = open_remote_retriever(served.settings, served.key)
        directories = [local.inputs[name].directory for name in ("corpus", "graph", "index")]
        retriever = open_retriever(
            local.settings.retrieval, local.settings.index, *directories,
            cache_dir=local.settings.cache_dir,
        )  # fmt: skip
        assert client.retrieve(QUERIES) == retriever.retrieve(QUERIES)
        assert {item.kind for items in client.retrieve(QUERIES) for item in items} == {
            "chunk",
            "triplet",
        }
        client.close()
        rows = httpx.get(f"{url}/health", trust_env=False).json()["rows"]
        assert rows == {"chunks": 4, "entities": 6, "triplets": 4}

        changed = (f"retrieval.service={url}", "retrieval.top_k=4")
        other = task_for("sample", str(configuration), changed)
        with pytest.raises(RetrievalUnavailable, match=r"settings.top_k 5, here 4"):
            open_remote_retriever(other.settings, other.key)
        assert httpx.post(f"{url}/v1/chat/completions", json={}, trust_env=False).status_code == 404
        # The protocol of the clients of Search-R1's retriever.
        asked = {"queries": ASKED[:2], "topk": 2, "return_scores": True}
        found = httpx.post(f"{url}/retrieve", json=asked, trust_env=False).json()["result"]
        documents = [[result["document"] for result in results] for results in found]
        assert {len(results) for results in documents} <= {1, 2}
        [alba, *_] = [document for document in documents[0] if document["title"]]
        assert alba["contents"] == '"Alba"\nAlba directed The Tide.'
        one = {"query": ASKED[0], "topk": 2}
        found = httpx.post(f"{url}/retrieve", json=one, trust_env=False).json()["result"]
        assert found == documents[:1]


@pytest.mark.slow
def test_a_policy_answers_openai_and_mcp_clients(configuration, monkeypatch, tmp_path):
    """A random model answers; the question is retrieved once, so that there are sources."""
    import openai

    monkeypatch.chdir(tmp_path)
    model = small_model(tmp_path / "base")
    overrides = (
        f"model.base={model}", "engine={kind: transformers, dtype: float32, max_model_len: 1024}",
        "sampling={max_segment_tokens: 6, batch: 2}", "evaluation.retrieval={rounds: prompt}", "rounds=1",
    )  # fmt: skip
    options = [word for setting in overrides for word in ("--set", setting)]
    task = task_for("index", str(configuration), overrides)
    with pytest.raises(StoreError, match=r"no policy of .* is trained"):
        serve(task, None, "127.0.0.1", 0)
    commit_policy(policy(task, 0), model, seed=1)
    with pytest.raises(
        StoreError, match=r"corpus of .* is not complete|index of .* is not complete"
    ):
        serve(task, None, "127.0.0.1", 0)
    run(task)
    with serving("--config", str(configuration), *options) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=20)
        assert [one.id for one in client.models.list()] == ["sft", "policy"]

        def asked(text: str) -> Any:
            messages = [SYSTEM, *question_to("sft", text)["messages"]]
            return client.chat.completions.create(model="sft", messages=messages)

        def turn(text: str) -> Any:
            return client.chat.completions.create(**question_to("policy", text, max_tokens=5))

        with ThreadPoolExecutor(12) as threads:
            turns = threads.map(turn, ASKED)  # in the batches of the roll-outs
            answers = list(threads.map(asked, [*ASKED, *ASKED, *ASKED]))
        assert {one.choices[0].message.role for one in turns} == {"assistant"}
        assert all(0 < one.usage.completion_tokens <= 5 for one in map(turn, ASKED))
        contents = [answer.choices[0].message.content for answer in answers]
        assert contents[:3] == contents[3:6] == contents[6:]
        metadata = answers[0].choices[0].message.metadata  # type: ignore[attr-defined]
        assert metadata["sources"][0]["title"] == "Alba"
        assert metadata["steps"]
        assert answers[0].usage.completion_tokens > 0
        streamed = question_to("sft", ASKED[0], stream=True)
        pieces = list(client.chat.completions.create(**streamed))
        assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == contents[0]
        assert len({piece.id for piece in pieces}) == 1
        assert pieces[-1].choices[0].finish_reason in ("stop", "length")
        unknown = question_to("other", "x")
        with pytest.raises(openai.NotFoundError, match="there is no model 'other'; use sft or pol"):
            client.chat.completions.create(**unknown)
        unasked = {"model": "sft", "messages": [SYSTEM]}
        with pytest.raises(openai.BadRequestError, match="there is none of the user"):
            client.chat.completions.create(**unasked)
        [program] = blocks("../retrieval_service.md", "python")
        exec(program.replace("http://127.0.0.1:8765", url), {})
        tools, found, answered = asyncio.run(by_mcp(f"{url}/mcp"))
        assert tools == ["answer", "search"]
        assert found["result"][0]["title"] == "Alba"
        assert answered["sources"][0]["text"] == "Alba directed The Tide."


def client_of(url: str) -> httpx.Client:
    return httpx.Client(base_url=url, trust_env=False, timeout=LIMIT)


def question_to(model: str, text: str, **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}], **fields}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_request_connection_or_signal_changes_the_answers_of_others(
    configuration: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Generated requests and connections against vLLM; then a signal while 20 roll-outs run."""
    pytest.importorskip("vllm", reason="vLLM is not installed")
    monkeypatch.chdir(tmp_path)
    model = small_model(tmp_path / "base")
    overrides = (
        f"model.base={model}", "evaluation.retrieval={rounds: prompt}", "rounds=1",
        "sampling={max_segment_tokens: 400, batch: 2, in_flight: 4}", "engine={kind: vllm, "
        "dtype: float32, max_model_len: 512, cpu_kv_cache_gib: 1, enforce_eager: true}",
    )  # fmt: skip
    task = task_for("index", str(configuration), overrides)
    commit_policy(policy(task, 0), model, seed=1)
    run(task)
    options = [word for setting in overrides for word in ("--set", setting)]
    with (
        started("--config", str(configuration), *options) as (url, process),
        client_of(url) as client,
        ThreadPoolExecutor(20) as threads,
    ):

        def turn(text: str) -> httpx.Response:
            asked = question_to("policy", text, max_tokens=5, seed=1)
            return client.post("/v1/chat/completions", json=asked)

        wait_until(lambda: turn("x").status_code == 200)
        before = turn("Who?").json()["choices"]

        try_bodies(client, 80)
        unknown = question_to("sft", "Nobody put the vector of this into the cache.")
        answer = client.post("/v1/chat/completions", json=unknown).json()
        assert answer["choices"][0]["message"]["metadata"]["stop"] == "retrieval_error"

        address = (httpx.URL(url).host, httpx.URL(url).port)
        idle = [socket.create_connection(address) for _ in range(600)]
        sources = client.post("/v1/chat/completions", json=question_to("sft", ASKED[0])).json()
        assert sources["choices"][0]["message"]["metadata"]["sources"][0]["title"] == "Alba"
        for connection in idle:
            connection.close()
        assert turn("Who?").json()["choices"] == before

        def asked(text: str) -> int:
            return httpx.post(
                f"{url}/v1/chat/completions", json=question_to("sft", text), trust_env=False,
                timeout=LIMIT,
            ).status_code  # fmt: skip

        answers = [threads.submit(asked, text) for text in SEVERAL]
        wait_until(lambda: client.get("/health").json()["running"] == 21)  # one is this request
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: client.get("/health").status_code == 503)
        late = turn("Who?")
        assert (late.status_code, late.headers["retry-after"]) == (503, "5")
        assert late.json()["error"]["type"] == "server_error"
        assert [answer.result() for answer in answers] == [200] * 20
        assert process.wait(LIMIT) == 0


async def by_mcp(url: str) -> tuple[list[str], Any, Any]:
    """The names of the tools, and their results for the first question."""
    from mcp.client import Client

    async with Client(url) as client:
        tools = sorted(tool.name for tool in (await client.list_tools()).tools)
        found = await client.call_tool("search", {"query": ASKED[0]})
        answered = await client.call_tool("answer", {"question": ASKED[0]})
        return tools, found.structured_content, answered.structured_content


@pytest.mark.slow
def test_another_address_than_the_loopback_needs_a_token(configuration, monkeypatch):
    monkeypatch.setenv("STEEP_TOKEN", "secret")
    with serving("--config", str(configuration), "--policy", "none", "--host", "0.0.0.0") as url:
        url = url.replace("0.0.0.0", "127.0.0.1")
        assert httpx.get(f"{url}/health", trust_env=False).status_code == 401
        right = {"authorization": "Bearer secret"}
        assert httpx.get(f"{url}/health", headers=right, trust_env=False).status_code == 200
        served = task_for("sample", str(configuration), (f"retrieval.service={url}",))
        client = open_remote_retriever(served.settings, served.key)  # reads the variable
        assert client.retrieve(QUERIES)
        client.close()


@pytest.mark.parametrize("token", ["", " ", "\t\n", "two words", " padded", "schlüssel", "a\x00b"])
def test_a_token_that_is_empty_or_cannot_be_sent_is_refused(token, monkeypatch):
    """An empty token would let everyone in."""
    monkeypatch.setattr("os.environ", {"STEEP_TOKEN": token})
    with pytest.raises(ConfigError, match=r"STEEP_TOKEN is empty, or not ASCII .* unset it to get"):
        token_for("0.0.0.0")
    assert token_for("127.0.0.1") is None


def test_no_retrieval_cannot_be_served():
    index = task_for("index", str(ROOT / "configs/embedded.yaml"), ("retrieval.variant=none",))
    with pytest.raises(ConfigError, match="nothing to serve"):
        serve(index, None, "127.0.0.1", 0)
