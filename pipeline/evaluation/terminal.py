"""Preference pairs and trajectories in the terminal, with the loss mask in color.

Input: ``pairs.parquet`` or trajectories. Output: model text, which is trained on, in green, and
observation text, which is masked, dimmed. The text of a pair is decoded from the token spans that
training uses, so a mask that is shifted by one token is visible.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pipeline.core.errors import InputError
from pipeline.core.record_io import iterate_input, parse_record
from pipeline.core.records import Pair, Span, Trajectory
from pipeline.core.text import visible
from pipeline.evaluation.excerpts import Segment, segments
from pipeline.grammars.spans import cover_error

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text
    from tokenizers import Tokenizer

Record = TypeVar("Record", Pair, Trajectory)
STYLES = {"model": "green", "observation": "dim", "unknown": "yellow"}
SIDE_BY_SIDE = 110  # minimum terminal width, in columns, for two panels side by side


def view_pairs(
    path: Path | str,
    limit: int,
    *,
    tokenizer: Path | str,
    ids: Collection[str] = (),
    console: Console | None = None,
) -> int:
    """Print the first ``limit`` pairs of a file or ``pair`` directory and return their number.

    With ``ids``, only pairs of these questions or trajectories.
    ``tokenizer`` is the directory of the base model, which holds ``tokenizer.json``. Raises InputError
    when a file is missing or broken, or when token spans do not cover the ids.
    """
    file = Path(path) / "pairs.parquet" if Path(path).is_dir() else Path(path)
    codec = _tokenizer(Path(tokenizer))
    screen = console or _console()
    total, shown = _total(file, ids), list[tuple[str, Any, Any]]()
    fields = ("question_id", "chosen_id", "rejected_id")
    for number, (line, pair) in enumerate(_selected(file, Pair, fields, ids, limit), start=1):
        where = f"{file}:{line}"
        question = next((m.content for m in reversed(pair.prompt) if m.role == "user"), "")
        chosen = _panel(
            f"chosen {pair.chosen_id}",
            _decode(codec, pair.chosen_ids, pair.chosen_spans, where),
            pair.chosen_rewards,
        )
        rejected = _panel(
            f"rejected {pair.rejected_id}",
            _decode(codec, pair.rejected_ids, pair.rejected_spans, where),
            pair.rejected_rewards,
        )
        title = f"{number}{total} · round {pair.round} · {pair.kind} · {question}"
        shown.append((title, chosen, rejected))
    for title, chosen, rejected in shown:
        _rule(screen, title)
        beside(screen, [chosen, rejected])
    if not shown and not ids:
        screen.print(f"{file} has no pairs", markup=False)
    return len(shown)


def view_trajectories(
    path: Path | str, limit: int, *, ids: Collection[str] = (), console: Console | None = None
) -> int:
    """Print the first ``limit`` trajectories of a file or stage directory and return their number.

    With ``ids``, only trajectories of these questions or with these ids.
    Raises InputError when the file is missing or broken, or when spans do not cover the output.
    """
    file = Path(path) / "trajectories.parquet" if Path(path).is_dir() else Path(path)
    screen = console or _console()
    total, shown = _total(file, ids), list[tuple[str, Any]]()
    fields = ("question_id", "trajectory_id")
    for number, (line, trajectory) in enumerate(
        _selected(file, Trajectory, fields, ids, limit), start=1
    ):
        try:
            pieces = segments(trajectory.output, trajectory.spans)
        except InputError as error:
            raise InputError.at(file, line, str(error)) from None
        answers = " | ".join(trajectory.answers)
        title = f"{trajectory.trajectory_id} · gold {answers} · {trajectory.stop}"
        panel = _panel(title, pieces, trajectory.rewards or {})
        shown.append((f"{number}{total} · {trajectory.dataset} · {trajectory.question}", panel))
    for title, panel in shown:
        _rule(screen, title)
        screen.print(panel)
    return len(shown)


def _selected(
    file: Path, kind: type[Record], keys: Sequence[str], ids: Collection[str], limit: int
) -> Iterator[tuple[int, Record]]:
    """(line or row, record) of the first ``limit`` records with one of ``ids``, or of any.

    ``keys`` are the fields that hold ids. Reading stops at the last of these records.
    """
    chosen = (
        (line, record)
        for line, record in iterate_input(file, kind)
        if not ids or any(record.get(key) in ids for key in keys)
    )
    for line, record in islice(chosen, limit):
        yield line, parse_record(kind, record, file, line)


def _total(file: Path, ids: Collection[str]) -> str:
    """``/1,200`` for a Parquet file, whose footer holds the number, else nothing."""
    if ids or file.suffix != ".parquet":
        return ""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return f"/{pq.read_metadata(file).num_rows:,}"
    except (pa.ArrowException, OSError):
        return ""  # `iterate_input` refuses the file


def printable(text: str) -> str:
    """`visible` text with tabs as spaces, so that a document cannot control the terminal."""
    return visible(text).replace("\t", "    ")


def _tokenizer(directory: Path) -> Tokenizer:
    from tokenizers import Tokenizer

    path = directory / "tokenizer.json"
    if not path.exists():
        raise InputError.at(path, None, "no such file; give the directory of the base model")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001 - the library raises no narrower type
        raise InputError.at(path, None, f"not a tokenizer: {error}") from None


def _decode(
    tokenizer: Tokenizer, ids: Sequence[int], spans: Sequence[Span], where: str
) -> list[Segment]:
    problem = cover_error(spans, len(ids))
    if problem:
        raise InputError.at(where, None, f"token spans: {problem}")
    return [
        Segment(tokenizer.decode(list(ids[start:end]), skip_special_tokens=False), writer)
        for start, end, writer in spans
    ]


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False)


def _rule(console: Console, title: str) -> None:
    from rich.text import Text

    console.rule(Text(printable(title), style="bold"), align="left")


def _panel(title: str, pieces: Iterable[Segment], rewards: Mapping[str, Any]) -> Any:
    from rich.panel import Panel
    from rich.text import Text

    # Text objects, because rich interprets bracket markup in plain strings.
    body = Text(overflow="fold")
    for piece in pieces:
        body.append(printable(piece.text), style=STYLES[piece.writer])
    return Panel(body, title=Text(printable(title)), subtitle=_terms(rewards), title_align="left")


def _terms(rewards: Mapping[str, Any]) -> Text:
    from rich.text import Text

    numbers = {name: v for name, v in rewards.items() if isinstance(v, int | float)}
    terms = " ".join(f"{name} {value:.2f}" for name, value in numbers.items())
    return Text(printable(terms))


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
