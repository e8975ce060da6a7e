"""Rows ``serving``: `steep serve` under 1, 16 and 64 clients.

Turns: chat completions of the plain policy on sampling questions of a finished run, over HTTP. The
peer is the engine alone, in this process, with as many requests in flight as there are clients.
Seeds are given, so both must write the same texts.

Retrieval: ``/retrieve`` in the protocol of Search-R1. The peer is `dense_server`, which works as
Search-R1's own server does: FastAPI, a bi-encoder, and FAISS over the same vectors; each request is
embedded and searched by itself. Ours also reranks. No query occurs twice, so no cache has it.
"""

from __future__ import annotations

import itertools
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import httpx
from pydantic import BaseModel

from benchmarks.sampling import new_numbers, rollout_context
from benchmarks.timing import Row, alternate
from pipeline.api import Run
from pipeline.config import load
from pipeline.core.errors import EngineError
from pipeline.llm.engine import Engine, GenerationRequest
from pipeline.serving.turns import PlainModel, TurnRequest

CLIENTS = (1, 16, 64)
_TURNS = {1: 16, 16: 64, 64: 128}  # requests of a repeat, by clients
_QUERIES = 64  # of a repeat
_TOKENS = 64  # of a turn, at most
_PATIENCE = 300  # seconds until a server answers


def rows(directory: Path, repeats: int) -> list[Row]:
    """The rows for the finished run in ``directory``. Raises StoreError when it is not finished."""
    run = Run.from_directory(directory)
    questions = [question.question for question in run.questions("sampling")]
    options = (
        "--config", str(directory / "config.yaml"), "--set", "threads=1",
        "--set", f"runs_dir={directory.absolute().parent}",
    )  # fmt: skip
    with steep_serve(*options) as url:
        found = turns(url, directory, run, questions, repeats)
    semantic = ("--set", "retrieval.variant=semantic", "--policy", "none")
    dense = [str(directory), str(run.stage("index")), str(run.stage("corpus"))]
    with steep_serve(*options, *semantic) as ours, _server([*_DENSE, *dense]) as peer:
        found += retrieval(ours, peer, questions, repeats)
    return found


def turns(url: str, directory: Path, run: Run, questions: Sequence[str], repeats: int) -> list[Row]:
    """One row for each number of clients. Raises AssertionError when the texts differ."""
    from pipeline.rollout.policy import read_policy
    from pipeline.serving.serve import decoding_of, policy_tokenizer

    config = load(directory / "config.yaml")
    decoding = decoding_of(config, config.evaluation.temperature)
    plain = PlainModel(None, policy_tokenizer(config), decoding)  # type: ignore[arg-type]
    measured = []
    policy = read_policy(run.policies()[-1].directory)
    with rollout_context(run, config) as context:
        engine = context.models.policy_engine(policy.adapter)
        for clients in CLIENTS:
            bodies = [
                {
                    "model": "policy", "max_tokens": _TOKENS, "temperature": 0.8, "seed": seed,
                    "messages": [{"role": "user", "content": question}],
                }
                for seed, question in enumerate(questions[: _TURNS[clients]])
            ]  # fmt: skip
            measured.append(_turns(url, engine, plain, bodies, clients, repeats))
    return measured


def _turns(
    url: str, engine: Engine, plain: PlainModel, bodies: list[Any], clients: int, repeats: int
) -> Row:
    texts: dict[str, list[str]] = {}
    written = 0

    def served() -> None:
        nonlocal written
        replies = _post(url, "/v1/chat/completions", bodies, clients)
        texts["served"] = [one["choices"][0]["message"]["content"] for one in replies]
        written = sum(one["usage"]["completion_tokens"] for one in replies)

    def alone() -> None:
        prepared = [plain.prepare(TurnRequest(**body), {}) for body in bodies]
        results = in_flight(engine, [one.request for one in prepared], clients)
        finished = map(plain.finish, prepared, results)
        texts["alone"] = [turn.message["content"] for turn in finished]

    seconds = alternate({"served": served, "alone": alone}, repeats, perf_counter)
    assert texts["served"] == texts["alone"], "the served policy writes other texts"
    return Row(
        "serving", f"{len(bodies)} turns, {written:,} tokens, {clients} clients",
        "the engine alone", [written / value for value in seconds["served"]],
        [written / value for value in seconds["alone"]], "tokens per wall s", "≥ .85",
        ours_over_peer=True,
    )  # fmt: skip


def in_flight(engine: Engine, requests: Sequence[GenerationRequest], most: int) -> list[Any]:
    """The results of the requests, of which at most ``most`` are in the engine at once."""
    waiting, done = iter(requests), {}
    for request in itertools.islice(waiting, most):
        engine.add(request)
    while engine.unfinished():
        for result in engine.step():
            done[result.id] = result
            for request in itertools.islice(waiting, 1):
                engine.add(request)
    return [done[request.id] for request in requests]


def retrieval(ours: str, peer: str, questions: Sequence[str], repeats: int) -> list[Row]:
    """One row for each number of clients, with one query a request."""
    numbers = new_numbers()
    measured = []

    def asked(url: str, clients: int) -> Callable[[], object]:
        def ask() -> None:
            fresh = [f"{questions[n % len(questions)]} {next(numbers)}" for n in range(_QUERIES)]
            bodies = [{"queries": [text], "topk": 3, "return_scores": True} for text in fresh]
            answers = _post(url, "/retrieve", bodies, clients)
            assert all(len(answer["result"][0]) == 3 for answer in answers)

        return ask

    for clients in CLIENTS:
        contenders = {"ours": asked(ours, clients), "peer": asked(peer, clients)}
        seconds = alternate(contenders, repeats, perf_counter)
        measured.append(
            Row(
                "serving", f"/retrieve, {_QUERIES} queries, {clients} clients; ours reranks",
                "a server like Search-R1's", [_QUERIES / value for value in seconds["ours"]],
                [_QUERIES / value for value in seconds["peer"]], "queries per wall s", "≥ 1",
                ours_over_peer=True,
            )
        )  # fmt: skip
    return measured


def _post(url: str, path: str, bodies: Sequence[Any], clients: int) -> list[Any]:
    """The answers to the bodies, in order, asked by ``clients`` at once."""
    with httpx.Client(base_url=url, timeout=_PATIENCE, trust_env=False) as client:

        def ask(body: Any) -> Any:
            while (reply := client.post(path, json=body)).status_code == 503:  # the engine starts
                sleep(0.5)
            return reply.raise_for_status().json()

        with ThreadPoolExecutor(clients) as pool:
            return list(pool.map(ask, bodies))


@contextmanager
def steep_serve(*options: str) -> Iterator[str]:
    """The address of a `steep serve`, which ends with the block."""
    with _server([sys.executable, "-m", "pipeline.cli", "serve", *options, "--port"]) as url:
        yield url


@contextmanager
def _server(command: Sequence[str]) -> Iterator[str]:
    """The address of a server; ``command`` gets its port. Raises EngineError when it ends early."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([*command, str(port)], stdout=subprocess.DEVNULL)
    try:
        while not _listens(port):
            if process.poll() is not None:
                raise EngineError(f"{' '.join(command)} ended with status {process.returncode}")
            sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class DenseRequest(BaseModel):
    """A request in Search-R1's protocol."""

    queries: list[str]
    topk: int = 3
    return_scores: bool = False


def dense_server(run: str, index: str, corpus: str, port: str) -> None:
    """Serve ``/retrieve`` as Search-R1's server does: embed, search, look up, for each request."""
    import faiss
    import uvicorn
    from fastapi import FastAPI
    from sentence_transformers import SentenceTransformer

    from pipeline.core.columns import Records
    from pipeline.core.records import Chunk
    from pipeline.knowledge.index.embed import KEY
    from pipeline.llm.locate import locate

    settings = load(Path(run) / "config.yaml").index.embedder
    source = str(locate(settings.model, KEY))
    model = SentenceTransformer(source, device="cpu", trust_remote_code=False)
    vectors = faiss.read_index(str(Path(index) / "chunks.faiss"))
    chunks = Records(Path(corpus) / "chunks.arrow", Chunk)
    app, one_at_a_time = FastAPI(), threading.Lock()

    def document(row: Any, score: Any) -> dict[str, Any]:
        one = chunks[int(row)]
        text = {"id": one.id, "contents": f'"{one.title}"\n{one.text}'}
        return {"document": text, "score": float(score)}

    @app.post("/retrieve")
    def retrieve(request: DenseRequest) -> dict[str, Any]:
        with one_at_a_time:
            query_QD = model.encode(request.queries, normalize_embeddings=True)
            scores, found = vectors.search(query_QD, request.topk)
        pairs = (zip(*of_query, strict=True) for of_query in zip(found, scores, strict=True))
        return {"result": [[document(*pair) for pair in of_query] for of_query in pairs]}

    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning")


_DENSE = (sys.executable, "-m", "benchmarks.serving")

if __name__ == "__main__":
    dense_server(*sys.argv[1:])
