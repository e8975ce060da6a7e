"""The steps of a trajectory in the terminal: searches, scored results, and the answer.

Input: a trajectory. Output: lines of a rich `Text`, in which text of documents and models cannot
control the terminal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.core.records import ContextItem, Step, Trajectory
from pipeline.core.text import one_line, visible

if TYPE_CHECKING:
    from rich.text import Text

ITEM_CHARACTERS = 160  # of a retrieved item, unless whole texts are requested
_STOPS = {
    "max_steps": "it used all its steps without an answer",
    "max_tokens": "it used all its tokens without an answer",
    "malformed": "it broke the format before an answer",
    "retrieval_error": "a search failed",
    "answer": "it ended without an answer",
}


def query(step: Step) -> str | None:
    """The search query of a step, in any grammar; None for a step without a search."""
    return step.subquery or step.search or step.query if step.retrieved else None


def steps_text(trajectory: Trajectory, *, whole: bool = False) -> Text:
    """The steps of a trajectory, then `answer_line`; ``whole`` shows retrieved texts uncut."""
    from rich.text import Text

    text = Text(overflow="fold")
    for number, step in enumerate(trajectory.steps, start=1):
        _append_step(text, number, step, whole)
    text.append(answer_line(trajectory), style="bold")
    if trajectory.format_error is not None:
        text.append(f"\nformat: {one_line(trajectory.format_error, 300)}", style="yellow")
    return text


def answer_line(trajectory: Trajectory) -> str:
    """``answer: ...``, or why there is none."""
    if trajectory.answer is None:
        return f"no answer: {_STOPS[trajectory.stop]}"
    return f"answer: {one_line(trajectory.answer, 500)}"


def cost_line(trajectory: Trajectory, seconds: float | None = None) -> str:
    """Searches and tokens of a trajectory, and the seconds that it took."""
    tokens, searches = trajectory.tokens, len(trajectory.tokens.per_retrieval)
    parts = [
        f"{searches} {'search' if searches == 1 else 'searches'}",
        f"{tokens.thinking:,} tokens written",
        f"{tokens.retrieved:,} read",
    ]
    return ", ".join(parts if seconds is None else [*parts, f"{seconds:.1f} s"])


def _append_step(text: Text, number: int, step: Step, whole: bool) -> None:
    searched = query(step)
    title = "no search" if searched is None else f"search: {one_line(searched, 500)}"
    text.append(f"step {number}  {title}\n", style="bold")
    if step.entities:
        text.append(f"  entities: {one_line(', '.join(step.entities), 300)}\n")
    for thought in (step.reasoning, step.think):
        if thought.strip():
            text.append(f"  {one_line(thought, 500)}\n", style="green")
    for item in step.context:
        text.append(f"  {_item(item, whole)}\n", style="dim")
    if searched is not None and not step.context:
        text.append("  nothing was found\n", style="dim")
    for result in (step.summary, step.conclusion):
        if result.strip():
            text.append(f"  → {one_line(result, 500)}\n", style="green")


def _item(item: ContextItem, whole: bool) -> str:
    """One retrieved item: its score, kind, id, and text."""
    title = f"{item.title}: " if item.title else ""
    content = f"{title}{item.text}"
    shown = visible(content) if whole else one_line(content, ITEM_CHARACTERS)
    return f"{item.score:<8.3g} {item.kind:<9} {one_line(item.id, 60)}  {shown}"
