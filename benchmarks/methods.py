"""Offline and online methods at equal compute: ``python -m benchmarks.methods``.

For every seed, all methods start from the same world, index and SFT policy, and from the same first
sampling if their settings of sampling are equal: their runs have one name, and so one store. The
first method (DPO+SFT) runs the rounds of its configuration and sets the budget of the seed. The
others run round after round until they have spent it. The cost of a policy is the sum over its
rounds of

- generated tokens: those that the policy wrote in the stage ``sample`` (``timing.json``);
- trained tokens: the lengths of the training sequences, prompts and observations included, times
  the passes over them (``tokens`` of the stage ``train``). Each of them costs a forward and a
  backward pass. A pair counts both sides, and GRPO all its trajectories.

The reference's forward pass over the training sequences is not counted. Output: a page with the
last policy of each method within the budget, and beside it all points as JSON and a figure. Methods
and seeds that the JSON file has are not run again, so that seeds can be added later and on another
machine.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Annotated

import numpy as np
import typer

from benchmarks.commands import averages, launch, steep
from benchmarks.page import BEGIN, write_between_marks
from benchmarks.timing import machine
from pipeline.api import Run
from pipeline.core.atomic import write_json, write_text
from pipeline.core.errors import InputError
from pipeline.core.input_files import read_json
from pipeline.evaluation.compare import p_text, paired_test
from pipeline.evaluation.comparison_tables import Table, markdown
from pipeline.evaluation.plots import svg

METHODS = ("embedded-full", "tearag-apo", "tearag-rft", "tearag-grpo", "tearag-eta-0")
TITLES = {
    "embedded-full": "DPO+SFT",
    "tearag-apo": "APO-zero+SFT (unpaired loss)",
    "tearag-rft": "rejection-sampling SFT",
    "tearag-grpo": "GRPO",
    "tearag-eta-0": "DPO without the SFT term",
    # Removed after f11959a0; docs/methods.json has their runs.
    "tearag-tree": "DPO+SFT on trees of steps",
    "tearag-tree-pruned": "DPO+SFT on pruned trees",
}
SEEDS = 3  # below which the page warns
SLACK = 0.02  # share by which a policy may exceed the budget: rounds differ by a few tokens
IMAGE = "images/methods.svg"
MEASURES = {
    "em": ("EM", 1),
    "f1": ("F1", 1),
    "format_ok": ("well-formed", 1),
    "steps": ("steps", 2),
    "tokens": ("tokens", 0),
}
_TITLES = [title for title, _ in MEASURES.values()]
_HEAD = ["method", "round", *_TITLES, "generated", "trained", "seeds"]


@dataclass(frozen=True)
class Point:
    """A policy: its method, seed and round, the tokens spent until then, and its evaluation.

    ``em``, ``f1`` and ``format_ok`` are in percent; ``tokens`` is the mean length of a trajectory.
    ``right`` has a 1 for each question whose answer matches, else a 0.
    """

    method: str
    seed: int
    round: int
    generated: int
    trained: int
    em: float
    f1: float
    format_ok: float
    steps: float
    tokens: float
    right: str

    @property
    def cost(self) -> int:
        return self.generated + self.trained


def read_points(
    stages: Mapping[str, Path], passes: Callable[[int], float], method: str, seed: int
) -> list[Point]:
    """The policies of a run in the order of the rounds; the first has cost 0.

    ``stages`` are the directories of its stages by label, and ``passes`` gives the passes over the
    training data of a round.
    """
    rows = averages(read_json(stages["evaluate"] / "metrics.json", list))
    found = {row["policy"]: row for row in rows}
    generated = trained = number = 0
    points = []
    while True:
        row = found[f"round-{number}" if number else "sft"]
        em, f1, format_ok = (100 * row[name] for name in ("em", "f1", "format_ok"))
        spent = (method, seed, number, generated, trained)
        lengths = (row["steps"], row["tokens"]["total"])
        outcomes = read_json(stages[f"evaluate-policy-{number}"] / "rows.json")["outcomes"]
        right = "".join(str(int(outcome["em"])) for outcome in outcomes)
        points.append(Point(*spent, em, f1, format_ok, *lengths, right))
        number += 1
        if f"train-{number}" not in stages:
            return points
        generated += read_json(stages[f"sample-{number}"] / "timing.json")["generated_tokens"]
        counts = read_json(stages[f"train-{number}"] / "manifest.json")["counts"]
        trained += round(counts["tokens"] * passes(number))


def run_method(method: str, settings: Sequence[str], seed: int) -> list[Point]:
    """Run a method, given as a configuration or variant with settings, and read its policies."""
    config, *own = method.split()
    overrides = [*settings, *own]
    print(f"{method}, {settings[0]}, {settings[-1]}", flush=True)
    steep("run", "--config", config, *(word for one in overrides for word in ("--set", one)))
    run = Run.open(config, overrides=overrides)
    assert run.config is not None
    settled = run.config
    return read_points(
        run.stages, lambda number: settled.of_round(number).trainer.passes(number), method, seed
    )


RunMethod = Callable[[str, Sequence[str], int], list[Point]]


@dataclass
class Study:
    """The policies of all methods and seeds.

    ``settings`` are the settings that all runs share. ``commits`` and ``processors`` name the code
    and the machines that ran them. ``failed`` has a note about each method that failed.
    """

    settings: list[str]
    commits: list[str] = field(default_factory=list)
    processors: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path, settings: Sequence[str]) -> Study:
        """The study in a file, or a new one. Raises InputError if it has other settings."""
        if not path.exists():
            return cls(list(settings))
        content = read_json(path)
        if content["settings"] != list(settings):
            problem = f"its runs have the settings {content['settings']}, these {list(settings)}"
            raise InputError.at(path, f"{problem}; give another --output")
        return cls(**{**content, "points": [Point(**point) for point in content["points"]]})

    def add(
        self, methods: Sequence[str], seed: int, name: str, most: int, run: RunMethod = run_method
    ) -> None:
        """Run each method that has no trained policy of this seed yet.

        The first has the rounds of its configuration. The others run round after round until they
        have spent its tokens, or ``most`` rounds. Raises CalledProcessError when the first fails.
        """
        world = (f"name={name}-{seed}", f"seed={seed}", f"data.closed_world.seed={30 + seed}")
        shared = (*world, *self.settings)
        known = {point.method for point in self.points if point.seed == seed}
        if methods[0] not in known:
            self.points += run(methods[0], shared, seed)
        budget = max(p.cost for p in self.points if (p.method, p.seed) == (methods[0], seed))
        for method in methods[1:]:
            if method in known:
                continue
            reached: list[Point] = []
            failure = f"{_title(method)}, seed {seed}, failed in round"
            self.failed = [note for note in self.failed if not note.startswith(failure)]
            for rounds in range(1, most + 1):
                try:
                    reached = run(method, (*shared, f"rounds={rounds}"), seed)
                except subprocess.CalledProcessError:
                    self.failed.append(f"{failure} {rounds}")
                    break
                if reached[-1].cost >= budget:
                    break
            self.points += [point for point in reached if point.round]


def within_budget(points: Sequence[Point], method: str) -> list[Point]:
    """The last policy of a method within the budget, for every seed.

    The budget of a seed is the cost of the last policy of the method of ``points[0]``. A method
    whose first round exceeds the budget has the SFT policy, which all methods share.
    """
    budgets = {point.seed: point.cost for point in points if point.method == points[0].method}
    measured = {point.seed for point in points if point.method == method}
    last: dict[int, Point] = {}
    for point in points:
        own = point.seed in measured and (point.round == 0 or point.method == method)
        if own and point.cost <= budgets[point.seed] * (1 + SLACK):
            last[point.seed] = point
    return list(last.values())


def equal_tokens(study: Study) -> Table:
    """The last policy of each method within the budget, against the first method's."""
    points = study.points
    methods = list(dict.fromkeys(point.method for point in points))
    compared = {_title(one): within_budget(points, one) for one in methods}
    budget = compared[_title(methods[0])]
    compared = {"Policy 0 (SFT)": [point for point in points if point.round == 0], **compared}
    header = [*_HEAD[:3], "difference", *_HEAD[3:]]
    rows = [_row(*item, _difference(budget, item[1])) for item in compared.items()]
    note = (
        f"the last policy of each method that cost at most {1 + SLACK:.0%} of the budget. The "
        f"differences from {_title(methods[0])} are over the questions of all its seeds, paired, "
        "with 95 % intervals. They generalize to other questions, not to other seeds"
    )
    return Table("At equal tokens", header, rows, note)


def page(study: Study) -> str:
    """The Markdown page of a study."""
    points = study.points
    methods = list(dict.fromkeys(point.method for point in points))
    rounds = [
        _row(_title(method), policies)
        for method in methods
        for number in range(1, max(point.round for point in points) + 1)
        if (policies := [p for p in points if (p.method, p.round) == (method, number)])
    ]
    tables = [equal_tokens(study), Table("Every round", _HEAD, rounds, "; ".join(study.failed))]
    settings = "".join(f" --set {shlex.quote(setting)}" for setting in study.settings)
    few = len({point.seed for point in points}) < SEEDS
    caution = (
        f"**Fewer than {SEEDS} seeds have run: other seeds may give other results.** "
        if few
        else ""
    )
    return f"""\
# Offline and online methods at equal compute

All methods start from the same world, index and SFT policy, and from the same first sampling if
their settings of sampling are equal. {_title(methods[0])} sets the budget
of each seed: the tokens that its rounds generate and train on. Trained tokens are the lengths of
the training sequences, prompts and observations included, times the passes over them; a pair counts
both sides. The reference's forward pass is not counted.

![EM, steps and tokens over the cost of the policy]({IMAGE})

Each point is a policy after a round that all seeds of its method have; the first is the SFT policy
of these seeds, and the dashed line is the mean budget. {caution}Mean ± standard deviation over the
seeds, each with a world of its own; EM, F1 and well-formed in percent, generated and trained tokens
in thousands. Measured by `python -m benchmarks.methods{settings}` with the code of
{" and ".join(study.commits)}, on {" and ".join(study.processors)}; the JSON file beside
this page has all points.

{markdown(tables)}"""


def between_marks(study: Study) -> str:
    """The table of `equal_tokens` as Markdown, without heading and note."""
    table = equal_tokens(study)
    return markdown([Table("", table.header, table.rows, "")]).partition("\n\n")[2]


def draw(points: Sequence[Point], path: Path) -> None:
    """EM, steps and tokens of a trajectory over the cost, means of the seeds, as an SVG file."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.2), layout="constrained")
    panels = figure.subplots(1, 3)
    methods = list(dict.fromkeys(point.method for point in points))
    budget = mean(point.cost for point in within_budget(points, methods[0])) / 1e6
    for axes, measure in zip(panels, ("em", "steps", "tokens"), strict=True):
        for method in methods:
            curve = list(_curve(points, method, measure))
            costs, means, spreads = zip(*curve, strict=True)
            axes.errorbar(costs, means, spreads, marker="o", capsize=2, label=_title(method))
        axes.axvline(budget, linestyle="--", color="gray", linewidth=1)
        axes.set_xlabel("million tokens, generated and trained")
        axes.set_ylabel(f"{MEASURES[measure][0]}{' (%)' if measure == 'em' else ''}")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, svg(figure))


def _curve(
    points: Sequence[Point], method: str, measure: str
) -> Iterator[tuple[float, float, float]]:
    """Cost in millions, mean and deviation, of each round that all seeds of the method have."""
    seeds = {point.seed for point in points if point.method == method}
    kept = [point for point in points if point.seed in seeds]
    own = [point for point in kept if point.round == 0 or point.method == method]
    for number in range(max(point.round for point in own) + 1):
        policies = [point for point in own if point.round == number]
        if len(policies) == len(seeds):
            values = [getattr(point, measure) for point in policies]
            yield mean(point.cost for point in policies) / 1e6, mean(values), _deviation(values)


def _row(title: str, points: Sequence[Point], *after_em: str) -> list[str]:
    numbers = ({point.seed for point in points}, {point.round for point in points})
    seeds, rounds = (", ".join(map(str, sorted(found))) for found in numbers)
    columns = [([getattr(p, name) for p in points], d) for name, (_, d) in MEASURES.items()]
    columns += [([p.generated / 1000 for p in points], 0), ([p.trained / 1000 for p in points], 0)]
    em, *others = (_spread(*column) for column in columns)
    return [title, rounds, em, *after_em, *others, seeds]


def _difference(first: Sequence[Point], other: Sequence[Point]) -> str:
    """The difference in EM, paired by seed and question; empty for the same policies."""
    pairs = [(a, b) for a in first for b in other if a.seed == b.seed and a != b]
    if not pairs:
        return ""
    before, after = (
        np.array([100.0 * int(one) for point in points for one in point.right])
        for points in zip(*pairs, strict=True)
    )
    test = paired_test([after - before])
    low, high = test["interval"] or (test["difference"],) * 2
    return f"{test['difference']:+.1f} [{low:+.1f}, {high:+.1f}], p {_equals(test['p'])}"


def _equals(p: float | None) -> str:
    text = p_text(p) or "unknown"
    return text if text.startswith("<") else f"= {text}"


def _spread(values: Sequence[float], digits: int) -> str:
    """Mean ± sample standard deviation; of one value, the value."""
    text = f"{mean(values):,.{digits}f}"
    return f"{text} ± {_deviation(values):,.{digits}f}" if len(values) > 1 else text


def _deviation(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0


def _title(method: str) -> str:
    name, *settings = method.split()
    return " ".join([TITLES.get(name, name), *(f"`{setting}`" for setting in settings)])


def _revision() -> str:
    words = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    here = Path(__file__).parent
    return subprocess.run(
        words, cwd=here, check=True, capture_output=True, text=True
    ).stdout.strip()


def main(
    method: Annotated[
        list[str],
        typer.Option(help="configuration or variant, and its settings; the first sets the budget"),
    ] = list(METHODS),  # noqa: B006
    seeds: Annotated[str, typer.Option(help="comma-separated; seed n has world 30 + n")] = "1,2,3",
    settings: Annotated[
        list[str], typer.Option("--set", help="key.key=value for all runs; repeatable")
    ] = [],  # noqa: B006
    name: Annotated[str, typer.Option(help="runs are NAME-SEED")] = "methods",
    most: Annotated[int, typer.Option(min=1, help="rounds of a method at most")] = 8,
    output: Annotated[
        Path,
        typer.Option(
            help="page; methods.json and images/methods.svg are written beside it. Of a page with "
            "marks only the table between them is replaced"
        ),
    ] = Path("runs/methods.md"),
) -> None:
    """Run the methods to equal compute, and write the page, its figure and all points."""
    data = output.with_name("methods.json")
    study = Study.read(data, settings)
    for seed in map(int, seeds.split(",")):
        known = len(study.points)
        study.add(method, seed, name, most)
        if len(study.points) > known:
            study.commits = list(dict.fromkeys((*study.commits, _revision())))
            study.processors = list(dict.fromkeys((*study.processors, machine()["processor"])))
            write_json(data, asdict(study))
    draw(study.points, output.parent / IMAGE)
    if output.is_file() and BEGIN in output.read_text(encoding="utf-8"):
        write_between_marks(output, between_marks(study))
    else:
        write_text(output, page(study))
    print(f"written to {output}")


if __name__ == "__main__":
    try:
        launch(main)
    except subprocess.CalledProcessError as error:  # the run has said why
        sys.exit(error.returncode)
