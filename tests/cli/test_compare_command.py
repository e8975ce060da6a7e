"""``steep compare`` over directories of runs with fabricated evaluations."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path

import pytest

from pipeline import compare_runs
from pipeline.core.record_io import write_parquet
from pipeline.core.records import Pair, Question
from pipeline.engine.run import walk
from pipeline.evaluation.measured import merge_policies
from tasks import task_for
from tests.cli.malformed_inputs import accepted, refused
from tests.stages.fabricated_run import preference_pair, trajectory, write_evaluation

QUESTIONS = [Question(f"q{n}", "musique", "Where is it?", ["Ostar"], "multi") for n in range(6)]


def chosen_by(count: int) -> list[Pair]:
    """Pairs of ``count`` questions, the first of them by format."""
    return [
        preference_pair(
            "easy" if n else "format", trajectory(f"q{n}", "Ostar"), trajectory(f"q{n}", "Vell"), 1
        )
        for n in range(count)
    ]


def finish(name: str, right: int, *overrides: str) -> Path:
    """A run of the policies SFT and round 1; round 1 answers ``right`` of six questions, SFT one."""
    report = task_for("report", "embedded", (f"name={name}", "rounds=1", *overrides))
    for task in walk(report):
        written = report.settings.run_dir / "written" / task.label
        if task.stage == "evaluate-policy":
            score = right if task.round_number else 1
            answers = ["Ostar" if n < score else "Vell" for n in range(6)]
            write_evaluation(written, [trajectory(f"q{n}", a) for n, a in enumerate(answers)])
        elif task.stage == "evaluate":
            written.mkdir(parents=True)
            evaluated = {label: needed.directory for label, needed in task.inputs.items()}
            merge_policies(evaluated, written)
        elif task.stage == "pair":
            write_parquet(written / "pairs.parquet", chosen_by(right), Pair)
        else:
            write_parquet(written / "questions.parquet", QUESTIONS, Question)
        task.directory.parent.mkdir(parents=True, exist_ok=True)
        inputs = task.inputs.items()
        contents = {label: made.key.fingerprint for label, made in inputs if label == "sample"}
        facts = {"counts": {"rows": 1}, "key": dict(task.key.__dict__), "contents": contents}
        task.store.commit(task.key, written, facts)
    shutil.rmtree(report.settings.run_dir / "written")
    return report.settings.run_dir


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds of one configuration, and one seed of another with a different k_f in evaluation."""
    directory = tmp_path_factory.mktemp("finished")
    with contextlib.chdir(directory):
        finish("all", 5)
        finish("all-1", 4, "seed=1")
        finish("few", 2, "evaluation.retrieval.top_k=3")
    return directory


@pytest.fixture
def runs(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A copy of these runs in the folder of the test."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return ["all", "runs/all-1", "few"]


def test_tables_have_a_row_for_each_configuration_and_a_column_for_each_policy(
    runs: list[str], tmp_path: Path
) -> None:
    """Round 1: 5/6 and 4/6 are 75.0 ± 11.8; few has 2/6. Three and two questions more are right."""
    assert "75.0 ± 11.8" in accepted("compare", *runs, "--output", "table.md")
    lines = (tmp_path / "table.md").read_text().splitlines()
    assert "|  | Policy 0 (SFT) | Policy 1 |" in lines
    assert "| all | 16.7 ± 0.0 | 75.0 ± 11.8 |" in lines
    assert "| few | 16.7 | 33.3 |" in lines
    assert "| all | all, all-1 | 0, 1 |" in lines
    assert "| evaluation: retrieval.top_k | – | 3 |" in lines
    assert "| row | round | pairs | easy | format |" in lines
    assert "| all | 1 | 4 ± 1 | 4 ± 1 | 1 ± 0 |" in lines
    assert "| few | 1 | 2 | 1 | 1 |" in lines
    # By question: -1, -1, -1/2 and three times 0: t = -2.08 with 5 degrees of freedom.
    [em] = [line for line in lines if line.startswith("| few | all | Policy 1 | EM | 6 | -41.7 |")]
    assert em.endswith("| 0.093 |")
    assert not [line for line in lines if line.startswith("| few | all | Policy 0 (SFT) |")]
    assert "policies that answer every question alike are left out" in "\n".join(lines)


def test_json_and_the_python_interface_give_everything(runs: list[str]) -> None:
    found = json.loads(accepted("compare", *runs, "--json"))
    assert found == json.loads(json.dumps(compare_runs(runs)))
    assert [group["seeds"] for group in found["groups"]] == [[0, 1], [0]]
    assert {row["dataset"] for row in found["means"]} == {"musique", "all-questions", "all"}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["missing"], "there is no run 'missing': neither missing nor runs/missing has a store"),
        (["all", "runs/all"], "have the same settings and the same seed (0)"),
        (["all", "--output", "all.html"], "--output is all.html, and the tables are Markdown"),
        (
            ["all", "--dataset", "nq"],
            "--dataset is 'nq'; the runs have musique, all-questions, all",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_sentence(
    runs: list[str], arguments: list[str], problem: str
) -> None:
    assert problem in refused("compare", *arguments)


def test_damaged_pairs_are_refused_with_the_command_that_makes_them_again(
    runs: list[str], tmp_path: Path
) -> None:
    [file] = tmp_path.glob("runs/few/store/pair/*/pairs.parquet")
    file.write_bytes(bytes(len(file.read_bytes())))
    complaint = refused("compare", "few")
    assert str(Path(*file.parts[-6:-1])) in complaint
    assert "`steep run pair --round 1 --force` and its configuration" in complaint


@pytest.mark.parametrize("name", ["copy of {}", ".{}.x"])
def test_a_copy_of_an_output_changes_nothing(runs: list[str], name: str) -> None:
    expected = accepted("compare", *runs)
    for output in list(Path("runs/all/store").glob("eval*/*")):
        copy = shutil.copytree(output, output.with_name(name.format(output.name)))
        (copy / "manifest.json").touch()
    assert accepted("compare", *runs) == expected
    count = accepted("fork", "all", "forked").split()[2]
    assert accepted("fork", "few", "forked-few").split()[2] == count
    assert accepted("fork", "forked", "again").split()[2] == count


def test_an_unfinished_run_is_refused(runs: list[str], tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "runs/few/store/evaluate")
    assert "few has no complete evaluation" in refused("compare", "all", "few")


def test_the_line_of_an_evaluation_has_em_interval_and_gain(runs: list[str]) -> None:
    lines = [
        list(task_for("evaluate-policy", "embedded", ("name=all", "rounds=1"), round=n).findings())
        for n in (0, 1)
    ]
    assert lines == [
        ["EM 16.7 (95 % interval 0.0 to 50.0)"],
        ["EM 83.3 (95 % interval 50.0 to 100.0)", "+66.7 EM over policy 0 (SFT)"],
    ]
