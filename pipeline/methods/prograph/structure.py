"""Structure rewards: connectivity of a step and reach of the answer (ProGraph-R1, eq. 12-14).

V(.) are the entities of a text or of retrieved items, G_t the items that step t retrieved, and s_<t
the question and everything written or retrieved before step t::

    r_con(t) = |V(G_t) ∩ V(s_<t)| / |V(G_t)|        r_ans(t) = |V(G_t) ∩ V(y*)| / |V(G_t)|

Both are 0 where V(G_t) is empty. Input: trajectories, and a source of entities. Output: both terms
of every turn. The entities of a hyperedge are its members in the graph; a text has the entities
whose names occur in it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from pipeline.core.records import ContextItem, Trajectory
from pipeline.knowledge.graph.adjacency import Adjacency
from pipeline.knowledge.retrieval.hypergraph import EntityNames
from pipeline.rollout.turns import Turn

Entities = frozenset[Hashable]


@dataclass(frozen=True, slots=True)
class Structure:
    """r_con and r_ans of one turn."""

    connectivity: float
    answer_reach: float


class EntitySource:
    """V(.) of texts, retrieved items and names, by a table of ``names``."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = EntityNames(names)

    def of_text(self, text: str) -> Entities:
        """The entities whose names occur in a text."""
        return frozenset(self._names.within(text))

    def of_item(self, item: ContextItem) -> Entities:
        """The entities listed for a retrieved item; without a list, those of its title and text."""
        listed = self.listed(item)
        return self.of_name(item.title) | self.of_text(item.text) if listed is None else listed

    def of_name(self, name: str) -> Entities:
        """The entity called ``name`` (an answer or a title), and the entities that occur in it."""
        row = self._names.row(name)
        return self.of_text(name) | (frozenset() if row is None else {row})

    def listed(self, item: ContextItem) -> Entities | None:
        """The entities that are listed for an item."""
        return None


class GraphEntities(EntitySource):
    """V(.) by the entity table of a graph, and by its hyperedges if it has any."""

    def __init__(
        self,
        names: Sequence[str],
        hyperedges: Mapping[str, int] | None = None,
        members: Adjacency | None = None,
    ) -> None:
        """``hyperedges`` maps ids to rows of ``members``, which hold the entities of each."""
        super().__init__(names)
        self._hyperedges = hyperedges or {}
        self._members = members

    def listed(self, item: ContextItem) -> Entities | None:
        row = self._hyperedges.get(item.id) if item.kind == "hyperedge" else None
        if row is None or self._members is None:
            return None
        return frozenset(self._members.union([[row]])[0].tolist())


class RecordedEntities(EntitySource):
    """V(.) by the names that a record of an input file lists for itself and for its items."""

    def __init__(self, names: Sequence[str], of_items: Mapping[int, Sequence[str]]) -> None:
        """``of_items`` maps the ``id()`` of an item to names; other items are matched as texts."""
        of_all_items = [name for item_names in of_items.values() for name in item_names]
        super().__init__(list(dict.fromkeys((*names, *of_all_items))))
        self._of_items = of_items

    def listed(self, item: ContextItem) -> Entities | None:
        item_names = self._of_items.get(id(item))
        if item_names is None:
            return None
        return frozenset(self._names.row(name) for name in item_names)


def structure(
    trajectory: Trajectory, turns: Sequence[Turn], entities: EntitySource
) -> list[Structure]:
    """The terms of every turn, in order."""
    before = set(entities.of_text(trajectory.question))
    goal = frozenset[Hashable]().union(*(entities.of_name(name) for name in trajectory.answers))
    terms = []
    for turn in turns:
        retrieved = frozenset[Hashable]().union(*(entities.of_item(item) for item in turn.items))
        terms.append(
            Structure(
                len(retrieved & before) / len(retrieved) if retrieved else 0.0,
                len(retrieved & goal) / len(retrieved) if retrieved else 0.0,
            )
        )
        before |= retrieved | entities.of_text(turn.text)
    return terms
