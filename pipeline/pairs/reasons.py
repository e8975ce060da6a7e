"""Why a pair was formed: the conditions of `pipeline.pairs.select` and the values that met them.

Input: both candidates of a pair, and the thresholds. Output: one sentence each about the chosen
side, the rejected side, and the choice of the partner (TeaRAG, arXiv 2511.05385, eq. 14; margins
for rewards that are a single number).
"""

from __future__ import annotations

from typing import NamedTuple

from pipeline.config.policy import Pairs
from pipeline.core.records import PairKind
from pipeline.pairs.select import Candidate, at_least, counted_total, counts_process


class Reasons(NamedTuple):
    """One sentence about each side of a pair and about their combination."""

    chosen: str
    rejected: str
    partner: str


def reasons(
    kind: PairKind,
    chosen: Candidate,
    rejected: Candidate,
    thresholds: Pairs,
) -> Reasons:
    """The reasons for a pair."""
    if kind == "step":
        margin = _setting(thresholds, "step_margin")
        return Reasons(
            "Its step has the highest reward of all steps after the shared prefix. Only this step "
            "is trained.",
            f"Its step has the lowest reward after the shared prefix, lower by at least {margin}.",
            "The best and the worst step after each shared prefix form one pair.",
        )
    if chosen.reward is not None:
        best = _number(chosen.total)
        return Reasons(
            f"It is right and well-formed, with the highest reward of such trajectories, {best}.",
            _rejected_by_margin(kind, chosen, rejected, thresholds),
            "Partners are taken in ascending order of reward: at most "
            f"{_setting(thresholds, 'decisions')} right ones, as many with a wrong search "
            "decision, and one with a wrong answer or a broken format.",
        )
    return Reasons(
        _chosen(chosen, thresholds),
        _rejected(kind, chosen, rejected, thresholds),
        "The chosen trajectories take partners in the order of their totals, the highest first. "
        "Each takes the trajectory with the lowest total that is left.",
    )


def _chosen(chosen: Candidate, thresholds: Pairs) -> str:
    outcome, process = f"outcome {_number(chosen.outcome)}", f"process {_number(chosen.process)}"
    if chosen.hop == "single":
        return (
            f"Single-hop question: {outcome} is at least {_setting(thresholds, 'single_outcome')}."
        )
    strict = at_least(chosen.outcome, thresholds.multi_outcome) and (
        not counts_process(chosen, thresholds) or at_least(chosen.process, thresholds.multi_process)
    )
    bounds = ("multi_outcome", "multi_process")
    if not strict:
        bounds = ("multi_outcome_relaxed", "multi_process_relaxed")
    kind = "Multi-hop question" if chosen.hop == "multi" else "Question of unknown hops"
    text = f"{kind}: {outcome} is at least {_setting(thresholds, bounds[0])}"
    if counts_process(chosen, thresholds):
        text += f", and {process} is at least {_setting(thresholds, bounds[1])}"
    return f"{text}."


def _rejected(kind: PairKind, chosen: Candidate, rejected: Candidate, thresholds: Pairs) -> str:
    outcome = f"outcome {_number(rejected.outcome)}"
    if kind == "format":
        return "It fails the format."
    form = "is well-formed" if rejected.format >= 1 else "fails the format, which does not count"
    if kind == "easy":
        return f"It {form}, and {outcome} is at most {_setting(thresholds, 'easy_outcome')}."
    text = (
        f"It {form}, and {outcome} is lower than the chosen {_number(chosen.outcome)} by at least "
        f"{_setting(thresholds, 'hard_margin')}"
    )
    if counts_process(chosen, thresholds):
        text += f"; process {_number(rejected.process)} is not above {_number(chosen.process)}"
    return f"{text}."


def _rejected_by_margin(
    kind: PairKind, chosen: Candidate, rejected: Candidate, thresholds: Pairs
) -> str:
    what = {
        "format": "It fails the format",
        "easy": "It is well-formed with a wrong answer",
    }.get(kind, "It is right and well-formed")
    return (
        f"{what}, and its reward {_number(rejected.total)} is lower than {_number(chosen.total)} "
        f"by at least {_setting(thresholds, 'margin')}."
    )


def place(candidate: Candidate, thresholds: Pairs) -> tuple[float, int]:
    """The place in the order in which partners are tried, from the lowest total on."""
    return round(counted_total(candidate, thresholds), 9), candidate.sample


def _setting(thresholds: Pairs, name: str) -> str:
    return f"{_number(getattr(thresholds, name))} (pairs.{name})"


def _number(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".")
