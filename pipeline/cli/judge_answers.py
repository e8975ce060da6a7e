"""``steep metrics --judge``: a judge's verdicts on final answers, and its agreement with the truth.

Input: records with question, answers and answer, of any system. Output: the same records with
``judged``: yes, no, or unknown where the judge gave no readable verdict. The judge is a language
model behind an endpoint or in this process, with the instruction and the cache of the judge of
over-search (HiPRAG, arXiv 2510.07794, fig. 5), or the facts of the closed world.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.cli.options import Chosen
from pipeline.cli.printing import console, silence_model_loading, table
from pipeline.cli.records import parse_view, read_each
from pipeline.config import Config
from pipeline.config.evaluation import JudgeModel, Judges
from pipeline.core.answer_metrics import CoverMatch, answer_measures
from pipeline.core.errors import InputError
from pipeline.core.record_io import write_jsonl
from pipeline.core.verdicts import Ruling, Verdict

if TYPE_CHECKING:
    from rich.table import Table

KEY = "answer_judge"
Rulings = Sequence[Ruling]


@dataclasses.dataclass
class AnsweredView:
    """The fields that the judge reads."""

    question: str
    answers: list[str]
    answer: str | None = None


def judge_answers(chosen: Chosen, source: str, output: str, cem: CoverMatch) -> None:
    """Write the records with ``judged`` and their answer measures, and print a table to stderr.

    Without ``answer_judge`` the facts of the closed world decide. In a closed world the
    judge, EM and CEM are also compared with these facts.
    """
    config = chosen.load()
    world = None if config.data.closed_world is None else chosen.finished("world")
    exact = JudgeModel(backend="closed-world")
    judge = config.answer_judge or (exact if world else None)
    if judge is None:
        raise InputError(
            f"{chosen.config} has neither {KEY} nor a closed world; set {KEY} to a model or an "
            "endpoint, as judges.over"
        )
    if judge.model is not None:
        silence_model_loading()
    rows = list(read_each(source, lambda record: parse_view(AnsweredView, record)))
    views = [view for _, view in rows]
    with contextlib.redirect_stdout(sys.stderr):  # records may go to standard output
        judged = _rulings(config, judge, world, views)
        truth = _rulings(config, exact, world, views) if world else None
    measures = [answer_measures(view.answer, view.answers, cem) for view in views]
    every = zip(rows, measures, judged, strict=True)
    write_jsonl(output, (row | found | {"judged": one} for (row, _), found, one in every))
    measured: dict[str, Rulings] = {"the judge": judged}
    for name in ("em", "cem"):
        measured[name.upper()] = ["yes" if found[name] else "no" for found in measures]
    with contextlib.redirect_stdout(sys.stderr):
        console().print(_table(measured, truth))


def _rulings(
    config: Config, model: JudgeModel, world: Path | None, views: Sequence[AnsweredView]
) -> Rulings:
    """Whether each answer means one of its gold answers, which no answer does."""
    from pipeline.core.progress import Progress
    from pipeline.judges.cases import EquivalenceCase
    from pipeline.judges.opening import Judging
    from pipeline.llm.models import Models
    from pipeline.llm.replies import ReplyExchange

    files = config.cache_dir, config.hashes_file
    models = Models(config.model, config.engine, *files, config.seed)
    cases = [
        EquivalenceCase(view.question, " or ".join(view.answers), view.answer or "")
        for view in views
    ]
    asked = list(dict.fromkeys(case for case in cases if case.conclusion.strip()))
    judging = Judging(
        Judges(over=model, under=model), models, ReplyExchange(), Progress(), world, KEY
    )
    with judging.judges()[0] as judge:
        found = dict(zip(asked, judge.decide(asked), strict=True))
    return [found[case].verdict if case in found else "no" for case in cases]


def _table(measured: dict[str, Rulings], truth: Rulings | None) -> Table:
    """A row for each measure: its answers, and its agreement with the truth if that is known."""
    from pipeline.judges.search_errors import calibrate

    def verdicts(rulings: Rulings) -> list[Verdict]:
        return [Verdict(str(n), 0, "over", one, "", "") for n, one in enumerate(rulings)]

    lines = []
    for name, rulings in measured.items():
        cells = [name, *(f"{list(rulings).count(one):,}" for one in ("yes", "no", "unknown"))]
        if truth is not None:
            row, _ = calibrate(verdicts(rulings), verdicts(truth))
            figures = (row.accuracy, row.precision, row.recall)
            cells += ["–" if one is None else f"{100 * one:.1f}" for one in figures]
        lines.append(cells)
    heads = ["measure", "right", "wrong", "unknown"]
    return table(heads if truth is None else [*heads, "accuracy", "precision", "recall"], lines)
