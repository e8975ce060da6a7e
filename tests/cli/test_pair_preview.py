"""``steep pair --from RUN``: the pairs of a round with other thresholds, without running anything."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.record_io import read_records
from pipeline.core.records import Pair, Trajectory
from pipeline.engine.run import write_resolved
from pipeline.engine.stage import StageTask
from pipeline.engine.store import Store
from tasks import task_for
from tests.cli.malformed_inputs import accepted, refused
from tests.smallest import write_scored
from tests.stages.fabricated_run import trajectory

OWN = ("per_round.2.pairs.hard_margin=0.35",)
OUTCOMES = {"a": (1.0, 0.0, 0.35), "b": (1.0, 0.35, 0.9), "c": (0.2, 0.1, 0.0)}


def scored() -> list[Trajectory]:
    """Three questions with three trajectories each, all in the format."""
    records = []
    for question, outcomes in OUTCOMES.items():
        for sample, outcome in enumerate(outcomes):
            record = trajectory(question, f"{outcome}", name=f"{question}-{sample}")
            record.sample = sample
            record.output += f" {sample}"
            terms = dict.fromkeys(("consistency", "subquery", "context", "summary"), 0.9)
            record.rewards = {"format": 1.0, "outcome": outcome, **terms, "process": 0.9}
            records.append(record)
    return records


def commit(task: StageTask, records: Sequence[Trajectory]) -> None:
    folder = Path(task.store.root) / "written"
    write_scored(folder / "trajectories.parquet", records)
    (Store(task.store.root).root / task.stage).mkdir(parents=True, exist_ok=True)
    task.store.commit(task.key, folder, {"counts": {"rows": len(records)}})


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run whose stage ``score`` of round 2 is complete, with its configuration."""
    monkeypatch.chdir(tmp_path)
    pair = task_for("pair", "embedded", OWN, round=2)
    commit(pair.inputs["score"], scored())
    write_resolved(pair.run_settings)
    return pair.run_settings.run_dir


def preview(*arguments: object) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(accepted("pair", *arguments, "--json"))
    return result


def outputs(directory: Path) -> set[Path]:
    """All files of a run except the cache of content hashes, which every command may write."""
    return {path for path in directory.rglob("*") if path.name != ".hashes.json"}


def run_pairs(*options: str) -> list[Pair]:
    """The pairs of the stage ``pair`` of round 2 with the run's own settings and ``options``."""
    own = [part for override in OWN for part in ("--set", override)]
    printed = accepted("run", "pair", "--round", 2, *own, *options)
    return read_records(Path(printed.splitlines()[-1]) / "pairs.parquet", Pair)


def test_other_weights_combine_the_stored_terms(directory: Path) -> None:
    pairs = directory.parent / "pairs.jsonl"
    weights = {"consistency": 0.1, "subquery": 0, "context": 0, "summary": 0}
    options = [part for name, value in weights.items()
               for part in ("--set", f"rewards.tearag.{name}={value}")]  # fmt: skip
    result = preview(
        *("--from", directory, "--round", 2, "-o", pairs, *options),
        *("--set", "pairs.multi_process=0.05", "--set", "pairs.multi_process_relaxed=0.05"),
    )
    assert result["changed"]["rewards.tearag.subquery"] == [0.3, 0]
    found = read_records(pairs, Pair)
    assert found
    for pair in found:
        assert pair.chosen_rewards["process"] == pytest.approx(
            0.1 * pair.chosen_rewards["consistency"]
        )
        assert pair.chosen_rewards["total"] == pytest.approx(
            sum(pair.chosen_rewards[term] for term in ("format", "outcome", "process"))
        )


def test_the_pairs_and_counts_are_those_of_the_stage_with_these_settings(directory: Path) -> None:
    thresholds = ("--set", "per_round.2.pairs.easy_outcome=0.4")
    pairs, funnel = directory.parent / "pairs.jsonl", directory.parent / "funnel.jsonl"
    preview("--from", directory, "--round", 2, "-o", pairs)
    of_run, files = read_records(pairs, Pair), outputs(directory)
    look = ("--from", directory, "--round", 2, *thresholds)
    result = preview(*look, "-o", pairs, "--funnel", funnel)
    assert outputs(directory) == files
    assert result["changed"] == {"pairs.easy_outcome": [0.3, 0.4]}
    now = read_records(pairs, Pair)
    old_ids, new_ids = (
        {(pair.chosen_id, pair.rejected_id, pair.kind) for pair in found} for found in (of_run, now)
    )
    assert ("b-0", "b-1", "easy") in new_ids - old_ids
    assert result["kinds"]["all"] == {
        "run": len(of_run), "now": len(now), "added": len(new_ids - old_ids),
        "removed": len(old_ids - new_ids),
    }  # fmt: skip
    assert sum(row["now"] for row in result["bins"].values()) == 9
    assert len(funnel.read_text().splitlines()) == 9
    assert run_pairs(*thresholds) == now != of_run


def test_a_moved_run_and_a_named_configuration_are_read(directory: Path, tmp_path: Path) -> None:
    moved = tmp_path / "kept" / "copy"
    moved.parent.mkdir()
    shutil.move(directory, moved)
    here = preview("--from", moved, "--round", 2)["bins"]
    options = tmp_path / "own.yaml"
    options.write_text("base: embedded.yaml\nper_round: {2: {pairs: {hard_margin: 0.35}}}\n")
    assert preview("--from", moved, "--round", 2, "--config", options)["bins"] == here
    (moved / "config.yaml").unlink()
    complaint = refused("pair", "--from", moved, "--round", 2)
    assert "config.yaml: no such file; name the configuration of the run with --config" in complaint


def test_what_does_not_fit_is_refused_in_one_sentence(directory: Path, tmp_path: Path) -> None:
    look = ("--from", directory, "--round", 2)
    for arguments, message in {
        (*look, "--set", "seed=3"): "--set seed cannot be used with --from, which changes",
        (*look, "--set", "per_round.1.pairs.margin=1"): "--set per_round.1.pairs.margin cannot be",
        (*look, "--set", "pairs.easy=1"): "per_round.2.pairs.easy: unknown key",
        (*look, "--set", "pairs"): "expected key.key=value",
        ("--from", directory, "--round", 9): "round is 9, and rounds is 3",
        ("--from", directory, "--round", 1): "score-1 with the settings of",
        ("--from", tmp_path / "absent"): "absent: no such directory; --from takes the dir",
        (
            "--from",
            tmp_path,
            "-c",
            "embedded",
        ): "has no directory store; --from takes the directory",
        (*look, "-o", "-"): "--from prints counts to standard output; name a file",
        (*look, "-o", "x", "--funnel", "x"): "is named for two outputs",
        ("file.jsonl", *look): "steep pair: FILE cannot be used with --from",
        ("--json",): "--json cannot be used without --from; name the directory of a run",
    }.items():
        assert message in refused("pair", *arguments)
