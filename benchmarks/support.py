"""``python -m benchmarks.support RUN...``: what the answers of policies rest on, in a closed world.

EM counts a right answer without asking where it comes from. Printed for every policy of every run,
in percent of the questions of ``evaluation.split``: EM; *supported*, the right answers with every
fact of the question's path retrieved; *right steps*, those of trajectories whose steps are all
right (`pipeline.closed_world.truth`). Runs must be finished, and their worlds must still be below
``data/closed_world``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from pipeline.closed_world.truth import Truth
from pipeline.core.input_files import read_json
from pipeline.core.record_io import iterate_records
from pipeline.core.records import Trajectory
from pipeline.core.trajectory_file import FILE
from tasks import task_for


def main(
    runs: Annotated[list[Path], typer.Argument(help="directories of finished runs")],
) -> None:
    """Print a row for every run, policy, and kind of question."""
    print(f"{'run':32} policy  {'questions':20}   number     EM  supported  right steps")
    for run in runs:
        config = str(run / "config.yaml")
        world = task_for("world", config)
        notes = read_json(world.directory / "world.json")["questions"].values()
        kinds = {str(note["id"]): str(note["kind"]) for file in notes for note in file}
        truth = Truth.of(world.directory)
        for number in range(world.run_settings.rounds + 1):
            evaluated = task_for("evaluate-policy", config, round=number)
            measured = measured_support(evaluated.directory / FILE, truth)
            for kind in ("all", *sorted({kinds[question] for question in measured})):
                chosen = [v for q, v in measured.items() if kind in ("all", kinds[q])]
                shares = "".join(f"{100 * share:11.1f}" for share in np.mean(chosen, axis=0))
                print(f"{run.name:32} {number:6}  {kind:20} {len(chosen):8,}{shares}")


def measured_support(path: Path, truth: Truth) -> dict[str, tuple[bool, bool, bool]]:
    """By question id: a right answer, with support, with right steps only.

    ``path`` holds one trajectory for each question. Raises InputError for another world.
    """
    measured = {}
    for trajectory in iterate_records(path, Trajectory):
        found = truth.of_trajectory(trajectory)
        right_steps = found.answer and found.right is True
        measured[trajectory.question_id] = (found.answer, found.supported, right_steps)
    return measured


if __name__ == "__main__":
    typer.run(main)
