"""Whether the texts of an index were embedded before: then the cache of embeddings has them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.base import StageTask
from tasks.planning.measured import Earlier, Measured


def embedded_before(task: StageTask, earlier: Earlier) -> bool:
    """Whether an index of the same texts by the same embedder was built in a run below ``runs_dir``.

    All these runs share the cache of embeddings.
    """
    if not Path(task.settings.cache_dir).is_dir():
        return False
    return any(same_content(task, found, earlier) for found in earlier.of(task.stage))


def same_content(task: StageTask, found: Measured, earlier: Earlier) -> bool:
    """Whether an output has the texts that ``task`` would make, whatever its seed and its questions.

    The stages below are compared in the same way.
    """
    key = task.key
    if (task.stage, key.version, dict(key.files)) != (
        found.stage,
        found.version,
        dict(found.files),
    ):
        return False
    if _deciding(key.settings) != _deciding(found.settings):
        return False
    for name, upstream in task.upstream().items():
        fingerprint = found.inputs.get(name, "")
        if fingerprint == upstream.key.fingerprint:
            continue
        below = earlier.find(fingerprint)
        if below is None or not same_content(upstream, below, earlier):
            return False
    return True


def _deciding(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that decide the texts of chunks and of the graph."""
    questions = ("data.sft", "data.sampling", "data.validation", "data.test")
    deciding = {name: value for name, value in settings.items() if name not in ("seed", *questions)}
    if isinstance(world := deciding.get("data.closed_world"), Mapping):
        # The numbers of questions do not change its documents.
        deciding["data.closed_world"] = [world.get("seed"), world.get("documents")]
    return deciding
