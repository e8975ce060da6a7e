"""Building, memory and latency of BM25, links and linked retrieval, by the size of the corpus.

    python -m benchmarks.links 10000 100000 1000000

Work: generated passages of 100 words, six of them names, which are titles of other passages drawn
with a long tail. BM25 and links are built in one process each, and the queries of 20 words, two of
them names, in another. Vectors are random, and the nearest 100 are drawn at random too: search for
vectors has its own rows (`benchmarks.growth`), so a query here takes what remains.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from pipeline.knowledge.graph.links import Links, write_links
from pipeline.knowledge.index.bm25 import Bm25
from pipeline.knowledge.retrieval import linked

WORDS = [f"{a}{b}{c}" for a in "bdfgklmnprstvz" for b in "aeiou" for c in "bdfgklmnprstvz"] * 20
DIMENSION, QUERIES = 384, 200


def name(row: int) -> str:
    """A name of two words, which no other row has."""
    first, last = divmod(row, 2_000)
    return f"{WORDS[last % 980].title()}{last // 980} {WORDS[first % 980].title()}x{first // 980}"


def passages(count: int) -> Iterator[tuple[str, str]]:
    """Titles and texts."""
    for row in range(count):
        rng = np.random.default_rng(row)
        words = [WORDS[n] + "abcdefghijklmnopqrst"[n % 20] for n in rng.zipf(1.3, 88) % len(WORDS)]
        for place in (5, 20, 35, 50, 65, 80):
            words.insert(place, name(int(count * rng.random() ** 3)))
        yield name(row), " ".join(words) + "."


class Table:
    """Chunks by row, without a file."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __getitem__(self, row: int) -> tuple[str, str, str]:
        return f"c{row}", name(row), ""


class Nearest:
    """Stands in for the vector index and for the embedder."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def encode(self, texts: list[str], _: str) -> np.ndarray:
        """Random vectors."""
        rng = np.random.default_rng(len(texts))
        vectors: np.ndarray = rng.standard_normal((len(texts), DIMENSION), dtype=np.float32)
        return vectors / np.float32(DIMENSION**0.5)

    def search(self, query_QD: np.ndarray, k: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Random rows."""
        rng = np.random.default_rng(0)
        cosine_K = np.linspace(0.7, 0.3, k, dtype=np.float32)
        return [(rng.choice(self.count, k, replace=False), cosine_K) for _ in query_QD]


def build_bm25(folder: Path, count: int) -> None:
    """Write BM25 of the passages."""
    Bm25.build(f"{title} {text}" for title, text in passages(count)).save(folder / "bm25")


def build_links(folder: Path, count: int) -> None:
    """Write the links of the passages."""
    write_links(folder / "links", passages(count))


def query(folder: Path, count: int) -> None:
    """Print milliseconds of a fused and of a linked query."""
    vectors_ND = np.memmap(folder / "vectors", np.float32, "w+", shape=(count, DIMENSION))
    rng = np.random.default_rng(0)
    for low in range(0, count, 10_000):
        size = min(10_000, count - low)
        vectors_ND[low : low + size] = rng.standard_normal((size, DIMENSION), dtype=np.float32)
    bm25, nearest = Bm25.load(folder / "bm25"), Nearest(count)
    parts = (Table(count), nearest, vectors_ND, nearest, bm25)
    for label, retrieval in (
        ("fused", linked.FusedRetrieval(*parts, top_k=5)),  # type: ignore[arg-type]
        ("linked", linked.LinkedRetrieval(*parts, top_k=5, links=Links(folder / "links"))),  # type: ignore[arg-type]
    ):
        texts = [
            " ".join(text.split()[:18]) + f" {name(int(rng.integers(count)))}?"
            for _, (_, text) in zip(range(2 * QUERIES), passages(2 * QUERIES), strict=False)
        ]
        retrieval.retrieve(texts[:QUERIES])
        start = time.process_time()
        retrieval.retrieve(texts[QUERIES:])
        print(f"{count:,} {label}: {1000 * (time.process_time() - start) / QUERIES:.2f} CPU ms")


def measured(work: Callable[[Path, int], None], folder: Path, count: int) -> None:
    """Print the CPU seconds and the peak memory of the work."""
    work(folder, count)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    print(
        f"{count:,} {work.__name__}: {usage.ru_utime + usage.ru_stime:.0f} CPU s, "
        f"peak {usage.ru_maxrss / 1024:.0f} MiB"
    )


def main() -> None:
    """Measure the sizes of the command line."""
    for count in map(int, sys.argv[1:]):
        with tempfile.TemporaryDirectory() as name_:
            folder = Path(name_)
            for work in (build_bm25, build_links, query):
                with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                    pool.submit(measured, work, folder, count).result()
            for part in ("bm25", "links"):
                size = sum(f.stat().st_size for f in (folder / part).rglob("*") if f.is_file())
                print(f"{count:,} {part}: {size / count:.0f} bytes a passage")


if __name__ == "__main__":
    main()
