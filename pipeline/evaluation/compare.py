"""Bootstrap intervals and paired tests between policies.

Input: one number per question and measure. Output: 95 % percentile intervals of means, and one test
per pair of policies, data set and measure. TeaRAG (arXiv 2511.05385) 5.5.3: two-sided paired
t-test, p < 0.05.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from pipeline.core.errors import StoreError

LEVEL = 0.95
_BATCH_CELLS = 20_000_000  # resampled numbers in memory at a time (160 MB)


def bootstrap_interval(
    samples: Sequence[np.ndarray], *, resamples: int, seed: int
) -> np.ndarray | None:
    """95 % percentile bootstrap interval of the average of sample means, for every measure.

    ``samples`` are arrays [questions, measures], one per data set. Each data set is resampled
    separately, so all data sets keep equal weight. Returns lower and upper bounds [measures, 2], or
    None when a sample has fewer than two questions and cannot be resampled.
    """
    from scipy.stats import bootstrap

    if any(len(sample) < 2 for sample in samples):
        return None
    cells = sum(sample.size for sample in samples)
    result = bootstrap(
        [sample.T for sample in samples],
        lambda *parts, axis: np.mean([part.mean(axis=axis) for part in parts], axis=0),
        n_resamples=resamples,
        batch=max(1, min(resamples, _BATCH_CELLS // cells)),
        vectorized=True,
        axis=-1,
        confidence_level=LEVEL,
        method="percentile",
        rng=np.random.default_rng(seed),
    )
    return np.stack([result.confidence_interval.low, result.confidence_interval.high], axis=-1)


def paired_test(before_Q: np.ndarray, after_Q: np.ndarray) -> dict[str, Any]:
    """Two-sided paired t-test of after - before over questions (TeaRAG 5.5.3).

    ``before_Q`` and ``after_Q`` hold one value per question, in the same order. Returns the mean
    difference, its 95 % interval, t and p. With fewer than two questions only the difference is
    set. If all differences are equal, the variance is zero. Then p is 1 for a difference of zero
    and 0 otherwise, and t and the interval are None.
    """
    from scipy.stats import ttest_rel

    difference_Q = after_Q - before_Q
    result: dict[str, Any] = {"difference": None, "interval": None, "t": None, "p": None}
    if len(difference_Q):
        result["difference"] = float(difference_Q.mean())
    if len(difference_Q) < 2:
        return result
    if np.ptp(difference_Q) == 0:
        return {**result, "p": 1.0 if difference_Q[0] == 0 else 0.0}
    test = ttest_rel(after_Q, before_Q)
    bounds = test.confidence_interval(LEVEL)
    return {
        **result,
        "interval": [float(bounds.low), float(bounds.high)],
        "t": float(test.statistic),
        "p": float(test.pvalue),
    }


def compare(
    policies: Mapping[str, Mapping[str, tuple[str, Mapping[str, float]]]],
    measures: Sequence[str],
    *,
    split: str,
    given: Collection[str] = (),
) -> list[dict[str, Any]]:
    """Test every policy against the previous one, and the last against the first.

    ``policies`` maps each policy, in order of training, to {question id: (data set, {measure:
    value})}. The policies named in ``given`` were not trained by the run; the last policy is tested
    against each of them too. Returns one row per pair of policies, data set and measure. Rows with
    ``dataset: "all"`` pool the questions of all data sets, so every question has equal weight.

    Raises StoreError when two policies were evaluated on different questions.
    """
    own = [name for name in policies if name not in given]
    last = list(policies)[-1]
    pairs = [*pairwise(own), *((first, last) for first in [*own[:1], *given] if first != last)]
    result = []
    for first, second in dict.fromkeys(pairs):
        before, after = policies[first], policies[second]
        if before.keys() != after.keys():
            unmatched = sorted(before.keys() ^ after.keys())
            raise StoreError(
                f"{first} and {second} were evaluated on different questions: {len(unmatched)} "
                f"occur in only one evaluation, such as {unmatched[0]}; evaluate both again with "
                "--force"
            )
        datasets = list(dict.fromkeys(dataset for dataset, _ in before.values()))
        for dataset in [*datasets, "all"]:
            ids = [i for i, (name, _) in before.items() if dataset in (name, "all")]
            for measure in measures:
                test = paired_test(
                    np.array([before[i][1][measure] for i in ids]),
                    np.array([after[i][1][measure] for i in ids]),
                )
                row = {"before": first, "after": second, "dataset": dataset, "split": split}
                result.append({**row, "measure": measure, "n": len(ids), **test})
    return result
