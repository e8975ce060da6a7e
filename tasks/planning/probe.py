"""A probe: the same configuration with few questions, documents and examples, as a run of its own.

Its manifests tell what the stages of the whole run take. It has at most one round, and the seconds that
do not grow with the work, such as the start of an engine, are in the manifests apart from the rest.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from pipeline.config import Config

SHARE = 0.1  # of the world and the questions
_EXAMPLES = 0.25  # of the training examples: with fewer the policy writes mostly malformed text
_QUESTIONS = 24  # per file of a data set
_FEWEST = 4
_DOCUMENTS = 300
_SPLITS = ("sft", "sampling", "validation", "test")


def probe_overrides(settings: Config) -> tuple[str, ...]:
    """Settings that make a probe of a configuration, as ``key.key=value``."""
    data, examples = settings.data, settings.sft_data
    overrides = {
        "name": f"{settings.name}-probe",
        "rounds": min(settings.rounds, 1),
        "sft_data.sizes": _fewer(examples.sizes),
        "sft_data.test_sizes": _fewer(examples.test_sizes),
    }
    if data.closed_world is not None:
        for name, size in data.closed_world.model_dump(exclude={"seed", "famous_share"}).items():
            fewest = _DOCUMENTS if name == "documents" else _FEWEST
            overrides[f"data.closed_world.{name}"] = _part(size, SHARE, fewest)
    for split in _SPLITS if data.closed_world is None else ():
        files = [file.model_dump(mode="json") for file in getattr(data, split)]
        for file in files:
            file["limit"] = min(file["limit"] or _QUESTIONS, _QUESTIONS)
        overrides[f"data.{split}"] = files
    return tuple(f"{name}={json.dumps(value)}" for name, value in overrides.items())


def _part(size: int, share: float, fewest: int) -> int:
    """A share of a size, but at least ``fewest`` of it."""
    return min(size, max(fewest, math.ceil(size * share)))


def _fewer(sizes: Mapping[int, int]) -> dict[int, int]:
    return {hops: _part(size, _EXAMPLES, _FEWEST) for hops, size in sizes.items()}
