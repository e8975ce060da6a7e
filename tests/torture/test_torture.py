"""A short seeded part of the suite, the tutorial, and a check that the comparison of runs sees a difference."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.core import shipped
from tests.torture import damage, kills, nodes
from tests.torture.runs import RunFolder, differing_files, environment

# One round over few questions: about a minute on an idle machine. The tutorial has another seed.
TINY = (
    "rounds=1",
    "seed=1",
    "data.closed_world.seed=1",
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


def tutorial() -> Iterator[str]:
    """The commands of the tutorial, for a run that is called small and has one round."""
    text = (shipped.ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    for line in "\n".join(blocks).splitlines():
        command = line.removeprefix("$ ").partition("  #")[0].strip()
        if re.match("(make|steep|head|mkdir) ", command):
            command = re.sub(r"(ROUND=|--round |pair:|per_round\.)2", r"\g<1>1", command)
            # Questions of one hop have no process, whose weights therefore change nothing here.
            command = command.replace("rewards.tearag.context=0", "dpo.learning_rate=2.0e-3")
            yield command.replace("runs/embedded", "runs/small").replace(" embedded ", " small ")


def output(run: RunFolder, command: str) -> str:
    """What a command of the tutorial prints in the folder of ``run``; it has to succeed."""
    words = shlex.split(command)
    if words[0] == "make":
        recipe = ["make", "--dry-run", "--no-print-directory", "-o", ".venv/.from-lock"]
        lines = subprocess.check_output(recipe + words[1:], cwd=shipped.ROOT, text=True)
        words = shlex.split(lines[lines.index(".venv/bin/steep") :])  # after checks of the options
        words = [word for word in words if word not in ("--config", "configs/embedded.yaml")]
    if words[0].endswith("steep"):
        words = [sys.executable, "-m", "pipeline.cli", *words[1:]]
        if "compare" not in words and "--from" not in words:
            words += ["--config", "small.yaml", *(f"--set={setting}" for setting in TINY)]
        command = shlex.join(words)
    done = subprocess.run(
        command,
        shell=True,
        cwd=run.root,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_tutorial_works_in_a_run_of_another_seed(reference: RunFolder) -> None:
    """ID and QUESTION stand for what the commands before them print."""
    found: dict[str, str] = {}
    commands = [command for command in tutorial() if command not in ("make browse", "make run")]
    for command in commands:
        for name, value in found.items():
            command = command.replace(name, value)
        printed = output(reference, command)
        if identity := re.search(r"\S+/\d+@[0-9a-f]+", printed):
            found["ID"] = identity[0]
        if command.startswith("head"):
            found["QUESTION"] = json.loads(printed.splitlines()[-1])["question"]
    assert len(commands) > 8
    assert found.keys() == {"ID", "QUESTION"}


def test_runs_that_differ_in_one_value_are_told_apart(tmp_path: Path) -> None:
    runs = [RunFolder(tmp_path / name) for name in ("one", "other")]
    for run, em in zip(runs, (0.5, 0.25), strict=True):
        output = run.store / "evaluate" / "0123456789abcdef"
        output.mkdir(parents=True)
        (output / "metrics.json").write_text(json.dumps([{"em": em, "seconds": {"total": em}}]))
        (output / "timing.json").write_text(str(em))
        (output / "same.bin").write_bytes(b"same")
    assert differing_files(*runs) == ["evaluate/0123456789abcdef/metrics.json"]
