"""``steep submit``: predictions of any system on a split, as rows of a table."""

from __future__ import annotations

from collections.abc import Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.cli.options import JsonOption, MarkdownOption, Source
from pipeline.cli.printing import check_markdown, print_lines, show_tables
from pipeline.core.errors import InputError

if TYPE_CHECKING:
    from pipeline.config import QuestionFile
    from pipeline.core.records import Question

_NAMED = 5  # ids in a message
_KINDS = ("missing", "duplicate", "unknown")
_HEADER = ("system", "data set", "n", "EM", "F1", "CEM", "tokens", "searches")
_TESTS = ("row", "against", "data set", "measure", "questions", "difference", "95 %", "p")


def submit(
    source: Source,
    split: Annotated[
        str,
        typer.Option(
            help="test questions of a data set of steep data, such as search-agent-review, or a "
            "file of questions"
        ),
    ],
    data: Annotated[Path | None, typer.Option("--data", help="directory of the data files")] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            help="run that was evaluated on the same questions, or a file of predictions for them; "
            "repeatable"
        ),
    ] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="measure the answered questions alone")
    ] = False,
    as_json: JsonOption = False,
    output: MarkdownOption = None,
) -> None:
    """Measure predictions of any system on a split: question ids and answers."""
    check_markdown(output)
    from pipeline.core.answer_metrics import ALL, ALL_QUESTIONS, OF_ANSWERS, hop_count
    from pipeline.evaluation.compare import compare
    from pipeline.evaluation.comparison_tables import Table, markdown, test_cells
    from pipeline.evaluation.measured import by_question
    from pipeline.evaluation.metrics import metrics_rows
    from pipeline.evaluation.submission import read_submission
    from pipeline.knowledge.corpus.questions.load import Notes
    from tasks.questions import read_split

    questions = read_split("test", _files(split, data), 0, Notes())
    found = read_submission(source, questions)
    for kind in _KINDS:
        if ids := getattr(found, kind):
            more = ", …" if len(ids) > _NAMED else ""
            print_lines([f"{kind}: {len(ids):,}: {', '.join(ids[:_NAMED])}{more}"], err=True)
    if found.missing and not partial:
        raise InputError(
            f"{len(found.missing):,} of {len(questions):,} questions have no prediction; add them, "
            "or measure the others with --partial"
        )
    title, own, tests = Path(source).stem, by_question(found.outcomes), []
    for place in against or ():
        other, measured = _evaluated(place, questions, own.keys())
        measures = {"em", "f1", "cem", *found.costs}.intersection(measured)
        # Under a name that no file has, since the run may be called as the file is.
        tested = compare({"": other, title: own}, split=split)
        tests += [{**test, "before": place} for test in tested if test["measure"] in measures]
        if "cem" not in measures:
            print_lines([f"{place} has another evaluation.cem, so CEM is not tested"], err=True)
    rows = metrics_rows(title, split, found.outcomes, {}, seed=0)
    rows = [row for row in rows if row["split"] == split and hop_count(row["dataset"]) is None]
    cells = [
        [title, row["dataset"], f"{row['n']:,}"]
        + [f"{100 * row[measure]:.1f}" for measure in ("em", "f1", "cem")]
        + [_per_right(row, cost) if cost in found.costs else "–" for cost in ("total", "searches")]
        for row in rows
    ]
    shown = [Table("Predictions", _HEADER, cells, "in brackets: for each right answer")]
    lines = [
        [test["after"], test["before"], test["dataset"], *test_cells(test)]
        for test in tests
        if test["dataset"] in (ALL, ALL_QUESTIONS)
    ]
    shown += [Table("Paired tests", _TESTS, lines, "two-sided paired t-test")] if lines else []
    known = (*OF_ANSWERS, *found.costs)  # not steps, format or failures, as metrics.json has
    value = {
        "rows": [
            {name: row[name] for name in ("policy", "dataset", "split", "n")}
            | {name: row["tokens"][name] if name == "total" else row[name] for name in known}
            | {"ci": {name: row["ci"][name] for name in known}}
            for row in rows
        ],
        "tests": tests,
        **{kind: getattr(found, kind) for kind in _KINDS},
    }
    show_tables(shown, output, value if as_json else None)
    if not as_json and output is None:  # the last row as Markdown
        print_lines(markdown([shown[0]._replace(rows=cells[-1:], note="")]).splitlines()[2:])


def _per_right(row: dict[str, Any], cost: str) -> str:
    mean, form = (row["tokens"]["total"], ",.0f") if cost == "total" else (row[cost], ".2f")
    return f"{mean:{form}} ({format(mean / row['em'], form) if row['em'] else '–'})"


def _files(split: str, data: Path | None) -> list[tuple[QuestionFile, Path]]:
    """The question files of a split. Raises InputError for an unknown one and a missing file."""
    from pipeline.config import QuestionFile, load
    from pipeline.core.shipped import configuration_names
    from pipeline.knowledge.corpus.official import DATASETS, OFFICIAL
    from pipeline.knowledge.corpus.questions.load import dataset_of

    if (path := Path(split)).is_file():
        return [(QuestionFile(dataset=dataset_of(path), path=split), path)]
    official = {file.path for file in OFFICIAL if file.dataset == split}
    tested = [file for name in configuration_names() for file in load(name).data.test]
    # Ids and answers decide; evidence does not.
    files = {
        one.path: QuestionFile(dataset=one.dataset, path=one.path)
        for one in tested
        if one.path in official
    }
    if not files:
        names = ", ".join(DATASETS)
        raise InputError(f"--split is {split!r}: expected a file of questions, or one of {names}")
    paths = [(data or Path()) / name for name in files]
    for path in paths:
        if not path.is_file():
            raise InputError.at(path, "no such file; name its directory with --data (steep data)")
    return list(zip(files.values(), paths, strict=True))


def _evaluated(
    place: str, questions: Sequence[Question], asked: Set[str]
) -> tuple[dict[str, tuple[str, dict[str, float]]], list[str]]:
    """The outcomes of a file of predictions, or of the last policy of a run, and the measures that
    it has as a file has them: CEM by whole words, known costs. Raises InputError
    unless each of the questions ``asked`` has an answer."""
    from pipeline.evaluation.measured import by_question
    from pipeline.evaluation.policy_names import of_run
    from pipeline.evaluation.submission import COSTS, read_submission
    from pipeline.look.report.finished_run import find_run, read_run

    if Path(place).is_file():
        stored = read_submission(place, questions)
        outcomes, measures = stored.outcomes, ["em", "f1", "cem", *stored.costs]
    else:
        run = read_run(find_run(place), place)
        outcomes = list(run.outcomes[of_run(run.outcomes)[-1]].values())
        measures = ["em", "f1", *(["cem"] if run.cem == "words" else []), *COSTS]
    evaluated = by_question(outcomes)
    if evaluated.keys() >= asked:
        return {name: evaluated[name] for name in asked}, measures
    lacking = asked - evaluated.keys()
    raise InputError(
        f"--against {place} has no answer to {len(lacking):,} of these {len(asked):,} questions, "
        f"such as {min(lacking)}; name a run that was evaluated on them, or a file of predictions "
        "(trajectories.parquet of an evaluation)"
    )
