"""Measured policies: the outcomes of an evaluation in files, and their comparison.

`write_measured` writes ``trajectories.parquet`` and ``rows.json`` (one `Outcome` per question, and
seconds). `merge_policies` reads these files of every policy and writes ``metrics.json`` (the rows
of TeaRAG's tables 6 to 10, arXiv 2511.05385), ``comparison.json`` (paired tests) and
``distributions.json`` (counts of steps and stop reasons).
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import chain, groupby, islice, repeat
from pathlib import Path
from typing import Any

from pipeline.core.answer_metrics import ALL, CoverMatch, answer_words
from pipeline.core.atomic import text_output, write_json
from pipeline.core.errors import Place, StoreError
from pipeline.core.input_files import read_json
from pipeline.core.progress import Progress
from pipeline.core.record_io import iterate_records, parse_record, write_parquet
from pipeline.core.records import Question, Trajectory
from pipeline.core.row_files import iterate_parquet
from pipeline.core.trajectory_file import FILE
from pipeline.core.verdicts import Verdict
from pipeline.evaluation.compare import compare
from pipeline.evaluation.metrics import Outcome, average_row, measure, metrics_rows
from pipeline.evaluation.sampled import over_samples
from pipeline.judges.search_errors import SearchErrors, count_search_errors

ROWS = "rows.json"


def write_measured(
    output: Path,
    trajectories: Iterable[Trajectory],
    questions: Mapping[str, Question],
    *,
    split: str,
    seconds: Mapping[str, float],
    cem: CoverMatch = "words",
    samples: int = 1,
) -> dict[str, int]:
    """Write trajectories.parquet and rows.json as the trajectories come; returns their count.

    ``questions`` holds the question of every trajectory by its id. ``seconds`` are the seconds of
    the evaluation. ``cem``: see `cover_exact_match`. Each question has ``samples`` trajectories,
    one after another, which are in memory at a time and become one outcome (`over_samples`).
    """
    rest = iter(trajectories)
    with rows_file(output, split, seconds) as add:

        def measured_in_passing() -> Iterator[Trajectory]:
            while group := list(islice(rest, samples)):
                question = questions[group[0].question_id]
                outcomes = [measure(one, question.split_part, question, cem) for one in group]
                values = asdict(outcomes[0] if samples == 1 else over_samples(group, outcomes))
                if samples == 1:
                    del values["words"], values["sampled"]  # `read_outcomes` counts the words
                add(values)
                yield from group

        count = write_parquet(output / FILE, measured_in_passing(), Trajectory)
    return {"trajectories": count}


@contextmanager
def rows_file(
    output: Path, split: str, seconds: Mapping[str, float]
) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """A function that adds the outcome of a trajectory to rows.json."""
    head = json.dumps({"split": split, "seconds": seconds}).removesuffix("}")
    separators = chain([""], repeat(", "))
    with text_output(output / ROWS) as write:
        write(f'{head}, "outcomes": [')
        yield lambda values: write(next(separators) + json.dumps(values, allow_nan=False))
        write("]}")


def merge_policies(
    directories: Mapping[str, Path],
    output: Path,
    *,
    seed: int = 0,
    judged: Mapping[str, Path] | None = None,
    final: Mapping[str, Path] | None = None,
    progress: Progress | None = None,
) -> dict[str, int]:
    """Write metrics, tests and distributions of ``directories``, in order of training.

    ``judged`` maps policies to directories of the stage ``judge-policy``, and ``final`` the last
    policy to its evaluation on another split. Returns the numbers of metrics rows and tests.
    Raises what `compare_policies` raises.
    """
    compared = compare_policies(directories, seed=seed, judged=judged, progress=progress)
    outcomes = compared.outcomes
    other = compare_policies(final, seed=seed).metrics if final else []
    rows = compared.metrics + other
    write_json(output / "metrics.json", rows)
    write_json(output / "comparison.json", compared.tests)
    distributions = {policy: _distributions(values) for policy, values in outcomes.items()}
    write_json(output / "distributions.json", distributions)
    return {"rows": len(rows), "tests": len(compared.tests)}


@dataclass(frozen=True)
class Compared:
    """Evaluated policies: their outcomes by policy, metrics rows, and paired tests."""

    outcomes: dict[str, list[Outcome]]
    metrics: list[dict[str, Any]]
    tests: list[dict[str, Any]]


def compare_policies(
    directories: Mapping[str, Path],
    *,
    seed: int,
    judged: Mapping[str, Path] | None = None,
    split: str | None = None,
    progress: Progress | None = None,
) -> Compared:
    """Metrics and tests of the evaluations in ``directories``, in this order.

    ``split`` replaces the name of the questions that the evaluations record. Raises StoreError
    when the policies were evaluated on different questions or splits.
    """
    progress = progress or Progress()
    progress.start(len(directories), "policies")
    outcomes: dict[str, list[Outcome]] = {}
    metrics: list[dict[str, Any]] = []
    splits: dict[str, str] = {}
    for policy, directory in directories.items():
        measured = read_outcomes(directory)
        outcomes[policy] = measured.outcomes
        splits[policy] = split or measured.split
        metrics += metrics_rows(
            policy,
            splits[policy],
            outcomes[policy],
            measured.seconds,
            seed=seed,
            judged=_rates(directory, judged[policy]) if judged and policy in judged else None,
        )
        logging.getLogger(__name__).info(
            "%s: %s questions of %s", policy, f"{len(outcomes[policy]):,}", splits[policy]
        )
        progress.advance()
    if len(set(splits.values())) > 1:
        raise StoreError(f"policies were evaluated on different splits: {splits}")
    questions = {policy: by_question(values) for policy, values in outcomes.items()}
    tests = compare(questions, split=next(iter(splits.values())))
    return Compared(outcomes, metrics, tests)


def average(directory: Path, name: str, seed: int) -> dict[str, Any]:
    """The row ``name`` ("all" or "all-questions") of metrics.json for one evaluation."""
    measured = read_outcomes(directory)
    return average_row(measured.split, measured.outcomes, name, seed)


@dataclass(frozen=True)
class Measured:
    """The evaluation of one policy: the split, an outcome for each question, and seconds."""

    split: str
    outcomes: list[Outcome]
    seconds: dict[str, float]


def read_outcomes(evaluated: Path) -> Measured:
    """Read what `write_measured` wrote; the words of the answers are counted in the trajectories.

    Raises StoreError when a part is missing, InputError when the file is missing or broken.
    """
    path = evaluated / ROWS
    measured = read_json(path)
    if missing := {"split", "seconds", "outcomes"} - measured.keys():
        raise StoreError(f"{path}: no {min(missing)}; rerun evaluate-policy with --force")
    words = {
        row["question_id"]: answer_words(row["answer"])
        for row in iterate_parquet(evaluated / FILE, ["question_id", "answer"])
    }
    with Place(path):
        outcomes = [
            parse_record(Outcome, {"words": words.get(value["question_id"], 0), **value})
            for value in measured["outcomes"]
        ]
    return Measured(measured["split"], outcomes, measured["seconds"])


def _rates(evaluated: Path, judged: Path) -> dict[str, SearchErrors]:
    """Verdict counts of each question's trajectory, by question id.

    Raises StoreError for verdicts on other trajectories.
    """
    question_of = {
        row["trajectory_id"]: row["question_id"]
        for row in iterate_parquet(evaluated / FILE, ["trajectory_id", "question_id"])
    }
    rates = dict.fromkeys(question_of.values(), SearchErrors())
    path = judged / "verdicts.parquet"
    for name, verdicts in groupby(iterate_records(path, Verdict), key=lambda verdict: verdict.id):
        if name not in question_of:
            raise StoreError(
                f"{path}: verdicts on trajectory {name}, which {evaluated / FILE} does not hold; "
                "rerun the stage judge-policy with --force"
            )
        rates[question_of[name]] += count_search_errors(verdicts)
    return rates


def by_question(outcomes: Sequence[Outcome]) -> dict[str, tuple[str, dict[str, float]]]:
    """Data set and measures by question id. Raises StoreError for a repeated id."""
    result: dict[str, tuple[str, dict[str, float]]] = {}
    for outcome in outcomes:
        if outcome.question_id in result:
            raise StoreError(
                f"question {outcome.question_id} was evaluated twice; make question ids unique "
                "over all files of a split"
            )
        result[outcome.question_id] = (outcome.dataset, outcome.values())
    return result


def _distributions(outcomes: Sequence[Outcome]) -> dict[str, dict[str, dict[str, int]]]:
    """Numbers of trajectories by number of steps and by stop reason, per data set and "all"."""
    result: dict[str, dict[str, dict[str, int]]] = {}
    for dataset in [*dict.fromkeys(outcome.dataset for outcome in outcomes), ALL]:
        inside = [outcome for outcome in outcomes if dataset in (outcome.dataset, ALL)]
        steps = Counter(outcome.steps for outcome in inside)
        result[dataset] = {
            "steps": {str(count): steps[count] for count in sorted(steps)},
            "stops": dict(Counter(str(outcome.stop) for outcome in inside).most_common()),
        }
    return result
