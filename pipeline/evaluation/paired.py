"""Paired tests per question between two groups of runs.

Input: for each question the difference between the two groups, averaged over their seeds. Output: the mean
difference, its 95 % bootstrap interval and a two-sided p.

The test flips the signs of the differences: under the null hypothesis the two groups are exchangeable for
every question. It needs no distribution, so it serves EM, F1, steps and tokens alike, also where EM is a
mean over seeds. Where all differences have one size, as EM of a single seed, it is McNemar's exact test.
The seeds of a question are averaged first, because they are not independent observations of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pipeline.evaluation.compare import bootstrap_interval

RESAMPLES = 9999  # random sign flips; all of them are computed where there are fewer
_BATCH_CELLS = 20_000_000


def sign_flip_test(difference_Q: np.ndarray) -> float:
    """Two-sided p of a mean difference of 0; exact with at most 13 differences other than 0."""
    from scipy.stats import binomtest, permutation_test

    nonzero = difference_Q[difference_Q != 0]
    if not nonzero.size:
        return 1.0
    if np.ptp(np.abs(nonzero)) == 0:
        return float(binomtest(int((nonzero > 0).sum()), nonzero.size).pvalue)
    result = permutation_test(
        (nonzero,),
        lambda sample, axis: sample.mean(axis=axis),
        permutation_type="samples",
        n_resamples=RESAMPLES,
        batch=max(1, _BATCH_CELLS // nonzero.size),
        vectorized=True,
        rng=np.random.default_rng(0),
    )
    return float(result.pvalue)


def compare_paired(difference_Q: np.ndarray) -> dict[str, Any]:
    """Mean ``difference``, its 95 % ``interval`` (None for fewer than two questions) and ``p``."""
    if difference_Q.size > 1 and not difference_Q.any():  # a policy that several runs share
        return {"difference": 0.0, "interval": [0.0, 0.0], "p": 1.0}
    bounds = bootstrap_interval([difference_Q[:, None]], resamples=RESAMPLES, seed=0)
    return {
        "difference": float(difference_Q.mean()),
        "interval": None if bounds is None else [float(bound) for bound in bounds[0]],
        "p": sign_flip_test(difference_Q),
    }
