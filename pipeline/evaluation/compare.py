"""Bootstrap intervals and paired tests between policies.

Input: one number per question and measure. Output: 95 % percentile intervals of means, and one test
per pair of policies, data set and measure. TeaRAG (arXiv 2511.05385) 5.5.3: two-sided paired
t-test, p < 0.05.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from pipeline.core.answer_metrics import ALL, ALL_QUESTIONS, OF_ANSWERS
from pipeline.core.errors import StoreError
from pipeline.evaluation.policy_names import policy_in_text, policy_title

LEVEL = 0.95
SIGNIFICANT = 0.05
_ROUNDING = 1e-9  # differences below it are none: means over seeds may differ by rounding
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


def paired_test(differences: Sequence[np.ndarray]) -> dict[str, Any]:
    """Two-sided paired t-test that the mean over groups of the differences is 0 (TeaRAG 5.5.3).

    ``differences`` holds an array [questions] of a measure of one policy less that of another for
    each group, such as a data set. Groups have equal weight, each with its own variance, and the
    degrees of freedom are Welch's; one group is the ordinary paired t-test. Returns the mean
    difference, its 95 % interval, t and p. With fewer than two questions in a group only the
    difference is set. If no group varies, t and the interval are None, and p is 1 if nothing
    differs, else None: without a spread, two questions would say as much as a million.
    """
    from scipy.stats import t

    groups = [np.where(abs(group) < _ROUNDING, 0, group) for group in differences if len(group)]
    result: dict[str, Any] = {"difference": None, "interval": None, "t": None, "p": None}
    if groups:
        result["difference"] = float(np.mean([group.mean() for group in groups]))
    if not groups or min(map(len, groups)) < 2:
        return result
    varying = [group for group in groups if np.ptp(group) > _ROUNDING]
    if not varying:
        return {**result, "p": None if any(map(np.any, groups)) else 1.0}
    variances = np.array([group.var(ddof=1) / len(group) for group in varying]) / len(groups) ** 2
    freedom = variances.sum() ** 2 / sum(
        variance**2 / (len(group) - 1) for variance, group in zip(variances, varying, strict=True)
    )
    error = np.sqrt(variances.sum())
    width = error * t.ppf((1 + LEVEL) / 2, freedom)
    statistic = result["difference"] / error
    return {
        **result,
        "interval": [result["difference"] - float(width), result["difference"] + float(width)],
        "t": float(statistic),
        "p": float(2 * t.sf(abs(statistic), freedom)),
    }


def compare(
    policies: Mapping[str, Mapping[str, tuple[str, Mapping[str, float]]]], *, split: str
) -> list[dict[str, Any]]:
    """Test every policy against the previous one, and the last against the first.

    ``policies`` maps each policy, in order of training, to {question id: (data set, {measure:
    value})}. Returns one row per pair of policies, data set and measure, and the averages
    over data sets ("all") and over questions ("all-questions").

    Raises StoreError when two policies were evaluated on different questions.
    """
    names = list(policies)
    pairs = [*pairwise(names), *([(names[0], names[-1])] if len(names) > 2 else [])]
    result = []
    for first, second in pairs:
        before, after = policies[first], policies[second]
        if before.keys() != after.keys():
            unmatched = sorted(before.keys() ^ after.keys())
            raise StoreError(
                f"{policy_title(first)} and {policy_in_text(second)} were evaluated on different "
                f"questions: {len(unmatched)} occur in only one evaluation, such as "
                f"{unmatched[0]}; evaluate both again with --force"
            )
        datasets = list(dict.fromkeys(dataset for dataset, _ in before.values()))
        measures = list(next(iter(before.values()))[1])
        of = {name: [i for i, (own, _) in before.items() if own == name] for name in datasets}
        groups = {name: [ids] for name, ids in of.items()}
        groups |= {ALL_QUESTIONS: [list(before)], ALL: list(of.values())}
        for dataset, group in groups.items():
            for measure in measures:
                test = paired_test(
                    [
                        np.array([after[i][1][measure] - before[i][1][measure] for i in ids])
                        for ids in group
                    ]
                )
                row = {"before": first, "after": second, "dataset": dataset, "split": split}
                count = sum(map(len, group))
                result.append({**row, "measure": measure, "n": count, **test})
    return result


def interval_text(bounds: Sequence[float] | None, *, scale: float = 1, form: str = ".1f") -> str:
    """The bounds of an interval for tables and sentences: "35.0 to 47.5"; empty without one."""
    return "" if bounds is None else " to ".join(f"{scale * bound:{form}}" for bound in bounds)


def p_text(p: float | None) -> str:
    """A p value for tables."""
    return "" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def parted(tests: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """A sentence for every comparison in which EM moves otherwise than F1 or CEM.

    They part if only one of them changes significantly, or both in opposite directions, and the
    changes differ by more than half of the larger one. Where EM rises alone, answers may have
    become shorter and not right more often. ``tests`` are of one data set or average.
    """
    groups: dict[tuple[str, ...], dict[str, Mapping[str, Any]]] = {}
    for test in tests:
        names = tuple(test[key] for key in ("before", "after", "policy") if key in test)
        groups.setdefault(names, {})[test["measure"]] = test
    for (before, after, *policy), by_measure in groups.items():
        # Between runs, which have names of their own, a test names the policy.
        sides = (before, after) if policy else (policy_title(before), policy_in_text(after))
        em = by_measure.get("em")
        others = [
            OF_ANSWERS[name][0]
            for name in ("f1", "cem")
            if em is not None and name in by_measure and _part(em, by_measure[name])
        ]
        if others:
            changes = "; ".join(
                _change(name, by_measure) for name in OF_ANSWERS if name in by_measure
            )
            where = "".join(f", {policy_in_text(name)}" for name in policy)
            yield (
                f"{' to '.join(sides)}{where}: EM and {' and '.join(others)} part, so EM alone "
                f"misleads ({changes})"
            )


def _part(em: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    a, b = em["difference"], other["difference"]
    return _move(em) != _move(other) and abs(a - b) > max(abs(a), abs(b)) / 2


def _move(test: Mapping[str, Any]) -> int:
    """1 for a significant rise, -1 for a significant fall, else 0."""
    if test["p"] is None or test["p"] >= SIGNIFICANT:
        return 0
    return 1 if test["difference"] > 0 else -1


def _change(name: str, by_measure: Mapping[str, Mapping[str, Any]]) -> str:
    (title, scale, digits), test = OF_ANSWERS[name], by_measure[name]
    change = f"{scale * test['difference']:+.{digits}f}".replace("-", "−")
    return f"{title} {change}, p {p_text(test['p']) or 'unknown'}"
