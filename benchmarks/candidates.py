"""``python -m benchmarks.candidates``: how much of the full graph a graph of candidates retrieves.

Runs the stage ``index`` of a configuration with ``graph.scope: all`` and with candidates of several
numbers, below ``runs/candidates``. Queries are the questions of the rounds, of validation and of
the test, their sub-questions where the data set has them, and with ``--trajectories`` the distinct
queries of recorded roll-outs. The cold start's sub-questions choose candidates only with
``--cold-start``, because a small corpus has few passages that they do not find. Printed for each
number: the share of passages with triplets, and of the full graph's retrievals of a query the share
that the smaller graph retrieves too: the k_t triplets, and the k_f items that a policy would see;
and of the passages that are shown the share without triplets.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from pipeline.core.columns import Columns
from pipeline.core.record_io import read_records
from pipeline.core.records import Question
from pipeline.core.trajectory_file import iterate_trajectories
from pipeline.engine.run import run
from pipeline.engine.stage import StageTask
from pipeline.knowledge.retrieval.base import Query
from pipeline.knowledge.retrieval.factory import open_retriever
from pipeline.training.sft_data.templates import fill, fluent
from tasks import task_for

SPLITS = ("sampling", "validation", "test")
Items = list[set[str]]  # ids of the items of each query; chunks and triplets have different ids


def main(
    config: Annotated[Path, typer.Option(help="configuration")],
    data: Annotated[Path | None, typer.Option(help="directory of its data files")] = None,
    numbers: Annotated[str, typer.Option(help="values of graph.candidates")] = "5,10,20,50",
    trajectories: Annotated[Path | None, typer.Option(help="trajectories.parquet")] = None,
    cold_start: Annotated[bool, typer.Option(help="also candidates of its sub-questions")] = False,
    start: Annotated[str, typer.Option(help="policy 0 without a cold start")] = "base",
    explored: Annotated[bool, typer.Option(help="with what policy 0 searches for")] = False,
    settings: Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE")] = None,
) -> None:
    """Print a row for each number of candidates and kind of query."""
    common = ["runs_dir=runs/candidates", *(settings or ())]
    common += [] if cold_start else [f"start={start}"]

    def built(*more: str, explored: bool) -> StageTask:
        root = None if data is None else str(data)
        first = task_for("index", str(config), (*common, *more), root)
        task: StageTask = first.clone(explored=explored)
        run(task, check=False)
        return task

    full = built("graph.scope=all", explored=False)
    queries = _queries(full, trajectories)
    expected = {kind: _retrieved(full, of_kind) for kind, of_kind in queries.items()}
    print("candidates  passages  queries        number  triplets  shown  without triplets")
    for number in map(int, numbers.split(",")):
        chosen = ("graph.scope=candidates", f"graph.candidates={number}")
        task = built(*chosen, explored=explored)
        every = _passages(full.inputs["corpus"])
        kept = _passages(task.inputs["graph"].inputs["candidates"])
        for kind, of_kind in queries.items():
            found = _retrieved(task, of_kind)
            triplets, shown = map(_reproduced, expected[kind], found)
            passages = [item for items in found[1] for item in items & every]
            without = sum(passage not in kept for passage in passages) / max(1, len(passages))
            print(
                f"{number:10}  {len(kept) / len(every):8.3f}  {kind:13}  {len(of_kind):6,}  "
                f"{triplets:8.3f}  {shown:5.3f}  {without:8.3f}"
            )


def _passages(task: StageTask) -> set[str]:
    return set(Columns(task.directory / "chunks.arrow", ("id",)).column(0))


def _queries(task: StageTask, trajectories: Path | None) -> dict[str, list[Query]]:
    """Distinct queries by their kind; a query without entities is its own key entity."""
    found: dict[str, dict[Query, None]] = {"questions": {}, "sub-questions": {}, "policy": {}}
    options = (str(task.config), tuple(task.overrides), task.data)
    for split in SPLITS:
        questions = task_for(f"questions-{split}", *options)
        run(questions, check=False)
        for question in read_records(questions.directory / "questions.parquet", Question):
            found["questions"][_plain(question.question)] = None
            answers = [part.answer for part in question.decomposition]
            for number, part in enumerate(question.decomposition):
                if text := fill(part.question, answers[:number]):
                    found["sub-questions"][_plain(fluent(text))] = None
    if trajectories is not None:
        for trajectory in iterate_trajectories(trajectories, ("steps",)):
            for step in trajectory.steps:
                if step.subquery:
                    found["policy"][Query(step.subquery, tuple(step.entities))] = None
    return {kind: list(queries) for kind, queries in found.items() if queries}


def _plain(text: str) -> Query:
    return Query(text, (text,))


def _retrieved(task: StageTask, queries: Sequence[Query]) -> tuple[Items, Items]:
    """For each query its k_t triplets, and the items of the configured variant."""
    settings, result = task.settings, []
    of_triplets = {"variant": "graph", "top_k": settings.retrieval.triplets}
    for changes in (of_triplets, {}):
        retriever = open_retriever(
            settings.retrieval.model_copy(update=changes),
            settings.index,
            task.inputs["corpus"].directory,
            task.inputs["graph"].directory,
            task.directory,
            cache_dir=settings.cache_dir,
        )
        found = retriever.retrieve(queries)
        retriever.close()
        result.append([{item.id for item in items} for items in found])
    return result[0], result[1]


def _reproduced(expected: Items, found: Items) -> float:
    pairs = zip(expected, found, strict=True)
    return sum(len(e & f) for e, f in pairs) / max(1, sum(map(len, expected)))


if __name__ == "__main__":
    typer.run(main)
