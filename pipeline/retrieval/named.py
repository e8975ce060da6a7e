"""Key entities that a subquery names, told without a model.

Purpose: Single-* of TeaRAG (arXiv 2511.05385, definition 3.1) has no policy that names key entities;
the question itself stands in for one, and as a node of the KAG it is joined to nothing. Input:
queries. Output: queries whose key entities include the graph's entities and the passages' titles
that the subquery names (`pipeline.graph.names`). An option, off by default: a departure.
"""

from __future__ import annotations

from collections.abc import Iterable

from pipeline.graph.names import NameIndex
from pipeline.retrieval.base import Query


class NamedEntities:
    """Adds what a subquery names to its key entities."""

    def __init__(self, names: Iterable[str]) -> None:
        """``names`` of entities and titles; see `NameIndex` for the memory they take."""
        self._index = NameIndex(names)

    def extend(self, query: Query) -> Query:
        """The query with the entities found; a subquery that was its own entity gives way."""
        found = [name for mention in self._index.find(query.subquery) for name in mention.names]
        if not found:
            return query
        given = [entity for entity in query.entities if entity != query.subquery]
        return Query(query.subquery, tuple(dict.fromkeys((*given, *found))))
