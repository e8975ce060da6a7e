"""Parts that embed, rerank and search: E5, BGE-reranker and FAISS, in their published shapes."""

from __future__ import annotations

from pathlib import Path
from tempfile import mkdtemp
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from benchmarks.gpu_check.figures import Figures, Place, add_peak, reset_peak, timed
from benchmarks.gpu_check.models import (
    embedder_directory,
    random_texts,
    reranker_directory,
    shape_of,
)
from pipeline.config import Reranker
from pipeline.knowledge.index.embed import Embedder
from pipeline.knowledge.index.faiss_index import VectorIndex
from pipeline.knowledge.index.kinds import Kind
from pipeline.knowledge.retrieval.rerank import CrossEncoderModel

_PASSAGE_WORDS = 100
_QUERY_WORDS = 12


def embedder(place: Place, figures: Figures) -> None:
    """Texts a second of E5's shape in both number formats, and the cosine between their vectors."""
    count, words, longest = (32, 8, 60) if place.tiny else (20_000, _PASSAGE_WORDS, 256)
    directory, shape = embedder_directory(place), shape_of(place)
    texts = random_texts(shape, count, words)
    vectors: dict[str, NDArray[np.float32]] = {}
    dtypes: tuple[Literal["float32", "bfloat16"], ...] = ("float32", "bfloat16")
    for dtype in dtypes:
        reset_peak()
        model = Embedder(
            str(directory), dtype=dtype, batch_size=512, device=place.device, passage_prefix="",
            max_length=longest,
        )  # fmt: skip
        # Loads the model and the kernels, with a batch as large as the timed batches.
        model.encode(random_texts(shape, 512, words, seed=3), "passage")
        seconds: list[float] = []
        with timed(seconds):
            vectors[dtype] = model.encode(texts, "passage")
        figures.add(dtype, count / seconds[0], "texts/s")
        add_peak(figures, f"{dtype}: peak memory")
        del model
    cosine_N = np.einsum("nd,nd->n", vectors["float32"], vectors["bfloat16"])
    mean = float(cosine_N.mean())
    figures.add("mean cosine of fp32 and bf16", mean, expected="> 0.99", holds=mean > 0.99)
    figures.add("smallest cosine of fp32 and bf16", float(cosine_N.min()))


def reranker_flag(place: Place, figures: Figures) -> None:
    """Pairs a second of FlagEmbedding's reranker, half precision on a GPU."""
    _rerank("flag", place, figures)


def reranker_cross(place: Place, figures: Figures) -> None:
    """Pairs a second of sentence-transformers' cross-encoder."""
    _rerank("cross-encoder", place, figures)


def _rerank(kind: Literal["flag", "cross-encoder"], place: Place, figures: Figures) -> None:
    settings = Reranker(
        kind=kind, model=str(reranker_directory(place)), batch_size=256, device=place.device,
        max_length=60 if place.tiny else 512,
    )  # fmt: skip
    model = CrossEncoderModel(settings)
    count, words = (16, (4, 8)) if place.tiny else (4096, (_QUERY_WORDS, _PASSAGE_WORDS))
    queries, passages = (
        random_texts(shape_of(place), count, length, seed) for seed, length in enumerate(words)
    )
    pairs = list(zip(queries, passages, strict=True))
    reset_peak()
    model.compute([(query, passage) for passage, query in pairs[:512]])  # loads model and kernels
    seconds: list[float] = []
    with timed(seconds):
        scores = np.asarray(model.compute(pairs))
    figures.add("pairs", count / seconds[0], "pairs/s")
    add_peak(figures)
    finite = bool(np.isfinite(scores).all())
    figures.add("finite scores", str(finite), expected="True", holds=finite)


def faiss_gpu(place: Place, figures: Figures) -> None:
    """Searches a second on the GPU, and the share of neighbors that the CPU finds too."""
    kinds: tuple[tuple[int, Kind, int], ...] = (
        (768, "flat", 100_000), (768, "ivf-pq", 50_000), (1024, "ivf-pq", 50_000)
    )  # fmt: skip
    for dimension, kind, count in kinds:
        vectors_ND = clustered(count, dimension)
        folder = Path(mkdtemp(prefix="gpu-check-"))
        np.save(folder / "vectors.npy", vectors_ND)
        VectorIndex.build(vectors_ND, kind).save(folder / "index.faiss")
        on_cpu, on_gpu = (
            VectorIndex.load(folder / "index.faiss", folder / "vectors.npy", gpu=gpu)
            for gpu in (False, True)
        )
        queries_QD = vectors_ND[:2000] + 0.01
        on_gpu.search(queries_QD, 20)  # loads the kernels
        seconds: list[float] = []
        with timed(seconds):
            found = on_gpu.search(queries_QD, 20)
        name = f"{kind}, {dimension} dimensions, {count:,} vectors"
        figures.add(name, len(queries_QD) / seconds[0], "queries/s")
        expected = on_cpu.search(queries_QD[:200], 20)
        pairs = zip(found, expected, strict=False)
        share = float(np.mean([len(np.intersect1d(a, b)) / 20 for (a, _), (b, _) in pairs]))
        figures.add(
            f"{name}: neighbors as on the CPU", share, "share", expected="> 0.9", holds=share > 0.9
        )


def clustered(count: int, dimension: int) -> NDArray[np.float32]:
    """Normalized vectors around 500 centers, as embeddings of passages lie."""
    draw = np.random.default_rng(0)
    centers = draw.standard_normal((500, dimension), dtype=np.float32)
    vectors_ND = centers[draw.integers(0, 500, count)]
    vectors_ND += draw.standard_normal((count, dimension), dtype=np.float32)
    vectors_ND /= np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    return vectors_ND
