"""Settings of a rollout: what sampling, evaluation and continuations have in common."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """Decoding parameters and budgets of a rollout; all lengths are in tokens.

    The defaults are those of the configuration block ``sampling``, with an empty system message.
    """

    system: str = ""  # system message; the question is the user message
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
