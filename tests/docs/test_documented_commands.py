"""The commands in README and docs/ exist, with their options, make targets, settings and configurations."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from pipeline.cli.app import app
from pipeline.config.lookup import find_field
from pipeline.config.variants import variants
from pipeline.core.errors import ConfigError
from tasks.run import STAGES

ROOT = Path(__file__).resolve().parents[2]
# The log describes earlier versions.
PAGES = {
    page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8")
    for page in sorted([*ROOT.glob("docs/**/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])
    if page.name != "log.md"
}
BLOCK = re.compile(r"^```[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`((?:steep|make) [^`]+)`")
STEEP: Any = get_command(app)
PLACEHOLDER = re.compile(r"…|\.\.\.|\$|[<>{}]|^[A-Z]+$|^block\.setting$")


def commands(text: str) -> Iterator[list[str]]:
    """The words of each ``steep`` and ``make`` command of a page."""
    lines = "\n".join(BLOCK.findall(text)).replace("\\\n", " ").splitlines()
    lines += [command.replace("\n", " ") for command in INLINE.findall(BLOCK.sub("", text))]
    for line in lines:
        command = re.sub(r"^\s*(\$ )?(\.venv/bin/)?", "", line)
        if command.startswith(("steep ", "make ")):
            yield words(command)


def words(command: str) -> list[str]:
    """The words of a command up to a comment, pipe or redirection."""
    splitter = shlex.shlex(command, posix=True, punctuation_chars=";|&><")
    splitter.whitespace_split = True
    return list(itertools.takewhile(lambda word: not set(word) <= set(";|&><"), splitter))


@cache
def targets() -> set[str]:
    phony = (ROOT / "Makefile").read_text().partition("TARGETS :=")[2].partition("\n#")[0]
    return {*phony.replace("\\", "").split(), *STAGES}


def variables() -> set[str]:
    """The variables that the Makefile takes."""
    return set(
        (ROOT / "Makefile").read_text().partition("VARIABLES := ")[2].partition("\n")[0].split()
    )


def unknown(command: list[str]) -> set[str]:
    """The words of a command that name a command, option, target or variable that does not exist."""
    program, *rest = (word for word in command if not PLACEHOLDER.search(word))
    if program == "make":
        names = {word.partition("=")[0] for word in rest if re.match(r"[A-Za-z_]+=", word)}
        return ({word for word in rest[:1] if "=" not in word} - targets()) | (names - variables())
    found = STEEP
    options: set[str] = {"--help"}
    for word in rest:
        if word.startswith("-") or word not in getattr(found, "commands", {}):
            break
        found = found.commands[word]
    missing = (
        {rest[0]} if rest and hasattr(found, "commands") and not rest[0].startswith("-") else set()
    )
    options |= {option for parameter in found.params for option in parameter.opts}
    used = {word.strip("[]").partition("=")[0] for word in rest if re.match(r"\[?--?[a-z]", word)}
    return missing | (used - options)


def after(command: list[str], option: str, variable: str) -> list[str]:
    """The values of an option of ``steep``, or of the variable of ``make`` in its place."""
    values = [value for name, value in itertools.pairwise(command) if name == option]
    given = (word.removeprefix(variable) for word in command if word.startswith(variable))
    return values + [value for text in given for value in text.split()]


def wrong_values(command: list[str]) -> Iterator[str]:
    """Settings and configuration files that do not exist."""
    for setting in after(command, "--set", "SET="):
        key = setting.partition("=")[0]
        try:
            assert PLACEHOLDER.search(key) or find_field(key)
        except ConfigError as error:
            yield str(error)
    for config in after(command, "--config", "CONFIG="):
        shipped = config.startswith("configs/") and not PLACEHOLDER.search(config)
        if shipped and not (ROOT / config).is_file():
            yield config
    for variant in after(command, "--variant", "VARIANT="):
        if not PLACEHOLDER.search(variant) and variant not in variants():
            yield variant


def test_commands_are_found_in_the_pages() -> None:
    assert sum(len(list(commands(text))) for text in PAGES.values()) > 200
    assert unknown(["steep", "pear", "--round", "2"]) == {"pear", "--round"}
    assert unknown(["steep", "pair", "--ruond", "2"]) == {"--ruond"}
    assert unknown(["make", "pear"]) == {"pear"}
    assert unknown(["make", "run", "ROUDN=2", "SET=seed=1"]) == {"ROUDN"}
    assert list(wrong_values(["make", "run", "SET=seed=1 pears.limit=2", "CONFIG=configs/x.yaml"]))


@pytest.mark.parametrize("page", PAGES)
def test_documented_commands_exist(page: str) -> None:
    faults = [
        (" ".join(command), fault)
        for command in commands(PAGES[page])
        for fault in (*unknown(command), *wrong_values(command))
    ]
    assert not faults
