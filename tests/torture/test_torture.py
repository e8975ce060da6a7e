"""A short seeded part of the suite, and a check that the comparison of runs sees a difference."""

import json
from pathlib import Path

import pytest

from tests.torture import damage, kills, nodes
from tests.torture.runs import RunFolder, differing_files

# One round over few questions: about a minute on an idle machine.
TINY = (
    "rounds=1",
    "data.sampling=[{dataset: nq, path: nq_sampling.jsonl}]",
    "data.test=[{dataset: nq, path: nq_test.jsonl}]",
    "sft_data.sizes={1: 160}",
    "sft_data.test_sizes={1: 8}",
)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    run = RunFolder(tmp_path_factory.mktemp("torture") / "reference", TINY)
    run.finished()
    return run


@pytest.mark.timeout(1500)
def test_a_run_that_was_killed_in_its_stages_equals_the_uninterrupted_run(
    reference: RunFolder, tmp_path: Path
) -> None:
    figures = kills.run(tmp_path, reference, seed=0, count=2, only=["sample-1", "train-1"])
    assert figures.problems == []
    assert figures.cases == 2


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_run_that_lost_nodes_of_a_ray_cluster_equals_the_local_run(
    reference: RunFolder, tmp_path: Path
) -> None:
    figures = nodes.run(tmp_path, reference, seed=0, count=2)
    assert figures.problems == []
    assert figures.facts["by_stage"] == {"sample": 1, "score": 1}


@pytest.mark.timeout(600)
def test_every_log_says_what_its_stage_did_and_no_record_is_left(reference: RunFolder) -> None:
    logs = reference.root / "runs" / "small" / "logs"
    for row in reference.stages():
        lines = (logs / f"{row['label']}.log").read_text().splitlines()
        assert lines[1].startswith("stage "), row["label"]
        assert lines[-1].startswith("wrote "), row["label"]
        assert len(lines) >= 4, row["label"]  # beside these: inputs, and what was done
    assert not [*reference.store.rglob("*.progress.json"), *reference.store.rglob("*.failed.json")]


@pytest.mark.timeout(600)
def test_damaged_outputs_of_a_run_are_named(reference: RunFolder) -> None:
    assert damage.run(reference, seed=0, count=20).problems == []


def test_runs_that_differ_in_one_value_are_told_apart(tmp_path: Path) -> None:
    runs = [RunFolder(tmp_path / name) for name in ("one", "other")]
    for run, em in zip(runs, (0.5, 0.25), strict=True):
        output = run.store / "evaluate" / "0123456789abcdef"
        output.mkdir(parents=True)
        (output / "metrics.json").write_text(json.dumps([{"em": em, "seconds": {"total": em}}]))
        (output / "timing.json").write_text(str(em))
        (output / "same.bin").write_bytes(b"same")
    assert differing_files(*runs) == ["evaluate/0123456789abcdef/metrics.json"]
