"""TeaRAG's rewards of a trajectory (arXiv 2511.05385, section 4.3.2, eq. 5 to 13).

Outcome (eq. 5) is the token F1 of the answer; format (eq. 6) is 1 or 0; consistency (eq. 7-8) is
the fraction of steps whose subquery names every key entity; subquery, context and summary are
r = sum_t m_t / k over the k steps (eq. 9-12); process (eq. 13) is their weighted sum and may exceed
1 when there is more evidence than steps. For ablations a constant divides in place of k
(``divisor``). For single-hop questions the outcome is F1 / k, or F1 for ablations, and the process
is 0. The process is also 0 where neither the number of hops nor evidence is known. A malformed
trajectory is scored on the steps that could be parsed.
Input: trajectories and a similarity model. Output: every term of every trajectory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypedDict, cast

from pipeline.config.policy import TeaRagReward
from pipeline.core.answer_metrics import f1, normalize
from pipeline.core.records import Step, Trajectory
from pipeline.core.similarity import Similarity
from pipeline.methods.tearag.evidence_match import EvidenceMatches, has_evidence, match_evidence
from pipeline.methods.tearag.grammar import last_answer

PAPER = TeaRagReward()


class TeaRagRewards(TypedDict):
    """The terms of one trajectory."""

    outcome: Annotated[float, "Outcome (eq. 5)"]
    format: Annotated[float, "Format (eq. 6)"]
    consistency: Annotated[float, "Consistency (eq. 7–8)"]
    subquery: Annotated[float, "Subquery match (eq. 9–12)"]
    context: Annotated[float, "Context match (eq. 9–12)"]
    summary: Annotated[float, "Summary match (eq. 9–12)"]
    process: Annotated[float, "Process (eq. 13)"]
    total: Annotated[float, "Total (format + outcome + process)"]
    memory: EvidenceMatches


_TERMS = TeaRagRewards.__annotations__
WEIGHTED = tuple(name for name in TeaRagReward.model_fields if name in _TERMS)  # of eq. 13


def score(
    trajectories: Sequence[Trajectory],
    similarity: Similarity,
    settings: TeaRagReward = PAPER,
) -> list[TeaRagRewards]:
    """Every reward term of every trajectory, in order, in the layout of ``steep score``.

    Reads ``hop``, ``answers``, ``evidence``, ``steps``, ``answer`` and ``format_ok``.
    ``single_outcome`` "f1-per-step" divides the outcome of single-hop questions by the steps. With
    ``malformed_answer`` "last", a malformed trajectory is scored by its last "Final answer:", for
    which ``output`` and ``spans`` are read, and counts as at least one step. Raises RetrievalError
    when the similarity model fails; a failure is never turned into a reward.
    """
    matches = match_evidence(
        [(trajectory.evidence, trajectory.steps) for trajectory in trajectories], similarity
    )
    return [
        _terms(trajectory, found, settings)
        for trajectory, found in zip(trajectories, matches, strict=True)
    ]


def combined(terms: Mapping[str, Any], hop: str, weights: TeaRagReward) -> dict[str, float]:
    """The process reward (eq. 13) and the total of the other terms."""
    weighted = sum(getattr(weights, name) * terms[name] for name in WEIGHTED)
    unmeasured = hop == "single" or (hop == "unknown" and not has_evidence(terms))
    process = 0.0 if unmeasured else weighted
    return {"process": process, "total": terms["format"] + terms["outcome"] + process}


def consistency(steps: Sequence[Step], divisor: float | None = None) -> float:
    """Fraction of steps in which every key entity occurs in the subquery (eq. 7-8), 0 for none.

    An entity occurs when it is a substring after SQuAD normalization. An entity that is empty after
    normalization does not occur. ``divisor`` is in place of the number of steps.
    """
    return sum(map(_consistent, steps)) / (divisor or len(steps)) if steps else 0.0


def _consistent(step: Step) -> bool:
    subquery = normalize(step.subquery)
    names = [normalize(name) for name in step.entities]
    return all(name and name in subquery for name in names)


def _outcome(trajectory: Trajectory, settings: TeaRagReward) -> float:
    """Eq. 5, and the division by k for single-hop questions."""
    answer, k = trajectory.answer, len(trajectory.steps)
    if settings.malformed_answer == "last" and not trajectory.format_ok:
        answer, k = last_answer(trajectory.output, trajectory.spans), max(k, 1)
    given = trajectory.reward
    outcome = f1(answer, trajectory.answers) if given is None else given
    if trajectory.hop == "single" and settings.single_outcome == "f1-per-step":
        return outcome / k if k else 0.0
    return outcome


def _terms(
    trajectory: Trajectory, matches: EvidenceMatches, settings: TeaRagReward
) -> TeaRagRewards:
    k = len(trajectory.steps)
    divisor = k if settings.divisor == "steps" else settings.divisor
    terms: dict[str, Any] = {
        "outcome": _outcome(trajectory, settings),
        "format": float(trajectory.format_ok),
        "consistency": consistency(trajectory.steps, divisor),
        "subquery": sum(matches["subquery"]) / divisor if k else 0.0,
        "context": sum(matches["context"]) / divisor if k else 0.0,
        "summary": sum(matches["summary"]) / divisor if k else 0.0,
    }
    terms |= combined({**terms, "memory": matches}, trajectory.hop, settings)
    terms["memory"] = matches
    return cast(TeaRagRewards, terms)  # built as one dictionary: the order of keys is kept
