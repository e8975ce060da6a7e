"""Read the directory of a policy: its adapter and its fingerprint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pipeline.core.model_files import UNTRAINED, lineage_fields


@dataclass(frozen=True, slots=True)
class Policy:
    """``adapter`` is None for the base model; ``fingerprint`` identifies the policy's content."""

    adapter: Path | None
    fingerprint: str


def read_policy(directory: Path) -> Policy:
    """The policy in a directory that a stage wrote: ``sft``, ``train``, ``start`` or ``given-policy``.

    Raises InputError when ``lineage.json`` is missing, malformed, or names no policy.
    """
    lineage = lineage_fields(directory)
    adapter = None if lineage.get("method") == UNTRAINED else directory / "adapter"
    return Policy(adapter, str(lineage["policy"]))
