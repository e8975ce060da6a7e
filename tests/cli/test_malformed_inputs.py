"""Generated malformed inputs: exit status 2 and one sentence, or a valid result."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.malformed_inputs import cases, check, steep
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


WITH_SETTINGS = [
    ["run", "corpus"], ["plan"], ["status"], ["check"], ["verify"], ["gc"], ["browse"], ["ask", "who?"],
    ["view"], ["config", "show"], ["config", "show", "--changed"], ["config", "explain", "judges"],
    ["evaluate", "--policy", "base"], ["pair", "absent.jsonl"], ["recall"], ["calibrate"], ["gc", "--incomplete"],
    ["serve"], ["search", "who?"],
]  # fmt: skip
KEY = "sk-secret-Abc0123456789"
ENDPOINT = "{backend: openai, endpoint: {base_url: 'http://x/v1', model: m, extra: {%s}}}"


def test_no_command_repeats_or_records_a_key_in_a_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "own.yaml"
    file.write_text(f"base: embedded-hiprag.yaml\njudges: {{over: {ENDPOINT % f'user: {KEY}'}}}\n")
    name = ("-c", "embedded-hiprag", "--set")
    for options in (
        (*name, f"judges.over={KEY}"),
        (*name, "judges.over=" + ENDPOINT % f"api_key: {KEY}"),
        ("-c", str(file)),
    ):
        for command in WITH_SETTINGS:
            status, printed, complaint = steep([*command, *options])
            assert status == 2, (command, printed)
            assert "Usage" not in complaint, command
            assert "secret" not in printed + complaint, command
    assert [found.name for found in tmp_path.rglob("*")] == ["own.yaml"]
