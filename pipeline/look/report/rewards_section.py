"""Section "Rewards" of the report: every reward term over the trajectories of each round.

Input: the directories of the stages ``score``, ``pair`` and ``judge``. Output: the variables of the
section: means of right and of wrong answers, and the AUC of each term against exact match, over all
questions and within one. Single-hop and multi-hop questions are counted apart, because TeaRAG's
process reward is 0 for single-hop questions by definition. One sentence says whether the reward
prefers right answers to wrong answers to the same question, which is where preference pairs are
formed. It is about the process reward, or about the whole reward of a method without one.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, get_args

from pipeline.config import Config
from pipeline.core.answer_metrics import exact_match
from pipeline.core.records import HopType
from pipeline.core.row_files import iterate_parquet
from pipeline.core.trajectory_file import FILE
from pipeline.engine.store import read_output
from pipeline.evaluation import plots
from pipeline.evaluation.term_counts import TermCounts
from pipeline.judges.search_errors import constant_verdicts
from pipeline.look.report.data import rounds_of
from pipeline.look.report.usage_section import judgings
from pipeline.pairs.questions import by_question

_FEWEST = 10  # questions with right and wrong answers, for a verdict

Terms = Mapping[str, TermCounts]


@dataclass(frozen=True)
class RoundRewards:
    """The reward terms of one round by kind of question, and the order of its pairs by one term.

    ``pairs`` gives two numbers by kind of question: the pairs, and the pairs whose rejected side
    has the higher value of the verdict's term.
    """

    terms: Mapping[HopType, Terms]
    pairs: Mapping[HopType, tuple[int, int]]

    def counts(self, hop: HopType, term: str) -> TermCounts:
        """The values of a term over a kind of questions."""
        return self.terms.get(hop, {}).get(term) or TermCounts()


def values(inputs: Mapping[str, Path], titles: Mapping[str, str]) -> dict[str, Any]:
    """Template variables; ``titles`` are the titles of the method's terms, by term."""
    judged = "process" if "process" in titles else "total"
    rounds = {}
    for number, directory in rounds_of(inputs, "score").items():
        by_hop, of_question = reward_terms(directory, titles)
        order = _pair_order(inputs.get(f"pair-{number}"), of_question, judged)
        rounds[number] = RoundRewards(by_hop, order)
    last = max(rounds, default=0)
    hops: list[HopType] = [
        hop for hop in get_args(HopType) if any(hop in r.terms for r in rounds.values())
    ]
    return {
        "reward_rounds": {n: plots.series_color(n - 1, last) for n in rounds},
        "reward_means": {
            title: {n: _mean(term, r.terms) for n, r in rounds.items()}
            for term, title in titles.items()
        },
        "reward_answers": {
            hop: {
                title: {n: _against_answers(term, r.counts(hop, term)) for n, r in rounds.items()}
                for term, title in titles.items()
            }
            for hop in hops
        },
        "reward_order": [
            {"round": n, "hop": hop, "term": judged, "pairs": pairs, "rejected_higher": higher}
            for n, r in rounds.items()
            for hop, (pairs, higher) in r.pairs.items()
        ],
        "reward_verdict": verdict(rounds, judged),
        "constant_judges": constant_judges(inputs),
    }


def verdict(rounds: Mapping[int, RoundRewards], term: str) -> str | None:
    """One sentence: does the reward of the last round prefer right answers? None without rounds.

    It covers the multi-hop questions if the run has any, else those of unknown hops: TeaRAG's
    process reward is 0 for single-hop questions.
    """
    if not rounds:
        return None
    kinds: tuple[HopType, ...] = ("multi", "unknown", "single")
    hop: HopType = next(
        (one for one in kinds if any(one in r.terms for r in rounds.values())), "single"
    )
    number, of_last = max(rounds.items())
    pairs, higher = of_last.pairs.get(hop, (0, 0))
    if hop == "unknown" and not of_last.counts(hop, term).varies:
        term, pairs = "total", 0  # without evidence the process is always 0
    kind = "" if hop == "unknown" else f"{hop}-hop "
    name = "process reward" if term == "process" else "reward"
    within = of_last.counts(hop, term).within
    auc = within.auc()
    interval = auc.interval() if auc else None
    if auc is None or interval is None or within.questions < _FEWEST:
        return (
            f"Round {number} cannot tell whether the {name} prefers right answers: "
            f"{within.questions} {kind}questions have both right and wrong answers, and at "
            f"least {_FEWEST} are needed."
        )
    low, high = (100 * bound for bound in interval)
    does = (
        "prefers right answers" if low > 50
        else "prefers wrong answers" if high < 50
        else "does not tell right from wrong answers"
    )  # fmt: skip
    number_first, of_first = min(rounds.items())
    before = of_first.counts(hop, term).within.auc()
    known = [f"95 % interval {low:.1f} to {high:.1f}", "50 by chance"]
    if number_first != number and before is not None:
        known.append(f"{100 * before.value:.1f} in round {number_first}")
    text = (
        f"In round {number} the {name} {does}: of a right and a wrong answer to one {kind}"
        f"question, the right one has the higher value in {100 * auc.value:.1f} % of "
        f"{within.comparisons:,} comparisons ({', '.join(known)})"
    )
    if pairs:
        text += f"; in {higher:,} of {pairs:,} {kind}pairs the rejected side has the higher value"
    return f"{text}."


def control(config: Config, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The commands of the run with outcome and format rewards alone, if this run is not that run.

    The first command links the stages of this run that these rewards do not change. ``settings``
    are the settings with which the method trains on these rewards; a method may have none.
    """
    name = f"{config.name}-control"
    differing = any(attrgetter(key)(config) != value for key, value in settings.items())
    options = "".join(f" --set {key}={value}" for key, value in {"name": name, **settings}.items())
    folder = shlex.quote(str(config.run_dir))
    command = f"steep fork {folder} {name}; steep run --config {folder}/config.yaml{options}"
    return {
        "is_control": bool(settings) and not differing,
        "control": command if differing and config.rounds else None,
    }


def constant_judges(inputs: Mapping[str, Path]) -> list[str]:
    """A sentence for each judge that gave one verdict on all steps of a round or policy."""
    return [
        f"{title}: {line}"
        for title, directory in judgings(inputs).items()
        for line in constant_verdicts(read_output(directory / "statistics.json"))
    ]


def _mean(term: str, by_hop: Mapping[HopType, Terms]) -> float | None:
    """The mean over all questions; None without values."""
    counts = [terms[term] for terms in by_hop.values()]
    total = sum(one.total for one in counts)
    return sum(one.sum for one in counts) / total if total else None


def _against_answers(term: str, counts: TermCounts) -> dict[str, Any]:
    """Numbers and means of right and of wrong answers, and the AUC; None where unmeasured.

    A term with only one value has no AUC, although all its comparisons are ties.
    """
    within = counts.within.auc() if counts.varies else None
    return {
        "term": term,
        "right": counts.mean(True),
        "wrong": counts.mean(False),
        "n_right": counts.number(True),
        "n_wrong": counts.number(False),
        "auc": counts.auc() if counts.varies else None,
        "within": within and within.value,
        "within_interval": within and within.interval(),
        "comparisons": counts.within.comparisons,
        "questions": counts.within.questions,
    }


def reward_terms(
    score: Path, terms: Collection[str]
) -> tuple[dict[HopType, dict[str, TermCounts]], dict[str, HopType]]:
    """The values of every reward term over a round's trajectories, and each question's kind.

    TeaRAG eq. 5 to 13, HiPRAG eq. 1, and ProGraph-R1 eq. 11 to 15 as means over the steps of a
    trajectory. A term that is not measured has no values.
    """
    path = score / FILE
    result: dict[HopType, dict[str, TermCounts]] = {}
    hops: dict[str, HopType] = {}
    rows = iterate_parquet(path, ["question_id", "hop", "rewards", "answer", "answers"])
    for question, samples in by_question(rows, itemgetter("question_id"), path):
        hops[question] = samples[0]["hop"]
        rewards = [  # none after a retrieval error
            (row["rewards"] or {}, exact_match(row["answer"], row["answers"]) == 1)
            for row in samples
        ]
        counts = result.setdefault(hops[question], {term: TermCounts() for term in terms})
        for term, of_term in counts.items():
            of_term.add_question(
                (of_sample[term], right)
                for of_sample, right in rewards
                if of_sample.get(term) is not None
            )
    return result, hops


def _pair_order(
    pair: Path | None, hops: Mapping[str, HopType], term: str
) -> dict[HopType, tuple[int, int]]:
    """Number of pairs, and of pairs whose rejected side has the higher value, by kind of question.

    Step pairs are left out: their sides are parts of trajectories.
    """
    counts: dict[HopType, tuple[int, int]] = {}
    if pair is None:
        return counts
    path = pair / "pairs.parquet"
    sides = ["chosen_rewards", "rejected_rewards"]
    for row in iterate_parquet(path, ["question_id", "kind", *sides]):
        chosen, rejected = (row[side].get(term) for side in sides)
        hop = hops.get(row["question_id"])
        if row["kind"] == "step" or hop is None or chosen is None or rejected is None:
            continue
        pairs, higher = counts.get(hop, (0, 0))
        counts[hop] = (pairs + 1, higher + (rejected > chosen))
    return counts
