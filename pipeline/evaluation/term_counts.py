"""How often a reward term has each value, for right and for wrong answers.

Input: the values of one term over trajectories, one question at a time. Output: means, and the area
under the ROC curve (AUC) against exact match, over all answers and over answers to one question,
which is what preference pairs compare. Values are counted after rounding to four decimals, so
memory grows with the number of distinct values (20,001 between 0 and 2) and not with the
trajectories.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

import numpy as np

_SCALE = 10_000  # values are counted in steps of 1 / _SCALE
_NORMAL_95 = 1.96  # standard errors on both sides of a 95 % interval


class WithinQuestions:
    """Comparisons of a right with a wrong answer to the same question.

    Attributes:
        questions: number of questions with right and with wrong answers.
        comparisons: number of pairs of a right and a wrong answer to one question.
    """

    def __init__(self) -> None:
        self.questions = 0
        self.comparisons = 0
        self._won = 0.0
        self._squares = np.zeros(3)  # sums over questions of won², won · comparisons, comparisons²

    def add(self, right: Iterable[int], wrong: Iterable[int]) -> None:
        """Compare all right with all wrong answers to one question by their values."""
        wrong = list(wrong)
        differences = [value - other for value in right for other in wrong]
        if not differences:
            return
        count = len(differences)
        won = sum((difference > 0) + (difference == 0) / 2 for difference in differences)
        self.questions += 1
        self.comparisons += count
        self._won += won
        self._squares += (won * won, won * count, count * count)

    def auc(self) -> float | None:
        """The share of comparisons that the right answer wins; ties count half."""
        return self._won / self.comparisons if self.comparisons else None

    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of `auc`; None for fewer than two questions.

        It is the normal approximation for a ratio of sums over questions, which are independent;
        comparisons within one question are not.
        """
        auc = self.auc()
        if auc is None or self.questions < 2:
            return None
        residuals = float(self._squares @ (1, -2 * auc, auc * auc))  # sum of (won - auc · n)²
        variance = max(0.0, residuals) * self.questions / (self.questions - 1)
        half = _NORMAL_95 * math.sqrt(variance) / self.comparisons
        return max(0.0, auc - half), min(1.0, auc + half)


class TermCounts:
    """One reward term over the trajectories of a round; ``within`` compares within questions."""

    def __init__(self) -> None:
        self._counts: tuple[Counter[int], Counter[int]] = (Counter(), Counter())  # wrong, right
        self._sums = [0.0, 0.0]
        self.within = WithinQuestions()

    def add_question(self, values: Iterable[tuple[float, bool]]) -> None:
        """Count the trajectories of one question, by value and exact match."""
        own: tuple[list[int], list[int]] = ([], [])
        for value, right in values:
            own[right].append(round(value * _SCALE))
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
        wrong, right = (
            np.array([counts[value] for value in sorted(self._counts[0] | self._counts[1])], float)
            for counts in self._counts
        )
        pairs = wrong.sum() * right.sum()
        if not pairs:
            return None
        below = np.concatenate(([0.0], np.cumsum(wrong)[:-1]))  # wrong answers with smaller values
        return float((right * (below + wrong / 2)).sum() / pairs)
