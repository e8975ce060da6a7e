"""The registry of methods: one entry per paper.

An entry holds the facts that the configuration, the tasks and the grammars need before any code of
the method is loaded, so this module imports nothing from the project. ``implementation`` names the
module below ``pipeline.methods`` with the rest: cold-start steps, rewards, pairing and titles.
Adding a method takes one entry here, the modules that the entry names, and its settings in
`config.Rewards`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class MethodEntry:
    """Facts about a method that decide which settings, stages and files a run of it needs."""

    grammar: str
    """``module:class`` of the grammar of its trajectories."""
    implementation: str
    """Module that defines ``METHOD`` (`pipeline.methods.base.Method`)."""
    step_rewards: bool = False
    """Whether every step has a separate reward, which step pairs and step-wise GRPO require."""
    scoring_samples: bool = False
    """Whether scoring continues trajectories with the policy, so that it needs policy and index."""
    memory_steps: bool = False
    """Whether cold-start steps may answer from memory, without a search (``sft_data.memory``)."""
    similarity_rewards: bool = False
    """Whether its reward compares texts by a reranker."""
    separate_terms: bool = False
    """Whether ``pairs.terms`` selects pairs by separate terms: outcome, format, process."""
    single_retrieval: bool = False
    """Whether its grammar reads a first step from the rollout (``retrieval.rounds: single``)."""
    judged_steps: bool = True
    """Whether its parsed steps have a conclusion, which the judges of search errors need."""
    sft_shows_retrieved_kinds: bool = False
    """Whether cold-start contexts hold the kinds of items that the configured retrieval shows."""


METHODS: Mapping[str, MethodEntry] = {
    "tearag": MethodEntry(
        "pipeline.grammars.tearag:TeaRag",
        "pipeline.methods.tearag",
        similarity_rewards=True,
        separate_terms=True,
        single_retrieval=True,
        sft_shows_retrieved_kinds=True,
    ),
    "hiprag": MethodEntry(
        "pipeline.grammars.hiprag:HiPrag",
        "pipeline.methods.hiprag",
        memory_steps=True,
        single_retrieval=True,
    ),
    "prograph": MethodEntry(
        "pipeline.grammars.prograph:ProGraph",
        "pipeline.methods.prograph",
        step_rewards=True,
        scoring_samples=True,
        judged_steps=False,
        sft_shows_retrieved_kinds=True,
    ),
    "search-r1": MethodEntry("pipeline.grammars.search_r1:SearchR1", "pipeline.methods.search_r1"),
}
DEFAULT_METHOD = "tearag"
DEFAULT_IMPORT = "search-r1"  # the grammar of most published result files

if TYPE_CHECKING:
    MethodName: TypeAlias = str
else:  # pydantic and typer refuse any other name
    MethodName = Literal[tuple(METHODS)]
GrammarName: TypeAlias = MethodName  # every method has one grammar, which has its name


def listed_methods() -> str:
    """The names of all methods for a message: "a, b and c"."""
    *names, last = METHODS
    return f"{', '.join(names)} and {last}"
