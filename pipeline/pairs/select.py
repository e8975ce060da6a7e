"""Preference pairs from scored trajectories of one question (TeaRAG, arXiv 2511.05385, eq. 14).

Trajectories whose reward is a single number (HiPRAG, ProGraph-R1, Search-R1) are paired by a
margin.

The chosen set holds the well-formed trajectories with the right answer and, for multi-hop
questions, a good process. Questions of unknown hops are treated as multi-hop if they have golden
evidence; else their process cannot be measured and does not count, as with ``pairs.terms``. All
trajectories are sorted by format + outcome + process, ascending. For each chosen trajectory, best
first, the list is walked from where the previous walk stopped, and the first trajectory that
qualifies becomes its rejected partner:

- format: the trajectory fails the format;
- easy: well-formed, outcome at most 0.3;
- hard (not for single-hop questions): well-formed, 0.3 < outcome <= chosen outcome - 0.3, and its
  process is not above the chosen one's.

For table 8, ``pairs.terms`` leaves terms out of the sum and of every condition. Without the
process, a multi-hop trajectory is chosen from an outcome of 0.8 on, the lower of the two bounds of
eq. 14. Without the format too, malformed trajectories are chosen and rejected by their outcomes.

Every trajectory has exactly one pairing outcome, its bin of the funnel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pipeline.config.policy import Pairs
from pipeline.core.errors import InputError
from pipeline.core.records import HopType, PairKind

Kind = Literal["format", "easy", "hard", "margin"]
Bin = Literal[
    "chosen",
    "chosen-unpaired",
    "rejected-format",
    "rejected-easy",
    "rejected-hard",
    "rejected-margin",
    "passed-over",
    "not-reached",
    "no-chosen",
    "duplicate",
    "retrieval-error",
]
BINS: dict[Bin, str] = {
    "chosen": "chosen in a pair",
    "rejected-format": "rejected in a pair: fails the format",
    "rejected-easy": "rejected in a pair: wrong answer",
    "rejected-hard": "rejected in a pair: partly right answer, no better process",
    "rejected-margin": "rejected in a pair: right and well-formed, with a lower reward",
    "chosen-unpaired": "good enough to be chosen, but every partner was already used",
    "passed-over": "neither good enough to be chosen nor bad enough to be rejected",
    "not-reached": "not needed: every chosen trajectory had its partners before",
    "no-chosen": "no trajectory of its question is good enough to be chosen",
    "duplicate": "same output as another trajectory of the question",
    "retrieval-error": "retrieval failed while it was sampled",
}
KIND_MEANINGS: dict[PairKind, str] = {
    "format": "The rejected trajectory fails the format.",
    "easy": "The rejected trajectory is well-formed and has a wrong answer.",
    "hard": "The rejected trajectory has a partly right answer and no better process.",
    "margin": "The reward of the rejected trajectory is lower by the margin or more.",
    "step": "Both trajectories share a prefix; the step after it has the better reward when "
    "chosen. Only this step is trained.",
}
_TOLERANCE = 1e-9  # sums of weights such as 0.1 + 0.3 + 0.3 are not exact
PAPER = Pairs()  # the thresholds of eq. 14


@dataclass(frozen=True)
class Candidate:
    """The values of one trajectory that the selection reads.

    Attributes:
        id: the trajectory's id, unique.
        sample: its index among the samples of the question; decides ties.
        hop: whether its question is single- or multi-hop, or unknown.
        format: 1 for a well-formed trajectory, else 0.
        outcome: the outcome term; with ``reward`` the answer term, 1 for a right answer.
        process: the process term; with ``reward`` the share of correct search decisions.
        output: the text or its digest, equal for duplicates; None if unknown, which equals no
            other.
        broken: whether retrieval failed while it was sampled.
        reward: the reward, if it is a single number (HiPRAG, ProGraph-R1, Search-R1).
        judged: False if the reward counts search decisions and no verdict on them is known.
        evidenced: False if the question has no golden evidence, by which the process is measured.
        dataset: the data set of its question.
    """

    id: str
    sample: int
    hop: HopType
    format: float = 0.0
    outcome: float = 0.0
    process: float = 0.0
    output: str | None = None
    broken: bool = False
    reward: float | None = None
    judged: bool = True
    evidenced: bool = True
    dataset: str = ""

    @property
    def total(self) -> float:
        """The reward, or the sum of all terms."""
        if self.reward is not None:
            return self.reward
        return self.format + self.outcome + self.process


def counted_total(candidate: Candidate, thresholds: Pairs) -> float:
    """The sum of the terms that count by ``thresholds.terms``; a single-number reward as it is."""
    if candidate.reward is not None or thresholds.terms == "all":
        return candidate.total
    return candidate.outcome + (candidate.format if thresholds.terms == "outcome-format" else 0.0)


@dataclass(frozen=True)
class CandidatePair:
    """A pair; ``chosen`` and ``rejected`` are candidates of one question."""

    chosen: Candidate
    rejected: Candidate
    kind: Kind


def select(
    candidates: Sequence[Candidate], thresholds: Pairs = PAPER
) -> tuple[list[CandidatePair], dict[str, Bin]]:
    """Pairs of one question, and the bin of every candidate by its id.

    Raises InputError when only some of the trajectories have a single-number reward.
    """
    single_number = {
        candidate.reward is not None for candidate in candidates if not candidate.broken
    }
    if len(single_number) > 1:
        raise InputError(
            "trajectories of one question were scored with different rewards; "
            "score all of them with the same reward"
        )
    bins: dict[str, Bin] = {}
    distinct = _distinct(candidates, bins)
    if True in single_number:
        return _select_by_margin(distinct, thresholds, bins), bins
    # Sorting keeps the order of samples where totals are equal.
    worst_first = sorted(distinct, key=lambda one: round(counted_total(one, thresholds), 9))
    best_first = sorted(
        (candidate for candidate in distinct if is_chosen(candidate, thresholds)),
        key=lambda one: -round(counted_total(one, thresholds), 9),
    )
    chosen_ids = {candidate.id for candidate in best_first}
    pairs = []
    waiting = (candidate for candidate in worst_first if candidate.id not in chosen_ids)
    for chosen in best_first:
        bins[chosen.id] = "chosen-unpaired"
        for rejected in waiting:  # from where the walk before has stopped
            kind = _kind(chosen, rejected, thresholds)
            if kind is None:
                bins[rejected.id] = "passed-over"
                continue
            pairs.append(CandidatePair(chosen, rejected, kind))
            bins[chosen.id] = "chosen"
            bins[rejected.id] = _REJECTED[kind]
            break
    rest: Bin = "not-reached" if chosen_ids else "no-chosen"
    for candidate in distinct:
        bins.setdefault(candidate.id, rest)
    return pairs, bins


def _select_by_margin(
    candidates: Sequence[Candidate], thresholds: Pairs, bins: dict[str, Bin]
) -> list[CandidatePair]:
    """Pair the right and well-formed trajectories of the highest reward with worse trajectories.

    Each chosen trajectory, in order of samples, gets partners whose reward is lower by at least
    ``thresholds.margin``, worst first. No partner is used twice. There are three groups of
    partners:

    - right and well-formed (kind *margin*, only the search decisions differ): at most
      ``thresholds.decisions``;
    - wrong or malformed, with a wrong search decision (kind *format* or *easy*): at most
      ``thresholds.decisions``;
    - wrong or malformed, with right search decisions only (kind *format* or *easy*): at most one.

    In a single list the third group would crowd out the first two, and the verdicts of the judges
    would have no effect.
    """
    right = list(filter(_is_right, candidates))
    if not right:
        bins.update((candidate.id, "no-chosen") for candidate in candidates)
        return []
    best = max(candidate.total for candidate in right)
    chosen = [candidate for candidate in right if at_least(candidate.total, best)]
    right_but_worse: list[Candidate] = []
    wrong_decision: list[Candidate] = []
    wrong_only: list[Candidate] = []
    for candidate in sorted(candidates, key=lambda candidate: round(candidate.total, 9)):
        lower = not at_least(candidate.total, best)  # a margin may be smaller than the tolerance
        qualifies = lower and at_least(best - thresholds.margin, candidate.total)
        bins[candidate.id] = "not-reached" if qualifies else "passed-over"
        if not qualifies:
            continue
        if not _is_right(candidate):
            (wrong_only if at_least(candidate.process, 1) else wrong_decision).append(candidate)
        elif candidate.judged:
            right_but_worse.append(candidate)
        else:
            bins[candidate.id] = "passed-over"  # its reward is lower only for lack of verdicts
    pairs = []
    groups = (
        (right_but_worse, thresholds.decisions),
        (wrong_decision, thresholds.decisions),
        (wrong_only, 1),
    )
    for number, candidate in enumerate(chosen):
        partners = [
            partner for group, limit in groups for partner in group[number :: len(chosen)][:limit]
        ]
        bins[candidate.id] = "chosen" if partners else "chosen-unpaired"
        for partner in partners:
            kind: Kind = (
                "margin" if _is_right(partner) else "format" if partner.format < 1 else "easy"
            )
            pairs.append(CandidatePair(candidate, partner, kind))
            bins[partner.id] = _REJECTED[kind]
    return pairs


def _is_right(candidate: Candidate) -> bool:
    return candidate.format >= 1 and candidate.outcome >= 1


_REJECTED: dict[Kind, Bin] = {
    "format": "rejected-format",
    "easy": "rejected-easy",
    "hard": "rejected-hard",
    "margin": "rejected-margin",
}


def _distinct(candidates: Sequence[Candidate], bins: dict[str, Bin]) -> list[Candidate]:
    """Candidates that count, in order of their sample index: not broken, each output once."""
    seen: set[str] = set()
    distinct = []
    for candidate in sorted(candidates, key=lambda candidate: candidate.sample):
        if candidate.broken:
            bins[candidate.id] = "retrieval-error"
        elif candidate.output is not None and candidate.output in seen:
            bins[candidate.id] = "duplicate"
        else:
            distinct.append(candidate)
            if candidate.output is not None:
                seen.add(candidate.output)
    return distinct


def counts_process(candidate: Candidate, thresholds: Pairs) -> bool:
    """Whether the process of a trajectory decides about its pairs."""
    if candidate.hop == "single" or (candidate.hop == "unknown" and not candidate.evidenced):
        return False
    return thresholds.terms == "all"


def is_chosen(candidate: Candidate, thresholds: Pairs) -> bool:
    """Whether a trajectory with separate terms is good enough to be chosen (eq. 14)."""
    if _malformed(candidate, thresholds):
        return False
    if candidate.hop == "single":
        return at_least(candidate.outcome, thresholds.single_outcome)
    any_process = not counts_process(candidate, thresholds)
    strict = at_least(candidate.outcome, thresholds.multi_outcome) and (
        any_process or at_least(candidate.process, thresholds.multi_process)
    )
    return strict or (
        at_least(candidate.outcome, thresholds.multi_outcome_relaxed)
        and (any_process or at_least(candidate.process, thresholds.multi_process_relaxed))
    )


def _kind(chosen: Candidate, rejected: Candidate, thresholds: Pairs) -> Kind | None:
    if _malformed(rejected, thresholds):
        return "format"
    if at_least(thresholds.easy_outcome, rejected.outcome):
        return "easy"
    margin = at_least(chosen.outcome - thresholds.hard_margin, rejected.outcome)
    no_better = not counts_process(chosen, thresholds) or at_least(chosen.process, rejected.process)
    return "hard" if rejected.hop != "single" and margin and no_better else None


def _malformed(candidate: Candidate, thresholds: Pairs) -> bool:
    """Whether the format counts and is not followed."""
    return thresholds.terms != "outcome" and candidate.format < 1


def at_least(value: float, bound: float) -> bool:
    """Whether ``value`` reaches ``bound``, up to rounding."""
    return value >= bound - _TOLERANCE
