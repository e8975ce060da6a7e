"""Settings of single rounds: which settings may differ, and how they are merged into the run's.

Input: ``per_round`` of a configuration, a mapping of rounds to nested settings. A round's settings
are merged into the run's settings as a file is merged into its ``base:`` file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError
from pydantic_core import InitErrorDetails

from pipeline.config.base import with_numbers_as_keys
from pipeline.config.yaml_files import shown_key
from pipeline.core.input_files import leaves

PER_ROUND = "per_round"
# Blocks and fields that stages of a round read, without the settings that every policy of a run
# shares: prompt, grammar, retrieval, the types of the engine, and the adapter, which training
# continues.
ROUND_SETTINGS = (
    "data.sampling", "sampling", "judges", "rewards", "pairs", "dpo", "grpo",
    "engine.max_num_seqs", "engine.gpu_memory_utilization", "engine.cpu_kv_cache_gib",
)  # fmt: skip


def _known(settings: dict[str, Any]) -> dict[str, Any]:
    for key, _ in leaves(settings):
        if not any(f"{key}.".startswith(f"{name}.") for name in ROUND_SETTINGS):
            raise ValueError(
                f"{shown_key(key)} cannot be set for a single round; settings of a round are "
                f"{', '.join(ROUND_SETTINGS)}"
            )
    return settings


def _by_number(value: object) -> object:
    """Rounds by number, without rounds set to null, which removes the settings of a ``base:``."""
    value = with_numbers_as_keys({} if value is None else value, "a round")
    if not isinstance(value, dict):
        return value
    return {number: settings for number, settings in value.items() if settings is not None}


PerRound = Annotated[
    dict[
        Annotated[int, Field(ge=1, le=1000)],
        Annotated[dict[str, Any], AfterValidator(_known)],
    ],
    BeforeValidator(_by_number),
]


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the settings ``above`` into ``below``: blocks are merged, other values replaced.

    A mapping with numbers (of hops) as keys, also in quotes, is one value, except ``per_round``,
    which is merged round by round.
    """
    result = dict(below)
    for key, value in above.items():
        under = result.get(key)
        if isinstance(under, dict) and isinstance(value, dict):
            numbers = any(str(name).isdecimal() for name in (*under, *value))
            value = merged(under, value) if key == PER_ROUND or not numbers else value
        result[key] = value
    return result


def located(place: tuple[int | str, ...], error: ValidationError) -> list[InitErrorDetails]:
    """The errors of a merged configuration, with ``place`` (``per_round.2``) before each key."""
    return [
        InitErrorDetails(
            type=item["type"],
            loc=(*place, *item["loc"]),
            input=item["input"],
            ctx=item.get("ctx", {}),
        )
        for item in error.errors(include_url=False)
    ]
