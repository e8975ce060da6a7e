"""Hand-made questions and trajectories about an invented film, its director and her city."""

from __future__ import annotations

from typing import Any

from pipeline.core.records import ContextItem, Decomposed, Question, Step, Trajectory
from tests.smallest import small_trajectory

FILM = "Where was the director of Silver Lantern born?"
DIRECTED = ContextItem("chunk", "c1", "Silver Lantern", "It was made by Mara Venn in 1950.", 0.5)
BORN = ContextItem("triplet", "t1", "", "Mara Venn was born in Vell", 0.4)
ELSEWHERE = ContextItem("chunk", "c2", "Ostar", "Vell is the capital of Ostar.", 0.3)
EVIDENCE = ["Silver Lantern: It was made by Mara Venn in 1950.", "Mara Venn: She was born in Vell."]


def musique() -> Question:
    """A question with two hops, whose answers are Mara Venn and Vell."""
    first = Decomposed("Who directed Silver Lantern?", "Mara Venn", "Silver Lantern")
    hops = [first, Decomposed("Where was #1 born?", "Vell", "Mara Venn")]
    gold = ["Vell", "City of Vell"]
    return Question("q", "musique", FILM, gold, "multi", EVIDENCE, hops=2, decomposition=hops)


def first_step(*context: ContextItem, says: str = "Mara Venn") -> Step:
    """A step that queries the first hop."""
    return Step(
        ["Silver Lantern"], "Who directed Silver Lantern?", list(context), f"It was {says}."
    )


def second_step(*context: ContextItem, says: str = "Vell", about: str = "Mara Venn") -> Step:
    """A step that queries the second hop."""
    return Step([about], f"Where was {about} born?", list(context), f"The place is {says}.")


def film_trajectory(answer: str | None, *steps: Step, **other: Any) -> Trajectory:
    """A trajectory of the film question; ``other`` replaces any field."""
    fields: dict[str, Any] = {
        "trajectory_id": "q-0",
        "dataset": "musique",
        "question": FILM,
        "hop": "multi",
        "answers": ["Vell", "City of Vell"],
        "evidence": EVIDENCE,
        "steps": list(steps),
        "answer": answer,
        "format_ok": answer is not None,
    }
    return small_trajectory(**(fields | other))
