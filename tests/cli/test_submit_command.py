"""``steep submit``: predictions of other systems on the real split, and on the questions of a run."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from pipeline.core.answer_metrics import exact_match, f1
from pipeline.core.row_files import iterate_parquet
from pipeline.core.shipped import ROOT
from tests.cli.malformed_inputs import accepted, finished, refused, steep

DEMO = ROOT / "data" / "demo"
[QUESTIONS] = DEMO.glob("store/questions-test/*/questions.parquet")
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def split(real_data: Path) -> Rows:
    lines = (real_data / "search_agent_review/test_all.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in lines.splitlines()]


@pytest.fixture(scope="module")
def few(split: Rows, tmp_path_factory: pytest.TempPathFactory) -> tuple[Rows, Path]:
    """The repeated questions of the split and a hundred others, and the directory of this split."""
    counts = Counter(row["id"] for row in split)
    rows = [row for n, row in enumerate(split) if n < 100 or counts[row["id"]] > 1]
    folder = tmp_path_factory.mktemp("few")
    (folder / "search_agent_review").mkdir()
    write(folder / "search_agent_review/test_all.jsonl", rows)
    return rows, folder


def write(path: Path, rows: Rows) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def submitted(folder: Path, rows: Rows, data: Path) -> list[object]:
    """The words of the command that submits rows as predictions for the split of ``data``."""
    write(path := folder / "system.jsonl", rows)
    return ["submit", path, "--split", "search-agent-review", "--data", data]


def test_ids_that_are_missing_twice_there_or_unknown_are_counted_and_named(
    few: tuple[Rows, Path], tmp_path: Path
) -> None:
    questions, data = few
    some = [{"qid": row["id"], "answer": row["answer"]} for row in questions[:60]]
    some += [{"qid": questions[0]["id"], "answer": "other"}, {"qid": "no-such", "answer": None}]
    status, printed, error = steep([*map(str, submitted(tmp_path, some, data))])
    assert (status, printed) == (2, "")
    assert "missing: 266: " in error
    assert f"duplicate: 1: {questions[0]['id']}\n" in error
    assert "unknown: 1: no-such\n" in error
    assert "266 of 326 questions have no prediction" in error
    printed = finished(*submitted(tmp_path, some, data), "--partial", "--json")
    assert json.loads(printed)["rows"][-1]["em"] == 1.0  # the first of two counts


@pytest.mark.slow
def test_the_whole_split_is_measured_with_its_repeated_and_its_numeric_ids(
    split: Rows, tmp_path: Path, real_data: Path
) -> None:
    """Every second answer is the gold one; names of fields are those of another system."""
    answers = [row["answer"] if number % 2 else "x y" for number, row in enumerate(split)]
    ids = [row["id"] for row in split]
    rows = [{"id": i, "Prediction": a} for i, a in zip(ids, answers, strict=True)]
    printed = accepted(*submitted(tmp_path, rows, real_data), "--json")
    found = {row["dataset"]: row for row in json.loads(printed)["rows"]}
    assert [found[name]["n"] for name in ("all-questions", "all")] == [4125, 4125]
    for measure, of in (("em", exact_match), ("f1", f1)):
        scores = map(of, answers, [[row["answer"]] for row in split])
        assert found["all-questions"][measure] == pytest.approx(fmean(scores))


def test_one_prediction_answers_a_repeated_question_and_the_table_shows_costs(
    few: tuple[Rows, Path], tmp_path: Path
) -> None:
    """Every second answer is right. In brackets: what a right answer costs."""
    questions, data = few
    answers = {row["id"]: row["answer"] for row in questions}
    rows = [
        {"id": name, "answer": (answer, "x y")[number % 2], "total_tokens": 100, "num_searches": 2}
        for number, (name, answer) in enumerate(answers.items())
    ]
    assert (len(questions), len(rows)) == (326, 213)
    last = r"\| system \| all \| 326 \| ([\d.]+) .* \| 100 \((\d+)\) \| 2\.00 \(([\d.]+)\) \|"
    found = re.fullmatch(last, accepted(*submitted(tmp_path, rows, data)).splitlines()[-1])
    assert found is not None
    em, tokens, searches = (float(value) for value in found.groups())
    assert 45 < em < 55
    assert (tokens, searches) == pytest.approx((1e4 / em, 200 / em), rel=0.01)
    of_answers = {"em", "f1", "cem", "words"}
    for given, costs in (
        (rows, {"total", "searches"}),
        ([*rows[1:], rows[0] | {"total_tokens": None}], {"searches"}),
    ):
        row = json.loads(accepted(*submitted(tmp_path, given, data), "--json"))["rows"][-1]
        named = {"policy", "dataset", "split", "n", "ci"}
        assert row.keys() - named == row["ci"].keys() == of_answers | costs
        assert [row[cost] for cost in sorted(costs)] == [2.0, 100.0][: len(costs)]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"answer": "x"}, "question_id or id or _id or qid or questionid: missing"),
        ({"id": "a"}, "final_answer or answer: missing"),
        ({"id": None, "answer": "x"}, "id: expected a string or an integer, got null"),
        ({"id": "a", "answer": ["x", "y"]}, "answer: expected a text, got"),
        ({"id": "a", "answer": "x", "searches": "two"}, "searches: expected a whole number from 0"),
        ({"id": "a", "answer": "x", "tokens": "9" * 400}, "tokens: expected a whole number from 0"),
        ({"id": "a", "answer": "x"}, "no id is one of the split, such as {first}"),
    ],
)
def test_a_malformed_row_is_named(row: dict[str, Any], problem: str, tmp_path: Path) -> None:
    path = tmp_path / "system.jsonl"
    path.write_text(json.dumps(row), encoding="utf-8")
    error = refused("submit", path, "--split", QUESTIONS)
    assert "system.jsonl" in error
    [first] = next(iter(iterate_parquet(QUESTIONS, ["question_id"]))).values()
    assert problem.format(first=first) in error


def evaluations() -> dict[int, Path]:
    """The evaluations of the shipped run, by the number of the policy."""
    found = DEMO.glob("store/evaluate-policy/*")
    return {json.loads((one / "manifest.json").read_text())["key"]["round"]: one for one in found}


def against(file: object, other: object) -> dict[str, Any]:
    options = ("--split", QUESTIONS, "--json", "--against", other)
    found: dict[str, Any] = json.loads(finished("submit", file, *options))
    return found


def test_answers_of_a_run_s_own_policy_do_not_differ_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last policy of a run, submitted by a file with the run's name.

    The run also holds outputs of other settings, as a fork does: they do not stand for it.
    """
    monkeypatch.chdir(tmp_path)
    shutil.copytree(DEMO, "runs/twin")
    policies = evaluations()
    foreign = shutil.copytree(policies[0], f"runs/twin/store/evaluate-policy/{'0' * 16}")
    manifest = json.loads((policies[0] / "manifest.json").read_text())
    manifest["key"]["round"] = 9
    (Path(foreign) / "manifest.json").write_text(json.dumps(manifest))
    last = policies[max(policies)]
    write(
        Path("twin.jsonl"),
        list(iterate_parquet(last / "trajectories.parquet", ["question_id", "answer"])),
    )
    found = against("twin.jsonl", "twin")
    assert {(test["before"], test["after"]) for test in found["tests"]} == {("twin", "twin")}
    ems = [test for test in found["tests"] if test["measure"] == "em"]
    assert {(test["difference"], test["p"]) for test in ems} == {(0.0, 1.0)}
    outcomes = json.loads((last / "rows.json").read_text())["outcomes"]
    [row] = [row for row in found["rows"] if row["dataset"] == "all-questions"]
    assert row["em"] == pytest.approx(fmean(one["em"] for one in outcomes))


def test_a_row_without_a_prediction_does_not_take_the_gold_answer_for_it(tmp_path: Path) -> None:
    """A system leaves the field out where it failed, and copies the gold answer into its rows."""
    asked = list(iterate_parquet(QUESTIONS, ["question_id", "answers"]))
    rows = [{"id": one["question_id"], "answer": one["answers"][0], "pred": "x"} for one in asked]
    path = tmp_path / "system.jsonl"
    for number in (0, len(rows) - 1):
        lines = [json.dumps(row) for row in rows]
        lines[number] = json.dumps({**rows[number], "pred": None})
        path.write_text("\n".join(lines))
        found = json.loads(finished("submit", path, "--split", QUESTIONS, "--json"))
        assert [row["em"] for row in found["rows"]][-1] == 0
        lines[number] = json.dumps({key: rows[number][key] for key in ("id", "answer")})
        path.write_text("\n".join(lines))
        error = refused("submit", path, "--split", QUESTIONS)
        assert f"system.jsonl:{max(number, 1) + 1}: " in error


def test_a_year_of_a_column_with_nulls_is_a_whole_number(tmp_path: Path) -> None:
    """pandas writes it as 1912.0, which without its punctuation is 19120."""
    golds, given = ["1912", 1913.0, "3.5", "1915"], [1912.0, 1913, 3.5, None]
    questions, path = tmp_path / "questions.jsonl", tmp_path / "system.jsonl"
    for file, answers in ((questions, golds), (path, given)):
        rows = ({"id": f"q{n}", "question": f"{n}?", "answer": a} for n, a in enumerate(answers))
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = json.loads(accepted("submit", path, "--split", questions, "--json"))
    assert found["rows"][-1]["em"] == 0.75


def test_predictions_are_tested_against_those_of_a_file(tmp_path: Path) -> None:
    """Tokens are tested where both files have them, here also of trajectories as stages write them."""
    policies, means = evaluations(), []
    files = [policies[number] / "trajectories.parquet" for number in (0, max(policies))]
    for file in files:
        rows = list(iterate_parquet(file, ["answer", "answers", "tokens"]))
        counts = [row["tokens"]["thinking"] + row["tokens"]["retrieved"] for row in rows]
        means.append((fmean(exact_match(r["answer"], r["answers"]) for r in rows), fmean(counts)))
    tests = {
        test["measure"]: test["difference"]
        for test in against(files[1], files[0])["tests"]
        if test["dataset"] == "all-questions"
    }
    assert tests.keys() == {"em", "f1", "cem", "total"}
    assert tests["em"] == pytest.approx(means[1][0] - means[0][0])
    assert tests["total"] == pytest.approx(means[1][1] - means[0][1])
    part = tmp_path / "part.jsonl"
    write(part, [next(iterate_parquet(files[0], ["question_id", "answer"]))])
    told = refused("submit", files[1], "--split", QUESTIONS, "--against", part)
    assert "part.jsonl has no answer to" in told


def test_an_unknown_split_and_a_run_on_other_questions_are_refused(
    few: tuple[Rows, Path], tmp_path: Path
) -> None:
    questions, data = few
    rows = [{"id": row["id"], "answer": "x"} for row in questions]
    error = refused(*submitted(tmp_path, rows, data), "--against", DEMO)
    assert "has no answer to 326 of these 326 questions" in error
    path = tmp_path / "system.jsonl"
    assert "or one of musique, hotpotqa" in refused("submit", path, "--split", "nope")
    error = refused("submit", path, "--split", "nq", "--data", tmp_path)
    assert "nq/test.jsonl: no such file" in error


def test_cover_exact_match_of_two_rules_is_not_tested(tmp_path: Path) -> None:
    """The run counts substrings, ``evaluation.cem`` of HiPRAG's configurations, and a file words."""
    run = tmp_path / "run"
    shutil.copytree(DEMO, run)
    for manifest in run.glob("store/evaluate-policy/*/manifest.json"):
        facts = json.loads(manifest.read_text())
        facts["key"]["settings"]["evaluation.cem"] = "substring"
        manifest.write_text(json.dumps(facts))
    rows = iterate_parquet(QUESTIONS, ["question_id"])
    write(path := tmp_path / "system.jsonl", [row | {"answer": "x"} for row in rows])
    command = ("submit", str(path), "--split", str(QUESTIONS), "--json", "--against")
    for other, measures in ((DEMO, {"em", "f1", "cem"}), (run, {"em", "f1"})):
        status, printed, error = steep([*command, str(other)])
        assert (status, "has another evaluation.cem, so CEM" in error) == (0, other == run)
        assert {test["measure"] for test in json.loads(printed)["tests"]} == measures
