"""The registry of methods: one package of ``pipeline/methods`` per paper.

``facts.toml`` of a package holds what the configuration, the tasks and the grammars need before any
code of the method is loaded, so this module imports nothing from the project. The package holds the
rest: ``grammar`` (``GRAMMAR``, and ``TOOLS``, its search as a tool), ``method`` (``METHOD``, a
`pipeline.methods.base.Method`), and what these import: the reward and the cold-start steps.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class MethodEntry:
    """Facts about a method that decide which settings, stages and files a run of it needs.

    Attributes:
        package: the package with its modules ``grammar`` and ``method``.
        step_rewards: whether every step has a separate reward, which step pairs and step-wise GRPO
            require.
        scoring_samples: whether scoring continues trajectories with the policy, so that it needs
            policy and index.
        memory_steps: whether cold-start steps may answer from memory, without a search
            (``sft_data.memory``).
        similarity_rewards: whether its reward compares texts by a reranker.
        separate_terms: whether ``pairs.terms`` selects pairs by separate terms: outcome, format,
            process.
        single_retrieval: whether its grammar reads a first step from the rollout
            (``retrieval.rounds: single``).
        judged_steps: whether its parsed steps have a conclusion, which the judges of search errors
            need.
        cover_match: whether its reward has the cover exact match (``evaluation.cem``).
        sft_shows_retrieved_kinds: whether cold-start contexts hold the kinds of items that the
            configured retrieval shows.
    """

    package: str
    step_rewards: bool = False
    scoring_samples: bool = False
    memory_steps: bool = False
    similarity_rewards: bool = False
    separate_terms: bool = False
    single_retrieval: bool = False
    judged_steps: bool = True
    cover_match: bool = False
    sft_shows_retrieved_kinds: bool = False


DEFAULT_METHOD = "tearag"
DEFAULT_IMPORT = "search-r1"  # the grammar of most published result files


def _registered() -> Iterator[tuple[str, MethodEntry]]:
    """The entry of every package, by the method's name; the default method comes first."""
    for file in sorted((Path(__file__).parents[1] / "methods").glob("*/facts.toml")):
        facts = tomllib.loads(file.read_text("utf-8"))
        yield facts.pop("name"), MethodEntry(f"pipeline.methods.{file.parent.name}", **facts)


METHODS: Mapping[str, MethodEntry] = dict(
    sorted(_registered(), key=lambda item: item[0] != DEFAULT_METHOD)
)

if TYPE_CHECKING:
    MethodName: TypeAlias = str
else:  # pydantic and typer refuse any other name
    MethodName = Literal[tuple(METHODS)]
GrammarName: TypeAlias = MethodName  # every method has one grammar, which has its name


def listed_methods() -> str:
    """The names of all methods for a message: "a, b and c"."""
    *names, last = METHODS
    return f"{', '.join(names)} and {last}"
