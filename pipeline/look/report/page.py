"""The stage ``report``: one self-contained HTML page and its figures.

Input: the directories of the other stages. Output: ``report.html`` (inline styles and figures, no
script), ``metrics.json``, the metrics rows, and ``report.json``, the other figures of the page.
Trajectories are read one after the other, so memory does not grow with their number.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from pipeline.core.answer_metrics import ALL, AVERAGE_TITLES, HOP_AVERAGES, hop_count, is_average
from pipeline.core.atomic import json_text, write_json, write_text
from pipeline.core.text import visible
from pipeline.engine.context import StageContext
from pipeline.engine.progress import duration
from pipeline.engine.store import read_output
from pipeline.evaluation import plots
from pipeline.evaluation.compare import SIGNIFICANT, parted
from pipeline.evaluation.failures import LEGEND, FailureMode
from pipeline.evaluation.policy_names import policy_in_text, policy_title
from pipeline.look.report import data as collect
from pipeline.look.report import (
    recall_section,
    rewards_section,
    usage_section,
)
from pipeline.look.report.html_pages import BROWSER_LINKS, TEMPLATES, page_environment
from pipeline.methods import method
from pipeline.pairs.select import BINS, KIND_MEANINGS

_LOSS = {
    "dpo": (
        ("DPO + SFT loss (eq. 15–17)", {"loss": "-"}, "loss"),
        ("Reward margin, chosen − rejected", {"rewards/margins": "-"}, "β · nats"),
        ("Pairs ranked correctly", {"rewards/accuracies": "-"}, "share"),
        (
            "Log-probability of chosen (solid) and rejected (dashed)",
            {"logps/chosen": "-", "logps/rejected": "--"},
            "nats per trajectory",
        ),
        (
            "Log-probability of chosen, reference − policy",
            {"logps/chosen_below_reference": "-"},
            "nats",
        ),
    ),
    "grpo": (
        ("GRPO loss (ProGraph-R1 eq. 16)", {"loss": "-"}, "loss"),
        ("KL to the sampling policy", {"kl": "-"}, "nats per token"),
        ("Clipped tokens", {"clip_ratio/region_mean": "-"}, "share"),
        ("Entropy", {"entropy": "-"}, "nats per token"),
    ),
}


def run(context: StageContext) -> dict[str, int]:
    """Write the page and its figures; returns the number of rows and of bytes.

    Raises StoreError when an upstream file is missing or broken.
    """
    rows = []
    if "evaluate" in context.inputs:
        rows = read_output(context.inputs["evaluate"] / "metrics.json")
    context.progress.start(3, "files")
    found = values(context, rows)
    page = render(found)
    write_text(context.output / "report.html", page)
    context.progress.advance()
    write_json(context.output / "metrics.json", rows)
    context.progress.advance()
    write_json(context.output / "report.json", figures(found))
    context.progress.advance()
    policies = ", ".join(dict.fromkeys(str(row["policy"]) for row in rows)) or "none"
    print(f"policies: {policies}; the page has {len(page.encode()):,} bytes")
    return {"rows": len(rows), "bytes": len(page.encode())}


def figures(found: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of the page that are in no other file: the content of ``report.json``."""
    return {
        "settings": found["differing"],
        "recall": [asdict(recall) for recall in found["recalls"]],
        "coverage": found["coverage"],
        "answerable": list(found["answerable"].values()),
        "added_gold": len(found["added_gold"]),
        "average": found["average"],
        "parted": found["parted"],
        "verdict": found["reward_verdict"],
        "control": found["control"],
        "constant_judges": found["constant_judges"],
        "rewards": [
            {"round": number, "hop": hop, **against}
            for hop, by_term in found["reward_answers"].items()
            for by_round in by_term.values()
            for number, against in by_round.items()
        ],
        "pair_order": found["reward_order"],
        "calls": [asdict(calls) for calls in found["usages"]],
    }


def render(page: Mapping[str, Any]) -> str:
    """Fill the template with the variables of `values`.

    All values except figures are escaped, and invisible controls are written out in all of them.
    """
    from markupsafe import Markup

    environment = page_environment(TEMPLATES)
    environment.filters |= {
        "percent": lambda value: f"{100 * value:.1f}",
        "duration": duration,
        "signed": lambda value, digits: f"{value:+.{digits}f}".replace("-", "−"),
        "policy": policy_title,
        "policy_in_text": policy_in_text,
        "setting": lambda value: value if isinstance(value, str) else json_text(value),
        "svg": lambda figure: Markup(visible(figure)),  # only for figures of `plots`
    }
    return environment.get_template("report.html.j2").render(**page)


def values(context: StageContext, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Template variables: plain values and SVG figures."""
    from markupsafe import Markup

    inputs = context.inputs
    trained = method(context.config.grammar)
    stages = collect.stage_rows(inputs)
    funnels = collect.funnels(inputs)
    kinds = collect.pair_kinds(inputs)
    progress_costs = collect.progress_costs(inputs)
    return {
        "name": context.config.name,
        "config": context.config,
        "evaluated": context.config.for_evaluation().retrieval,
        "significant": SIGNIFICANT,
        **_results(rows, inputs["evaluate"] if rows else None, context.config.evaluation.average),
        **collect.coverage(inputs, _policies(rows), context.config.evaluation.split, context.seed),
        # ProGraph-R1 counts the answer turn as a step.
        "step_name": "Turns" if trained.step_titles else "Steps",
        **rewards_section.values(inputs, trained.reward_titles),
        **rewards_section.control(context.config, trained.control),
        "turn_rewards": (
            collect.turn_rewards(inputs, trained.step_titles) if trained.step_titles else {}
        ),
        "turn_titles": trained.step_titles,
        "progress_costs": progress_costs,
        "differing": context.facts.get("differing"),
        "usages": usage_section.usages(inputs),
        **recall_section.values(inputs, context.config.evaluation.split),
        "run_dir": shlex.quote(str(context.config.run_dir)),  # of commands
        "funnels": funnels,
        "funnel_bins": list(dict.fromkeys(name for bins in funnels.values() for name in bins)),
        "bin_meanings": BINS,
        "kind_meanings": KIND_MEANINGS,
        "links_of_the_browser": Markup(BROWSER_LINKS),
        "kinds": kinds,
        "kind_names": [k for k in KIND_MEANINGS if any(k in c for c in kinds.values())],
        "training": _training(inputs, context.config.objective),
        "stages": stages,
        "versions": stages[-1]["versions"] if stages else {},
    }


def _results(
    rows: Sequence[Mapping[str, Any]], evaluate: Path | None, average: str
) -> dict[str, Any]:
    """Results of the evaluated policies; empty when the run stopped before evaluation.

    ``average`` names the rows of the headline: the setting ``evaluation.average``.
    """
    policies = _policies(rows)
    split = rows[0]["split"] if rows else ""
    main = [row for row in rows if row["split"] == split]
    # Rows with over- or under-search rates.
    judged = [row for row in main if row["osr"] is not None or row["usr"] is not None]
    occurring = [m for m in FailureMode if any(row["failure_modes"][m]["n"] for row in main)]
    result: dict[str, Any] = {
        "failure_modes": {mode.value: LEGEND[mode] for mode in occurring},
        "policies": policies,
        "split": split,
        "colors": {p: plots.series_color(i, len(policies)) for i, p in enumerate(policies)},
        "average": average,
        "average_title": AVERAGE_TITLES[average],
        "titles": AVERAGE_TITLES,
        "datasets": len({row["dataset"] for row in main if not is_average(row["dataset"])}),
        "headline": [row for row in main if row["dataset"] == average],
        "by_dataset": collect.by_dataset(main),
        "by_hop": {
            name: of_hop
            for name in HOP_AVERAGES.values()
            if (of_hop := [row for row in main if row["dataset"] == name])
        },
        **_by_hop_count(main),
        "judged": collect.by_dataset(judged),
        "parts": _by_part(rows, split, average),
        # Of the last policy on ``evaluation.final_split``.
        "final": collect.by_dataset(
            [row for row in rows if row["split"] != split and "/" not in row["split"]]
        ),
        "learning": _learning(policies, main, average),
    }
    if evaluate is None:
        return {**result, "first_to_last": {}, "parted": []}
    tests = read_output(evaluate / "comparison.json")
    return {
        **result,
        "against_previous": {
            after: by_dataset[average]
            for before, after in pairwise(policies)
            if "em" in (by_dataset := _by_measure(tests, before, after)).get(average, {})
        },
        "first_to_last": _by_measure(tests, policies[0], policies[-1]),
        "parted": [*parted(test for test in tests if test["dataset"] == average)],
        **_steps(policies, read_output(evaluate / "distributions.json")),
    }


def _policies(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(row["policy"] for row in rows))


def _by_measure(
    tests: Sequence[Mapping[str, Any]], before: str, after: str
) -> dict[str, dict[str, Mapping[str, Any]]]:
    """Tests between two policies, by data set and measure, in the order of ``tests``."""
    result: dict[str, dict[str, Mapping[str, Any]]] = {}
    for test in tests:
        if (test["before"], test["after"]) == (before, after):
            result.setdefault(test["dataset"], {})[test["measure"]] = test
    return result


def _by_hop_count(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Rows by number of hops and policy, and the numbers of hops; empty for old evaluations."""
    found: dict[str, dict[int, Mapping[str, Any]]] = {}
    for row in rows:
        if (count := hop_count(row["dataset"])) is not None:
            found.setdefault(row["policy"], {})[count] = row
    return {"by_hop_count": found, "hop_counts": sorted(set().union(*found.values()))}


def _by_part(
    rows: Sequence[Mapping[str, Any]], split: str, average: str
) -> dict[str, list[Mapping[str, Any]]]:
    result: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["split"].startswith(f"{split}/") and row["dataset"] == average:
            result.setdefault(row["split"].removeprefix(f"{split}/"), []).append(row)
    return result


def _learning(
    policies: Sequence[str], rows: Sequence[Mapping[str, Any]], average: str
) -> dict[str, str]:
    """One figure of EM and F1 per data set, with a common scale, and one of the average."""
    if len(policies) < 2:
        return {}
    points = {
        (row["dataset"], row["policy"], measure): (row[measure], row["ci"][measure])
        for row in rows
        for measure in ("em", "f1")
    }
    bounds = [
        100 * value
        for (dataset, _, _), (score, interval) in points.items()
        if not is_average(dataset)
        for value in (score, *(interval or ()))
    ]
    limits = (max(0.0, min(bounds) - 6), min(104.0, max(bounds) + 6))
    datasets = dict.fromkeys(name for name, _, _ in points if not is_average(name))
    return {
        AVERAGE_TITLES.get(dataset, dataset): plots.learning_curve(
            [policy_title(policy) for policy in policies],
            {
                plots.EM: [points[dataset, policy, "em"] for policy in policies],
                plots.F1: [points[dataset, policy, "f1"] for policy in policies],
            },
            None if dataset == average else limits,
        )
        for dataset in [average, *datasets]
    }


def _steps(
    policies: Sequence[str],
    distributions: Mapping[str, Mapping[str, Mapping[str, Mapping[str, int]]]],
) -> dict[str, Any]:
    steps = {policy: distributions[policy][ALL]["steps"] for policy in policies}
    stops = {policy: distributions[policy][ALL]["stops"] for policy in policies}
    counts = sorted({int(count) for table in steps.values() for count in table})
    return {
        "step_counts": counts,
        "steps": steps,
        "stops": stops,
        "stop_names": list(dict.fromkeys(name for table in stops.values() for name in table)),
    }


def _training(inputs: Mapping[str, Path], objective: str) -> dict[str, Any]:
    """Figures of the trainer logs."""
    trained = collect.rounds_of(inputs, "train")
    rounds = {number: collect.training_log(directory) for number, directory in trained.items()}
    last = max(rounds, default=0)
    figures: dict[str, str] = {}
    if "sft" in inputs:
        losses = collect.series(collect.training_log(inputs["sft"]), "loss")
        figures["SFT loss"] = plots.line_chart(
            [(plots.SFT, "-", *losses)], 1, "loss (nats per token)"
        )
    for title, keys, label in _LOSS[objective]:
        curves = [
            (number - 1, style, *collect.series(history, key))
            for number, history in rounds.items()
            for key, style in keys.items()
        ]
        if any(steps for _, _, steps, _ in curves):
            figures[title] = plots.line_chart(curves, last, label)
    return {
        "figures": figures,
        "rounds": {n: plots.series_color(n - 1, last) for n in rounds},
    }
