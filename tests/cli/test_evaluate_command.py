"""``steep evaluate`` with policies: rows, tests and refused options, on fabricated evaluations."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.engine.store import Store
from tests.cli.malformed_inputs import accepted, refused
from tests.cli.test_compare_command import finish

POLICIES = ("evaluate", "--policy", "sft", "--policy", 1, "--set", "rounds=1")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """The store of a run whose policies answer one and four of six questions."""
    with contextlib.chdir(tmp_path_factory.mktemp("run")):
        finish("embedded", 4)
        yield Store(Path("runs/embedded/store"))


def test_rows_are_printed_as_json_and_written_beside_the_run(finished: Store) -> None:
    """These policies were evaluated on the split by the run, so nothing runs."""
    rows = json.loads(accepted(*POLICIES, "--json", "-o", "rows.json"))
    means = {row["policy"]: round(row["em"], 2) for row in rows if row["dataset"] == "all"}
    assert means == {"sft": 0.17, "round-1": 0.67}
    assert all(row["osr"] is None and row["split"] == "test" for row in rows)
    assert json.loads(Path("rows.json").read_text()) == rows
    kept = Path("runs/embedded/evaluations")
    assert json.loads((kept / "round-1-test.json").read_text()) == rows[-3:]
    tests = json.loads((kept / "comparisons/test.json").read_text())
    [em] = [t for t in tests if (t["measure"], t["dataset"]) == ("em", "all")]
    assert (em["before"], em["after"], round(em["difference"], 2)) == ("sft", "round-1", 0.5)
    assert not finished.newest("evaluate-any")


def test_the_table_shows_every_policy_its_test_and_where_it_is(finished: Store) -> None:
    lines = accepted(*POLICIES).splitlines()
    assert lines[0].startswith("6 questions of runs/embedded/store/questions-test/")
    assert [line for line in lines if "Policy 1" in line and " EM " in line and "+50.0" in line]
    assert sum("trajectories: runs/embedded/store/evaluate-policy/" in line for line in lines) == 2


def test_one_sample_is_the_evaluation_of_the_run(finished: Store) -> None:
    assert accepted(*POLICIES, "--json", "--samples", 1) == accepted(*POLICIES, "--json")
    assert not finished.newest("evaluate-any")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--limit", "4"], "name --policy, --questions or both; steep run evaluate runs"),
        (["--policy", "2", "--set", "rounds=1"], "--policy names policy 2, and rounds is 1"),
        (["--policy", "sft", "--samples", "0"], "--samples is 0; expected 1 to 10,000 traj"),
        (
            ["--policy", "sft", "--samples", "2", "--set", "sampling.temperature=0"],
            "--samples is 2, and they would be equal: sampling.temperature and "
            "evaluation.temperature are 0; set one of them above 0",
        ),
        (["--policy", "x"], "--policy is 'x', and there is no such directory; expected the number"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    finished: Store, arguments: list[str], problem: str
) -> None:
    assert problem in refused("evaluate", *arguments)
    assert not finished.newest("evaluate-any")
