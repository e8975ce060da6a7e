"""The chunks that questions reach, and the graph and the index over them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from pipeline import config
from pipeline.config import Config
from pipeline.core.content_cache import open_cache
from pipeline.core.errors import InputError
from pipeline.core.record_io import read_records, write_parquet
from pipeline.core.records import Chunk, ContextItem, Question, Step, Trajectory, Triplet
from pipeline.knowledge.corpus.chunk import write_chunks
from pipeline.knowledge.index.embed import open_embedder
from pipeline.knowledge.retrieval.base import Query
from pipeline.knowledge.retrieval.factory import open_retriever
from tasks import candidates, corpus, graph, index, sft_data
from tests.smallest import small_config, small_trajectory
from tests.stages.question_stages import run_questions, run_stages

CONFIGS = Path(__file__).parents[2] / "configs"
TEXTS = ("Alba directed Tide.", "Nera is a river.", "Corte is a city.", "Ime sings.", "Vell won.")
CHUNKS = [Chunk(f"c{n}", f"T{n}", text, f"d{n}") for n, text in enumerate(TEXTS)]


def reached(settings: Config, root: Path, questions: list[Question]) -> set[str]:
    """The candidates for questions of the rounds."""
    write_chunks(root / "corpus", CHUNKS)
    write_parquet(root / "questions" / "questions.parquet", questions, Question)
    inputs = {"corpus": root / "corpus"}
    run_stages(settings, root, inputs, {"passages": index})
    inputs["questions-sampling"] = root / "questions"
    run_stages(settings, root, inputs, {"candidates": candidates})
    return {chunk.id for chunk in read_records(root / "candidates" / "chunks.parquet", Chunk)}


def test_a_question_reaches_the_nearest_chunk_and_the_best_by_its_words(
    tmp_path: Path, encoder: Path
) -> None:
    settings = small_config(
        cache_dir=str(tmp_path / "cache"),
        graph={"scope": "candidates", "candidates": 1},
        index={"embedder": {"model": str(encoder), "device": "cpu"}},
    )
    embedder = open_embedder(settings.index.embedder, open_cache(settings.cache_dir))
    passages_ND = embedder.encode([f"{c.title} {c.text}" for c in CHUNKS], "passage")
    for number, text in enumerate(("Who won Vell?", "Which city is Corte?", "of no word here")):
        nearest = int(np.argmax(passages_ND @ embedder.encode([text], "query")[0]))
        by_words = [{"c4"}, {"c2"}, set()][number]
        question = Question("q", "toy", text, ["x"], "single")
        assert reached(settings, tmp_path / str(number), [question]) == {f"c{nearest}", *by_words}
    with pytest.raises(InputError, match="the run has no questions"):
        reached(settings, tmp_path / "none", [])


def test_searches_of_policy_0_add_their_candidates(tmp_path: Path, encoder: Path) -> None:
    """The question names only the film; the second search names the city of its director."""
    settings = small_config(
        cache_dir=str(tmp_path / "cache"),
        graph={"scope": "candidates", "candidates": 1},
        index={"embedder": {"model": str(encoder), "device": "cpu"}},
    )
    question = Question("q", "toy", "Who directed Tide?", ["x"], "multi")
    first = reached(settings, tmp_path, [question])
    steps = [
        Step(subquery=text, context=[ContextItem("chunk", "c0", "T0", TEXTS[0], 1.0)])
        for text in (question.question, "Which city is Corte?")
    ]
    write_parquet(
        tmp_path / "explored" / "trajectories.parquet",
        [small_trajectory(steps=[*steps, Step(summary="No search.")])],
        Trajectory,
    )
    inputs = {name: tmp_path / name for name in ("corpus", "passages", "candidates")}
    inputs["explore-sampling"] = tmp_path / "explored"
    (tmp_path / "second").mkdir()
    run_stages(settings, tmp_path / "second", inputs, {"candidates": candidates})
    found = read_records(tmp_path / "second" / "candidates" / "chunks.parquet", Chunk)
    assert first | {"c2"} <= {chunk.id for chunk in found}
    assert len(found) <= len(first) + 2


def test_candidates_keep_the_cold_start_of_real_questions_and_drop_other_triplets(
    tmp_path: Path, encoder: Path, real_data: Path
) -> None:
    """Seven questions of MuSiQue with about 135 paragraphs, of which the first four teach."""
    source = real_data / "musique"
    questions = json.loads((source / "musique_train100.json").read_text())[:7]
    root = tmp_path / "data"
    root.mkdir()
    for name, part in (("all", questions), ("taught", questions[:4]), ("sampled", questions[4:6])):
        (root / f"{name}.json").write_text(json.dumps(part))
    results = {}
    for scope in ("all", "candidates"):
        folder = tmp_path / scope
        folder.mkdir()
        settings = config.load(
            CONFIGS / "musique-sample.yaml",
            (
                f"data.root={root}",
                "data.sft=[{dataset: musique, path: taught.json}]",
                "data.sampling=[{dataset: musique, path: sampled.json}]",
                "data.test=[]",
                "corpus.files=[{path: all.json, format: questions, dataset: musique}]",
                f"graph.path={source / 'musique_train100_openie_gpt35_1890.json'}",
                f"graph.scope={scope}",
                "graph.candidates=3",
                f"index.embedder={{model: {encoder}, dtype: float32}}",
                "index.links=true",
                f"cache_dir={folder / 'cache'}",
                "sft_data.sizes={1: 5, 2: 5}",
                "sft_data.test_sizes={}",
            ),
        )
        inputs: dict[str, Path] = {}
        run_stages(settings, folder, inputs, {"corpus": corpus})
        of_split = {s: run_questions(settings, folder, s)[0].output for s in ("sft", "sampling")}
        if scope == "candidates":
            run_stages(settings, folder, inputs, {"passages": index})
            chosen = {**inputs, **{f"questions-{s}": path for s, path in of_split.items()}}
            counts = run_stages(settings, folder, chosen, {"candidates": candidates})
            inputs["candidates"] = folder / "candidates"
        run_stages(settings, folder, inputs, {"graph": graph, "index": index})
        inputs["questions"] = of_split["sft"]
        run_stages(settings, folder, inputs, {"sft-data": sft_data})
        results[scope] = folder, settings
    (whole, _), (few, settings) = results["all"], results["candidates"]
    kept = {chunk.id for chunk in read_records(few / "candidates" / "chunks.parquet", Chunk)}
    everything = read_records(whole / "graph" / "triplets.parquet", Triplet)
    assert (
        counts["chunks"] == len(kept) < len(read_records(few / "corpus/chunks.parquet", Chunk)) / 2
    )
    assert read_records(few / "graph" / "triplets.parquet", Triplet) == [
        triplet for triplet in everything if triplet.chunk_id in kept
    ]
    for name in ("sft-data/train.parquet", "index/chunks.npy", "index/bm25/data.csc.index.npy"):
        assert (few / name).read_bytes() == (whole / name).read_bytes()
    retriever = open_retriever(
        settings.retrieval.model_copy(update={"variant": "concat"}),
        settings.index,
        *(few / name for name in ("corpus", "graph", "index")),
        cache_dir=settings.cache_dir,
    )
    [items] = retriever.retrieve([Query(questions[4]["question"], ("Emma",))])
    retriever.close()
    assert {item.kind for item in items} == {"chunk", "triplet"}
