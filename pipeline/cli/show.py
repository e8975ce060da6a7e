"""``steep show``: one pair, trajectory or finished stage of a run, by its id or the beginning of it."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pipeline.cli import options
from pipeline.cli.runs import stage_task
from pipeline.core.atomic import json_text
from pipeline.core.errors import InputError, StoreError
from pipeline.core.input_files import iterate_parquet, parquet_rows
from pipeline.core.record_io import as_json as record_fields
from pipeline.core.record_io import from_arrow, parse_record
from pipeline.core.records import Pair, Trajectory
from pipeline.core.text import one_line

if TYPE_CHECKING:
    from rich.console import Console

What = Literal["pair", "trajectory", "stage"]
_PLURALS = {"pair": "pairs", "trajectory": "trajectories"}
_LISTED = 20  # candidates of an ambiguous id


@dataclass(frozen=True)
class Found:
    """A row (from 0) of a file of a stage, with its id and a line about it."""

    label: str
    file: Path
    row: int
    id: str
    about: str


def show(
    what: Annotated[What, typer.Argument(help="pair, trajectory or stage")],
    id: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="its id, or the beginning of one: of a pair its chosen or rejected trajectory or its question; "
            "of a stage its label (pair-1) or fingerprint",
        ),
    ],
    run: Annotated[
        Path | None,
        typer.Option(
            "--run", help="directory of a run, such as runs/embedded, in place of --config"
        ),
    ] = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="show the whole text of what was found")
    ] = False,
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="directory of the tokenizer of a pair; default: the base model's"),
    ] = None,
    as_json: options.JsonOption = False,
    config: options.ConfigOption = options.DEFAULT_CONFIGURATION,
    set: options.SetOption = None,
    data: options.DataOption = None,
    round: options.RoundOption = None,
) -> None:
    """Show one pair, trajectory or finished stage of a run, by the beginning of its id."""
    if not id:
        raise InputError("the id is empty; name one, or its beginning")
    outputs = _outputs(run, config, set, data)
    if what == "stage":
        _show_stage(outputs, id, as_json)
        return
    if what == "pair":
        found = _one(id, what, _pairs(outputs, round), outputs)
        pair = _read(found, Pair)
        if as_json:
            typer.echo(json_text({"stage": found.label, **record_fields(pair)}, indent=2))
            return
        base = tokenizer or _base_model(run, config, set)
        _print_pair(found, pair, base)
        return
    found = _one(id, what, _trajectories(outputs, round), outputs)
    trajectory = _read(found, Trajectory)
    if as_json:
        typer.echo(json_text({"stage": found.label, **record_fields(trajectory)}, indent=2))
    else:
        _print_trajectory(found, trajectory, whole, _pairs_with(outputs, trajectory.trajectory_id))


def _outputs(
    run: Path | None, config: str, set: list[str] | None, data: Path | None
) -> dict[str, Path]:
    """The finished outputs of the run by label."""
    from tasks.status import complete_outputs, newest_outputs

    if run is not None:
        return newest_outputs(run)
    task = stage_task("report", config, set, data)
    outputs = complete_outputs(task)
    if not outputs:
        command = shlex.join(["steep", "run", *task.options])
        raise StoreError(
            f"no stage of {task.settings.run_dir} is finished; run `{command}`, or name the directory of a "
            "run with --run"
        )
    return outputs


def _of(
    outputs: Mapping[str, Path], stages: tuple[str, ...], round: int | None
) -> Iterator[tuple[str, Path]]:
    """Labels and directories of outputs of these stages, in order of rounds."""
    for label, directory in sorted(outputs.items()):
        stage, _, number = label.rpartition("-")
        if stage in stages and number.isdecimal() and round in (None, int(number)):
            yield label, directory


def _pairs(
    outputs: Mapping[str, Path], round: int | None
) -> Iterator[tuple[tuple[str, ...], Found]]:
    """The ids of every pair, and where it is."""
    columns = ["chosen_id", "rejected_id", "question_id", "kind"]
    for label, directory in _of(outputs, ("pair",), round):
        file = directory / "pairs.parquet"
        for row, ids in enumerate(iterate_parquet(file, columns)):
            name = f"{ids['chosen_id']}>{ids['rejected_id']}"
            keys = (name, ids["rejected_id"], ids["question_id"])
            yield keys, Found(label, file, row, name, ids["kind"])


def _trajectories(
    outputs: Mapping[str, Path], round: int | None
) -> Iterator[tuple[tuple[str, ...], Found]]:
    """The ids of every trajectory, and where it is: with rewards where the round has been scored."""
    columns = ["trajectory_id", "dataset", "stop", "question"]
    for label, directory in _of(outputs, ("sample", "score", "evaluate-policy"), round):
        if label.startswith("sample-") and label.replace("sample", "score") in outputs:
            continue
        file = directory / "trajectories.parquet"
        for row, ids in enumerate(iterate_parquet(file, columns)):
            name = ids["trajectory_id"]
            about = f"{ids['dataset']}, {ids['stop']}: {one_line(ids['question'], 80)}"
            yield (name,), Found(label, file, row, name, about)


def _one(
    id: str,
    what: What,
    records: Iterator[tuple[tuple[str, ...], Found]],
    outputs: Mapping[str, Path],
) -> Found:
    """The record with this id, else the only one with an id that begins so.

    Raises InputError when there is none, or several, which it lists.
    """
    begins: list[Found] = []
    equal: list[Found] = []
    count = 0
    for keys, found in records:
        if id in keys:
            equal.append(found)
        if any(key.startswith(id) for key in keys):
            count += 1
            if len(begins) < _LISTED:
                begins.append(found)
    if len(equal) == 1:
        return equal[0]
    if count == 1:
        return begins[0]
    if not count:
        there = ", ".join(outputs)
        raise InputError(f"no {what} has an id that begins with {id!r}; finished stages: {there}")
    lines = [f"  {found.id}  ({found.label}, {found.about})" for found in begins]
    if count > len(begins):
        lines.append(f"  and {count - len(begins):,} more")
    raise InputError(
        "\n".join(
            [f"{count:,} {_PLURALS[what]} have an id that begins with {id!r}; name one:", *lines]
        )
    )


def _read(found: Found, kind: type[Any]) -> Any:
    [row] = parquet_rows(found.file, [found.row])
    return parse_record(kind, from_arrow(row, kind), found.file, found.row + 1)


def _pairs_with(outputs: Mapping[str, Path], trajectory_id: str) -> list[str]:
    """A line for each pair with a trajectory."""
    return [
        f"{found.label}: {found.about}, {'chosen' if keys[0].startswith(f'{trajectory_id}>') else 'rejected'}"
        for keys, found in _pairs(outputs, None)
        if trajectory_id in (keys[1], keys[0].partition(">")[0])
    ]


def _base_model(run: Path | None, config: str, set: list[str] | None) -> Path:
    """The base model of the configuration; that of a run's directory is in its ``config.yaml``."""
    from pipeline.config import load
    from pipeline.core.shipped import find_model

    if run is not None:
        if not (run / "config.yaml").is_file():
            raise InputError.at(
                run / "config.yaml", None, "no such file; name the base model with --tokenizer"
            )
        config = str(run / "config.yaml")
    return Path(find_model(load(config, tuple(set or ())).model.base))


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else 120)


def _print_pair(found: Found, pair: Pair, base: Path) -> None:
    from pipeline.evaluation.terminal import (
        beside,
        open_tokenizer,
        pair_panels,
        print_rule,
        question_of,
    )

    console = _console()
    where = f"{found.file}:{found.row + 1}"
    panels = pair_panels(pair, open_tokenizer(base), where)
    print_rule(console, f"{found.label} · {pair.kind} · {question_of(pair)}")
    beside(console, panels)
    names = [name for name, value in pair.chosen_rewards.items() if isinstance(value, int | float)]
    for name in names:
        chosen, rejected = pair.chosen_rewards[name], pair.rejected_rewards.get(name)
        _line(console, f"{name:<14} chosen {chosen:.3f}  rejected {_number(rejected)}")
    _line(console, f"question {pair.question_id}; sampled by policy {pair.policy}; {where}")


def _print_trajectory(found: Found, trajectory: Trajectory, whole: bool, pairs: list[str]) -> None:
    from rich.panel import Panel
    from rich.text import Text

    from pipeline.evaluation.terminal import print_rule, trajectory_panel
    from pipeline.evaluation.terminal_steps import cost_line, steps_text

    console = _console()
    where = f"{found.file}:{found.row + 1}"
    text = trajectory_panel(trajectory, where)
    print_rule(console, f"{found.label} · {trajectory.dataset} · {trajectory.question}")
    console.print(Panel(steps_text(trajectory, whole=whole), subtitle=Text(cost_line(trajectory))))
    console.print(text)
    for piece in trajectory.evidence:
        _line(console, f"evidence: {piece if whole else one_line(piece, 300)}")
    for name, value in (trajectory.rewards or {}).items():
        _line(console, f"{name:<14} {json.dumps(value)}")
    for pair in pairs:
        _line(console, f"in a pair of {pair}")
    _line(console, f"sampled by policy {trajectory.policy}, seed {trajectory.seed}; {where}")


def _line(console: Console, line: str) -> None:
    from pipeline.evaluation.terminal import printable

    console.print(printable(line), markup=False, soft_wrap=True)


def _number(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, int | float) else "–"


def _show_stage(outputs: Mapping[str, Path], id: str, as_json: bool) -> None:
    from pipeline.run.store import read_manifest

    label = id.replace(":", "-")
    names = [name for name in outputs if name == label] or [
        name
        for name, directory in outputs.items()
        if name.startswith(label) or directory.name.startswith(id)
    ]
    if len(names) != 1:
        several = f"{len(names)} finished stages begin" if names else "no finished stage begins"
        raise StoreError(f"{several} with {id!r}; name one of: {', '.join(names or outputs)}")
    manifest = read_manifest(outputs[names[0]])
    if as_json:
        typer.echo(json_text({"stage": names[0], **manifest}, indent=2))
        return
    for line in _stage_lines(names[0], outputs[names[0]], manifest):
        typer.echo(one_line(line, 2000))


def _stage_lines(label: str, directory: Path, manifest: Mapping[str, Any]) -> Iterator[str]:
    """The manifest of a stage in lines."""
    from pipeline.core.input_files import leaves

    key = manifest["key"]
    yield f"{label}: {directory}"
    counts = ", ".join(f"{count:,} {name}" for name, count in manifest["counts"].items())
    yield f"wrote: {counts}"
    yield (
        f"made: {manifest.get('started', '?')} in {manifest.get('wall_seconds', 0):,.0f} s, at most "
        f"{manifest.get('peak_memory_mb', 0):,} MB, on {manifest.get('device', '?')}, commit "
        f"{manifest.get('git') or 'unknown'}"
    )
    for name, fingerprint in manifest.get("made_from", key["inputs"]).items():
        yield f"read: {name} {fingerprint}"
    for name, content in key["files"].items():
        yield f"file: {name} {content}"
    for name, value in leaves(key["settings"]):
        yield f"setting: {name} = {json.dumps(value)}"
    for name, value in (manifest.get("notes") or {}).items():
        yield f"note: {name}: {json.dumps(value)}"
    for name, record in (manifest.get("files") or {}).items():
        yield f"holds: {name}, {record.get('size', 0):,} bytes"
