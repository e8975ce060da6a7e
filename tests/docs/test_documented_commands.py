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
from pipeline.config.run import Config
from pipeline.config.variants import variants
from pipeline.core.errors import ConfigError
from tasks import STAGES

ROOT = Path(__file__).resolve().parents[2]
# The log describes earlier versions.
PAGES = {
    page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8")
    for page in sorted([*ROOT.glob("docs/**/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])
    if page.name != "log.md" and page.parent.name != "log"
}
BLOCK = re.compile(r"^```[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`((?:steep|make) [^`]+)`")
CODE = re.compile(r"`([^`]+)`")
SETTING = re.compile(r"([a-z_]+(?:\.[a-z_0-9]+)+)(?:=.*)?")
FILES = (".json", ".jsonl", ".npy", ".parquet", ".py", ".toml", ".xml", ".yaml")
# Options of Slurm, and of the benchmarks, which pages name outside of a command.
SLURM = "--account --cpus-per-task --gpus-per-node --gres --mem-per-cpu --requeue --time"
OTHER = {
    "docs/bench.md": {"--rows", "--run"},
    "docs/executors.md": set(SLURM.split()),
    "docs/gpu.md": {"--budget"},
    "docs/scale.md": {"--built"},
}
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
def of_makefile(name: str) -> set[str]:
    """The words of a list in the Makefile."""
    [value] = re.findall(
        rf"^{name} :=((?:.*\\\n)*.*)", (ROOT / "Makefile").read_text(), re.MULTILINE
    )
    return set(value.replace("\\", "").split())


def found_command(words: list[str]) -> Any:
    """The command that the words after ``steep`` name; ``STEEP`` for none."""
    found = STEEP
    for word in words:
        if word.startswith("-") or word not in getattr(found, "commands", {}):
            break
        found = found.commands[word]
    return found


def options_of(command: Any) -> set[str]:
    return {"--help"} | {option for parameter in command.params for option in parameter.opts}


def options_in(words: list[str]) -> set[str]:
    """The options among the words, without their values."""
    named = (word.strip("[]").partition("=")[0] for word in words)
    return {word for word in named if re.match(r"--?[a-z]", word)}


def unknown(command: list[str]) -> set[str]:
    """The words of a command that name a command, option, target or variable that does not exist."""
    program, *rest = (word for word in command if not PLACEHOLDER.search(word))
    if program == "make":
        names = {word.partition("=")[0] for word in rest if re.match(r"[A-Za-z_]+=", word)}
        targets = (
            {word for word in rest[:1] if "=" not in word} - of_makefile("TARGETS") - {*STAGES}
        )
        return targets | (names - of_makefile("VARIABLES"))
    found = found_command(rest)
    missing = (
        {rest[0]} if rest and hasattr(found, "commands") and not rest[0].startswith("-") else set()
    )
    return missing | (options_in(rest) - options_of(found))


def sections(text: str) -> list[str]:
    """The parts of a page between its headings."""
    return re.split(r"^#+ ", text, flags=re.MULTILINE)


def bare_words(text: str) -> Iterator[list[str]]:
    """The words of inline code, also in cells of tables, that is not a whole command."""
    for code in CODE.findall(BLOCK.sub("", text)):
        if not code.startswith(("steep ", "make ")):
            yield code.replace("\\|", "|").split()


def steep_words(text: str) -> list[list[str]]:
    """The words of each command after ``steep``; targets of ``make`` are those of ``steep run``."""
    found = commands(text)
    return [words if program == "steep" else ["run"] for program, *words in found]


def wrong_code(page: str, text: str) -> Iterator[str]:
    """Options that no command of their section has; settings, variants and files that do not exist."""
    of_page = steep_words(text) or [["run"]]
    for section in sections(text):
        here = steep_words(section) or of_page
        known = set().union(
            OTHER.get(page, set()), *(options_of(found_command(one)) for one in here)
        )
        for code in bare_words(section):
            first = code[0]
            if re.match(r"--[a-z]|-[a-z]$", first):
                yield from options_in(code) - known
                for key in after(code, "--set", "SET="):
                    yield from wrong_settings(key)
            elif re.match(r"-[a-z]", first):  # the end of a variant's name
                if not any(variant.endswith(first) for variant in variants()):
                    yield first
            elif re.match(r"(VARIANT|CONFIG|SET)=", first):
                yield from wrong_values(["make", "run", *code])
            elif re.match(r"(benchmarks|configs|pipeline|requirements|tasks|tests)/[^:]+$", first):
                if not (PLACEHOLDER.search(first) or (ROOT / first).exists()):
                    yield first
            elif (
                (setting := SETTING.fullmatch(first))
                and setting[1].partition(".")[0] in Config.model_fields
                and not first.endswith(FILES)
            ):
                yield from wrong_settings(setting[1])


def after(command: list[str], option: str, variable: str) -> list[str]:
    """The values of an option of ``steep``, or of the variable of ``make`` in its place."""
    values = [value for name, value in itertools.pairwise(command) if name == option]
    given = (word.removeprefix(variable) for word in command if word.startswith(variable))
    return values + [value for text in given for value in text.split()]


def wrong_settings(setting: str) -> Iterator[str]:
    """Why a setting, with or without a value, does not exist."""
    key = setting.partition("=")[0].strip('"')
    try:
        assert PLACEHOLDER.search(key) or find_field(key)
    except ConfigError as error:
        yield str(error)


def wrong_values(command: list[str]) -> Iterator[str]:
    """Settings and configuration files that do not exist."""
    for setting in after(command, "--set", "SET="):
        yield from wrong_settings(setting)
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


@pytest.mark.parametrize("page", PAGES)
def test_options_and_settings_in_cells_and_sentences_exist(page: str) -> None:
    assert list(wrong_code(page, PAGES[page])) == []
