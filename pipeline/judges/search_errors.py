"""Search-error rates of a policy, and the accuracy of a judge.

Over-search rate OSR = over-searches / search steps, and under-search rate USR = under-searches /
non-search steps (HiPRAG, arXiv 2510.07794, eq. 2 and 4.1). Both count only steps with a known
verdict ("identifiable" steps). Counts add up over trajectories, data sets and shards; rates do not,
so they are computed last.

`calibrate` compares the verdicts of a judge with the truth. HiPRAG (F.2) audits 200 trajectories by
hand; in the closed world every step has a true verdict. A positive is an error of the policy, that
is, the verdict "yes".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pipeline.core.verdicts import KINDS, Kind, Verdict

_FEWEST = 50  # equal verdicts on fewer cases may be chance


@dataclass(frozen=True, slots=True)
class VerdictCounts:
    """Number of verdicts of one kind; ``yes`` counts the errors."""

    yes: int = 0
    no: int = 0
    unknown: int = 0

    @property
    def rate(self) -> float | None:
        """Share of errors among the steps with a known verdict; None without such steps."""
        return _share(self.yes, self.yes + self.no)

    def __add__(self, other: VerdictCounts) -> VerdictCounts:
        return VerdictCounts(self.yes + other.yes, self.no + other.no, self.unknown + other.unknown)


@dataclass(frozen=True, slots=True)
class SearchErrors:
    """Verdict counts of search steps (``over``) and of non-search steps (``under``)."""

    over: VerdictCounts = VerdictCounts()
    under: VerdictCounts = VerdictCounts()

    @property
    def unknown_share(self) -> float | None:
        """Share of unknown verdicts among all steps of both kinds; None without steps."""
        both = self.over + self.under
        return _share(both.unknown, both.yes + both.no + both.unknown)

    def __add__(self, other: SearchErrors) -> SearchErrors:
        return SearchErrors(self.over + other.over, self.under + other.under)


def count_search_errors(verdicts: Iterable[Verdict]) -> SearchErrors:
    """Count the verdicts of both kinds, as they come."""
    counts = Counter((verdict.kind, verdict.verdict) for verdict in verdicts)
    over, under = (
        VerdictCounts(*(counts[kind, ruling] for ruling in ("yes", "no", "unknown")))
        for kind in KINDS
    )
    return SearchErrors(over, under)


def constant_verdicts(statistics: Mapping[str, Any]) -> list[str]:
    """A sentence for each kind of step on which a judge gave the same verdict in many cases.

    ``statistics`` come from the stage ``judge``: verdict counts of steps by kind, and under "calls"
    the number of distinct cases.
    """
    lines = []
    for kind in KINDS:
        counts = VerdictCounts(**statistics[kind])
        known = counts.yes + counts.no
        if min(known, statistics["calls"].get(kind, 0)) >= _FEWEST and not (
            counts.yes and counts.no
        ):
            verdict = "yes" if counts.yes else "no"
            lines.append(
                f"all {known:,} verdicts on {kind}-search are {verdict!r}: either every step is "
                "alike or the judge does not judge; read some in calls.parquet, and measure it "
                "with steep calibrate"
            )
    return lines


@dataclass(frozen=True, slots=True)
class Calibration:
    """Confusion matrix of a judge for one kind of step.

    ``unknown`` counts steps with a known truth and an unknown verdict of the judge, ``undecided``
    steps with an unknown truth. Neither enters a figure.
    """

    kind: Kind
    true_yes: int = 0
    false_yes: int = 0
    true_no: int = 0
    false_no: int = 0
    unknown: int = 0
    undecided: int = 0

    @property
    def n(self) -> int:
        """Number of steps with a known truth and a known verdict."""
        return self.true_yes + self.false_yes + self.true_no + self.false_no

    @property
    def accuracy(self) -> float | None:
        return _share(self.true_yes + self.true_no, self.n)

    @property
    def precision(self) -> float | None:
        """Share of errors among the steps judged to be errors."""
        return _share(self.true_yes, self.true_yes + self.false_yes)

    @property
    def recall(self) -> float | None:
        """Share of the errors that the judge reports as errors."""
        return _share(self.true_yes, self.true_yes + self.false_no)

    def as_json(self) -> dict[str, Any]:
        """Counts and figures as JSON values."""
        figures = {name: getattr(self, name) for name in ("accuracy", "precision", "recall")}
        return {**asdict(self), "n": self.n, **figures}


def calibrate(judged: Iterable[Verdict], truth: Iterable[Verdict]) -> list[Calibration]:
    """One `Calibration` per kind, over the steps that both ``judged`` and ``truth`` contain."""
    true_rulings = {(verdict.id, verdict.step, verdict.kind): verdict.verdict for verdict in truth}
    cells: dict[Kind, Counter[str]] = {kind: Counter() for kind in KINDS}
    for verdict in judged:
        true_ruling = true_rulings.get((verdict.id, verdict.step, verdict.kind))
        if true_ruling is None:
            continue
        if true_ruling == "unknown":
            cell = "undecided"
        elif verdict.verdict == "unknown":
            cell = "unknown"
        else:
            correct = verdict.verdict == true_ruling
            cell = f"{'true' if correct else 'false'}_{verdict.verdict}"
        cells[verdict.kind][cell] += 1
    return [Calibration(kind, **cells[kind]) for kind in KINDS]


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
