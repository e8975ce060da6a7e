"""``steep evaluate`` with policies: rows, tests and refused options, on fabricated evaluations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.core.record_io import write_parquet
from pipeline.core.records import Question
from pipeline.engine.run import walk
from pipeline.engine.stage import StageTask
from pipeline.engine.store import Store
from tasks import task_for
from tests.cli.malformed_inputs import steep
from tests.stages.fabricated_run import trajectory, write_evaluation

SETTINGS = ("rounds=1",)
QUESTIONS = [Question(f"q{n}", "musique", "Where is it?", ["Ostar"], "multi") for n in range(3)]
OPTIONS = [word for setting in SETTINGS for word in ("--set", setting)]


@pytest.fixture
def finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StageTask:
    """A run with indexes, two policies and their evaluations; the second answers better."""
    monkeypatch.chdir(tmp_path)
    report = task_for("report", "embedded", SETTINGS)
    for task in walk(report):
        written = tmp_path / "written" / task.label
        if task.stage == "evaluate-policy":
            answers = ("Ostar", "Ostar" if task.round_number else "Vell", None)
            write_evaluation(written, [trajectory(f"q{n}", a) for n, a in enumerate(answers)])
        else:
            write_parquet(written / "questions.parquet", QUESTIONS, Question)
        task.directory.parent.mkdir(parents=True, exist_ok=True)
        task.store.commit(task.key, written, {"counts": {"rows": 1}})
    return report


def test_rows_are_printed_as_json_and_written_beside_the_run(
    finished: StageTask, tmp_path: Path
) -> None:
    """These policies were evaluated on the split by the run, so nothing runs."""
    arguments = ["evaluate", "--policy", "sft", "--policy", "1", "--json", "-o", "rows.json"]
    status, printed, complaint = steep([*arguments, *OPTIONS])
    assert (status, complaint) == (0, "")
    rows = json.loads(printed)
    means = {row["policy"]: round(row["em"], 2) for row in rows if row["dataset"] == "all"}
    assert means == {"sft": 0.33, "round-1": 0.67}
    assert all(row["osr"] is None and row["split"] == "test" for row in rows)
    assert json.loads((tmp_path / "rows.json").read_text()) == rows
    kept = tmp_path / "runs/embedded/evaluations"
    assert json.loads((kept / "round-1-test.json").read_text()) == rows[-3:]
    tests = json.loads((kept / "comparisons/test.json").read_text())
    [em] = [t for t in tests if (t["measure"], t["dataset"]) == ("em", "all")]
    assert (em["before"], em["after"], round(em["difference"], 2)) == ("sft", "round-1", 0.33)
    assert not Store(finished.store.root).manifests("evaluate-any", None)


def test_the_table_shows_every_policy_its_test_and_where_it_is(finished: StageTask) -> None:
    status, printed, _ = steep(["evaluate", "--policy", "sft", "--policy", "1", *OPTIONS])
    assert status == 0
    lines = printed.splitlines()
    assert lines[0].startswith("3 questions of runs/embedded/store/questions-test/")
    assert [line for line in lines if "Policy 1" in line and " EM " in line and "+33.3" in line]
    assert sum("trajectories: runs/embedded/store/evaluate-policy/" in line for line in lines) == 2


def test_one_sample_is_the_evaluation_of_the_run(finished: StageTask) -> None:
    arguments = ["evaluate", "--policy", "sft", "--policy", "1", "--json", *OPTIONS]
    assert steep([*arguments, "--samples", "1"]) == steep(arguments)
    assert not Store(finished.store.root).manifests("evaluate-any", None)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--limit", "4"], "name --policy, --questions or both; steep run evaluate runs"),
        (["--policy", "2", "--set", "rounds=1"], "--policy names policy 2, and rounds is 1"),
        *(
            (
                ["--policy", "sft", "--samples", bad],
                f"--samples is {bad}; expected 1 to 10,000 traj",
            )
            for bad in ("0", "-1", "10001", "1000000000")
        ),
        (
            ["--policy", "sft", "--samples", "2", "--set", "sampling.temperature=0"],
            "--samples is 2, and they would be equal: sampling.temperature and "
            "evaluation.temperature are 0; set one of them above 0",
        ),
        (["--policy", "x"], "--policy is 'x', and there is no such directory; expected the number"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    finished: StageTask, arguments: list[str], problem: str
) -> None:
    status, _, complaint = steep(["evaluate", *arguments])
    assert status == 2
    assert problem in complaint
    assert not Store(finished.store.root).manifests("evaluate-any", None)
    assert complaint.count("\n") == 1
