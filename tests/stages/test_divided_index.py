"""Embedding in one piece and in three shards: the same vectors and indexes."""

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.core.errors import StoreError
from pipeline.core.records import Chunk
from pipeline.engine.context import StageContext
from pipeline.knowledge.corpus.chunk import write_chunks
from pipeline.knowledge.graph.build import Extracted, Graph
from pipeline.knowledge.graph.facts import Facts
from pipeline.knowledge.graph.tables import write_hyperedges, write_triplets
from pipeline.knowledge.index import ivf_pq
from tasks import index
from tests.stages.divided import content, in_directory, run_divided, run_shard, run_whole
from tests.stages.test_index import config

LETTERS = "abcdefghijklmnopqrstuvwxyz"
NAMES = [f"{first}{second}" for first in LETTERS[:12] for second in LETTERS]  # 312


def context_of(root: Path, encoder: Path, names=NAMES[:7], **settings) -> StageContext:
    base = config(encoder, root)
    changed = base.model_copy(update={"index": base.index.model_copy(update=settings)})
    # Two row groups, and a text that is in the first and in the last shard.
    chunks = [Chunk(f"c{n}", name, f"{name} is a film.", "d") for n, name in enumerate(names)]
    write_chunks(root / "corpus", [*chunks, replace(chunks[0], id="last")])
    (root / "graph").mkdir(parents=True)
    graph, facts = Graph(), Facts()
    triples = [Extracted("c0", "", [name, "is", "film"]) for name in names]
    write_triplets(root / "graph", graph.edges(triples), graph.entities, block=4)
    (root / "hypergraph").mkdir()
    rows = [Extracted("c0", "", [f"{name} is a film.", [name, "film"]]) for name in names]
    write_hyperedges(root / "hypergraph", facts.edges(rows), facts.entities)
    inputs = {"corpus": root / "corpus", "graph": root / "graph"}
    return StageContext(changed, "index", root, root, inputs)


@pytest.mark.parametrize(("count", "links"), [(3, True), (9, False)])
def test_the_bytes_do_not_depend_on_the_division(tmp_path, encoder, count, links):
    """Nine shards are more than the rows of any table."""
    if links:
        pytest.importorskip("bm25s")
    whole_context = context_of(tmp_path / "a", encoder, links=links)
    divided_context = context_of(tmp_path / "b", encoder, links=links)
    counts, whole = run_whole(whole_context, tmp_path / "a", index.run)
    joined_counts, joined = run_divided(
        divided_context, tmp_path / "b", count, shard=index.run_shard, merge=index.merge
    )
    assert counts == {"chunks": 8, "entities": 8, "triplets": 7}
    assert joined_counts == counts
    assert content(joined) == content(whole)
    assert (whole / "links" / "keys.npy").is_file() == (whole / "bm25").is_dir() == links


@pytest.mark.parametrize("damaged", [False, True])
def test_an_interrupted_build_of_a_compressed_index_continues(
    tmp_path, encoder, monkeypatch, damaged: bool
) -> None:
    """After 200 of 313 chunks, and with another index.gpu. Only damaged codes are made again."""
    monkeypatch.setattr(ivf_pq, "BLOCK", 100)
    context = context_of(tmp_path, encoder, NAMES, faiss="ivf-pq", gpu=False)
    _, whole = run_whole(context, tmp_path, index.run)
    before, checkpoints = content(whole), tmp_path / "whole" / "checkpoints"
    codes = sorted(checkpoints.glob("chunks-index-0*.npy"))
    assert len(codes) == 4
    for path in (*codes[2:], *checkpoints.glob("entities-index-*.npy")):
        path.unlink()
    if damaged:
        codes[0].write_bytes(codes[0].read_bytes()[:-1])
    files = {path.name: path.stat().st_mtime_ns for path in checkpoints.glob("chunks-index-*.npy")}
    on_gpu = context.config.index.model_copy(update={"gpu": True})
    settings = context.config.model_copy(update={"index": on_gpu})
    run_whole(replace(context, config=settings), tmp_path, index.run)
    assert content(whole) == before
    made_again = {
        name for name, made in files.items() if (checkpoints / name).stat().st_mtime_ns != made
    }
    assert made_again == ({codes[0].name} if damaged else set())


def test_vectors_of_other_tables_are_refused(tmp_path, encoder):
    context = context_of(tmp_path, encoder)
    shards = {
        f"shard-00{n}": run_shard(index.run_shard, context, tmp_path / str(n), n, 2) for n in (0, 1)
    }
    inputs = {**context.inputs, "shard-000": shards["shard-000"]}
    with pytest.raises(StoreError, match=r"hold 4 vectors of chunks, and .* has 8 rows"):
        index.merge(in_directory(context, tmp_path / "j", inputs=inputs))
