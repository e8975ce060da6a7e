"""Preference pairs and trajectories in the terminal, with the loss mask in color.

Input: ``pairs.parquet`` or trajectories. Output: model text, which is trained on, in green, and
observation text, which is masked, dimmed. The text of a pair is decoded from the token spans that
training uses, so a mask that is shifted by one token is visible. `steps_text` shows the searches,
scored results and answer of one trajectory. Text of documents and models cannot control the
terminal.

Records are chosen by ids and values of fields. Of a Parquet file only these columns are read, and
then the row groups that hold the records, so that a rare record of a large file is found without
reading its tokens. `steep browse` searches for words.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pipeline.core.errors import InputError, Place
from pipeline.core.record_io import iterate_input, parse_record
from pipeline.core.records import ContextItem, Pair, Span, Step, Trajectory
from pipeline.core.row_files import iterate_parquet, parquet_rows
from pipeline.core.spans import cover_error
from pipeline.core.text import one_line, visible
from pipeline.evaluation.excerpts import Segment, pair_sides, question_of, text_of, texts_of

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text
    from tokenizers import Tokenizer

Record = TypeVar("Record", Pair, Trajectory)
# The fields that hold ids, by the kind of record.
IDS: Mapping[type[Any], tuple[str, ...]] = {
    Pair: ("question_id", "chosen_id", "rejected_id"),
    Trajectory: ("question_id", "trajectory_id"),
}
STYLES = {"model": "green", "observation": "dim", "frame": "dim", "unknown": "yellow"}
SIDE_BY_SIDE = 110  # minimum terminal width, in columns, for two panels side by side


def selected(
    file: Path,
    kind: type[Record],
    limit: int,
    ids: Sequence[str] = (),
    facts: Mapping[str, Collection[object]] | None = None,
) -> Iterator[tuple[int, Record]]:
    """(line or row from 1, record) of the first ``limit`` records with these ids and facts.

    ``ids`` are of questions or trajectories, or their beginnings; without ids all records have
    them. ``facts`` are the values that fields may have. Raises InputError when the file is
    unreadable, a record does not fit ``kind``, or its records lack a field of ``facts``.
    """
    wanted: Mapping[str, Collection[object]] = facts or {}
    begins = tuple(ids)
    known = {field.name for field in fields(kind)}
    if lacking := [name for name in wanted if name not in known]:
        raise InputError(
            f"--{lacking[0]} cannot be used here: a {kind.__name__.lower()} has no "
            f"{lacking[0]}; remove it"
        )

    def kept(record: Mapping[str, Any]) -> bool:
        has_id = not begins or any(str(record.get(name)).startswith(begins) for name in IDS[kind])
        return has_id and all(record.get(name) in values for name, values in wanted.items())

    if file.suffix != ".parquet" or not (begins or wanted):
        chosen = (item for item in iterate_input(file, kind) if kept(item[1]))
        with Place(file) as place:
            for place.line, record in islice(chosen, limit):
                yield place.line, parse_record(kind, record)
        return
    rows = enumerate(iterate_parquet(file, [*IDS[kind], *wanted]))
    numbers = list(islice((number for number, row in rows if kept(row)), limit))
    for number, row in zip(numbers, parquet_rows(file, numbers), strict=True):
        with Place(file, number + 1):
            yield number + 1, parse_record(kind, row)


def view(
    path: Path,
    kind: type[Record],
    limit: int,
    *,
    tokenizer: Path,
    ids: Sequence[str] = (),
    facts: Mapping[str, Collection[object]] | None = None,
    console: Console | None = None,
) -> int:
    """Print the first ``limit`` pairs or trajectories of a file; returns their number.

    ``ids`` and ``facts`` choose records, as in `selected`.
    ``tokenizer`` is the base model's directory with ``tokenizer.json``, for pairs. Raises
    InputError when a file is missing or broken, or when spans do not cover the ids or the output.
    """
    from rich.console import Console

    codec = open_tokenizer(tokenizer) if kind is Pair else None
    screen = console or Console(highlight=False)
    with Place(path) as place:
        records = [
            _trajectory(record) if codec is None else _pair(record, codec)
            for place.line, record in selected(path, kind, limit, ids, facts)
        ]
    for number, (title, panels) in enumerate(records, start=1):
        print_rule(screen, f"{number} · {title}")
        beside(screen, panels)
    return len(records)


def _pair(pair: Any, codec: Tokenizer) -> tuple[str, list[Any]]:
    """The title and both panels of a pair.

    Pairs of other systems' outputs have no tokens, so their messages are shown.
    """
    panels = []
    for side in pair_sides(pair):
        text = _decode(codec, side.ids, side.spans) or texts_of(side)
        panels.append(_panel(f"{side.name} {side.id}", text, side.rewards))
    return f"round {pair.round} · {pair.kind} · {question_of(pair)}", panels


def _trajectory(trajectory: Any) -> tuple[str, list[Any]]:
    answers = " | ".join(trajectory.answers)
    title = f"{trajectory.trajectory_id} · gold {answers} · {trajectory.stop}"
    panel = _panel(title, text_of(trajectory), trajectory.rewards or {})
    return f"{trajectory.dataset} · {trajectory.question}", [panel]


def printable(text: str) -> str:
    """`visible` text with tabs as spaces, so that a document cannot control the terminal."""
    return visible(text).replace("\t", "    ")


def open_tokenizer(directory: Path | str) -> Tokenizer:
    """The tokenizer of a model's directory; raises InputError when it cannot be read."""
    from tokenizers import Tokenizer

    path = Path(directory) / "tokenizer.json"
    if not path.exists():
        raise InputError.at(path, "no such file; give the directory of the base model")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001 - the library raises no narrower type
        raise InputError.at(path, f"not a tokenizer: {error}") from None


def _decode(tokenizer: Tokenizer, ids: Sequence[int], spans: Sequence[Span]) -> list[Segment]:
    problem = cover_error(spans, len(ids))
    if problem:
        raise InputError(f"token spans: {problem}")
    most = tokenizer.get_vocab_size()
    if any(not 0 <= token_id < most for token_id in ids):
        raise InputError("token ids: the tokenizer lacks one of them")
    return [
        Segment(tokenizer.decode(list(ids[start:end]), skip_special_tokens=False), writer)
        for start, end, writer in spans
    ]


def print_rule(console: Console, title: str) -> None:
    """A line with a title."""
    from rich.text import Text

    console.rule(Text(printable(title), style="bold"), align="left")


def _panel(title: str, pieces: Iterable[Segment], rewards: Mapping[str, Any]) -> Any:
    from rich.console import Group
    from rich.panel import Panel
    from rich.rule import Rule
    from rich.text import Text

    # Text objects, because rich interprets bracket markup in plain strings.
    body = Text(overflow="fold")
    for piece in pieces:
        body.append(printable(piece.text), style=STYLES[piece.writer])
    numbers = {name: v for name, v in rewards.items() if isinstance(v, int | float)}
    # Below the text, not on the frame, which cuts what is longer than the terminal is wide.
    terms = Text(printable(" ".join(f"{name} {value:.2f}" for name, value in numbers.items())))
    content = Group(body, Rule(), terms) if numbers else body
    return Panel(content, title=Text(printable(title)), title_align="left")


def beside(console: Console, panels: Sequence[Any]) -> None:
    """Print panels beside each other, or one below the other where the terminal is too narrow."""
    from rich.table import Table

    if console.width < SIDE_BY_SIDE * len(panels) // 2:
        for panel in panels:
            console.print(panel)
        return
    table = Table.grid(expand=True, padding=(0, 1))
    for _ in panels:
        table.add_column(ratio=1)
    table.add_row(*panels)
    console.print(table)


ITEM_CHARACTERS = 160  # of a retrieved item, unless whole texts are requested
_STOPS = {
    "max_steps": "it used all its steps without an answer",
    "max_tokens": "it used all its tokens without an answer",
    "malformed": "it broke the format before an answer",
    "retrieval_error": "a search failed",
    "answer": "it ended without an answer",
}


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
    searched = step.asked
    title = "no search" if searched is None else f"search: {one_line(searched, 500)}"
    text.append(f"step {number}  {title}\n", style="bold")
    if step.entities and step.entities != [searched]:
        text.append(f"  entities: {one_line(', '.join(step.entities), 300)}\n")
    for thought in (step.reasoning, step.think):
        if thought.strip():
            text.append(f"  {one_line(thought, 500)}\n", style="green")
    for item in step.context:
        text.append(f"  {_item(item, whole)}\n", style="dim")
    if searched is not None and not step.context:
        text.append("  nothing was found\n", style="dim")
    for result in dict.fromkeys((step.summary, step.conclusion)):
        if result.strip():
            text.append(f"  → {one_line(result, 500)}\n", style="green")


def _item(item: ContextItem, whole: bool) -> str:
    """One retrieved item: its score, kind, id, and text."""
    title = f"{item.title}: " if item.title else ""
    content = f"{title}{item.text}"
    shown = visible(content) if whole else one_line(content, ITEM_CHARACTERS)
    return f"{item.score:<8.3g} {item.kind:<9} {one_line(item.id, 60)}  {shown}"
