"""Adds the page *The papers' tables* to the site: the rows of ``configs/variants.yaml``."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from pipeline.config.per_round import merged
from pipeline.config.variants import variants
from pipeline.config.yaml_files import read_yaml
from pipeline.core.input_files import leaves
from pipeline.core.shipped import VARIANTS

_HEAD = """\
# The papers' tables

Every row of every table and figure of the three papers, with the command that runs it in the \
closed world on two CPU cores and at the published size, or the reason why it cannot be run. No \
published configuration has been run yet.

A cell that begins with `VARIANT`, `CONFIG` or `SET` continues `make run`, at the published size \
`make run DATA=DIR`. A command of `steep` takes `--data DIR` there. A cell without a \
configuration uses the configuration that is named above the tables of its paper.

- The run of a variant has the variant's name. `SET="name=…"` gives two of them the same name, so \
that they share the stages that they do not change; `metrics.json` and `report.html` show the last.
- `steep evaluate` needs the finished run of the same configuration and writes a separate file.
- Figures are in `metrics.json` of the run, unless the notes say otherwise.
- PPO is not implemented. Rows of PPO are run by rounds of DPO+SFT, and rows of GRPO by GRPO on \
cached batches.
- The SFT term of DPO has two forms (`dpo.eta_of`). Published configurations use the sum over \
tokens that TeaRAG's eq. 15 prints. The embedded runs use TRL's mean over tokens with η = 130, \
which is about η = 1 of the sum, because they have about 130 trained tokens a trajectory.
- *Has run*: "closed world" where log or results name the run; "stand-ins" where a test runs \
the published configuration whole, on small models in place of its own; else "never".
- What the published configurations change in a paper's protocol is under \
[Protocols](paper_index.md#protocols). A row without a note changes nothing else.
"""
_RECORDS = (
    "log.md",
    "log/2026-11.md",
    "log/bench.md",
    "log/retrieval.md",
    "results.md",
    "methods.json",
)


@dataclass(frozen=True)
class Command:
    """The command of a row: a configuration or a variant, overrides, and a ``steep`` command.

    ``steep`` is a command with its own options and arguments, to which the configuration is added.
    It is empty for ``make run``.
    """

    config: str
    variant: str = ""
    settings: tuple[str, ...] = ()
    steep: str = ""
    data: bool = False  # whether the data files are not part of the configuration

    def __str__(self) -> str:
        if not self.steep:
            file = (
                f"VARIANT={self.variant}" if self.variant else f"CONFIG=configs/{self.config}.yaml"
            )
            data = " DATA=DIR" if self.data else ""
            overrides = f' SET="{" ".join(self.settings)}"' if self.settings else ""
            return f"make run {file}{data}{overrides}"
        if "VERDICTS" in self.steep:  # two files, and no configuration
            return self.steep
        file = (
            f"--variant {self.variant}" if self.variant else f"--config configs/{self.config}.yaml"
        )
        data = " --data DIR" if self.data else ""
        overrides = "".join(f" --set {setting}" for setting in self.settings)
        return f"{self.steep} {file}{data}{overrides}"


@dataclass(frozen=True)
class Row:
    """One row: its commands in the closed world and at the published size, or why it has none."""

    paper: str
    table: str
    row: str
    embedded: Command | None
    published: Command | None
    read: str
    note: str
    missing: str


def rows() -> list[Row]:
    """All rows, in the order of the page."""
    return [
        _row(paper, f"{table['table']}: {table['title']}", row)
        for paper in read_yaml(VARIANTS)["tables"]
        for table in paper["tables"]
        for row in table["rows"]
    ]


def _row(paper: dict[str, Any], table: str, row: dict[str, Any]) -> Row:
    variant, steep = row.get("variant", ""), row.get("command", "")
    settings = tuple(row.get("settings", ()))
    embedded = published = None
    if "missing" not in row:
        own = Command("", variant or paper["embedded"], settings, steep)
        embedded = _command(row.get("embedded"), own)
        changed = settings or _settings_of(variant, paper["embedded"])
        other = Command(paper["published"], "", changed, steep, data=True)
        published = _command(row.get("published"), other)
    return Row(
        paper["paper"], table, row["row"], embedded, published,
        row.get("read", ""), row.get("note", ""), row.get("missing", ""),
    )  # fmt: skip


def _settings_of(name: str, base: str) -> tuple[str, ...]:
    """What a variant, and those between it and ``base``, set, as ``key.key=value``.

    The settings of ``base`` itself are those of the closed world.
    """
    settings: dict[str, Any] = {}
    while name != base and (found := variants().get(name)):
        settings = merged(found.settings, settings)
        name = found.base
    return tuple(f"{key}={_words(value)}" for key, value in leaves(settings))


def _words(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def _command(stated: Any, default: Command) -> Command | None:
    """``default`` with the changes of the list: false, settings, or a mapping."""
    if stated is None:
        return default
    if stated is False:
        return None
    if isinstance(stated, list):
        return replace(default, settings=tuple(stated))
    return Command(
        stated.get("config", default.config),
        stated.get("variant", ""),
        tuple(stated.get("settings", ())),
        stated.get("command", default.steep),
        default.data,
    )


def page() -> str:
    """The page as Markdown."""
    lines, paper, table = [_HEAD.rstrip("\n")], "", ""
    bases = {found["paper"]: found for found in read_yaml(VARIANTS)["tables"]}
    for row in rows():
        base = bases[row.paper]
        if row.paper != paper:
            paper, table = row.paper, ""
            lines += ["", f"## {paper}", ""]
            lines.append(f"`VARIANT={base['embedded']}`, `configs/{base['published']}.yaml`")
        if row.table != table:
            table = row.table
            lines += ["", f"### {table[0].upper()}{table[1:]}", ""]
            lines += ["| row | closed world | published size | has run | protocol and notes |"]
            lines += ["|---|---|---|---|---|"]
        lines.append("| " + " | ".join(_cells(row, base["embedded"], base["published"])) + " |")
    return "\n".join(lines)


def _cells(row: Row, embedded: str, published: str) -> list[str]:
    if row.missing:
        return [row.row, "", "", "", f"Not run: {row.missing}."]
    note = f"{row.note[0].upper()}{row.note[1:]}." if row.note else ""
    read = f"Read {row.read}." if row.read else ""
    commands = (_brief(row.embedded, embedded), _brief(row.published, published))
    note = note or "[As the paper](paper_index.md#protocols)."
    return [row.row, *commands, _has_run(row), " ".join(filter(None, (read, note)))]


def _has_run(row: Row) -> str:
    """Where the row has run, as the head of the page says."""
    found = []
    if row.embedded and (row.embedded.variant or row.embedded.config) in _recorded():
        found.append("closed world")
    if row.published and not row.published.variant and not row.published.settings:
        found.append("stand-ins")  # tests/published runs every published configuration
    return ", ".join(found) or "never"


@cache
def _recorded() -> frozenset[str]:
    """The words of the log and the results, variants among them."""
    text = "".join(
        (Path(__file__).parent / name).read_text("utf-8") for name in (*_RECORDS, "methods.json")
    )
    return frozenset(re.findall(r"[\w.-]*[\w]", text))


def _brief(command: Command | None, base: str) -> str:
    """What the command adds to that of the heading."""
    if command is None:
        return ""
    text = str(command).removeprefix("make run ")
    own = rf"(CONFIG=|--config )configs/{base}\.yaml|(VARIANT=|--variant ){base}(?!\S)|DATA=DIR"
    text = re.sub(own, "", text)
    return f"`{' '.join(text.replace('--data DIR', '').split()) or 'make run'}`"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page to the site; mkdocs calls this hook (``mkdocs.yml``)."""
    files.append(File.generated(config, "tables.md", content=page()))
    return files
