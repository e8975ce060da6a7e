"""`steep serve-retrieval` as a separate process, over real stages of four documents.

All vectors are in the cache before, so that no process imports torch and loads a model, which takes
many seconds; the model's directory holds no model. `tests/index` tests the embedding itself.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from pipeline import config
from pipeline.core.errors import ConfigError, RetrievalUnavailable
from pipeline.index.embed import open_cache, open_embedder
from pipeline.retrieval.base import Query
from pipeline.retrieval.factory import open_retriever
from pipeline.retrieval.graph import entity_query
from pipeline.stages.sample import open_remote_retriever
from tasks.run import task_for
from tasks.serve import serve_retrieval
from tests.retrieval.small_encoders import BagOfWords
from tests.waiting import LIMIT

ROOT = Path(__file__).resolve().parents[2]
FACTS = [
    ("Alba", "directed", "The Tide"),
    ("Bruno", "directed", "The River"),
    ("Corte", "crossed by", "the Nera"),
    ("Alba", "mother of", "Bruno"),
]
QUERIES = [Query("who directed the tide", ("Alba", "The Tide")), Query("which river")]
FIRST = Query("which models", ("are loaded",))  # the query that the service starts with


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
    for query in (*QUERIES, FIRST):
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


def test_the_command_builds_the_index_serves_it_and_stops_at_a_signal(configuration):
    command = [sys.executable, "-m", "pipeline.cli", "serve-retrieval", "--config"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen(
        [*command, str(configuration), "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment,
    )
    try:
        ready = next(line for line in process.stdout if " at http://" in line)
        url = ready.split(" at ")[1].split(";")[0]
        assert url.startswith("http://127.0.0.1:")
        served = task_for("sample", str(configuration), (f"retrieval.service={url}",))
        local = task_for("sample", str(configuration))
        assert served.key == local.key  # where retrieval runs changes no fingerprint
        assert set(local.requires()) - set(served.requires()) == {"corpus", "graph", "index"}

        client = open_remote_retriever(served.settings, served.key)
        directories = [local.upstream()[name].directory for name in ("corpus", "graph", "index")]
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
    finally:
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 0
    assert "retrieval ended" in rest


def test_no_retrieval_cannot_be_served():
    index = task_for("index", str(ROOT / "configs/embedded.yaml"), ("retrieval.variant=none",))
    with pytest.raises(ConfigError, match="nothing to serve"):
        serve_retrieval(index, "127.0.0.1", 0)
