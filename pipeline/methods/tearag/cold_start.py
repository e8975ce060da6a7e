"""Supervised reasoning step of one hop (TeaRAG, arXiv 2511.05385, 4.3.1, steps 1, 2, 4 and 5).

Input: a hop with its supporting facts (`pipeline.training.sft_data.steps`). Output: a `Step`, or
the reason why the hop has none.

Key entities. The paper takes the entities of the supporting triplets. One of them is the answer,
which is unknown before retrieval. A policy trained to write it would learn to guess, and it would
violate the consistency reward (eq. 7), which requires every key entity to occur in the subquery.
This module therefore keeps the entities that the subquery mentions, in the subquery's spelling. If
it mentions none, the gold paragraph's other entities, its title and earlier answers are matched
against the subquery, first in full and then in part.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from pipeline.core.records import Step
from pipeline.training.sft_data.mentions import Finder, longest_mentions, mention, shared_name
from pipeline.training.sft_data.steps import (
    Fact,
    Hop,
    StepOptions,
    context_chunks,
    ends,
    insert_facts,
    passages,
)
from pipeline.training.sft_data.templates import summary

MAX_ENTITIES = 3


def key_entities(hop: Hop, supporting: Sequence[Fact]) -> list[str]:
    """At most `MAX_ENTITIES` entities that the subquery mentions; see the module's docstring."""
    entities = _usable(hop.question, [name for fact in supporting for name in ends(fact)])
    if not entities:
        nearby = [name for fact in hop.facts for name in ends(fact)]
        candidates = [*hop.earlier_answers, hop.title, *nearby]
        entities = _usable(hop.question, candidates) or _usable(
            hop.question, candidates, shared_name
        )
        # These candidates include common nouns such as "city" and "film"; names are preferred.
        names = [name for name in entities if name.casefold() != name or name[0].isdigit()]
        entities = names or entities
    return entities[:MAX_ENTITIES]


def build_step(
    hop: Hop, supporting: Sequence[Fact], rng: random.Random, options: StepOptions
) -> Step | None:
    """The step of a hop, or None; ``hop.fault`` then holds the reason.

    The simulated context follows the paper: the gold paragraph, as the corpus's chunks, with the
    supporting triplets inserted at random positions. It holds all golden evidence of the kinds that
    retrieval shows; ``options`` add other items.
    """
    if not supporting:
        hop.fault = "no supporting triplet"
        return None
    entities = key_entities(hop, supporting)
    if not entities:
        hop.fault = "no key entity in the subquery"
        return None
    chunks = context_chunks(hop, supporting, options, rng)
    context = passages(chunks) if "chunk" in options.kinds else []
    if {"triplet", "hyperedge"} & set(options.kinds):
        insert_facts(context, supporting, hop.facts, options.other_facts, rng)
    return Step(
        entities=entities,
        subquery=hop.question,
        context=context,
        summary=summary([fact.text for fact in supporting], hop.answer, rng),
    )


def _usable(question: str, names: Sequence[str], find: Finder = mention) -> list[str]:
    """Mentioned names that fit on the entity line: no separator (";"), longer than one letter."""
    mentioned = longest_mentions(question, names, find)
    return list(dict.fromkeys(name for name in mentioned if ";" not in name and len(name) > 1))
