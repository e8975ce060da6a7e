import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from pipeline.config import Config
from pipeline.core.content_cache import open_cache
from pipeline.core.errors import ConfigError, StoreError
from pipeline.core.records import Chunk, ContextItem, Triplet
from pipeline.engine.context import StageContext
from pipeline.knowledge.corpus.chunk import write_chunks
from pipeline.knowledge.graph.build import Extracted, Graph
from pipeline.knowledge.graph.facts import Facts
from pipeline.knowledge.graph.tables import write_hyperedges, write_triplets
from pipeline.knowledge.index.embed import open_embedder
from pipeline.knowledge.retrieval.base import Query
from pipeline.knowledge.retrieval.factory import open_retriever
from pipeline.knowledge.retrieval.retriever import VariantRetriever
from tasks.index import run
from tests.retrieval.small_encoders import write_bi_encoder
from tests.smallest import small_config
from tests.stages.question_stages import stage_context

CHUNKS = [
    Chunk("c0", "Alba", "Alba directed The Tide.", "d0"),
    Chunk("c1", "Corte", "Corte is crossed by the Nera.", "d1"),
]
TRIPLETS = [
    Triplet("c0:0", "Alba", "directed", "The Tide", "c0"),
    Triplet("c1:0", "Corte", "crossed by", "the Nera", "c1"),
]


def opened(stage: StageContext, settings: Config | None = None) -> VariantRetriever:
    """The retriever over the index of a stage, with its own settings or others."""
    chosen = settings or stage.config
    folders = (stage.inputs.get("corpus", stage.output), stage.inputs["graph"], stage.output)
    return open_retriever(chosen.retrieval, chosen.index, *folders, cache_dir=chosen.cache_dir)


def retrieved(stage: StageContext, *queries: Query) -> list[list[ContextItem]]:
    """The items of each query, from the index that the stage builds."""
    run(stage)
    return opened(stage).retrieve(queries)


@pytest.fixture
def upstream(tmp_path):
    corpus, graph = tmp_path / "corpus", tmp_path / "graph"
    write_chunks(corpus, CHUNKS)
    graph.mkdir()
    built = Graph()
    triples = [Extracted(t.chunk_id, "", [t.head, t.relation, t.tail]) for t in TRIPLETS]
    write_triplets(graph, built.edges(triples), built.entities)
    return {"corpus": corpus, "graph": graph}


def config(encoder, tmp_path, **retrieval):
    return small_config(
        cache_dir=str(tmp_path / "cache"),
        graph={"source": "openie"},
        index={
            "embedder": {"model": str(encoder), "device": "cpu", "max_length": 64},
            "links": retrieval.get("variant") in ("fused", "linked"),
        },
        retrieval={"reranker": {"kind": "biencoder", "scale": 10.0}} | retrieval,
    )


def context(encoder, tmp_path, upstream, **retrieval):
    settings = config(encoder, tmp_path, **retrieval)
    return stage_context(tmp_path, "index", settings, upstream)


def test_vectors_have_the_row_order_of_their_tables(encoder, tmp_path, upstream):
    stage = context(encoder, tmp_path, upstream)
    assert run(stage) == {"chunks": 2, "entities": 4, "triplets": 2}
    assert np.load(stage.output / "triplets.npy").shape == (2, 32)
    about = json.loads((stage.output / "index.json").read_text())
    assert about["faiss"] == {"chunks": {"kind": "flat"}, "entities": {"kind": "flat"}}
    assert stage.notes["faiss"] == about["faiss"]
    # A query with the words of a chunk has cosine 1, hence sigmoid(10).
    [items] = opened(stage).retrieve([Query("Corte Corte is crossed by the Nera.", ("Corte",))])
    assert {item.id for item in items} == {"c0", "c1", "c0:0", "c1:0"}


@pytest.mark.parametrize("flip", [True, False], ids=["flipped bit", "cut off"])
def test_a_damaged_block_of_vectors_is_embedded_again(encoder, tmp_path, upstream, caplog, flip):
    stage = context(encoder, tmp_path, upstream)
    run(stage)
    expected = (stage.output / "chunks.npy").read_bytes()
    [block] = stage.checkpoint_dir.glob("chunks-*.npy")
    content = block.read_bytes()
    block.write_bytes(content[:-1] + bytes([content[-1] ^ 1]) if flip else content[:-1])
    run(stage)
    assert (stage.output / "chunks.npy").read_bytes() == expected
    assert f"{block} is damaged" in caplog.text


def test_all_hyperedges_are_ranked_only_where_the_settings_say_so(encoder, tmp_path):
    """Five facts have the words of the query, so that they are its nearest; c1 follows from c0."""
    query = "where is Alba Rossi now"
    facts = [
        ["Alba Rossi runs Corte Film", ["Alba Rossi", "Corte Film"]],
        ["Corte Film rents rooms in Nera", ["Corte Film", "Nera"]],
        *([query, [f"River {n}", f"Sea {n}"]] for n in range(5)),
    ]
    folder = tmp_path / "hypergraph"
    folder.mkdir()
    table = Facts()
    extracted = [Extracted(f"c{n}", "T", fact) for n, fact in enumerate(facts)]
    write_hyperedges(folder, table.edges(extracted), table.entities)
    found = {}
    for candidates in ("near", "all"):
        settings = {"variant": "prograph", "top_k": 9, "hyperedge_candidates": candidates}
        stage = context(encoder, tmp_path, {"graph": folder}, **settings)
        [items] = retrieved(stage, Query(query))
        found[candidates] = {item.id for item in items}
    assert "c1:f0" not in found["near"]
    assert found["all"] == {*found["near"], "c1:f0"}


def write_cities(folder: Path) -> list[Chunk]:
    """Replace the chunks by six that differ in one name."""
    names = ["Alba", "Bruno", "Corte", "Nera", "film", "river"]
    rows = [Chunk(f"c{n}", name, f"{name} is the city.", "d") for n, name in enumerate(names)]
    write_chunks(folder, rows)
    return rows


def test_semantic_retrieval_uses_the_configured_sizes(encoder, tmp_path, upstream):
    """A reranker with a negative scale reverses the order of the embedding search."""
    rows = write_cities(upstream["corpus"])
    reranker = {"kind": "biencoder", "scale": -10.0}
    sizes = {"num_candidate_chunks": 3, "chunks": 2, "top_k": 2, "variant": "semantic"}
    stage = context(encoder, tmp_path, upstream, reranker=reranker, **sizes)
    encode = open_embedder(stage.config.index.embedder, open_cache(stage.config.cache_dir)).encode
    texts = [f"{chunk.title} {chunk.text}" for chunk in rows]
    cosines = encode(texts, "passage") @ encode(["who crossed the river"], "query")[0]
    recalled = np.argsort(-cosines)[:3]
    [items] = retrieved(stage, Query("who crossed the river"))
    assert [item.id for item in items] == [f"c{n}" for n in recalled[:0:-1]]
    expected = [1 / (1 + np.exp(10 * cosines[n])) for n in recalled[:0:-1]]
    assert [item.score for item in items] == pytest.approx(expected, rel=1e-3)


def test_linked_retrieval_follows_the_names_of_passages_and_triplets(encoder, tmp_path, upstream):
    """Ada Borg is named in the text of c0, the Nera in the triplets of c1 and c3 only."""
    pytest.importorskip("bm25s")
    rows = [
        Chunk("c0", "The Tide", "The Tide was directed by Ada Borg.", "d0"),
        Chunk("c1", "Corte", "a town at a bridge", "d1"),
        Chunk("c2", "Ada Borg", "wrote four novels", "d2"),
        Chunk("c3", "Lumi", "a boat", "d3"),
        *(Chunk(f"c{n}", f"Word{n}", "other", "d4") for n in range(4, 30)),
    ]
    write_chunks(upstream["corpus"], rows)
    graph, triples = Graph(), [["Corte", "at", "the Nera"], ["Lumi", "on", "the Nera"]]
    extracted = [Extracted(f"c{n}", "", t) for n, t in zip((1, 3), triples, strict=True)]
    write_triplets(upstream["graph"], graph.edges(extracted), graph.entities)
    found = {}
    for variant in ("fused", "linked"):
        stage = context(encoder, tmp_path, upstream, variant=variant, top_k=2)
        both = retrieved(stage, Query("Who directed The Tide?"), Query("Where is Corte?"))
        found[variant] = [{item.id for item in items} for items in both]
    assert found["linked"] == [{"c0", "c2"}, {"c1", "c3"}]
    assert found["fused"] != found["linked"]


def test_chunks_are_chosen_and_weighted_by_the_fused_score_if_set(encoder, tmp_path, upstream):
    pytest.importorskip("bm25s")
    write_cities(upstream["corpus"])
    stage = context(encoder, tmp_path, upstream, variant="fused", top_k=3)
    run(stage)

    def found(**settings):
        retrieval = stage.config.retrieval.model_copy(update=settings)
        changed = stage.config.model_copy(update={"retrieval": retrieval})
        [items] = opened(stage, changed).retrieve([Query("who crossed the river")])
        return {item.id: item.score for item in items if item.kind == "chunk"}

    fused = found()
    settings = {"chunk_scores": "fused", "chunks": 3}
    expected = {name: pytest.approx(1 / (1 + np.exp(-10 * a))) for name, a in fused.items()}
    assert found(variant="semantic", **settings) == expected
    assert set(found(variant="ppr", show="chunks", **settings)) == set(fused)
    with pytest.raises(ValueError, match=r"retrieval\.chunk_scores fused reads the links of the"):
        small_config(retrieval={"variant": "ppr", "chunk_scores": "fused"})


def test_linked_retrieval_without_links_names_the_setting(encoder, tmp_path, upstream):
    stage = context(encoder, tmp_path, upstream, variant="semantic")
    run(stage)
    retrieval = stage.config.retrieval.model_copy(update={"variant": "linked"})
    settings = stage.config.model_copy(update={"retrieval": retrieval})
    pytest.importorskip("bm25s")
    with pytest.raises(StoreError, match=r"set index\.links to true and run the index stage again"):
        opened(stage, settings)
    refused = r"index\.links is false, and retrieval\.variant fused reads"
    with pytest.raises(ValueError, match=refused):
        small_config(retrieval={"variant": "fused"})


@pytest.mark.parametrize("variant", ["ppr", "graph", "concat"])
def test_an_empty_graph_leaves_passages_alone(encoder, tmp_path, upstream, variant, capsys):
    empty = Graph()
    write_triplets(upstream["graph"], empty.edges([]), empty.entities)
    stage = context(encoder, tmp_path, upstream, variant=variant)
    assert run(stage) == {"chunks": 2, "entities": 0, "triplets": 0}
    [items] = opened(stage).retrieve([Query("who crossed the river", ("Nera",))])
    assert {item.id for item in items} == {"c0", "c1"}
    assert "the graph is empty; retrieval finds passages alone" in capsys.readouterr().out


def test_vectors_of_tables_with_too_many_texts_are_not_kept(
    encoder, tmp_path, upstream, monkeypatch, capsys
):
    """Four entities are more than three: the next run embeds them again, and one new chunk."""
    monkeypatch.setattr("tasks.index.CACHED_TEXTS", 3)

    def embedded():
        stage = context(encoder, tmp_path, upstream)
        shutil.rmtree(stage.checkpoint_dir, ignore_errors=True)
        run(stage)
        return int(re.findall(r"newly embedded: (\d+)", capsys.readouterr().out)[-1])

    assert embedded() == 8
    before = np.load(tmp_path / "output" / "chunks.npy")
    write_chunks(upstream["corpus"], [Chunk("c2", "Nera", "A river.", "d2"), *CHUNKS])
    assert embedded() == 5
    after = np.load(tmp_path / "output" / "chunks.npy")
    np.testing.assert_array_equal(after[1:], before)


def test_the_index_of_a_changed_corpus_equals_a_new_one_to_the_byte(
    encoder, tmp_path, upstream, capsys
):
    """One document of thirty is deleted, and two are added: two texts are embedded."""
    pytest.importorskip("bm25s")
    rows = [
        Chunk(f"c{n}", f"Ada Borg {n}", f"Ada Borg saw film {n} in Corte.", "d") for n in range(32)
    ]

    def build(folder, chunks):
        write_chunks(upstream["corpus"], chunks)
        stage = context(encoder, folder, upstream, variant="linked")
        shutil.rmtree(stage.output)
        shutil.rmtree(stage.checkpoint_dir, ignore_errors=True)
        stage.output.mkdir()
        run(stage)
        count = re.findall(r"newly embedded: (\d+)", capsys.readouterr().out)[-1]
        files = [file for file in sorted(stage.output.rglob("*")) if file.is_file()]
        return int(count), {file.name: file.read_bytes() for file in files}

    (tmp_path / "new").mkdir()
    changed = [*rows[:7], *rows[8:]]
    empty = Graph()
    write_triplets(upstream["graph"], empty.edges([]), empty.entities)
    assert build(tmp_path, rows[:30])[0] == 30
    count, grown = build(tmp_path, changed)
    all_new, rebuilt = build(tmp_path / "new", changed)
    assert (count, all_new) == (2, 31)
    assert {"chunks.npy", "chunks.faiss", "index.json"} < grown.keys()
    assert grown == rebuilt


def test_index_of_another_embedder_or_table_raises_store_error(encoder, tmp_path, upstream):
    stage = context(encoder, tmp_path, upstream)
    run(stage)
    other = write_bi_encoder(tmp_path / "other", seed=1)
    with pytest.raises(StoreError, match=r"built by embedder .* run the index stage again"):
        opened(stage, config(other, tmp_path))
    write_chunks(upstream["corpus"], CHUNKS[:1])
    with pytest.raises(StoreError, match="chunks has 2 rows, its table has 1"):
        opened(stage)


def test_an_index_that_cannot_be_built_is_refused_before_texts_are_embedded(
    encoder, tmp_path, upstream
):
    base = config(encoder, tmp_path)
    refused = base.model_copy(update={"index": base.index.model_copy(update={"faiss": "ivf-pq"})})
    stage = stage_context(tmp_path, "index", refused, upstream)
    with pytest.raises(ConfigError, match="at least 256 vectors to train on; there are 2"):
        run(stage)
    assert [*stage.output.iterdir(), *stage.checkpoint_dir.iterdir()] == []
