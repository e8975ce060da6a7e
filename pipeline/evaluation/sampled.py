"""Measures of several trajectories of one question: pass@k, majority@n and diversity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import comb
from statistics import fmean

from pipeline.core.answer_metrics import normalize
from pipeline.core.errors import InputError
from pipeline.core.records import Trajectory
from pipeline.evaluation.metrics import Outcome


def pass_at_k(n: int, c: int, k: int) -> float:
    """The probability that ``k`` of ``n`` trajectories, ``c`` of them right, have a right one.

    It is 1 - C(n - c, k) / C(n, k), the unbiased estimate of arXiv 2107.03374, eq. 1, in whole
    numbers and so exact for any n. Raises InputError unless 0 <= c <= n and 1 <= k <= n.
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise InputError(f"pass@k of n={n}, c={c}, k={k}: expected 0 <= c <= n and 1 <= k <= n")
    return (comb(n, k) - comb(n - c, k)) / comb(n, k)


def majority(answers: Sequence[str]) -> list[str]:
    """The most frequent of normalized answers but "", in order of occurrence; several are a tie."""
    counts = Counter(filter(None, answers))
    most = max(counts.values(), default=0)
    return [answer for answer, count in counts.items() if count == most]


def means(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """The means of all measures over the outcomes of one question."""
    values = [outcome.values() for outcome in outcomes]
    return {name: fmean(value[name] for value in values) for name in values[0]}


def over_samples(trajectories: Sequence[Trajectory], outcomes: Sequence[Outcome]) -> Outcome:
    """The outcome of a question from its n trajectories, in order of their samples.

    ``sampled`` has the means of all measures, so that EM is pass@1, and: pass@k for the powers of
    two up to n and for n; majority@n, the EM of the most frequent answer, of a tie the one that
    occurs first; ties, 1 if there is one; the numbers of distinct answers and queries, normalized
    as for EM. All else, such as the failure mode, is of the first trajectory with that answer.
    """
    n, right = len(outcomes), sum(outcome.em == 1 for outcome in outcomes)
    answers = [normalize(trajectory.answer or "") for trajectory in trajectories]
    asked = {normalize(step.asked or "") for one in trajectories for step in one.steps}
    tied = majority(answers)
    first = outcomes[answers.index(tied[0]) if tied else 0]
    sampled = means(outcomes)
    for k in sorted({*(2**power for power in range(1, n.bit_length())), n}):
        sampled[f"pass@{k}"] = pass_at_k(n, right, k)
    sampled |= {f"majority@{n}": first.em, "ties": float(len(tied) > 1)}
    sampled |= {"distinct_answers": len({*answers} - {""}), "distinct_queries": len(asked - {""})}
    return replace(first, sampled=sampled)
