"""Terminal table of ``steep recall``, with sizes and notes below it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from pipeline.recall.compare import RetrievalMetrics
from pipeline.recall.run import RecallResult

_SIGNIFICANT = 0.05


def print_table(results: Sequence[RecallResult]) -> None:
    """Print one table of all configurations, then sizes, indexes and notes."""
    from rich.console import Console
    from rich.table import Table

    table = Table(
        "data", "query", "n", "retriever", "reranker", "@2", "@5", "all@5", "strict @5",
        "strict all@5", "@5 - semantic", "tokens", "ms",
    )  # fmt: skip
    for result in results:
        previous = None
        for row in result.rows:
            if previous not in (None, row.query):
                table.add_section()
            previous = row.query
            table.add_row(*_cells(row))
        table.add_section()
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table)
    for result in results:
        sizes = ", ".join(
            f"{count:,} {name.replace('_', '-')}" for name, count in result.sizes.items()
        )
        embedding = f"{1000 * result.embedding_seconds:.1f} ms to embed a query"
        console.print(f"{result.config}: {sizes}; {embedding}", highlight=False)
        indexes = "; ".join(f"{name} {_index(facts)}" for name, facts in result.faiss.items())
        console.print(f"{result.config}: index of {indexes}", highlight=False)
        for note in result.notes:
            console.print(f"{result.config}: {note}", highlight=False)
    console.print(
        "@k: recall, the share of gold passages among the first k documents; a triplet or "
        "hyperedge counts for its source document; strict: chunks only; * p < 0.05, paired "
        "t-test; ms: retrieval without embedding the query",
        highlight=False,
    )


def _index(facts: dict[str, Any]) -> str:
    """Format an index, such as ``hnsw (links 32, candidates 64, recall_at_20 0.97)``."""
    parameters = ", ".join(f"{name} {value}" for name, value in facts.items() if name != "kind")
    return f"{facts['kind']} ({parameters})" if parameters else str(facts["kind"])


def _cells(row: RetrievalMetrics) -> list[str]:
    test = row.against_semantic
    difference = ""
    if test is not None and test["difference"] is not None:
        star = "*" if test["p"] is not None and test["p"] < _SIGNIFICANT else ""
        difference = f"{test['difference']:+.3f}{star}"
    return [
        row.dataset,
        row.query,
        str(row.n),
        row.retriever,
        row.reranker or "–",
        f"{row.recall[2]:.3f}",
        f"{row.recall[5]:.3f}",
        f"{row.all_gold:.2f}",
        f"{row.strict['recall@5']:.3f}",
        f"{row.strict['all_gold@5']:.2f}",
        difference,
        f"{row.tokens_per_retrieval:.0f}",
        f"{1000 * row.seconds_per_query:.1f}",
    ]
