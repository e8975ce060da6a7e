"""Why trajectories give no pairs: the condition of `pipeline.pairs.select` that none of them meets.

Input: the candidates of every question, each with whether its answer is an exact match. Output: a
sentence with numbers, the setting that binds, and a remedy. An answer that the selection takes for
right is right too: HiPRAG's need only cover the gold answer, and an F1 of .8 is enough for TeaRAG.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pipeline.config.policy import Pairs
from pipeline.pairs.select import Candidate, counts_process, is_chosen

NEARLY_ALL = 0.9  # share of malformed trajectories from which these are the cause
_MORE = "raise sampling.samples or sampling.temperature"


def shortage(questions: Iterable[Sequence[tuple[Candidate, bool]]], thresholds: Pairs) -> str:
    """The reason for which no pair was formed, as a sentence without a final period."""
    samples = [one for question in questions for one in question if not one[0].broken]
    right = [candidate for candidate, exact in samples if exact or _taken(candidate, thresholds)]
    counts = f"{len(samples):,} trajectories, {len(right):,} right answers"
    if not samples:
        return "no trajectory was sampled without a failure of the retrieval; run sample again"
    malformed = sum(candidate.format < 1 for candidate, _ in samples)
    if not right and malformed >= NEARLY_ALL * len(samples):
        return (
            f"{counts}, {malformed:,} malformed; the policy does not write the configuration's "
            "grammar and format: start from one that was trained for them, or train the cold start "
            "longer"
        )
    if not right:
        return f"{counts}; start from a policy that answers some questions, or ask easier questions"
    formed = [candidate for candidate in right if candidate.format >= 1]
    by_terms = right[0].reward is None  # else ``pairs.terms`` has no effect
    well_formed = not by_terms or thresholds.terms != "outcome"
    if well_formed and not formed:
        remedy = ", or set pairs.terms to outcome" if by_terms else ""
        return f"{counts}, of which none follows the format; train the cold start longer{remedy}"
    usable = formed if well_formed else right
    if by_terms and not any(is_chosen(one, thresholds) for one in usable):
        reasons = "; ".join(filter(None, (_single(usable, thresholds), _multi(usable, thresholds))))
        return f"{counts}; none is good enough to be chosen: {reasons}"
    margin = "" if by_terms else f" by pairs.margin {thresholds.margin:g}"
    return f"{counts}; no other answer to the same questions is worse{margin}; {_MORE}"


def _taken(candidate: Candidate, thresholds: Pairs) -> bool:
    """Whether the selection takes an answer for right."""
    if candidate.reward is None:
        return is_chosen(candidate, thresholds)
    return candidate.outcome >= 1


def _single(right: Sequence[Candidate], thresholds: Pairs) -> str | None:
    """The bound that right answers to single-hop questions miss."""
    outcomes = [candidate.outcome for candidate in right if candidate.hop == "single"]
    if not outcomes:
        return None
    return (
        f"{len(outcomes):,} single-hop answers have an outcome of at most {max(outcomes):.2g}, and "
        f"pairs.single_outcome is {thresholds.single_outcome:g}; leave hop out of the questions, "
        "or set rewards.tearag.single_outcome to f1"
    )


def _multi(right: Sequence[Candidate], thresholds: Pairs) -> str | None:
    """The bound that right answers to the other questions miss."""
    others = [candidate for candidate in right if candidate.hop != "single"]
    if not others:
        return None
    judged = [candidate.process for candidate in others if counts_process(candidate, thresholds)]
    if not judged:
        best = max(candidate.outcome for candidate in others)
        return (
            f"{len(others):,} answers have an outcome of at most {best:.2g}, and "
            f"pairs.multi_outcome_relaxed is {thresholds.multi_outcome_relaxed:g}; lower it"
        )
    least = min(thresholds.multi_process, thresholds.multi_process_relaxed)
    needed = (
        f"{len(judged):,} answers to multi-hop questions have a process of at most "
        f"{max(judged):.2g}, and pairs.multi_process and multi_process_relaxed ask for at least "
        f"{least:g}"
    )
    if not any(candidate.evidenced for candidate in others):
        needed += ", and these questions have no evidence to measure it; leave out their hop"
        return f"{needed}, add evidence, or set pairs.terms to outcome-format"
    return f"{needed}; lower them, correct the evidence, or set pairs.terms to outcome-format"
