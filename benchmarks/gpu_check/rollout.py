"""Part ``rollout``: sampling with engine, FAISS, embedder and reranker on one GPU.

Input: TeaRAG's published configuration with random models of its shapes, and a small corpus of
random words. Output: trajectories a second, the share that used all searches, and the peak of the
GPU's memory beside the memory plan. The stage ``sample`` uses the same sampler, retriever and
settings. The vector indexes of the published corpus are replaced by an allocation of their size.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np

from benchmarks.gpu_check.encoders import clustered
from benchmarks.gpu_check.figures import Figures, Place, reset_peak, timed, watched
from benchmarks.gpu_check.models import (
    embedder_directory,
    language_model_directory,
    random_texts,
    reranker_directory,
    shape_of,
)
from benchmarks.gpu_check.parts import BGE, E5
from benchmarks.gpu_check.policies import saved_adapter
from pipeline.config import Config, load
from pipeline.core.atomic import write_json
from pipeline.core.columns import Columns
from pipeline.core.content_cache import open_cache
from pipeline.core.gpus import GIB, Gpu
from pipeline.core.records import Chunk, Question, Span, Trajectory
from pipeline.engine.opened import policy_engine, retrieval
from pipeline.engine.plan.memory import peak, searched
from pipeline.engine.plan.sizes import sizes_of
from pipeline.knowledge.corpus.chunk import write_chunks
from pipeline.knowledge.graph.build import Extracted, Graph
from pipeline.knowledge.graph.tables import write_triplets
from pipeline.knowledge.index.embed import open_embedder
from pipeline.knowledge.index.faiss_index import VectorIndex
from pipeline.knowledge.retrieval.base import Query
from pipeline.knowledge.retrieval.factory import open_retriever
from pipeline.knowledge.retrieval.retriever import VariantRetriever
from pipeline.llm.engine import Engine
from pipeline.llm.open_engine import open_engine
from pipeline.llm.tokens import control_tokens
from pipeline.methods.tearag.grammar import TeaRag
from pipeline.rollout.grammars.base import Finish, NextAction
from pipeline.rollout.sampler import Rollout, roll_out
from pipeline.rollout.tags import TaggedText
from tasks.sample import rollout_settings

_STEPS = 2


class Searching(TeaRag):
    """TeaRAG's grammar, except that any text before the stop string is a search."""

    def segment_action(
        self, output: str, finish: str, steps_done: int, max_steps: int, spans: Sequence[Span]
    ) -> NextAction:
        """Retrieve for the last words, or finish; see `Grammar.next_action`."""
        if finish != "stop":
            return Finish("malformed")
        if steps_done >= max_steps:
            return Finish("max_steps")
        words = re.findall(r"word[0-9]+", output)[-12:]
        return Query(" ".join(words), tuple(words[-2:]))


def rollout(place: Place, figures: Figures, opened: Callable[..., Engine] = open_engine) -> None:
    """Sample with everything that the stage opens; ``opened`` opens the engine."""
    settings = _settings(place)
    directory = Path(settings.model.base)
    adapter = saved_adapter(directory, place)
    knowledge = _knowledge(place, settings)
    count = 4 if place.tiny else 512 if settings.engine.kind == "vllm" else 64
    reset_peak()
    with (
        watched(place) as peak,
        closing(opened(settings.engine, directory, adapter=adapter, seed=0)) as engine,
        closing(
            open_retriever(
                settings.retrieval, settings.index, *knowledge, cache_dir=settings.cache_dir
            )
        ) as retriever,
    ):
        fill = _fill(place, settings)
        _sampled(engine, retriever, settings, "warm", max(1, count // 8))
        before, retrieved = engine.seconds, sum(retriever.timing.values())
        seconds: list[float] = []
        with timed(seconds):
            done = _sampled(engine, retriever, settings, "timed", count)
        del fill
        generating = engine.seconds - before
        retrieving = sum(retriever.timing.values()) - retrieved
    figures.add("engine", settings.engine.kind)
    figures.add("trajectories", count / seconds[0], "trajectories/s")
    figures.add("generating", generating / seconds[0], "of the time")
    figures.add("retrieving (two threads)", retrieving / seconds[0], "of the time")
    written, retrieved_tokens, ended = np.mean(
        [(one.tokens.thinking, one.tokens.retrieved, one.stop == "max_steps") for one in done], 0
    ).tolist()
    figures.add("tokens written", written, "each")
    figures.add("tokens retrieved", retrieved_tokens, "each")
    figures.add(
        f"all of {_STEPS + 1} segments ended at the stop string", ended, "of the trajectories",
        expected="≥ .9", holds=ended >= 0.9,
    )  # fmt: skip
    if place.cuda:
        planned = _planned(settings, peak)
        figures.add(
            "peak of the GPU's memory", peak["used"] / GIB, "GiB",
            expected=f"≤ {planned / GIB:.1f}, as planned", holds=peak["used"] <= planned,
        )  # fmt: skip


def _settings(place: Place) -> Config:
    """TeaRAG's configuration over random models, adapted to this machine."""
    import faiss

    e5 = embedder_directory(replace(place, model=E5))
    bge = reranker_directory(replace(place, model=BGE))
    on_gpu = place.cuda and hasattr(faiss, "StandardGpuResources")
    overrides = [
        f"model.base={language_model_directory(place)}", f"index.embedder.model={e5}",
        f"retrieval.reranker.model={bge}", f"cache_dir={mkdtemp(prefix='gpu-check-')}",
        f"sampling.max_steps={_STEPS}", f"index.gpu={str(on_gpu).lower()}",
        f"index.embedder.dtype={place.dtype}",
    ]  # fmt: skip
    if not (place.cuda and find_spec("vllm")):  # generates padded batches, so fewer at once
        overrides += ["engine.kind=transformers", "engine.max_num_seqs=64"]
        overrides += ["engine.max_model_len=4096", "sampling.max_total_tokens=3500"]
    if place.tiny:
        overrides += [
            "engine.dtype=float32", "engine.max_model_len=1024", "sampling.max_total_tokens=900",
            "sampling.max_segment_tokens=200", "retrieval.top_k=2", "prompt.system=Search.",
            "index.embedder.device=cpu", "retrieval.reranker.device=cpu",
            "index.embedder.max_length=60", "retrieval.reranker.max_length=60",
        ]  # fmt: skip
    return load("tearag-llama3-8b", tuple(overrides))


def _knowledge(place: Place, settings: Config) -> tuple[Path, Path, Path]:
    """Directories of corpus, graph and index: random words, and vectors around 500 centers."""
    folder = Path(mkdtemp(prefix="gpu-check-"))
    corpus, graph, index = (folder / name for name in ("corpus", "graph", "index"))
    shape = shape_of(replace(place, model=E5))
    count = 200 if place.tiny else 20_000
    texts = random_texts(shape, count, 8 if place.tiny else 100)
    write_chunks(
        corpus, (Chunk(f"d{n}-0", f"Title {n}", text, f"d{n}") for n, text in enumerate(texts))
    )
    facts = random_texts(shape, 3 * count, 3, seed=1)
    made = Graph()
    edges = made.edges(
        Extracted(f"d{n // 3}-0", f"Title {n // 3}", [*text.split(), "word4", "word5"][:3])
        for n, text in enumerate(facts)
    )
    write_triplets(graph, edges, made.entities)
    index.mkdir()
    triplets = len(Columns(graph / "triplets.arrow", ("id",)))
    for name, rows in (
        ("chunks", count), ("entities", len(made.entities)), ("triplets", triplets)
    ):  # fmt: skip
        vectors_ND = clustered(rows, shape.hidden)
        np.save(index / f"{name}.npy", vectors_ND)
        if name != "triplets":
            VectorIndex.build(vectors_ND, "flat").save(index / f"{name}.faiss")
    embedder = open_embedder(settings.index.embedder, open_cache(settings.cache_dir))
    write_json(index / "index.json", {"embedder": embedder.identity})
    return corpus, graph, index


def _sampled(
    engine: Engine, retriever: VariantRetriever, settings: Config, name: str, count: int
) -> list[Trajectory]:
    questions = [
        Question(f"{name}{number}", "nq", f"Where is word{number} of {name}?", ["word5"], "single")
        for number in range(count)
    ]
    grammar = Searching(_STEPS, control_tokens(engine.tokenizer))
    rollout = Rollout(
        engine=engine, format=TaggedText(engine.tokenizer, grammar), retriever=retriever,
        settings=rollout_settings(settings, temperature=1.0), policy="random",
    )  # fmt: skip
    return list(roll_out(rollout, questions, samples=1, seed=0))


def _fill(place: Place, settings: Config) -> Any:
    """GPU memory of the size of the published corpus's vector indexes, if FAISS uses the GPU."""
    import torch

    if not settings.index.gpu:
        return None
    size = int(sum(searched(settings, sizes_of(settings), on_gpu=True).values()))
    return torch.empty(size, dtype=torch.uint8, device=place.device)


def _planned(settings: Config, watched: dict[str, int]) -> float:
    """Bytes that the memory plan counts for roll-outs on this GPU."""
    sizes = sizes_of(settings)
    opened = [policy_engine(settings), *retrieval(settings)]
    return peak(settings, opened, sizes, [Gpu("this", watched["of"])]).size
