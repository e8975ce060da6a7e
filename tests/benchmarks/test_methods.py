"""The comparison at equal tokens: what is counted, where a method stops, means. All figures are fake."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from subprocess import CalledProcessError

import pytest

from benchmarks.methods import (
    Point,
    Study,
    between_marks,
    draw,
    page,
    read_points,
    within_budget,
)
from pipeline.core.errors import InputError


def fake_stages(folder: Path) -> dict[str, Path]:
    """The files that the benchmark reads of a fake run of two rounds."""
    row = {
        "dataset": "all",
        "split": "test",
        "f1": 0.5,
        "format_ok": 1.0,
        "steps": 2.0,
        "tokens": {"total": 600.0},
    }
    rows = [
        {**row, "policy": name, "em": em}
        for name, em in (("base", 0.1), ("sft", 0.2), ("round-1", 0.3), ("round-2", 0.4))
    ]
    others = [{**rows[-1], "em": 0.9, **of} for of in ({"dataset": "nq"}, {"split": "test/unseen"})]
    files = {
        "evaluate": ("metrics.json", [*rows, *others]),
        **{
            f"evaluate-policy-{n}": ("rows.json", {"outcomes": [{"em": 0.0}, {"em": float(n > 0)}]})
            for n in (0, 1, 2)
        },
        "sample-1": ("timing.json", {"generated_tokens": 100}),
        "sample-2": ("timing.json", {"generated_tokens": 50}),
        "train-1": ("manifest.json", {"counts": {"tokens": 1000, "trained_tokens": 10}}),
        "train-2": ("manifest.json", {"counts": {"tokens": 2000, "trained_tokens": 10}}),
    }
    for label, (name, content) in files.items():
        (folder / label).mkdir()
        (folder / label / name).write_text(json.dumps(content))
    return {label: folder / label for label in files}


def test_the_cost_is_generated_tokens_and_passes_over_training_sequences(tmp_path: Path) -> None:
    passes = {1: 2.0, 2: 0.5}
    points = read_points(fake_stages(tmp_path), passes.__getitem__, "fake", 7)
    assert [(p.round, p.generated, p.trained, p.em) for p in points] == [
        (0, 0, 0, 20.0), (1, 100, 2000, 30.0), (2, 150, 3000, 40.0)
    ]  # fmt: skip
    assert points[2].cost == 3150
    assert [point.right for point in points] == ["00", "01", "01"]
    assert {(p.method, p.seed, p.format_ok, p.tokens) for p in points} == {("fake", 7, 100.0, 600)}


def fake_points(
    method: str, seed: int, costs: Sequence[int], em: float = 10.0, right: str = "0000"
) -> list[Point]:
    """Policies of rounds 0, 1, … with these costs; EM rises by one a round."""
    return [
        Point(method, seed, number, cost, 0, em + number, 0.0, 0.0, 2.0, 600.0, right)
        for number, cost in enumerate(costs)
    ]


def test_a_method_runs_rounds_until_it_has_spent_the_budget_of_the_seed() -> None:
    calls: list[tuple[str, int, str]] = []

    def run(method: str, settings: Sequence[str], seed: int) -> list[Point]:
        calls.append((method, seed, settings[-1]))
        if method == "first":
            return fake_points(method, seed, [0, 100, 100 * (seed + 1)])
        rounds = int(settings[-1].removeprefix("rounds="))
        if method == "fails" and rounds == 2:
            raise CalledProcessError(1, "steep")
        return fake_points(method, seed, range(0, 80 * (rounds + 1), 80))

    methods = ["first", "cheap", "fails"]
    study = Study(["x=1"])
    for seed in (1, 2):
        study.add(methods, seed, "n", 8, run)
    points = study.points
    assert calls[0] == ("first", 1, "x=1")
    assert [call for call in calls if call[0] == "cheap"] == [
        *(("cheap", 1, f"rounds={n}") for n in (1, 2, 3)),  # 240 of 200 tokens
        *(("cheap", 2, f"rounds={n}") for n in (1, 2, 3, 4)),  # 320 of 300
    ]
    assert study.failed == [f"fails, seed {seed}, failed in round 2" for seed in (1, 2)]
    assert [(p.method, p.round) for p in points if p.seed == 1] == [
        ("first", 0), ("first", 1), ("first", 2), ("cheap", 1), ("cheap", 2), ("cheap", 3), ("fails", 1)
    ]  # fmt: skip
    assert [(p.seed, p.round) for p in within_budget(points, "cheap")] == [(1, 2), (2, 3)]


def test_a_study_continues_with_the_seeds_and_methods_that_its_file_lacks(tmp_path: Path) -> None:
    calls: list[tuple[str, int]] = []

    def run(method: str, settings: Sequence[str], seed: int) -> list[Point]:
        calls.append((method, seed))
        return fake_points(method, seed, [0, 100])

    path = tmp_path / "methods.json"
    study = Study.read(path, ["x=1"])
    study.add(["first", "second"], 1, "n", 8, run)
    path.write_text(json.dumps(asdict(study)))
    again = Study.read(path, ["x=1"])
    assert again == study
    for seed in (1, 2):
        again.add(["first", "second", "third"], seed, "n", 8, run)
    assert calls[2:] == [("third", 1), ("first", 2), ("second", 2), ("third", 2)]
    assert [p.method for p in again.points if p.round == 0] == ["first", "first"]
    with pytest.raises(InputError, match=r"methods\.json: its runs have the settings \['x=1'\]"):
        Study.read(path, ["x=2"])


def test_a_method_that_failed_in_its_first_round_runs_again_and_its_note_goes() -> None:
    broken = True

    def run(method: str, settings: Sequence[str], seed: int) -> list[Point]:
        if method == "second" and broken:
            raise CalledProcessError(1, "steep")
        return fake_points(method, seed, [0, 100])

    study = Study(["x=1"])
    for _ in range(2):
        study.add(["first", "second"], 1, "n", 8, run)
        assert study.failed == ["second, seed 1, failed in round 1"]
    broken = False
    study.add(["first", "second"], 1, "n", 8, run)
    assert study.failed == []
    assert [(p.method, p.round) for p in study.points][-1] == ("second", 1)


def test_a_policy_just_above_the_budget_is_within_it() -> None:
    points = [*fake_points("a", 1, [0, 1000]), *fake_points("b", 1, [0, 1020, 2000])[1:]]
    assert [p.round for p in within_budget(points, "b")] == [1]
    points[2:] = fake_points("b", 1, [0, 1021])[1:] + fake_points("a", 2, [0, 1000])
    assert [p.round for p in within_budget(points, "b")] == [0]  # the SFT policy


def test_the_page_has_means_and_deviations_over_the_seeds(tmp_path: Path) -> None:
    points = [
        *fake_points("embedded-full", 1, [0, 1_000_000], em=10),
        *fake_points("embedded-full", 2, [0, 3_000_000], em=14),
        *fake_points("tearag-grpo", 1, [0, 900_000, 2_000_000], em=20, right="0001")[1:],
        *fake_points("tearag-grpo", 2, [0, 900_000, 2_000_000], em=20, right="0111")[1:],
    ]
    failed = ["GRPO, seed 9, failed in round 1"]
    text = page(
        Study(["a.b=c d"], commits=["abc"], processors=["an EPYC"], failed=failed, points=points)
    )
    sft, dpo, grpo = (
        line
        for line in text.split("## ")[1].splitlines()
        if line.startswith("| ") and not line.startswith(("| method", "| ---"))
    )
    assert sft.startswith("| Policy 0 (SFT) | 0 | 12.0 ± 2.8 |")
    assert sft.endswith("| 0 ± 0 | 0 ± 0 | 1, 2 |")
    assert dpo.startswith("| DPO+SFT | 1 | 13.0 ± 2.8 |  |")
    assert dpo.endswith("| 2,000 ± 1,414 | 0 ± 0 | 1, 2 |")
    difference = "+50.0 [+5.3, +94.7], p = 0.033"  # four of eight questions
    assert grpo.startswith(f"| GRPO | 1, 2 | 21.5 ± 0.7 | {difference} |")
    for words in (
        "`python -m benchmarks.methods --set 'a.b=c d'` with the code of\nabc, on an EPYC;",
        "GRPO, seed 9, failed in round 1.",
        "Fewer than 3 seeds have run",
    ):
        assert words in text
    draw(points, tmp_path / "images" / "fake.svg")
    assert "DPO+SFT" in (tmp_path / "images" / "fake.svg").read_text()


def test_the_page_of_results_has_the_table_of_the_stored_points() -> None:
    docs = Path(__file__).resolve().parents[2] / "docs"
    table = between_marks(Study.read(docs / "methods.json", []))
    assert table.count("\n") > 8
    assert table in (docs / "results.md").read_text(encoding="utf-8")
