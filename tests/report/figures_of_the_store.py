"""The figures of a report, computed again from the files of the store, and found on the page.

Input: the directories that the report read, and its page. Output: a sentence for each number of the
page that is not the expected one, and for each that nothing here computes. Intervals of means are
taken from ``metrics.json``, because they are drawn by chance; all other numbers are computed from
trajectories, rewards, pairs, logs and manifests.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path
from statistics import fmean, variance
from typing import Any

from lxml import html

from pipeline.core.answer_metrics import cover_exact_match, exact_match, f1
from pipeline.core.record_io import iterate_records
from pipeline.core.records import Pair, Question, Trajectory
from pipeline.engine.progress import duration
from pipeline.evaluation.failures import FailureMode, retrieved_hops
from pipeline.methods import method
from pipeline.pairs.select import KIND_MEANINGS

Groups = Sequence[Sequence[Trajectory]]  # of the data sets, which have equal weight
Rows = list[list[str]]
MEASURES: Mapping[str, Callable[[Trajectory], float]] = {
    "em": lambda t: exact_match(t.answer, t.answers),
    "f1": lambda t: f1(t.answer, t.answers),
    "cem": lambda t: cover_exact_match(t.answer, t.answers),
    "words": lambda t: len((t.answer or "").split()),
    "format_ok": lambda t: t.format_ok,
    "steps": lambda t: len(t.steps),
    "searches": lambda t: len(t.tokens.per_retrieval),
    "thinking": lambda t: t.tokens.thinking,
    "retrieved": lambda t: t.tokens.retrieved,
    "total": lambda t: t.tokens.thinking + t.tokens.retrieved,
}
AVERAGES = {"all-questions": "average over questions", "all": "average over data sets"}
# Numbers in sentences that explain figures and are none.
FIXED = re.compile(
    r"95 %|F1|eq\. [\d–]+|p < 0\.05|policy N − 1|0\.5 means|0 without one|process reward is 0|2wiki"
)


def policy(name: str) -> str:
    return "Policy 0 (SFT)" if name == "sft" else f"Policy {name.removeprefix('round-')}"


def mean(groups: Groups, measure: str) -> float:
    return fmean(fmean(map(MEASURES[measure], group)) for group in groups)


def percent(value: float) -> str:
    return f"{100 * value:.1f}"


def signed(value: float, digits: int) -> str:
    return f"{value:+.{digits}f}".replace("-", "−")


def p_text(p: float | None) -> str:
    return "–" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def average(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


class Store:
    """The inputs of a report of TeaRAG, with the tables and sentences that its page must have."""

    def __init__(self, inputs: Mapping[str, Path]) -> None:
        self.inputs = inputs
        self.policies = ["sft", *(f"round-{n}" for n in self.rounds("train"))]
        self.of = {p: self.records(f"evaluate-{p}", Trajectory) for p in self.policies}
        rows = {p: self.json(f"evaluate-{p}", "rows.json") for p in self.policies}
        self.split = rows["sft"]["split"]
        self.seconds = {p: rows[p]["seconds"] for p in self.policies}
        self.facts = {
            p: {one["question_id"]: one for one in rows[p]["outcomes"]} for p in self.policies
        }
        self.bounds = {
            (row["policy"], row["dataset"], row["split"]): row["ci"]
            for row in self.json("evaluate", "metrics.json")
        }
        self.datasets = list(dict.fromkeys(t.dataset for t in self.of["sft"]))
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

    def groups(self, name: str, keep: Callable[[Trajectory], bool] = lambda _: True) -> Groups:
        """The trajectories of a policy by data set, without empty data sets."""
        found = [
            [t for t in self.of[name] if t.dataset == dataset and keep(t)]
            for dataset in self.datasets
        ]
        return [group for group in found if group]

    @cached_property
    def manifests(self) -> list[dict[str, Any]]:
        distinct = dict.fromkeys(path.resolve() for path in self.inputs.values())
        return [
            json.loads((path / "manifest.json").read_text())
            for path in distinct
            if (path / "manifest.json").exists()
        ]

    # Results

    def cell(self, name: str, dataset: str, groups: Groups, measure: str, split: str) -> str:
        """A mean with its interval."""
        scale, digits = {"em": (100, 1), "f1": (100, 1), "cem": (100, 1)}.get(measure, (1, 2))
        if measure in ("total", "thinking", "retrieved"):
            digits = 0
        low_high = self.bounds[name, dataset, split][measure]
        shown = f"{scale * mean(groups, measure):,.{digits}f}"
        if low_high is None:
            return shown
        low, high = (f"{scale * bound:.{digits}f}" for bound in low_high)
        return f"{shown} [{low}, {high}]"

    def scores(self, name: str, dataset: str, groups: Groups, split: str) -> list[str]:
        em, f1, cem, words, steps = (
            self.cell(name, dataset, groups, measure, split)
            for measure in ("em", "f1", "cem", "words", "steps")
        )
        return [em, f1, cem, words, percent(mean(groups, "format_ok")), steps]

    def test(self, before: str, after: str, measure: str, dataset: str = "all") -> Any:
        """Number of questions, mean difference, its interval and p of a paired t-test.

        ``all`` is the mean over data sets, with the variances of their means added up and Welch's
        degrees of freedom; any other name is one sample.
        """
        sides = [
            {
                t.question_id: MEASURES[measure](t)
                for t in self.of[p]
                if dataset in (t.dataset, "all", "all-questions")
            }
            for p in (before, after)
        ]
        of = {t.question_id: t.dataset for t in self.of[before]}
        groups: dict[str, list[float]] = {}
        for question, value in sides[0].items():
            name = "" if dataset == "all-questions" else of[question]
            groups.setdefault(name, []).append(sides[1][question] - value)
        found = fmean(map(fmean, groups.values()))
        errors = [(variance(g) / len(g) / len(groups) ** 2, len(g) - 1) for g in groups.values()]
        squared = sum(error for error, _ in errors)
        if not squared:
            return len(sides[0]), found, None, float(not found)
        from scipy.stats import t as student

        freedom = squared**2 / sum(error**2 / n for error, n in errors)
        bounds = student.interval(0.95, freedom, loc=found, scale=math.sqrt(squared))
        p = 2 * student.cdf(-abs(found) / math.sqrt(squared), freedom)
        return len(sides[0]), found, bounds, float(p)

    def headline(self) -> Rows:
        tests: dict[str, list[str]] = {"sft": ["–"] * 3}
        for before, after in pairwise(self.policies):
            tests[after] = [p_text(self.test(before, after, m)[3]) for m in ("em", "f1", "cem")]
        return [
            [
                policy(p),
                *self.scores(p, "all", self.groups(p), self.split),
                self.cell(p, "all", self.groups(p), "total", self.split),
                *tests[p],
            ]
            for p in self.policies
        ]

    def grouped(self, tables: Mapping[str, Any], split: str | None = None) -> Rows:
        """Rows of each policy under a heading; ``tables`` has a name and a filter for each."""
        rows: Rows = []
        for title, (dataset, keep) in tables.items():
            for place, p in enumerate(self.policies):
                groups = self.groups(p, keep)
                if dataset == "all-questions":
                    groups = [[t for group in groups for t in group]]
                count = sum(map(len, groups))
                shown = f"{self.split}/{title}" if split == "part" else self.split
                heading = [f"{title}{count:,} questions"] if place == 0 else []
                cells = self.scores(p, dataset, groups, shown)
                rows.append([*heading, policy(p), *cells, f"{mean(groups, 'total'):,.0f}"])
        return rows

    def part(self, trajectory: Trajectory) -> str | None:
        part: str | None = self.facts["sft"][trajectory.question_id]["part"]
        return part

    def by_hops(self) -> Rows:
        counts = sorted({one["hops"] for one in self.facts["sft"].values()})
        rows = []
        for p in self.policies:
            cells = []
            for count in counts:
                groups = self.groups(
                    p, lambda t, n=count: self.facts["sft"][t.question_id]["hops"] == n
                )  # type: ignore[misc]
                em, f1, cem = (percent(mean(groups, m)) for m in ("em", "f1", "cem"))
                interval = self.cell(p, f"{count}-hop", groups, "em", self.split).partition(" ")[2]
                cells.append(f"{em} · {f1} · {cem} {interval}".strip())
            rows.append([policy(p), *cells])
        return rows

    def first_to_last(self) -> Rows:
        rows = []
        for dataset in [*self.datasets, *AVERAGES]:
            cells = []
            for measure, scale, digits in (
                ("em", 100, 1), ("f1", 100, 1), ("cem", 100, 1), ("words", 1, 2), ("steps", 1, 2),
            ):  # fmt: skip
                n, found, bounds, p = self.test(
                    self.policies[0], self.policies[-1], measure, dataset
                )
                shown = signed(scale * found, digits)
                if bounds is not None:
                    low, high = (signed(scale * bound, digits) for bound in bounds)
                    shown += f" [{low}, {high}]"
                cells += [shown, p_text(p)]
            rows.append([AVERAGES.get(dataset, dataset), f"{n:,}", *cells])
        return rows

    def failure_modes(self) -> Rows:
        counts = {
            (p, dataset): Counter(self.facts[p][t.question_id]["failure_mode"] for t in group)
            for p in self.policies
            for dataset, group in zip(self.datasets, self.groups(p), strict=True)
        }
        occurring = [m.value for m in FailureMode if any(c[m.value] for c in counts.values())]
        rows: Rows = []
        for dataset in [*self.datasets, *AVERAGES]:
            for place, p in enumerate(self.policies):
                own = [counts[p, d] for d in self.datasets if dataset in (d, *AVERAGES)]
                if dataset == "all-questions":
                    own = [sum(own, Counter())]
                total = sum(c.total() for c in own)
                title = AVERAGES.get(dataset, dataset)
                heading = [f"{title}{total:,} questions"] if place == 0 else []
                cells = [
                    f"{percent(fmean(c[m] / c.total() for c in own))} {sum(c[m] for c in own):,}"
                    for m in occurring
                ]
                rows.append([*heading, policy(p), *cells])
        return rows

    def tokens(self) -> Rows:
        rows = []
        for p in self.policies:
            groups = self.groups(p)
            each = [
                sum(t.tokens.retrieved for t in g) / sum(len(t.tokens.per_retrieval) for t in g)
                for g in groups
            ]
            names = ("thinking", "retrieved", "total", "searches")
            cells = [self.cell(p, "all", groups, name, self.split) for name in names]
            rows.append([policy(p), *cells, f"{fmean(each):,.0f}"])
        return rows

    def steps_and_stops(self) -> Rows:
        steps = sorted({len(t.steps) for found in self.of.values() for t in found})
        stops = list(
            dict.fromkeys(
                t.stop
                for found in self.of.values()
                for t in sorted(found, key=lambda t: self.datasets.index(t.dataset))
            )
        )
        return [
            [
                policy(p),
                *(f"{sum(len(t.steps) == n for t in self.of[p]):,}" for n in steps),
                *(f"{sum(t.stop == stop for t in self.of[p]):,}" for stop in stops),
            ]
            for p in self.policies
        ]

    def recall(self) -> Rows:
        """Rows of the sampled trajectories, then those of the policies."""
        sources = {
            f"Round {n}, samples of policy {n - 1}training questions": (found, "questions-sampling")
            for n, found in self.scored.items()
        } | {
            f"{policy(p)}held-out questions": (self.of[p], f"questions-{self.split}")
            for p in self.policies
        }
        checked: dict[str, list[tuple[str, list[bool | None]]]] = {}
        for title, (found, stage) in sources.items():
            known = {}
            if stage in self.inputs:
                asked = self.records(stage, Question, "questions.parquet")
                known = {q.question_id: q for q in asked}
            without = sum(t.question_id not in known for t in found)
            title += f", {without:,} without their question" if without else ""
            hops = [(t.dataset, retrieved_hops(t, known.get(t.question_id))) for t in found]
            checked[title] = [one for one in hops if any(hop is not None for hop in one[1])]
        datasets = dict.fromkeys(d for found in checked.values() for d, _ in found)
        counts = sorted({len(hops) for found in checked.values() for _, hops in found})
        self.hops_checked = counts if len(counts) > 1 else []

        def cell(found: list[list[bool | None]]) -> str:
            if not found:
                return "–"
            known = [hop for hops in found for hop in hops if hop is not None]
            whole = fmean(all(hop for hop in hops if hop is not None) for hops in found)
            return f"{percent(fmean(known))}{percent(whole)}"

        return [
            [
                title,
                cell([hops for _, hops in found]),
                *(cell([hops for d, hops in found if d == dataset]) for dataset in datasets),
                *(cell([hops for _, hops in found if len(hops) == n]) for n in self.hops_checked),
            ]
            for title, found in checked.items()
        ]

    # Rewards and pairs

    def reward_means(self) -> Rows:
        return [
            [
                title,
                *(
                    number(average([t.rewards[term] for t in found]))
                    for found in self.scored.values()
                ),
            ]
            for term, title in self.titles.items()
        ]

    def comparisons(self, found: Sequence[Trajectory], term: str) -> list[tuple[float, int]]:
        """For each question the comparisons that its right answers win, and all of them."""
        result = []
        for question in dict.fromkeys(t.question_id for t in found):
            sides = self.sides([t for t in found if t.question_id == question], term)
            won = sum((a > b) + (a == b) / 2 for a in sides[True] for b in sides[False])
            result.append((won, len(sides[True]) * len(sides[False])))
        return result

    def sides(self, found: Sequence[Trajectory], term: str) -> dict[bool, list[float]]:
        """The values of right and of wrong answers, to four decimals."""
        values: dict[bool, list[float]] = {True: [], False: []}
        for t in found:
            values[MEASURES["em"](t) == 1].append(round(t.rewards[term], 4))
        return values

    def against_answers(self, hop: str) -> Rows:
        rows = []
        for term, title in self.titles.items():
            cells = []
            for found in self.scored.values():
                own = [t for t in found if t.hop == hop]
                sides, within = self.sides(own, term), self.comparisons(own, term)
                exact = {
                    right: [t.rewards[term] for t in own if (MEASURES["em"](t) == 1) == right]
                    for right in sides
                }
                cells.append(f"{number(average(exact[True]))} {number(average(exact[False]))}")
                if len({*sides[True], *sides[False]}) < 2:
                    cells += ["–", "–"]
                    continue
                wins = [(a > b) + (a == b) / 2 for a in sides[True] for b in sides[False]]
                cells += [number(average(wins)), self.within(within)]
            rows.append([title, *cells])
        return rows

    @staticmethod
    def within(comparisons: Sequence[tuple[float, int]]) -> str:
        """The share of comparisons won, with its interval over questions."""
        total = sum(count for _, count in comparisons)
        if not total:
            return "–"
        value = sum(won for won, _ in comparisons) / total
        questions = sum(count > 0 for _, count in comparisons)
        if questions < 2:
            return number(value)
        squares = sum(((won - value * count) / total) ** 2 for won, count in comparisons)
        half = 1.96 * math.sqrt(squares * questions / (questions - 1))
        return f"{number(value)} [{max(0, value - half):.3f}, {min(1, value + half):.3f}]"

    def order_of_pairs(self) -> Rows:
        rows = []
        for n, pairs in self.pairs.items():
            hops = {t.question_id: t.hop for t in self.scored[n]}
            for hop in dict.fromkeys(hops[pair.question_id] for pair in pairs):
                own = [p for p in pairs if hops[p.question_id] == hop]
                higher = sum(
                    p.rejected_rewards["process"] > p.chosen_rewards["process"] for p in own
                )
                share = percent(higher / len(own))
                rows.append([f"Round {n}", f"{hop}-hop", f"{len(own):,}", f"{higher:,}", share])
        return rows

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
        return [[policy(p), *map(duration, self.seconds[p].values())] for p in self.policies]

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

    def tables(self) -> dict[str, Callable[[], Rows]]:
        """The rows of every table, by its caption; the rows of its head are left out."""
        every = {d: (d, lambda t, d=d: t.dataset == d) for d in self.datasets}
        every |= {title: (name, lambda t: True) for name, title in AVERAGES.items()}
        by_hop = {f"{h}-hop": (f"{h}-hop", lambda t, h=h: t.hop == h) for h in ("single", "multi")}
        parts = {
            part: ("all", lambda t, part=part: self.part(t) == part)
            for part in dict.fromkeys(filter(None, map(self.part, self.of["sft"])))
        }
        against = "Means of every reward term over right and wrong answers to {}-hop questions, and AUC against exact match, per round"
        return {
            "Metrics of every policy: average over data sets": self.headline,
            "Metrics of every policy on each data set": lambda: self.grouped(every),
            "Metrics of every policy on single-hop and on multi-hop questions": lambda: (
                self.grouped(by_hop)
            ),
            "Metrics of every policy on parts of the split": lambda: self.grouped(parts, "part"),
            "EM, F1 and CEM of every policy by number of hops, in percent": self.by_hops,
            "Paired two-sided t-tests per data set; significant differences in bold": (
                self.first_to_last
            ),
            "Percentage and number of trajectories by failure mode, for every data set and policy": (
                self.failure_modes
            ),
            "Tokens and searches per question: average over data sets": self.tokens,
            "Number of questions by number of steps and by stop reason": self.steps_and_stops,
            "Recall of golden evidence by round and policy, data set and number of hops": self.recall,
            "Mean of every reward term over the sampled trajectories of each round": (
                self.reward_means
            ),
            against.format("single"): lambda: self.against_answers("single"),
            against.format("multi"): lambda: self.against_answers("multi"),
            "Pairs of every round whose rejected side has the higher value of the reward, by kind of question": (
                self.order_of_pairs
            ),
            "Preference pairs of each round by kind": self.kinds,
            "Trajectories of each round by pairing outcome": self.outcomes,
            "Seconds of the processes of every stage, its shards included; stages and shards run side by side, so the run took less": (
                self.times
            ),
            "Wall time of the evaluation by component": self.components,
            **self.of_files(),
        }

    def of_files(self) -> dict[str, Callable[[], Rows]]:
        """The tables of files that not every run has."""
        optional = {
            ("coverage", "coverage.json"): (
                "Uncovered questions by split and data set", self.coverage
            ),
            ("graph", "chat.json"): ("Calls, tokens and cost, by stage and model", self.calls),
        }  # fmt: skip
        return {
            caption: rows
            for (stage, name), (caption, rows) in optional.items()
            if stage in self.inputs and (self.inputs[stage] / name).is_file()
        }

    def head(self, caption: str) -> list[str]:
        """The cells of a table's head that have numbers."""
        if caption.startswith("Metrics of every policy"):
            return ["F1", "p (F1)"] if caption.endswith("average over data sets") else ["F1"]
        if caption.startswith("Paired two-sided t-tests"):
            return ["F1 difference"]
        if caption.startswith("EM, F1 and CEM of every policy by number of hops"):
            counts = Counter(one["hops"] for one in self.facts["sft"].values())
            return [f"{_hops(n)}{counts[n]:,} questions" for n in sorted(counts)]
        if caption.startswith("Number of questions by number of steps"):
            return [str(n) for n in sorted({len(t.steps) for own in self.of.values() for t in own})]
        if caption.startswith("Recall"):
            return [_hops(n) for n in self.hops_checked]
        by_round = ("Mean of every", "Means of every", "Preference pairs", "Trajectories of each")
        return [f"Round {n}" for n in self.scored] if caption.startswith(by_round) else []

    # Sentences

    def sentences(self) -> Iterator[str]:
        """The texts with figures that are in no table, as they must be on the page."""
        first, last = self.policies[0], self.policies[-1]
        ems = [percent(mean(self.groups(p), "em")) for p in (last, first)]
        count, _, _, p = self.test(first, last, "em")
        shown = "< 0.001" if p < 0.001 else f"= {p:.3f}"
        yield (
            f"Exact match (EM) on the held-out questions is {ems[0]} % with policy "
            f"{last.removeprefix('round-')} and {ems[1]} % with policy 0 (SFT); the difference is "
            f"{'significant' if p < 0.05 else 'not significant'} (paired t-test over "
            f"{count:,} questions, p {shown})."
        )
        yield (
            f"{count:,} {self.split} questions from {len(self.datasets)} data sets · greedy "
            "decoding · retrieval ppr, iterative · seed 0"
        )
        for measure, scale, digits, unit in (
            ("em", 100, 1, " %"), ("f1", 100, 1, " %"), ("steps", 1, 2, ""), ("total", 1, 0, ""),
        ):  # fmt: skip
            a, b = (scale * mean(self.groups(p), measure) for p in (first, last))
            yield f"{b:.{digits}f}{unit}{signed(b - a, digits)} vs. policy 0 (SFT)"
        yield f"Policy {last.removeprefix('round-')} compared with policy 0 (SFT)"
        for hop in ("single", "multi"):
            parts = []
            for n, found in self.scored.items():
                own = [t for t in found if t.hop == hop]
                sides, within = self.sides(own, "outcome"), self.comparisons(own, "outcome")
                parts.append(
                    f"Round {n}: {len(sides[True]):,} right and {len(sides[False]):,} wrong answers; "
                    f"{sum(c for _, c in within):,} comparisons within "
                    f"{sum(c > 0 for _, c in within):,} questions."
                )
            yield " ".join(parts)
        yield f"Known from this run: {self.verdict()}"
        yield from self.parted()
        yield " ".join(f"Round {n}" for n in self.rounds("train"))

    def parted(self) -> Iterator[str]:
        """A sentence for each comparison in which EM moves otherwise than F1 or CEM."""
        pairs = [*pairwise(self.policies), (self.policies[0], self.policies[-1])]
        for before, after in pairs[: None if len(self.policies) > 2 else 1]:
            change, p = {}, {}
            for measure in ("em", "f1", "cem", "words"):
                _, change[measure], _, p[measure] = self.test(before, after, measure)
            move = {m: math.copysign(p[m] < 0.05, change[m]) for m in change}
            others = [
                m.upper()
                for m in ("f1", "cem")
                if move[m] != move["em"]
                and abs(change[m] - change["em"]) > max(abs(change[m]), abs(change["em"])) / 2
            ]
            words = "words of the answer"
            changes = "; ".join(
                f"{words if m == 'words' else m.upper()} "
                f"{signed(c * (1 if m == 'words' else 100), 2 if m == 'words' else 1)}, p {p_text(p[m])}"
                for m, c in change.items()
            )
            if others:
                title = policy(after)
                yield (
                    f"{policy(before)} to {title[0].lower()}{title[1:]}: EM and {' and '.join(others)} "
                    f"part, so EM alone misleads ({changes})"
                )

    def verdict(self) -> str:
        n, rows = max(self.scored), {}
        for one in (min(self.scored), n):
            own = [t for t in self.scored[one] if t.hop == "multi"]
            rows[one] = self.comparisons(own, "process")
        total, questions = sum(c for _, c in rows[n]), sum(c > 0 for _, c in rows[n])
        if questions < 10:
            return (
                f"Round {n} cannot tell whether the process reward prefers right answers: {questions} "
                "multi-hop questions have both right and wrong answers, and at least 10 are needed."
            )
        value, low, high = (
            100 * float(part) for part in re.findall(r"[\d.]+", self.exact(rows[n]))
        )
        does = (
            "prefers right answers" if low > 50
            else "prefers wrong answers" if high < 50
            else "does not tell right from wrong answers"
        )  # fmt: skip
        before = 100 * float(self.exact(rows[min(rows)]).split()[0])
        pairs, higher = (
            int(row.replace(",", ""))
            for row in next(
                r for r in self.order_of_pairs() if r[:2] == [f"Round {n}", "multi-hop"]
            )[2:4]
        )
        return (
            f"In round {n} the process reward {does}: of a right and a wrong answer to one multi-hop "
            f"question, the right one has the higher value in {value:.1f} % of {total:,} comparisons "
            f"(95 % interval {low:.1f} to {high:.1f}, 50 by chance, {before:.1f} in round {min(rows)}); "
            f"in {higher:,} of {pairs:,} multi-hop pairs the rejected side has the higher value."
        )

    @staticmethod
    def exact(comparisons: Sequence[tuple[float, int]]) -> str:
        """`within` with more decimals."""
        total = sum(count for _, count in comparisons)
        value = sum(won for won, _ in comparisons) / total
        questions = sum(count > 0 for _, count in comparisons)
        squares = sum(((won - value * count) / total) ** 2 for won, count in comparisons)
        half = 1.96 * math.sqrt(squares * questions / max(1, questions - 1))
        return f"{value:.9f} {max(0, value - half):.9f} {min(1, value + half):.9f}"

    # Charts

    def curves(self) -> dict[str, list[list[float]]]:
        """The values of the lines of every chart, by its caption."""
        charts = {}
        for dataset in ["average over data sets", *self.datasets]:
            groups = [
                self.groups(p, lambda t, d=dataset: d in (t.dataset, "average over data sets"))  # type: ignore[misc]
                for p in self.policies
            ]
            charts[dataset] = [[100 * mean(g, m) for g in groups] for m in ("em", "f1")]
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


def faults(inputs: Mapping[str, Path], page: str, others: Sequence[str] = ()) -> list[str]:
    """A sentence for each number of the page that is wrong, missing, or computed by nothing here.

    ``others`` are further texts of the page whose figures the caller knows.
    """
    store, root = Store(inputs), html.fromstring(page.encode())
    return [
        *_of_tables(store, root),
        *_of_charts(store, root),
        *_of_sentences([*store.sentences(), *others], root),
    ]


def _hops(count: int) -> str:
    return f"{count} hop{'' if count == 1 else 's'}"


def _text(element: Any) -> str:
    return " ".join(element.text_content().replace("\xa0", " ").split())


def _of_tables(store: Store, root: Any) -> Iterator[str]:
    expected = store.tables()
    for table in root.iter("table"):
        caption = _text(table.find("caption"))
        if caption.startswith("Settings that differ"):
            continue  # of the configuration, not of the store
        if caption not in expected:
            yield f"no rule for the table {caption!r}"
            continue
        shown = [[_text(cell) for cell in row] for row in table.xpath("./tbody/tr")]
        wanted = expected.pop(caption)()
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
            yield f"nothing computes the figures of {text!r}"
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
