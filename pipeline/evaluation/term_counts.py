"""How often a reward term has each value, for right and for wrong answers.

Input: the values of one term over trajectories, one at a time. Output: means, the area under the ROC curve
(AUC) against exact match, and the distribution. Values are counted after rounding to four decimals, so
memory grows with the number of distinct values (20,001 between 0 and 2) and not with the trajectories.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

_SCALE = 10_000  # values are counted in steps of 1 / _SCALE


class TermCounts:
    """One reward term over the trajectories of a round."""

    def __init__(self) -> None:
        self._counts: tuple[Counter[int], Counter[int]] = (Counter(), Counter())  # wrong, right
        self._sums = [0.0, 0.0]

    def add(self, value: float, right: bool) -> None:
        """Count one trajectory; ``right`` says whether its answer is an exact match."""
        self._counts[right][round(value * _SCALE)] += 1
        self._sums[right] += value

    @property
    def total(self) -> int:
        """The number of values."""
        return self.number(True) + self.number(False)

    def number(self, right: bool) -> int:
        """The number of values of right or of wrong answers."""
        return self._counts[right].total()

    def mean(self, right: bool | None = None) -> float | None:
        """The mean over right or wrong answers, or over all; None without values."""
        sides = (False, True) if right is None else (right,)
        number = sum(self.number(side) for side in sides)
        return sum(self._sums[side] for side in sides) / number if number else None

    def distribution(self) -> tuple[np.ndarray, np.ndarray]:
        """The distinct values in ascending order [values], and how often each occurs [values]."""
        both = self._counts[0] + self._counts[1]
        values = sorted(both)
        return np.array(values) / _SCALE, np.array([both[value] for value in values], dtype=float)

    def auc(self) -> float | None:
        """The probability that a right answer has a larger value than a wrong one; ties count half.

        This is the area under the ROC curve, and the Mann-Whitney U statistic over the product of both
        numbers. None when all answers are right or all are wrong. It is computed from the counts:
        `sklearn.metrics.roc_auc_score` would do the same, and its import takes 55 MiB.
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
