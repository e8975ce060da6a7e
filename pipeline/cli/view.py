"""``steep view``: preference pairs or trajectories in the terminal, with the training mask in color."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli import options
from pipeline.cli.runs import stage_task
from pipeline.core.errors import InputError, StoreError
from pipeline.core.input_files import read_jsonl

_FILES = ("pairs.parquet", "trajectories.parquet")


def view(
    context: typer.Context,
    source: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            help="JSONL or Parquet file of pairs or trajectories, or a stage's directory; "
            "without it the pairs of the round",
            show_default=False,
        ),
    ] = None,
    ids: Annotated[
        list[str] | None,
        typer.Option("--id", help="question or trajectory to show; repeatable"),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="number of records to show")] = 3,
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="directory of the tokenizer of pairs; default: the base model's"),
    ] = None,
    config: options.ConfigOption = options.DEFAULT_CONFIGURATION,
    set: options.SetOption = None,
    data: options.DataOption = None,
    round: options.RoundOption = None,
) -> None:
    """Show preference pairs or trajectories: trained text in color, observation text dimmed.

    Without FILE the pairs of a round are shown.
    """
    if source is None:
        task = stage_task("pair", config, set, data, round)
        if not task.complete():
            command = f"steep pair --config {config} --round {task.round_number}"
            raise StoreError(f"{task.label} is not done; run: {command}")
        source = task.directory / "pairs.parquet"
    else:
        options.refuse_options(context, ("data", "round"), options.WITH_FILE)
        if str(source) == "-":  # the first record is read twice
            raise InputError("steep view does not read standard input; name a file")
        source = _record_file(source)
        if source.exists() and not source.is_file():
            raise InputError.at(source, None, "is not a regular file; name one")
    from pipeline.evaluation.terminal import view_pairs, view_trajectories

    if _holds_pairs(source):
        count = view_pairs(
            source, limit, tokenizer=tokenizer or _base_model(config, set), ids=ids or ()
        )
    else:
        count = view_trajectories(source, limit, ids=ids or ())
    if ids and not count:
        raise InputError.at(source, None, f"no record of {', '.join(ids)}")


def _record_file(source: Path) -> Path:
    """The file itself, or the file of pairs or trajectories in a stage's directory."""
    if not source.is_dir():
        return source
    files = [source / name for name in _FILES if (source / name).is_file()]
    if not files:
        raise InputError.at(source, None, f"the directory has no {' or '.join(_FILES)}")
    return files[0]


def _holds_pairs(source: Path) -> bool:
    """Whether a file holds pairs, by the fields of its first record.

    Raises InputError when it holds neither pairs nor trajectories.
    """
    if source.suffix == ".parquet":
        fields = _columns(source)
    else:
        _, first = next(read_jsonl(source), (0, {}))
        fields = list(first)
    if "chosen_ids" in fields:
        return True
    if "output" not in fields:
        raise InputError.at(
            source,
            None,
            "neither pairs nor trajectories; expected the records of the stages pair, sample or "
            "score, as docs/data.md describes them",
        )
    return False


def _columns(source: Path) -> list[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not source.is_file():
        missing = not source.exists()
        problem = "no such file" if missing else "not a regular file, which Parquet needs"
        raise InputError.at(source, None, problem)
    try:
        names: list[str] = pq.read_schema(source).names
    except (pa.ArrowException, OSError) as error:
        cause = str(error).splitlines()[0]
        raise InputError.at(source, None, f"not a readable Parquet file: {cause}") from None
    return names


def _base_model(config: str, overrides: list[str] | None) -> Path:
    from pipeline.config import load
    from pipeline.core.shipped import find_model

    return Path(find_model(load(config, tuple(overrides or ())).model.base))
