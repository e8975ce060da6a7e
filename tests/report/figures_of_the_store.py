"""The figures of a report, taken from the files that the stages wrote, and found on its page.

Input: the directories that the report read, and its page. Output: a sentence for each number of the
page that is not the expected one, and for each that nothing here expects. Means, tests, reward terms
and recall are those of ``metrics.json``, ``comparison.json`` and ``report.json``, whose own tests
compute them by hand; all other numbers are counted in trajectories, pairs, logs and manifests.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, pairwise
from statistics import fmean
from typing import Any

from lxml import html

from pipeline.core.record_io import iterate_records
from pipeline.core.records import Pair, Trajectory
from pipeline.engine.context import StageContext
from pipeline.engine.progress import duration
from pipeline.evaluation.failures import FailureMode
from pipeline.methods import method
from pipeline.pairs.select import KIND_MEANINGS

Row = Mapping[str, Any]  # of metrics.json
Rows = list[list[str]]
AVERAGES = {"all-questions": "average over questions", "all": "average over data sets"}
# Scale and decimals of the measures that have an interval.
SHOWN = {
    "em": (100, 1), "f1": (100, 1), "cem": (100, 1), "words": (1, 2), "steps": (1, 2),
    "searches": (1, 2), "thinking": (1, 0), "retrieved": (1, 0), "total": (1, 0),
}  # fmt: skip
# Numbers in sentences that explain figures and are none.
FIXED = re.compile(
    r"95 %|F1|eq\. [\d–]+|p < 0\.05|policy N − 1|0\.5 means|0 without one|process reward is 0|2wiki"
)


def policy(name: str) -> str:
    return "Policy 0 (SFT)" if name == "sft" else f"Policy {name.removeprefix('round-')}"


def percent(value: float) -> str:
    return f"{100 * value:.1f}"


def signed(value: float, digits: int) -> str:
    return f"{value:+.{digits}f}".replace("-", "−")


def p_text(p: float | None) -> str:
    return "–" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def cell(row: Row, measure: str) -> str:
    """A mean with its interval."""
    scale, digits = SHOWN[measure]
    mean = f"{scale * row['tokens'].get(measure, row.get(measure)):,.{digits}f}"
    interval = row["ci"][measure]
    if interval is None:
        return mean
    low, high = (f"{scale * bound:.{digits}f}" for bound in interval)
    return f"{mean} [{low}, {high}]"


def scores(row: Row) -> list[str]:
    em, f1, cem, words, steps = (cell(row, m) for m in ("em", "f1", "cem", "words", "steps"))
    return [em, f1, cem, words, percent(row["format_ok"]), steps]


class Store:
    """The files of a run of TeaRAG, with the tables and sentences that the page of its report must have."""

    def __init__(self, context: StageContext) -> None:
        self.inputs = context.inputs
        rows = self.json("evaluate", "metrics.json")
        self.split = rows[0]["split"]
        self.main = [row for row in rows if row["split"] == self.split]
        self.of_parts = [row for row in rows if row["split"] != self.split]
        self.policies = list(dict.fromkeys(row["policy"] for row in rows))
        self.average = self.of_dataset("all")
        of_hops = [name for row in self.main if re.fullmatch(r"\d+-hop", name := row["dataset"])]
        self.hops = sorted(dict.fromkeys(of_hops))
        named = [row["dataset"] for row in self.main if not row["dataset"].endswith("-hop")]
        self.datasets = [name for name in dict.fromkeys(named) if name not in AVERAGES]
        self.tests = {
            (one["before"], one["after"], one["dataset"], one["measure"]): one
            for one in self.json("evaluate", "comparison.json")
        }
        self.report = json.loads((context.output / "report.json").read_text())
        self.of = {p: self.records(f"evaluate-{p}", Trajectory) for p in self.policies}
        self.scored = {n: self.records(f"score-{n}", Trajectory) for n in self.rounds("score")}
        self.pairs = {
            n: self.records(f"pair-{n}", Pair, "pairs.parquet") for n in self.rounds("pair")
        }
        self.titles = method("tearag").reward_titles

    def rounds(self, stage: str) -> list[int]:
        found = (re.fullmatch(rf"{stage}-(\d+)", name) for name in self.inputs)
        return sorted(int(one[1]) for one in found if one)

    def json(self, stage: str, name: str) -> Any:
        return json.loads((self.inputs[stage] / name).read_text())

    def records(self, stage: str, kind: Any, name: str = "trajectories.parquet") -> list[Any]:
        return list(iterate_records(self.inputs[stage] / name, kind))

    def of_dataset(self, name: str) -> list[Row]:
        """The rows of all policies."""
        return [row for row in self.main if row["dataset"] == name]

    @cached_property
    def manifests(self) -> list[dict[str, Any]]:
        distinct = dict.fromkeys(path.resolve() for path in self.inputs.values())
        return [
            json.loads((path / "manifest.json").read_text())
            for path in distinct
            if (path / "manifest.json").exists()
        ]

    # Results

    def headline(self) -> Rows:
        tests: dict[str, list[str]] = {"sft": ["–"] * 3}
        for before, after in pairwise(self.policies):
            tests[after] = [
                p_text(self.tests[before, after, "all", m]["p"]) for m in ("em", "f1", "cem")
            ]
        return [
            [policy(row["policy"]), *scores(row), cell(row, "total"), *tests[row["policy"]]]
            for row in self.average
        ]

    def grouped(
        self, tables: Mapping[str, Sequence[Row]], cells: Callable[[Row], list[str]]
    ) -> Rows:
        """Rows of each policy under the title of a table and its number of questions."""
        return [
            [
                *([f"{title}{row['n']:,} questions"] if place == 0 else []),
                policy(row["policy"]),
                *cells(row),
            ]
            for title, rows in tables.items()
            for place, row in enumerate(rows)
        ]

    def metrics(self, tables: Mapping[str, Sequence[Row]]) -> Rows:
        return self.grouped(tables, lambda row: [*scores(row), f"{row['tokens']['total']:,.0f}"])

    def by_dataset(self) -> dict[str, list[Row]]:
        titles = dict.fromkeys(self.datasets) | AVERAGES
        return {title or name: self.of_dataset(name) for name, title in titles.items()}

    def by_part(self) -> dict[str, list[Row]]:
        found: dict[str, list[Row]] = {}
        for row in self.of_parts:
            if row["dataset"] == "all":
                found.setdefault(row["split"].removeprefix(f"{self.split}/"), []).append(row)
        return found

    def by_hops(self) -> Rows:
        rows: Rows = [[policy(p)] for p in self.policies]
        for name in self.hops:
            for cells, row in zip(rows, self.of_dataset(name), strict=True):
                interval = cell(row, "em").partition(" ")[2]
                means = " · ".join(percent(row[measure]) for measure in ("em", "f1", "cem"))
                cells.append(f"{means} {interval}".strip())
        return rows

    def first_to_last(self) -> Rows:
        rows = []
        for dataset in [*self.datasets, *AVERAGES]:
            cells = []
            for measure in ("em", "f1", "cem", "words", "steps"):
                test = self.tests[self.policies[0], self.policies[-1], dataset, measure]
                scale, digits = SHOWN[measure]
                shown = signed(scale * test["difference"], digits)
                if test["interval"] is not None:
                    low, high = (signed(scale * bound, digits) for bound in test["interval"])
                    shown += f" [{low}, {high}]"
                cells += [shown, p_text(test["p"])]
            rows.append([AVERAGES.get(dataset, dataset), f"{test['n']:,}", *cells])
        return rows

    def failure_modes(self) -> Rows:
        occurring = [
            mode for mode in FailureMode if any(r["failure_modes"][mode]["n"] for r in self.main)
        ]

        def cells(row: Row) -> list[str]:
            counts = [row["failure_modes"][mode] for mode in occurring]
            return [f"{percent(count['share'])} {count['n']:,}" for count in counts]

        return self.grouped(self.by_dataset(), cells)

    def tokens(self) -> Rows:
        names = ("thinking", "retrieved", "total", "searches")
        return [
            [
                policy(row["policy"]),
                *(cell(row, name) for name in names),
                f"{row['tokens']['per_retrieval']:,.0f}",
            ]
            for row in self.average
        ]

    def step_counts(self) -> list[int]:
        return sorted({len(t.steps) for found in self.of.values() for t in found})

    def steps_and_stops(self) -> Rows:
        by_dataset = {
            p: sorted(found, key=lambda t: self.datasets.index(t.dataset))
            for p, found in self.of.items()
        }
        stops = dict.fromkeys(t.stop for found in by_dataset.values() for t in found)
        return [
            [
                policy(p),
                *(f"{sum(len(t.steps) == n for t in found):,}" for n in self.step_counts()),
                *(f"{sum(t.stop == stop for t in found):,}" for stop in stops),
            ]
            for p, found in self.of.items()
        ]

    def recall(self) -> Rows:
        """Rows of the sampled trajectories, then those of the policies."""
        found = self.report["recall"]
        datasets = dict.fromkeys(["all", *(name for one in found for name in one["by_dataset"])])
        self.hops_checked = sorted({name for one in found for name in one["by_hops"]})

        def cells(shares: Mapping[str, Any], names: Sequence[str]) -> list[str]:
            return [
                f"{percent(shares[n]['recall'])}{percent(shares[n]['whole'])}"
                if n in shares
                else "–"
                for n in names
            ]

        rows = []
        for one in found:
            title = one["title"] + ("training" if one["sampled"] else "held-out") + " questions"
            missing = one["without_question"]
            title += f", {missing:,} without their question" if missing else ""
            of_hops = cells(one["by_hops"], self.hops_checked)
            rows.append([title, *cells(one["by_dataset"], [*datasets]), *of_hops])
        return rows

    # Rewards and pairs

    def reward_means(self) -> Rows:
        return [
            [
                title,
                *(number(fmean(t.rewards[term] for t in found)) for found in self.scored.values()),
            ]
            for term, title in self.titles.items()
        ]

    def against(self, hop: str, term: str) -> list[dict[str, Any]]:
        """The figures of every round."""
        found = self.report["rewards"]
        return [one for one in found if (one["hop"], one["term"]) == (hop, term)]

    def against_answers(self, hop: str) -> Rows:
        rows = []
        for term, title in self.titles.items():
            cells = []
            for one in self.against(hop, term):
                within = number(one["within"])
                if one["within_interval"]:
                    within += " [{:.3f}, {:.3f}]".format(*one["within_interval"])
                cells += [
                    f"{number(one['right'])} {number(one['wrong'])}",
                    number(one["auc"]),
                    within,
                ]
            rows.append([title, *cells])
        return rows

    def order_of_pairs(self) -> Rows:
        return [
            [
                f"Round {one['round']}",
                f"{one['hop']}-hop",
                f"{one['pairs']:,}",
                f"{one['rejected_higher']:,}",
                percent(one["rejected_higher"] / one["pairs"]),
            ]
            for one in self.report["pair_order"]
        ]

    def counts(
        self, by_round: Mapping[int, Counter[str]], titles: Mapping[str, str], total: str
    ) -> Rows:
        """Counts with their share of a round, and the row of the totals."""
        rows = [
            [title, *(f"{c[name]:,} {percent(c[name] / c.total())} %" for c in by_round.values())]
            for name, title in titles.items()
        ]
        return [*rows, [total, *(f"{c.total():,}" for c in by_round.values())]]

    def kinds(self) -> Rows:
        by_round = {n: Counter(pair.kind for pair in pairs) for n, pairs in self.pairs.items()}
        order = ("format", "easy", "hard", "margin", "step")
        found = [kind for kind in order if any(c[kind] for c in by_round.values())]
        return self.counts(by_round, {k: f"{k}{KIND_MEANINGS[k]}" for k in found}, "all pairs")  # type: ignore[index]

    def outcomes(self) -> Rows:
        by_round = {n: Counter(self.json(f"pair-{n}", "funnel.json")["bins"]) for n in self.pairs}
        names = dict.fromkeys(name for bins in by_round.values() for name in bins)
        titles = {name: re.sub("[-_]", " ", name) for name in names}
        return self.counts(by_round, titles, "all trajectories")

    # Time and calls

    @staticmethod
    def time_of(manifest: Mapping[str, Any]) -> float:
        """Seconds of a stage and of all its shards."""
        shards = manifest.get("shards", {}).values()
        return sum(part["wall_seconds"] for part in (manifest, *shards))

    def times(self) -> Rows:
        rows = []
        for manifest in self.manifests:
            key, parts = manifest["key"], [manifest, *manifest.get("shards", {}).values()]
            memory = [p["peak_memory_mb"] for p in parts if p.get("peak_memory_mb") is not None]
            counts = ", ".join(
                f"{count:,.0f} {name.replace('_', ' ')}"
                for name, count in manifest["counts"].items()
            )
            stage = key["stage"] if key["round"] is None else f"{key['stage']}-{key['round']}"
            rows.append(
                [
                    stage,
                    duration(self.time_of(manifest)),
                    f"{max(memory):,.0f} MB" if memory else "–",
                    manifest.get("device") or "–",
                    counts,
                ]
            )
        return [*rows, ["all stages", duration(sum(map(self.time_of, self.manifests))), "", "", ""]]

    def components(self) -> Rows:
        return [[policy(r["policy"]), *map(duration, r["seconds"].values())] for r in self.average]

    def calls(self) -> Rows:
        total = self.json("graph", "chat.json")
        return [
            [
                "graph", "model",
                *(f"{total[k]:,}" for k in ("answers", "prompt_tokens", "completion_tokens")),
                f"{total['cost']:,.4g}",
            ]
        ]  # fmt: skip

    def coverage(self) -> Rows:
        rows = []
        for row in self.json("coverage", "coverage.json")["rows"]:
            n, lacking = row["n"], row["without_passage"] + row["without_answer"]
            rows.append(
                [
                    row["split"], row["dataset"], f"{n:,}", f"{percent(lacking / n)} %",
                    f"{row['without_passage']:,} of {row['by_passage']:,}",
                    f"{row['without_answer']:,} of {row['by_answer']:,}",
                    f"{n - row['by_passage'] - row['by_answer']:,}",
                ]
            )  # fmt: skip
        return rows

    @cached_property
    def tables(self) -> dict[str, Rows]:
        """The rows of every table, by its caption; the rows of its head are left out."""
        by_hop = {name: self.of_dataset(name) for name in ("single-hop", "multi-hop")}
        against = "Means of every reward term over right and wrong answers to {}-hop questions, and AUC against exact match, per round"
        return {
            "Metrics of every policy: average over data sets": self.headline(),
            "Metrics of every policy on each data set": self.metrics(self.by_dataset()),
            "Metrics of every policy on single-hop and on multi-hop questions": self.metrics(
                by_hop
            ),
            "Metrics of every policy on parts of the split": self.metrics(self.by_part()),
            "EM, F1 and CEM of every policy by number of hops, in percent": self.by_hops(),
            "Paired two-sided t-tests per data set; significant differences in bold": (
                self.first_to_last()
            ),
            "Percentage and number of trajectories by failure mode, for every data set and policy": (
                self.failure_modes()
            ),
            "Tokens and searches per question: average over data sets": self.tokens(),
            "Number of questions by number of steps and by stop reason": self.steps_and_stops(),
            "Recall of golden evidence by round and policy, data set and number of hops": self.recall(),
            "Mean of every reward term over the sampled trajectories of each round": (
                self.reward_means()
            ),
            against.format("single"): self.against_answers("single"),
            against.format("multi"): self.against_answers("multi"),
            "Pairs of every round whose rejected side has the higher value of the reward, by kind of question": (
                self.order_of_pairs()
            ),
            "Preference pairs of each round by kind": self.kinds(),
            "Trajectories of each round by pairing outcome": self.outcomes(),
            "Seconds of the processes of every stage, its shards included; stages and shards run side by side, so the run took less": (
                self.times()
            ),
            "Wall time of the evaluation by component": self.components(),
            "Uncovered questions by split and data set": self.coverage(),
            "Calls, tokens and cost, by stage and model": self.calls(),
        }

    def head(self, caption: str) -> list[str]:
        """The cells of a table's head that have numbers."""
        if caption.startswith("Metrics of every policy"):
            return ["F1", "p (F1)"] if caption.endswith("average over data sets") else ["F1"]
        if caption.startswith("Paired two-sided t-tests"):
            return ["F1 difference"]
        if caption.startswith("EM, F1 and CEM of every policy by number of hops"):
            return [f"{_hops(n)}{self.of_dataset(n)[0]['n']:,} questions" for n in self.hops]
        if caption.startswith("Number of questions by number of steps"):
            return list(map(str, self.step_counts()))
        if caption.startswith("Recall"):
            return [_hops(n) for n in self.hops_checked]
        by_round = ("Mean of every", "Means of every", "Preference pairs", "Trajectories of each")
        return [f"Round {n}" for n in self.scored] if caption.startswith(by_round) else []

    # Sentences

    def sentences(self) -> Iterator[str]:
        """The texts with figures that are in no table, as they must be on the page."""
        first, *_, last = self.average
        test = self.tests[first["policy"], last["policy"], "all", "em"]
        shown = "< 0.001" if test["p"] < 0.001 else f"= {test['p']:.3f}"
        latest = policy(last["policy"])
        yield (
            f"Exact match (EM) on the held-out questions is {percent(last['em'])} % with "
            f"{latest.lower()} and {percent(first['em'])} % with policy 0 (SFT); the difference is "
            f"{'significant' if test['p'] < 0.05 else 'not significant'} (paired t-test over "
            f"{test['n']:,} questions, p {shown})."
        )
        yield (
            f"{last['n']:,} {self.split} questions from {len(self.datasets)} data sets · greedy "
            "decoding · retrieval ppr, iterative · seed 0"
        )
        for measure, unit in {"em": " %", "f1": " %", "steps": "", "total": ""}.items():
            scale, digits = SHOWN[measure]
            a, b = (scale * r["tokens"].get(measure, r.get(measure)) for r in (first, last))
            yield f"{b:.{digits}f}{unit}{signed(b - a, digits)} vs. policy 0 (SFT)"
        yield f"{latest} compared with policy 0 (SFT)"
        for hop in ("single", "multi"):
            yield " ".join(
                f"Round {one['round']}: {one['n_right']:,} right and {one['n_wrong']:,} wrong "
                f"answers; {one['comparisons']:,} comparisons within {one['questions']:,} questions."
                for one in self.against(hop, "outcome")
            )
        yield f"Known from this run: {self.report['verdict']}"
        yield from self.report["parted"]
        yield " ".join(f"Round {n}" for n in self.rounds("train"))

    # Charts

    def curves(self) -> dict[str, list[list[float]]]:
        """The values of the lines of every chart, by its caption."""
        charts = {}
        for dataset in ["all", *self.datasets]:
            rows = self.of_dataset(dataset)
            charts[AVERAGES.get(dataset, dataset)] = [
                [100 * r[m] for r in rows] for m in ("em", "f1")
            ]
        logs = {n: self.json(f"train-{n}", "log.json")["history"] for n in self.rounds("train")}
        charts["SFT loss"] = [
            [e["loss"] for e in self.json("sft", "log.json")["history"] if "loss" in e]
        ]
        for title, keys in {
            "DPO + SFT loss (eq. 15–17)": ["loss"],
            "Reward margin, chosen − rejected": ["rewards/margins"],
            "Pairs ranked correctly": ["rewards/accuracies"],
            "Log-probability of chosen (solid) and rejected (dashed)": [
                "logps/chosen",
                "logps/rejected",
            ],
            "Log-probability of chosen, reference − policy": ["logps/chosen_below_reference"],
        }.items():
            charts[title] = [
                [e[key] for e in history if key in e] for history in logs.values() for key in keys
            ]
        return charts


def faults(store: Store, page: str, others: Sequence[str] = ()) -> list[str]:
    """A sentence for each number of the page that is wrong, missing, or expected by nothing here.

    ``others`` are further texts of the page whose figures the caller knows.
    """
    root = html.fromstring(page.encode())
    return [
        *_of_tables(store, root),
        *_of_charts(store, root),
        *_of_sentences([*store.sentences(), *others], root),
    ]


def _hops(name: str) -> str:
    """The title of "1-hop" and its like."""
    return name.replace("-hop", " hop" if name == "1-hop" else " hops")


def _text(element: Any) -> str:
    return " ".join(element.text_content().replace("\xa0", " ").split())


def _of_tables(store: Store, root: Any) -> Iterator[str]:
    expected = dict(store.tables)
    for table in root.iter("table"):
        caption = _text(table.find("caption"))
        if caption.startswith("Settings that differ"):
            continue  # of the configuration, not of the store
        if caption not in expected:
            yield f"no rule for the table {caption!r}"
            continue
        shown = [[_text(cell) for cell in row] for row in table.xpath("./tbody/tr")]
        wanted = expected.pop(caption)
        head = [text for text in map(_text, table.xpath("./thead//th")) if re.search(r"\d", text)]
        head = [text for text in head if text not in store.datasets]
        if head != store.head(caption):
            yield f"{caption}: the head {head} in place of {store.head(caption)}"
        if len(shown) != len(wanted):
            yield f"{caption}: {len(shown)} rows in place of {len(wanted)}"
        if caption.startswith("Seconds"):  # in the order of the inputs, which a manifest sorts
            shown, wanted = sorted(shown), sorted(wanted)
        for row, right in zip(shown, wanted, strict=False):
            if row != right:
                yield f"{caption}: {row} in place of {right}"
    for caption in expected:
        yield f"the page lacks the table {caption!r}"


def _of_sentences(expected: Sequence[str], root: Any) -> Iterator[str]:
    left = list(expected)
    for part in root.xpath("//table | //svg | //footer | //nav | //style | //pre"):
        part.drop_tree()
    for element in root.xpath(
        "//p | //h1 | //h2 | //h3 | //dt | //dd | //li | //summary | //figcaption"
    ):
        text = _text(element)
        if text in left:
            left.remove(text)
        elif re.search(r"\d", FIXED.sub("", text)):
            yield f"nothing expects the figures of {text!r}"
    yield from (f"the page lacks {text!r}" for text in left)


def _of_charts(store: Store, root: Any) -> Iterator[str]:
    expected = store.curves()
    for figure in root.iter("figure"):
        caption = _text(figure.find("figcaption"))
        if caption not in expected:
            yield f"no rule for the chart {caption!r}"
            continue
        lines = [
            [float(y) for y in re.findall(r"[ML] [\d.e-]+ ([\d.e-]+)", path.get("d"))]
            for path in figure.xpath(".//svg//path[@clip-path]")
            if "fill: none" in path.get("style") and "var(--line)" not in path.get("style")
        ]
        wanted = expected.pop(caption)
        if [len(line) for line in lines] != [len(values) for values in wanted]:
            yield f"{caption}: {list(map(len, lines))} points in place of {list(map(len, wanted))}"
        elif not _proportional([*chain(*lines)], [*chain(*wanted)]):
            yield f"{caption}: the lines are not those of {wanted}"
        if caption in ("average over data sets", *store.datasets):
            labels = [_text(t) for t in figure.iter("text") if re.fullmatch(r"\d+\.\d", _text(t))]
            if labels != [f"{value:.1f}" for values in wanted for value in values]:
                yield f"{caption}: the labels {labels} are not {wanted}"
    for caption in expected:
        yield f"the page lacks the chart {caption!r}"


def _proportional(heights: Sequence[float], values: Sequence[float]) -> bool:
    """Whether heights, which grow downwards, are an affine image of the values."""
    top, bottom, low, high = min(heights), max(heights), min(values), max(values)
    if high == low:
        return bottom - top < 1e-3
    return all(
        math.isclose((bottom - y) / (bottom - top), (v - low) / (high - low), abs_tol=2e-3)
        for y, v in zip(heights, values, strict=True)
    )
