"""Generated malformed inputs: exit status 2 and one sentence, or a valid result."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.cli.malformed_inputs import Case, cases, check, steep
from tests.cli.valid_records import COMMANDS

COUNT, GROUPS = 480, 8


@pytest.mark.parametrize("seed", range(GROUPS))
def test_malformed_input_is_refused_in_one_sentence(seed: int, tmp_path: Path) -> None:
    problems = []
    for number, case in enumerate(cases(seed, COUNT // GROUPS)):
        directory = tmp_path / str(number)
        directory.mkdir()
        if problem := check(case, directory):
            problems.append(f"{case.name}: {problem}")
    assert problems == []


def test_every_command_accepts_its_valid_records(tmp_path: Path) -> None:
    from tests.cli.malformed_inputs import _call

    for number, command in enumerate(COMMANDS):
        directory = tmp_path / str(number)
        directory.mkdir()
        case = _call(command, list(command.records), "valid")
        assert check(case, directory) is None, case.name
        other = tmp_path / f"{number}-refused"
        other.mkdir()
        refused = dataclasses.replace(case, expected="refused")
        assert "accepted" in str(check(refused, other)), case.name


def test_cases_of_a_seed_are_the_same() -> None:
    def identity(case: Case) -> tuple[str, tuple[str, ...], dict[str, bytes]]:
        return case.name, case.arguments, case.files

    assert list(map(identity, cases(3, 50))) == list(map(identity, cases(3, 50)))


WITH_SETTINGS = [
    ["run", "--until", "corpus"], ["plan"], ["status"], ["check"], ["verify"], ["gc"], ["browse"],
    ["ask", "who?"], ["show", "pair", "x"], ["view"], ["config", "show"], ["config", "show", "--changed"],
    ["config", "explain", "judges"], ["evaluate"], ["pair"], ["score"], ["recall"], ["calibrate", "x"],
    ["clean-tmp"], ["serve-retrieval"], ["report"],
]  # fmt: skip
KEY = "sk-secret-Abc0123456789"
ENDPOINT = "{backend: openai, endpoint: {base_url: 'http://x/v1', model: m, extra: {%s}}}"


@pytest.mark.parametrize("command", WITH_SETTINGS, ids=" ".join)
def test_no_command_repeats_or_records_a_key_in_a_configuration(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for setting in (f"judges.over={KEY}", "judges.over=" + ENDPOINT % f"api_key: {KEY}"):
        status, printed, complaint = steep([*command, "-c", "embedded-hiprag", "--set", setting])
        assert status == 2, printed
        assert "secret" not in printed + complaint
    file = tmp_path / "own.yaml"
    file.write_text(f"base: embedded-hiprag.yaml\njudges: {{over: {ENDPOINT % f'user: {KEY}'}}}\n")
    status, printed, complaint = steep([*command, "-c", str(file)])
    assert status == 2, printed
    assert "secret" not in printed + complaint
    assert [found.name for found in tmp_path.rglob("*")] == ["own.yaml"]
