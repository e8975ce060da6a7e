"""Checkpoints of a rollout: finished questions in Parquet files, and the seconds they took.

A rollout that is killed and started again rolls out only the questions that no checkpoint holds.
Its result does not depend on how the questions are spread over the files: they are read back in the
order of the questions, a few files at a time, after a check that every question has each of its
samples once.
"""

from __future__ import annotations

import logging
import math
import time
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.core.atomic import write_json
from pipeline.core.errors import EngineError, InputError, Place, RetrievalError, StoreError
from pipeline.core.input_files import read_json
from pipeline.core.record_io import parse_record
from pipeline.core.records import Trajectory
from pipeline.engine.files.checkpoints import intact, read_checkpoint, write_checkpoint
from pipeline.llm.engine import Engine

if TYPE_CHECKING:
    import pyarrow as pa

    from pipeline.knowledge.retrieval.base import Retriever

_NAME = "paths"
_ROWS_IN_MEMORY = 4096  # trajectories of the files that `read` keeps; one file may have more
SECONDS = ("engine_start", "generation", "semantic", "graph", "ppr", "total")


@dataclass(eq=False)
class RolloutTimer:
    """Seconds of a rollout, including ``earlier`` attempts at the same stage.

    ``start`` is the value of ``time.perf_counter`` before the engine was opened.
    """

    start: float
    engine: Engine
    retriever: Retriever | None
    earlier: dict[str, float]

    def seconds(self) -> dict[str, float]:
        """Seconds by name: `SECONDS`, and the seconds that the retriever reports."""
        current = {
            "generation": self.engine.seconds,
            "total": time.perf_counter() - self.start,
            **(self.retriever.timing if self.retriever is not None else {}),
        }
        return {
            name: self.earlier.get(name, 0.0) + current.get(name, 0.0)
            for name in dict.fromkeys((*SECONDS, *self.earlier, *current))
        }


class RolloutCheckpoints:
    """The checkpoints in ``folder`` of the questions ``question_ids``, which are distinct.

    A question is finished when a file holds its samples 0 to ``samples`` - 1. Everything else in
    the files is ignored: other questions, unfinished ones, and repetitions, which two processes in
    one directory can cause. ``batch`` is the number of questions per new file, and ``seconds`` are
    the seconds of all files.
    """

    def __init__(
        self, folder: Path, question_ids: Sequence[str], *, samples: int, batch: int
    ) -> None:
        self.folder = folder
        self.samples = samples
        self.batch = batch
        self._question_ids = question_ids
        self._number_of = {question_id: number for number, question_id in enumerate(question_ids)}
        self._files: list[Path] = []
        # Where each question is: the number of its file, or -1, and the first of its rows.
        self._file_of = array("q", [-1]) * len(question_ids)
        self._row_of = array("q", [0]) * len(question_ids)
        self._incomplete: dict[str, list[Trajectory]] = {}
        self._complete: list[list[Trajectory]] = []
        for path in intact(folder, _NAME):
            columns = read_checkpoint(path, ["question_id", "sample"]).to_pydict()
            self._enter(path, columns["question_id"], columns["sample"])
        self.seconds = dict.fromkeys(SECONDS, 0.0) | (self._seconds_before() if self._files else {})

    def remaining(self) -> list[int]:
        """Positions of the unfinished questions in ``question_ids``, ascending."""
        return [number for number, file in enumerate(self._file_of) if file < 0]

    def add(self, trajectory: Trajectory, timer: RolloutTimer) -> None:
        """Add a finished trajectory; writes a file when a batch of questions is complete.

        Raises EngineError for a log-probability that is not finite, and what `flush` raises.
        """
        for token, logprob in enumerate(trajectory.logprobs):
            if logprob is not None and not math.isfinite(logprob):
                raise EngineError(
                    f"token {token} of {trajectory.trajectory_id} has log-probability {logprob}; "
                    "expected a finite number; check the model's weights and engine.dtype"
                )
        trajectories = self._incomplete.setdefault(trajectory.question_id, [])
        trajectories.append(trajectory)
        if len(trajectories) == self.samples:
            self._complete.append(self._incomplete.pop(trajectory.question_id))
        if len(self._complete) >= self.batch:
            self.flush(timer)

    def flush(self, timer: RolloutTimer) -> None:
        """Write the complete questions.

        Raises RetrievalError when retrieval failed for all their trajectories, and they are a whole
        batch or the first. The seconds are written first, so that every file is accounted for.
        """
        trajectories = [trajectory for group in self._complete for trajectory in group]
        if not trajectories:
            return
        # One last question whose query fails would otherwise end every rerun.
        many = len(self._complete) >= self.batch > 1 or not self._files
        if many and all(trajectory.stop == "retrieval_error" for trajectory in trajectories):
            raise RetrievalError(
                f"retrieval failed for all {len(trajectories)} trajectories of the last "
                f"{len(self._complete)} questions; find the cause in the log above, then rerun"
            )
        self.seconds = timer.seconds()
        write_json(self.folder / "seconds.json", self.seconds)
        trajectories.sort(key=lambda item: (self._number_of[item.question_id], item.sample))
        path = write_checkpoint(self.folder, _NAME, trajectories, Trajectory)
        self._enter(path, [t.question_id for t in trajectories], [t.sample for t in trajectories])
        self._complete = []

    def read(self) -> Iterator[Trajectory]:
        """All trajectories in the order of the questions and of their samples.

        At most one file or `_ROWS_IN_MEMORY` trajectories are in memory. Raises StoreError when a
        question is not finished, or a file was deleted or damaged in the meantime.
        """
        if missing := self.remaining():
            raise StoreError(
                f"{self.folder}: no checkpoint holds all {self.samples} trajectories of "
                f"{len(missing)} of {len(self._question_ids)} questions, such as "
                f"{self._question_ids[missing[0]]}; rerun, which rolls out only these questions"
            )
        tables: OrderedDict[int, pa.Table] = OrderedDict()
        for number, question_id in enumerate(self._question_ids):
            file = self._file_of[number]
            if file not in tables:
                tables[file] = read_checkpoint(self._files[file])
                while len(tables) > 1 and _rows(tables) > _ROWS_IN_MEMORY:
                    tables.popitem(last=False)
            tables.move_to_end(file)
            rows = tables[file].slice(self._row_of[number], self.samples).to_pylist()
            for sample, row in enumerate(rows):
                with Place(self._files[file]):
                    trajectory = parse_record(Trajectory, row)
                if (trajectory.question_id, trajectory.sample) != (question_id, sample):
                    raise StoreError(
                        f"{self._files[file]}: expected sample {sample} of question {question_id}, "
                        f"got sample {trajectory.sample} of {trajectory.question_id}; delete the "
                        "file and rerun, which rolls out its questions again"
                    )
                yield trajectory

    def _enter(self, path: Path, question_ids: Sequence[str], samples: Sequence[int]) -> None:
        """Note which finished questions a file holds, except questions of an earlier file."""
        expected = list(range(self.samples))
        self._files.append(path)
        taken = row = 0
        while row < len(question_ids):
            end = row + 1
            while end < len(question_ids) and question_ids[end] == question_ids[row]:
                end += 1
            number = self._number_of.get(question_ids[row])
            if number is not None and self._file_of[number] < 0 and samples[row:end] == expected:
                self._file_of[number], self._row_of[number] = len(self._files) - 1, row
                taken += end - row
            row = end
        if taken < len(question_ids):
            logging.getLogger(__name__).warning(
                "%s: %d of its %d trajectories are not used; they belong to other questions or "
                "another number of samples, or another checkpoint holds them too",
                path,
                len(question_ids) - taken,
                len(question_ids),
            )

    def _seconds_before(self) -> dict[str, float]:
        """The seconds of earlier attempts; empty when their file is missing or damaged."""
        path = self.folder / "seconds.json"
        try:
            return {name: float(value) for name, value in read_json(path).items()}
        except (InputError, ValueError, TypeError) as error:
            logging.getLogger(__name__).warning(
                "%s: not the seconds of earlier attempts (%s); they are not counted", path, error
            )
            return {}


def _rows(tables: OrderedDict[int, pa.Table]) -> int:
    return sum(table.num_rows for table in tables.values())
