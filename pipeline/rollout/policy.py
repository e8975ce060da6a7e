"""Inputs of a rollout: the policy in a directory, and decoding parameters and budgets.

Input: the directory of a policy. Output: its adapter and its fingerprint.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pipeline.config.policy import Prompt
from pipeline.core.model_files import UNTRAINED, lineage_fields


@dataclass(frozen=True, slots=True)
class Policy:
    """``adapter`` is None for the base model; ``fingerprint`` identifies the policy's content."""

    adapter: Path | None
    fingerprint: str


def read_policy(directory: Path) -> Policy:
    """The policy in a directory of the stage ``sft``, ``train``, ``start`` or ``given-policy``.

    Raises InputError when ``lineage.json`` is missing, malformed, or names no policy.
    """
    lineage = lineage_fields(directory)
    adapter = None if lineage.get("method") == UNTRAINED else directory / "adapter"
    return Policy(adapter, str(lineage["policy"]))


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """Decoding parameters and budgets of a rollout; all lengths are in tokens.

    The defaults are the same as in the configuration blocks ``sampling`` and ``prompt``.
    """

    prompt: Prompt = field(default_factory=Prompt)
    temperature: float = 1.0  # 0 is greedy decoding
    top_p: float = 1.0
    max_steps: int = 5  # retrievals per trajectory (HiPRAG: steps)
    max_segment_tokens: int = 512  # one model segment
    max_total_tokens: int = 4096  # one trajectory: model segments and observations
    max_context_tokens: int | None = None  # one observation; None does not truncate documents
    in_flight: int = 256  # trajectories open at the same time
    # Retrieve once for the question itself, before the model writes: as the first step of the
    # trajectory, or in the prompt (TeaRAG's Single-* baselines).
    single_retrieval: bool = False
    prompt_retrieval: bool = False
    loop: str = ""  # a key of `pipeline.rollout.prompted.LOOPS`, or any other text for none
