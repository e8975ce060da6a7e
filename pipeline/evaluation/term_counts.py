"""How often a reward term has each value, for right and for wrong answers.

Input: the values of one term over trajectories or steps, one question at a time, each with its
truth. Output: means, the area under the ROC curve (AUC) over all items and over the items of one
question, which is what preference pairs compare, and calibration. Values are counted after rounding
to four decimals, so memory grows with the number of distinct values (20,001 between 0 and 2) and
questions, and not with the trajectories.

Intervals treat questions as independent and items within one as dependent: the variance of an AUC
is the sum of the squared influences of the questions (Obuchowski, Biometrics 53, 1997).
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

_DECIMALS = 4
_NORMAL_95 = 1.96  # standard errors on both sides of a 95 % interval

Judged = Sequence[tuple[float, bool]]  # the values of one question, each with its truth


@dataclass(frozen=True)
class Estimate:
    """An AUC, or a difference of two on the same items.

    Attributes:
        value: between 0 and 1, or -1 and 1.
        influence: (questions,), how much each question moves the value; the sum is 0.
        questions: number of questions that can move it.
        lowest: the least possible value.
    """

    value: float
    influence: np.ndarray
    questions: int
    lowest: float = 0.0

    def __sub__(self, other: Estimate) -> Estimate:
        return Estimate(
            self.value - other.value, self.influence - other.influence, self.questions, -1.0
        )

    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval, by the normal approximation; None for fewer than two questions."""
        if self.questions < 2:
            return None
        variance = float(self.influence @ self.influence) * self.questions / (self.questions - 1)
        half = _NORMAL_95 * math.sqrt(variance)
        return max(self.lowest, self.value - half), min(1.0, self.value + half)


class WithinQuestions:
    """Comparisons of a right with a wrong answer to the same question."""

    def __init__(self) -> None:
        self._won, self._compared = array("d"), array("d")  # by question

    def add(self, right: Iterable[float], wrong: Iterable[float]) -> None:
        """Compare all right with all wrong answers to one question by their values."""
        right, wrong = list(right), sorted(wrong)
        # A value wins one for each smaller value, and a half for each equal one.
        won = sum(bisect_left(wrong, value) + bisect_right(wrong, value) for value in right) / 2
        self._won.append(won)
        self._compared.append(len(right) * len(wrong))

    @property
    def questions(self) -> int:
        """The number of questions with right and with wrong answers."""
        return sum(number > 0 for number in self._compared)

    @property
    def comparisons(self) -> int:
        """The number of pairs of a right and a wrong answer to one question."""
        return int(sum(self._compared))

    def auc(self) -> Estimate | None:
        """The share of comparisons that the right answer wins; ties count half."""
        if not self.comparisons:
            return None
        won, compared = np.array(self._won), np.array(self._compared)
        auc = float(won.sum() / compared.sum())
        return Estimate(auc, (won - auc * compared) / compared.sum(), self.questions)


class TermCounts:
    """One reward term over the trajectories of a round; ``within`` compares within questions."""

    def __init__(self) -> None:
        self._counts: tuple[Counter[float], Counter[float]] = (Counter(), Counter())  # wrong, right
        self._sums = [0.0, 0.0]
        self.within = WithinQuestions()

    def add_question(self, values: Iterable[tuple[float, bool]]) -> None:
        """Count the trajectories of one question, by value and exact match."""
        own: tuple[list[float], list[float]] = ([], [])
        for value, right in values:
            own[right].append(round(value, _DECIMALS))
            self._sums[right] += value
        for counts, sides in zip(self._counts, own, strict=True):
            counts.update(sides)
        self.within.add(right=own[True], wrong=own[False])

    @property
    def total(self) -> int:
        """The number of values."""
        return self.number(True) + self.number(False)

    @property
    def sum(self) -> float:
        """The sum of all values."""
        return sum(self._sums)

    @property
    def varies(self) -> bool:
        """Whether there are two different values."""
        return len(self._counts[0].keys() | self._counts[1].keys()) > 1

    def number(self, right: bool) -> int:
        """The number of values of right or of wrong answers."""
        return self._counts[right].total()

    def mean(self, right: bool) -> float | None:
        """The mean over right or over wrong answers; None without values."""
        number = self.number(right)
        return self._sums[right] / number if number else None

    def auc(self) -> float | None:
        """The probability that a right answer has a larger value than a wrong one; ties count half.

        This is the area under the ROC curve, and the Mann-Whitney U statistic over the product of
        both numbers. None when all answers are right or all are wrong. It is computed from the
        counts: `sklearn.metrics.roc_auc_score` would do the same, and its import takes 55 MiB.
        """
        _, wrong, right = self._table()
        if not wrong.sum() * right.sum():
            return None
        return float(right @ (np.cumsum(wrong) - wrong / 2) / (wrong.sum() * right.sum()))

    def estimate(self, questions: Sequence[Judged]) -> Estimate | None:
        """`auc` with the influence of every question; ``questions`` were added in this order."""
        auc = self.auc()
        if auc is None:
            return None
        values, wrong, right = self._table()
        n_wrong, n_right = wrong.sum(), right.sum()
        above = 1 - (np.cumsum(right) - right / 2) / n_right  # right answers with larger values
        below = (np.cumsum(wrong) - wrong / 2) / n_wrong
        of_wrong, of_right = (above - auc) / n_wrong, (below - auc) / n_right
        moved = {value: pair for value, *pair in zip(values, of_wrong, of_right, strict=True)}
        influence = [
            sum(moved[round(value, _DECIMALS)][right] for value, right in judged)
            for judged in questions
        ]
        return Estimate(auc, np.array(influence), sum(map(bool, questions)))

    def calibration_error(self, bins: int = 10) -> float | None:
        """The expected calibration error of the values, scaled so that they fill [0, 1].

        It is the mean distance of the values from the share of right ones in bins of about equal
        size; equal values are in one bin. None without two different values.
        """
        values, wrong, right = self._table()
        if len(values) < 2:
            return None
        shares = np.array(values) / max(map(abs, values))  # of the largest: no difference overflows
        scaled = (shares - shares[0]) / (shares[-1] - shares[0])
        number = wrong + right
        place = (bins * (np.cumsum(number) - number / 2) / number.sum()).astype(int)
        return float(np.abs(np.bincount(place, scaled * number - right)).sum() / number.sum())

    def _table(self) -> tuple[list[float], np.ndarray, np.ndarray]:
        """The distinct values in ascending order, and their numbers of wrong and right answers."""
        values = sorted(self._counts[0] | self._counts[1])
        wrong, right = (np.array([one[v] for v in values], float) for one in self._counts)
        return values, wrong, right
