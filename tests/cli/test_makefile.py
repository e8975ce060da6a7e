"""The Makefile's targets call the commands of the same names, with the options that it offers."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STAMP = ".venv/.from-lock"


def recipe(*arguments: str) -> str:
    """The commands that ``make`` would run."""
    command = ["make", "--dry-run", "--no-print-directory", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


def words(*arguments: str) -> list[str]:
    """The last command that ``make`` would run, as words of the shell, without its program."""
    return shlex.split(recipe(*arguments).splitlines()[-1])[1:]


@pytest.mark.parametrize("target", ["run", "sample"])
def test_variables_are_options_of_the_command(target: str) -> None:
    command = ["run"] if target == "run" else ["run", target]
    given = ("VARIANT=v", "DATA=d", "SET=a=1 b=2", "ROUND=2", "WORKERS=0", "FORCE=1", "ARGS=--x")
    options = "--variant v --data d --set a=1 --set b=2 --round 2 --workers 0 --force --x"
    assert words(target, *given) == [*command, *options.split()]
    assert words(target, "FORCE=0") == command


def test_a_value_is_one_word_of_the_shell_unless_it_is_a_list() -> None:
    given = ("CONFIG=it's my.yaml", "DATA=~/a  b;c", 'SET=k="two words" l=[*]', "ARGS=--why 'a b'")
    assert words("status", *given) == [
        "status", "--config", "it's my.yaml", "--data", "~/a  b;c",
        "--set", 'k="two', "--set", 'words"', "--set", "l=[*]", "--why", "a b",
    ]  # fmt: skip
    assert "--data ~/'a  b;c' " in recipe("status", *given)  # so that the shell finds the home
    assert words("clean-tmp", "ARGS=--json") == ["gc", "--incomplete", "--json"]


@pytest.mark.parametrize("given", [("ROUDN=2",), ("ROUND=2", "round=2", "x.y=")])
def test_a_variable_that_no_target_reads_is_refused(given: tuple[str, ...]) -> None:
    done = subprocess.run(["make", "run", *given], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    named, _, known = done.stderr.partition("there is no variable ")[2].partition("; expected ")
    assert set(named.split()) == {word.partition("=")[0] for word in given} - {"ROUND"}
    assert {"CONFIG", "ROUND", "SET"} <= set(known.split())
    assert not done.stdout


def test_a_nested_make_takes_the_variables_of_the_first() -> None:
    assert "-m pytest" in recipe("check", "ARGS=-x", "UV_OPTIONS=-q", "-j2")


def test_a_stage_with_the_name_of_a_folder_is_run(tmp_path: Path) -> None:
    (tmp_path / "sample").mkdir()
    words = recipe("sample", "-f", str(ROOT / "Makefile"), "-C", str(tmp_path), "-o", STAMP).split()
    assert words == [".venv/bin/steep", "run", "sample"]


@pytest.mark.parametrize("linked", [True, False])
def test_an_environment_that_is_a_link_is_not_rebuilt(tmp_path: Path, linked: bool) -> None:
    environment = tmp_path / ("elsewhere" if linked else ".venv")
    for folder in (environment, tmp_path / "requirements"):
        folder.mkdir()
    (environment / ".from-lock").touch()
    os.utime(environment / ".from-lock", (0, 0))
    (tmp_path / "requirements/cpu.lock").touch()
    (tmp_path / "pyproject.toml").touch()
    if linked:
        (tmp_path / ".venv").symlink_to(environment)
    commands = recipe("sample", "-f", str(ROOT / "Makefile"), "-C", str(tmp_path))
    assert ("pip install" in commands) == (not linked)


def test_the_help_has_one_short_line_for_every_target() -> None:
    command = ["make", "--no-print-directory", "help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    listed = [line.split()[1] for line in lines if line.startswith("  make ")]
    listed.remove("STAGE")
    assert len(listed) <= 22
    phony = (ROOT / "Makefile").read_text().partition("TARGETS :=")[2].partition("\n#")[0]
    assert sorted(listed) == sorted(phony.replace("\\", "").split())
    assert all(len(line) < 110 for line in lines)
