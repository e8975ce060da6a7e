"""The home page of a run: scores of every policy, failure modes of its trajectories, and rounds.

Input: an open run. Output: the variables of ``home.html.j2``. The stage ``evaluate`` wrote the
scores, intervals and tests, and the report the sentence on the reward. The counts cover the
trajectories and pairs that the browser lists, and link to them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.browse.figures import curve, share_table, stacked
from pipeline.browse.rendering import BIN_MEANINGS, FAILURE_MEANINGS, KIND_MEANINGS
from pipeline.browse.site import OpenRun
from pipeline.browse.sources import METRICS, TESTS, Group
from pipeline.core.answer_metrics import ALL
from pipeline.evaluation.policy_names import of_run, policy_title
from pipeline.report.data import series
from pipeline.run.store import read_output

Page = dict[str, Any]


def home(run: OpenRun) -> Page:
    """Policies with scores, failure modes and training; rounds with outcomes and kinds of pairs."""
    tables = []
    for title, heading, list, name, meanings in (
        ("Failure modes", "Of trajectories", "trajectories", "failure", FAILURE_MEANINGS),
        ("Pairing outcomes", "Of samples", "trajectories", "bin", BIN_MEANINGS),
        ("Kinds of pairs", "Of pairs", "pairs", "kind", KIND_MEANINGS),
    ):
        counted = run.queries.counts(list, name)
        groups = [group for group in run.sources.groups if group.key in counted]
        groups.sort(key=lambda group: group.key.startswith("round"))  # policies first
        of_group = {group.key: counted[group.key] for group in groups}
        tables.append(
            {
                "title": title,
                "heading": heading,
                "list": list,
                "rows": share_table(of_group, meanings, list, name),
                "columns": [(group, sum(of_group[group.key].values())) for group in groups],
                "colored": name == "failure",
            }
        )
    figures = run.written("report.json")
    verdict = None if figures is None else read_output(figures)["verdict"]
    policies = _policies(run, run.queries.counts("trajectories", "failure"))
    return {"verdict": verdict, "policies": policies, "tables": tables}


def _policies(run: OpenRun, failures: Mapping[str, Mapping[str, int]]) -> list[Page]:
    """One row for each evaluated policy; policies that the run did not train come first."""
    scores, tests = _scores(run)
    own = of_run(scores)
    groups = {group.number: group for group in run.sources.groups if group.key.startswith("policy")}
    named = {name: groups.get(int(name.rpartition("-")[2]) if "-" in name else 0) for name in own}
    unmerged = [group for group in groups.values() if group not in named.values()]
    rows = [_policy(name, scores[name], None, {}) for name in scores if name not in own]
    rows += [_policy(name, scores[name], named[name], failures) for name in own]
    for row, before, name in zip(rows[len(rows) - len(own) + 1 :], own, own[1:], strict=False):
        row["gain"] = scores[name]["em"] - scores[before]["em"]
        row["p"], row["before"] = tests.get((before, name)), named[before]
    return rows + [_policy("", None, group, failures) for group in unmerged]


def _policy(
    name: str,
    score: Mapping[str, Any] | None,
    group: Group | None,
    failures: Mapping[str, Mapping[str, int]],
) -> Page:
    modes = failures.get(group.key, {}) if group is not None else {}
    history = read_output(group.training)["history"] if group and group.training else []
    return {
        "title": policy_title(name) if group is None else group.title,
        "group": group,
        "score": score,
        "right": (modes.get("right", 0), sum(modes.values())),
        "gain": None,
        "p": None,
        "before": None,
        "modes": stacked({mode: modes.get(mode, 0) for mode in FAILURE_MEANINGS}),
        "training": curve(series(history, "loss")[1]),
    }


def _scores(run: OpenRun) -> tuple[dict[str, Any], dict[tuple[str, str], float | None]]:
    """The average over data sets by policy, and p of EM by the policies before and after."""
    directory = run.sources.evaluation
    if directory is None:
        return {}, {}
    rows: Sequence[Mapping[str, Any]] = read_output(directory / METRICS)
    tests: Sequence[Mapping[str, Any]] = read_output(directory / TESTS)
    return (
        {
            row["policy"]: row
            for row in rows
            if row["dataset"] == ALL and row["split"] == rows[0]["split"]
        },
        {
            (test["before"], test["after"]): test["p"]
            for test in tests
            if test["dataset"] == ALL and test["measure"] == "em"
        },
    )
