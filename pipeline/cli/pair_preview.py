"""``steep pair --from RUN``: the pairs of a round with other thresholds and reward weights.

Nothing is trained or kept, and no model runs: every term of the rewards is stored.

Input: the directory of a run in which the stage ``score`` of the round is complete. Output: the
number of pairs of each kind and of trajectories in each bin of the funnel, beside the numbers of
the run's own settings. The function of the stage ``pair`` forms the pairs in a temporary directory.
Other weights combine the stored terms anew, as the stage ``score`` does. `steep run pair --set`
keeps its pairs, but would score again for other weights.
"""

from __future__ import annotations

import json
import os
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from pipeline.cli.printing import console, print_json, table
from pipeline.core.atomic import STDOUT
from pipeline.core.errors import InputError, StoreError
from pipeline.core.input_files import differing, read_json
from pipeline.core.record_io import iterate_records, write_jsonl, write_parquet
from pipeline.core.records import Pair, Trajectory
from pipeline.core.row_files import iterate_parquet

if TYPE_CHECKING:
    from pipeline.cli.options import Chosen
    from pipeline.config import Config


def preview(
    directory: Path,
    number: int,
    chosen: Chosen,
    output: str | None,
    funnel: str | None,
) -> dict[str, Any]:
    """Form the pairs of round ``number`` of a run with the overrides of ``pairs`` and of weights.

    ``chosen`` names the configuration whose trajectories are read; by default the directory's own.
    ``output`` and ``funnel`` are JSONL files for the pairs and the pairing outcomes. Raises
    InputError when ``directory`` holds no run and for other overrides, ConfigError for invalid
    settings, StoreError when the scored trajectories are not complete or damaged.
    """
    from pipeline.core.trajectory_file import FILE
    from pipeline.engine.job import check_output
    from pipeline.pairs.questions import PairingOutcome
    from tasks import task_for

    if STDOUT in (output, funnel):
        raise InputError("--from prints counts to standard output; name a file for the records")
    file = _configuration(directory, chosen.config if chosen.given else None)
    place = os.path.abspath(directory)  # noqa: PTH100 - a link keeps its name
    run_dir = (
        f"runs_dir={json.dumps(os.path.dirname(place))}",  # noqa: PTH120
        f"name={json.dumps(os.path.basename(place))}",  # noqa: PTH119
    )
    own = task_for("pair", file, run_dir, chosen.root, number)
    changes = [_for_round(override, number, own.settings) for override in chosen.overrides]
    settings = task_for("pair", file, (*run_dir, *changes), chosen.root, number).settings
    score = own.inputs["score"]
    if not score.complete():
        raise StoreError(
            f"{score.label} with the settings of {file} is not complete in {directory}; name the "
            f"configuration of the run with --config, or run: steep run score --round {number} "
            f"--config {shlex.quote(file)}"
        )
    check_output(score)
    with TemporaryDirectory(prefix="steep-pair-") as name:
        scored, folder = score.directory, Path(name)
        before = own.directory
        if not own.complete():
            before = _form(own.settings, number, scored, folder / "run")
        if settings.rewards != own.settings.rewards:
            scored = folder / "score"
            _combine(score.directory / FILE, scored / FILE, own.settings, settings)
        now = _form(settings, number, scored, folder / "now")
        result = {
            "round": number,
            "changed": _changed(own.settings, settings),
            "kinds": _kinds(before, now),
            "bins": _bins(before, now),
        }
        if output is not None:
            write_jsonl(output, iterate_records(now / "pairs.parquet", Pair))
        if funnel is not None:
            write_jsonl(funnel, iterate_records(now / "funnel.parquet", PairingOutcome))
    return result


def _form(settings: Config, number: int, scored: Path, output: Path) -> Path:
    """Form the pairs of a round of scored trajectories in the new directory ``output``."""
    from pipeline.engine.context import StageContext
    from tasks.pair import run

    output.mkdir()
    inputs = {"score": scored}
    run(StageContext(settings, "pair", output, output, inputs, round=number, seed=settings.seed))
    return output


def _configuration(directory: Path, config: str | None) -> str:
    """``config``, or the file in the directory of the run."""
    if not (directory / "store").is_dir():
        problem = "has no directory store" if directory.is_dir() else "no such directory"
        raise InputError.at(
            directory,
            f"{problem}; --from takes the directory of a run, such as runs/embedded",
        )
    file = directory / "config.yaml"
    if config is None and not file.is_file():
        raise InputError.at(file, "no such file; name the configuration of the run with --config")
    return config or str(file)


def _for_round(override: str, number: int, settings: Config) -> str:
    """``pairs.KEY=VALUE`` or a weight as a setting of the round; else raises InputError."""
    from pipeline.methods import method

    own = f"per_round.{number}."
    key = override.partition("=")[0].strip().removeprefix(own)
    weights = [f"{settings.rewards_block}.{name}" for name in method(settings.grammar).weights]
    if key.partition(".")[0].strip() != "pairs" and key not in weights:
        raise InputError(
            f"--set {key} cannot be used with --from, which changes the settings of pairs (such as "
            f"--set pairs.easy_outcome=0.4) and {', '.join(weights)}; run the stage with it instead"
        )
    return own + override.strip().removeprefix(own)


def _combine(source: Path, target: Path, before: Config, after: Config) -> None:
    """Write the trajectories with the rewards of other weights.

    Raises InputError for a weight whose term was not measured.
    """
    from pipeline.methods import method

    if after.judged and not before.judged:
        raise InputError(
            "no verdicts of judges were needed with the weights of the run; run the stage score "
            "with these weights instead"
        )
    combined = method(after.grammar).combined

    def trajectories() -> Iterator[Trajectory]:
        for trajectory in iterate_records(source, Trajectory):
            if trajectory.rewards is not None:
                trajectory.rewards |= combined(trajectory.rewards, trajectory.hop, after.rewards)
            yield trajectory

    write_parquet(target, trajectories(), Trajectory)


def _changed(before: Config, after: Config) -> dict[str, tuple[Any, Any]]:
    """The settings of pairs and of the reward that differ, with the old and the new value."""
    old, new = (config.model_dump(mode="json") for config in (before, after))
    return {
        name: (was, now)
        for name, was, now in differing(old, new)
        if name.startswith(("pairs.", f"{before.rewards_block}."))
    }


def _kinds(before: Path, now: Path) -> dict[str, dict[str, int]]:
    """Numbers of pairs by kind, and of all kinds under ``all``.

    ``added`` are pairs that the run does not have, ``removed`` are pairs that only the run has.
    """
    old, new = (
        Counter(
            (row["chosen_id"], row["rejected_id"], row["kind"])
            for row in iterate_parquet(
                folder / "pairs.parquet", ["chosen_id", "rejected_id", "kind"]
            )
        )
        for folder in (before, now)
    )
    sets = {"run": old, "now": new, "added": new - old, "removed": old - new}
    return {
        kind: {
            name: sum(count for key, count in pairs.items() if kind in (key[2], "all"))
            for name, pairs in sets.items()
        }
        for kind in [*dict.fromkeys(key[2] for key in (*old, *new)), "all"]
    }


def _bins(before: Path, now: Path) -> dict[str, dict[str, int]]:
    """Numbers of trajectories in the bins that hold one here or in the run."""
    old, new = (read_json(folder / "funnel.json")["bins"] for folder in (before, now))
    return {
        name: {"run": old.get(name, 0), "now": new.get(name, 0)}
        for name in dict.fromkeys((*new, *old))
        if new.get(name) or old.get(name)
    }


def show(result: Mapping[str, Any], *, as_json: bool) -> None:
    """Print a preview as two tables, or as JSON."""
    if as_json:
        print_json(result)
        return
    for name, (old, new) in result["changed"].items():
        print(f"{name}: {old} -> {new}")
    kinds, bins = (
        table(
            (heading, *columns),
            ((name, *(f"{n:,}" for n in counts.values())) for name, counts in result[part].items()),
            right=len(columns),
        )
        for part, heading, columns in (
            ("kinds", "kind", ("run", "now", "added", "removed")), ("bins", "bin", ("run", "now"))
        )
    )  # fmt: skip
    kinds.title, bins.title = f"pairs of round {result['round']}", "trajectories"
    for row in kinds.rows[-2:-1]:
        row.end_section = True  # above the sum
    console(100).print(kinds, bins, sep="\n")
