"""The answers of an evaluated policy in FlashRAG's form, for its evaluators and tables.

Input: the trajectories of an evaluation. Output: a directory with ``intermediate_data.json``, a
list of items with ``output.pred``, ``output.retrieval_result`` and ``output.metric_score``, and
``metric_score.txt``, the means. ``acc`` is the cover exact match of whole words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pipeline.core.answer_metrics import cover_exact_match, exact_match, f1
from pipeline.core.atomic import json_text, text_output, write_text
from pipeline.core.errors import InputError
from pipeline.core.records import Trajectory
from pipeline.knowledge.retrieval.origins import passage_id
from pipeline.training.export.directory import new_directory
from pipeline.training.export.sources import Source, items_of, with_sources

_METRICS = {"em": exact_match, "f1": f1, "acc": cover_exact_match}


def export_answers(
    trajectories: Iterable[Trajectory], corpus: Path, directory: Path
) -> Mapping[str, float]:
    """Write a new ``directory``; returns the means of the metrics, and the number of items.

    Raises InputError when there is no trajectory, or the directory exists.
    """
    sums, count = dict.fromkeys(_METRICS, 0.0), 0
    with new_directory(directory) as output:
        with text_output(output / "intermediate_data.json") as write:
            for trajectory, sources in with_sources(trajectories, corpus):
                item = _item(trajectory, sources)
                write(("[\n" if not count else ",\n") + json_text(item, allow_nan=False))
                for name, score in item["output"]["metric_score"].items():
                    sums[name] += score
                count += 1
            write("\n]\n")
        if not count:
            raise InputError("there is no answer to export")
        means = {name: total / count for name, total in sums.items()}
        lines = [f"{name}: {mean}\n" for name, mean in means.items()]
        write_text(output / "metric_score.txt", "".join(lines))
    return {"items": count, **means}


def _item(trajectory: Trajectory, sources: Mapping[str, Source]) -> dict[str, Any]:
    results = [
        {
            "id": item.id,
            "contents": f"{item.title}\n{item.text}" if item.title else item.text,
            "score": item.score,
            "source": sources[name]["source"] if (name := passage_id(item)) in sources else "",
        }
        for item in items_of(trajectory)
    ]
    scores = {
        name: score(trajectory.answer, trajectory.answers) for name, score in _METRICS.items()
    }
    return {
        "id": trajectory.question_id,
        "question": trajectory.question,
        "golden_answers": trajectory.answers,
        "output": {
            "raw_pred": trajectory.output,
            "pred": trajectory.answer or "",
            "retrieval_result": results,
            "metric_score": scores,
        },
        "metadata": {
            "dataset": trajectory.dataset,
            "hop": trajectory.hop,
            "policy": trajectory.policy,
            "searches": sum(step.retrieved for step in trajectory.steps),
            "format_ok": trajectory.format_ok,
            "stop": trajectory.stop,
        },
    }
