"""A probe: the same configuration with few questions, as a run of its own.

Its manifests tell what the stages of the whole run take. It has at most one round, and the seconds that
do not grow with the work, such as the start of an engine, are in the manifests apart from the rest. In a
closed world the documents and the cold start stay as they are: the tiny reader learns the format of
trajectories from it, and with a quarter of the examples it made no search at all.
"""

from __future__ import annotations

import json
import math

from pipeline.config import Config

SHARE = 0.1  # of the questions of a closed world, except those of the cold start
_FEWEST = 4
_QUESTIONS = 24  # per file of a data set, except those of the cold start
_EXAMPLES = 64  # training examples per number of hops, for a base model that has been instructed
_SPLITS = ("sampling", "validation", "test")
_KEPT = ("seed", "famous_share", "documents", "musique_train")


def probe_overrides(settings: Config) -> tuple[str, ...]:
    """Settings that make a probe of a configuration, as ``key.key=value``."""
    data, examples = settings.data, settings.sft_data
    overrides: dict[str, object] = {
        "name": f"{settings.name}-probe",
        "rounds": min(settings.rounds, 1),
    }
    if data.closed_world is not None:
        for name, size in data.closed_world.model_dump(exclude=set(_KEPT)).items():
            fewer = min(size, max(_FEWEST, math.ceil(size * SHARE)))
            overrides[f"data.closed_world.{name}"] = fewer
    else:
        for name in ("sizes", "test_sizes"):
            sizes = getattr(examples, name)
            fewer = {hops: min(size, _EXAMPLES) for hops, size in sizes.items()}
            overrides[f"sft_data.{name}"] = fewer
        for split in _SPLITS:
            files = [file.model_dump(mode="json") for file in getattr(data, split)]
            for file in files:
                file["limit"] = min(file["limit"] or _QUESTIONS, _QUESTIONS)
            overrides[f"data.{split}"] = files
    return tuple(f"{name}={json.dumps(value)}" for name, value in overrides.items())
