"""Section "Retrieval" of the report: how much of the golden evidence the trajectories retrieved.

Input: the trajectories of every round and of every evaluated policy, and their questions. Output:
the variables of ``recall.html.j2``. The unit is a gold hop of a question, and
`pipeline.evaluation.failures` defines when a hop is retrieved: an item of any step states it. At
most `MOST` trajectories of a round or policy are checked, evenly spaced over its file, and only
their questions are held, so memory and time do not grow with the run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from pipeline.core.answer_metrics import ALL, hop_count_name
from pipeline.core.record_io import iterate_records
from pipeline.core.records import Question
from pipeline.core.row_files import iterate_parquet
from pipeline.core.trajectory_file import FILE, iterate_trajectories
from pipeline.evaluation.failures import retrieved_hops
from pipeline.evaluation.policy_names import policy_title, round_title
from pipeline.look.report.data import rounds_of

MOST = 20_000
_COLUMNS = ("question_id", "dataset", "question", "hop", "answers", "evidence", "steps")
_EVALUATED = "evaluate-"


@dataclass
class Recall:
    """The recall of one round or policy; ``every`` is the distance of the checked trajectories.

    ``without_question`` counts the trajectories whose question was not found; their hops come from
    their own annotations. ``by_dataset`` and ``by_hops`` hold ``n``, the trajectories with a hop
    that can be checked; ``recall``, the share of their hops that were retrieved; and ``whole``, the
    share of trajectories that retrieved every hop.
    """

    title: str
    sampled: bool
    every: int
    without_question: int = 0
    by_dataset: dict[str, dict[str, Any]] = field(default_factory=dict)
    by_hops: dict[str, dict[str, Any]] = field(default_factory=dict)


def values(inputs: Mapping[str, Path], split: str, most: int = MOST) -> dict[str, Any]:
    """Template variables: a `Recall` for each round and policy, and the columns of their table.

    ``split`` is the evaluated split. Raises InputError when a file is missing or broken.
    """
    found = [recall for recall in _recalls(inputs, split, most) if recall.by_dataset]
    datasets = dict.fromkeys(name for recall in found for name in recall.by_dataset)
    names = {name for recall in found for name in recall.by_hops}
    hops = sorted(names, key=lambda name: int(name.partition("-")[0]))
    return {
        "recalls": found,
        "recall_datasets": [ALL, *(name for name in datasets if name != ALL)],
        "recall_hops": hops if len(hops) > 1 else [],
    }


def _recalls(inputs: Mapping[str, Path], split: str, most: int) -> Iterator[Recall]:
    sampling, held_out = (_file(inputs, f"questions-{name}") for name in ("sampling", split))
    for number, directory in rounds_of(inputs, "score").items():
        sampled = _file(inputs, f"questions-sampling-{number}") or sampling
        yield measure(round_title(number), True, directory / FILE, sampled, most)
    for name, directory in inputs.items():
        if name.startswith(_EVALUATED):
            title = policy_title(name.removeprefix(_EVALUATED))
            yield measure(title, False, directory / FILE, held_out, most)


def _file(inputs: Mapping[str, Path], name: str) -> Path | None:
    path = inputs[name] / "questions.parquet" if name in inputs else None
    return path if path is not None and path.is_file() else None


def measure(title: str, sampled: bool, path: Path, questions: Path | None, most: int) -> Recall:
    """The recall of the trajectories in ``path``; their ``questions`` add decompositions.

    Raises InputError when a file is missing or broken.
    """
    rows = pq.read_metadata(path).num_rows if path.is_file() else 0
    every = max(1, -(-rows // most))
    ids = {
        row["question_id"] for row in islice(iterate_parquet(path, ["question_id"]), 0, None, every)
    }
    known = {
        question.question_id: question
        for question in (iterate_records(questions, Question) if questions and ids else ())
        if question.question_id in ids
    }
    # Whether each hop of each trajectory was retrieved.
    by_dataset: defaultdict[str, list[list[bool]]] = defaultdict(list)
    by_hops: defaultdict[str, list[list[bool]]] = defaultdict(list)
    without_question = 0
    for trajectory in iterate_trajectories(path, _COLUMNS, every):
        question = known.get(trajectory.question_id)
        without_question += question is None
        hops = retrieved_hops(trajectory, question)
        checked = [hop for hop in hops if hop is not None]
        if not checked:
            continue
        by_dataset[ALL].append(checked)
        by_dataset[trajectory.dataset].append(checked)
        by_hops[hop_count_name(len(hops))].append(checked)
    return Recall(
        title,
        sampled,
        every,
        without_question,
        {name: _row(found) for name, found in by_dataset.items()},
        {name: _row(found) for name, found in by_hops.items()},
    )


def _row(found: Sequence[Sequence[bool]]) -> dict[str, Any]:
    number = len(found)
    recall = sum(map(sum, found)) / sum(map(len, found))
    return {"n": number, "recall": recall, "whole": sum(map(all, found)) / number}
