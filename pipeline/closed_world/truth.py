"""What is right in a trajectory, by the facts of the closed world.

Purpose: the truth that rewards are measured against (`pipeline.evaluation.reward_audit`). Input:
the directory of a world, and trajectories for its questions. Output: for every step whether its
subquery, retrieval and conclusion are right, and whether an answer has support. The *path* of a
question are the facts that answer its hops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import lru_cache
from pathlib import Path

from pipeline.closed_world.reading import Reader
from pipeline.closed_world.world import World
from pipeline.closed_world.write import read_world, triplets_of
from pipeline.core.answer_metrics import exact_match
from pipeline.core.errors import InputError
from pipeline.core.input_files import read_json
from pipeline.core.records import Trajectory


@dataclass(frozen=True, slots=True)
class StepTruth:
    """The truth of one step; None where the step has no such part or the world cannot tell.

    Attributes:
        subquery: whether it asks for a fact of the question's path.
        retrieval: whether a retrieved item states a fact that the subquery asks for.
        conclusion: whether it gives the value of that fact; where nothing is asked that the world
            answers, whether all facts that it states are true.
    """

    subquery: bool | None
    retrieval: bool | None
    conclusion: bool | None

    @property
    def right(self) -> bool | None:
        """Whether every part that is known is right; None where none is known."""
        known = [part for part in astuple(self) if part is not None]
        return all(known) if known else None


@dataclass(frozen=True, slots=True)
class TrajectoryTruth:
    """The truth of a trajectory.

    Attributes:
        steps: of its steps, in order.
        right: whether every step is right; None where no step is known.
        answer: whether the answer equals a gold answer.
        supported: whether the answer is right and every fact of the path was retrieved, or was the
            right conclusion of a step without a search. A lucky guess is not.
    """

    steps: tuple[StepTruth, ...]
    right: bool | None
    answer: bool
    supported: bool


class Truth:
    """The truth of one world's questions; ``paths`` are the fact ids of each question, by id."""

    def __init__(self, world: World, paths: Mapping[str, Sequence[str]]) -> None:
        self._world, self._paths, self._reader = world, paths, Reader(world)
        # Samples of one question share most of their texts.
        self._asked = lru_cache(maxsize=65536)(self._reader.oracle.asked)
        self._concluded = lru_cache(maxsize=65536)(self._conclusion)
        self._wordings = lru_cache(maxsize=65536)(self._texts)

    @classmethod
    def of(cls, directory: Path) -> Truth:
        """The truth of the world of the stage ``world``; raises what `read_world` raises."""
        notes = read_json(directory / "world.json")["questions"].values()
        paths = {str(note["id"]): note["facts"] for file in notes for note in file}
        return cls(read_world(directory), paths)

    def path(self, question: str) -> Sequence[str]:
        """Ids of the facts that answer the hops of the question with this id.

        Raises InputError for a question of another world.
        """
        if question not in self._paths:
            raise InputError(
                f"question_id: {question!r} is no question of this closed world; name the "
                "configuration of the run that sampled the trajectories"
            )
        return self._paths[question]

    def of_trajectory(self, trajectory: Trajectory) -> TrajectoryTruth:
        """The truth of a trajectory and its steps; raises what `path` raises."""
        path = self.path(trajectory.question_id)
        found: set[str] = set()
        steps = []
        # In ProGraph-R1's grammar a turn concludes from what the turn before it retrieved.
        thoughts = [step.think for step in trajectory.steps[1:]] + [""]
        for step, thought in zip(trajectory.steps, thoughts, strict=False):
            texts = [item.text for item in step.context]
            conclusion = step.summary or step.conclusion or (thought if step.query else "")
            if step.retrieved:
                query = step.asked or ""
                asked = self._asked(query)
                stated = any(self._stated(fact, texts) for fact in asked) if asked else None
                right = not asked.keys().isdisjoint(path)
                steps.append(StepTruth(right, stated, self._concluded(query, conclusion)))
            else:
                query, _ = self._reader.question(step.reasoning) or ("", "")
                concluded = self._concluded(query, conclusion)
                if concluded:
                    found.update(self._asked(query))
                    found.update(fact for fact in path if self._stated(fact, [conclusion]))
                steps.append(StepTruth(None, None, concluded))
            found.update(fact for fact in path if self._stated(fact, texts))
        known = [step.right for step in steps if step.right is not None]
        answer = exact_match(trajectory.answer, trajectory.answers) == 1
        return TrajectoryTruth(
            tuple(steps), all(known) if known else None, answer, answer and found.issuperset(path)
        )

    def _conclusion(self, query: str, text: str) -> bool | None:
        answer = self._reader.oracle.answer(query)
        if text and answer is not None:
            return bool(self._reader.value(query, text) & self._reader.value(query, answer))
        statements = self._reader.statements(text)
        return all(true for _, true in statements) if statements else None

    def _texts(self, fact: str) -> list[str]:
        """The triplets and sentences that state the fact with this id."""
        triplets = [" ".join(parts) for parts in triplets_of(self._world, fact)]
        return triplets + [
            sentence
            for document in self._world.documents_of(fact)
            for sentence, stated in zip(document.sentences, document.facts, strict=True)
            if fact in stated
        ]

    def _stated(self, fact: str, texts: Sequence[str]) -> bool:
        """Whether a text states the fact with this id."""
        return any(wording in text for text in texts for wording in self._wordings(fact))
