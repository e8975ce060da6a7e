"""The page ``docs/tables.md``: every row of the papers' tables and figures with its command.

``python -m tasks.paper_tables > docs/tables.md`` (``make tables-page``) writes it from ``docs/tables.yaml``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.config.yaml_files import read_yaml

SOURCE = Path(__file__).resolve().parents[1] / "docs" / "tables.yaml"
_HEAD = """\
# The papers' tables

<!-- Written by `make tables-page` from docs/tables.yaml; a test compares them. -->

This page lists every row of every table and figure of the three papers, with the command that runs it or the reason
why it cannot be run. The column *closed world* has the command for two CPU cores, *published size* what to set in the
published configuration. No published configuration has been run yet.

- Files of the closed world have names of their own, so each is a whole run. `SET="name=…"` gives two of them the same
  name: they then share all stages that they do not change, and `metrics.json` and `report.html` are those of the last one.
- At the published size the name stays or is set, so that the graph and the index are built once. Copy `metrics.json` and
  `report.html` before the next row.
- `steep evaluate` needs the finished run of the same configuration and changes nothing of it. It writes a file of its own.
- Figures are in `metrics.json` of the run, unless the column *read* says otherwise.
- A released model of other authors is not run. Where a row trains its method anew, the note says how.
- PPO is not implemented. Rows of PPO are run by rounds of DPO+SFT, and rows of GRPO by GRPO on cached batches.
- The SFT term of DPO has two forms (`dpo.eta_of`). Published configurations use the sum over tokens that TeaRAG's eq. 15
  prints. The embedded runs use TRL's mean over tokens with η = 130, which is about η = 1 of the sum, because they have about
  130 trained tokens a trajectory. η 1, 0.5, 0.25 of the mean would be two orders of magnitude less. Which of the two the
  authors' code has is not known.
"""


@dataclass(frozen=True)
class Command:
    """What runs a row: a configuration, overrides, and ``make run`` or a ``steep`` command.

    ``config`` is a name below ``configs/``. ``steep`` is a command with its own options and arguments, to which the
    configuration is added, or empty for ``make run``.
    """

    config: str
    settings: tuple[str, ...] = ()
    steep: str = ""
    data: bool = False  # whether the data files are not part of the configuration

    def __str__(self) -> str:
        if not self.steep:
            data = " DATA=DIR" if self.data else ""
            overrides = f' SET="{" ".join(self.settings)}"' if self.settings else ""
            return f"make run CONFIG=configs/{self.config}.yaml{data}{overrides}"
        if "VERDICTS" in self.steep:  # two files, and no configuration
            return self.steep
        data = " --data DIR" if self.data else ""
        overrides = "".join(f" --set {setting}" for setting in self.settings)
        return f"{self.steep} --config configs/{self.config}.yaml{data}{overrides}"


@dataclass(frozen=True)
class Row:
    """One row: what runs it in the closed world and at the published size, or why there is nothing.

    ``file`` is the row's configuration in the closed world, if it has one of its own, which is ``base`` with
    ``settings``.
    """

    paper: str
    table: str
    row: str
    embedded: Command | None
    published: Command | None
    file: str
    base: str
    settings: tuple[str, ...]
    read: str
    note: str
    missing: str


def rows(source: Path = SOURCE) -> list[Row]:
    """All rows, in the order of the page."""
    papers = read_yaml(source)
    return [
        _row(paper, f"{table['table']}: {table['title']}", row)
        for paper in papers
        for table in paper["tables"]
        for row in table["rows"]
    ]


def _row(paper: dict[str, Any], table: str, row: dict[str, Any]) -> Row:
    settings, file = tuple(row.get("settings", ())), row.get("file", "")
    embedded = published = None
    if "missing" not in row:
        steep = row.get("command", "")
        own = Command(file, (), steep) if file else Command(paper["embedded"], settings, steep)
        embedded = _command(row.get("embedded"), own)
        other = Command(paper["published"], settings, steep, data=True)
        published = _command(row.get("published"), other)
    return Row(
        paper["paper"], table, row["row"], embedded, published, file,
        row.get("of", paper["embedded"]), settings,
        row.get("read", ""), row.get("note", ""), row.get("missing", ""),
    )  # fmt: skip


def _command(stated: Any, default: Command) -> Command | None:
    """``default`` with what the list states: false, settings, or a mapping."""
    if stated is None:
        return default
    if stated is False:
        return None
    if isinstance(stated, list):
        return replace(default, settings=tuple(stated))
    return Command(
        stated.get("config", default.config),
        tuple(stated.get("settings", ())),
        stated.get("command", default.steep),
        default.data,
    )


def page(source: Path = SOURCE) -> str:
    """The page as Markdown."""
    lines, paper, table = [_HEAD.rstrip("\n")], "", ""
    for row in rows(source):
        if row.paper != paper:
            paper, table = row.paper, ""
            lines += ["", f"## {paper}"]
        if row.table != table:
            table = row.table
            lines += ["", f"### {table[0].upper()}{table[1:]}", ""]
            lines += ["| row | closed world | published size | read | notes |"]
            lines += ["|---|---|---|---|---|"]
        lines.append("| " + " | ".join(_cells(row)) + " |")
    return "\n".join(lines)


def _cells(row: Row) -> list[str]:
    if row.missing:
        return [row.row, "–", "–", "–", f"Not run: {row.missing}."]
    commands = [f"`{command}`" if command else "–" for command in (row.embedded, row.published)]
    note = f"{row.note[0].upper()}{row.note[1:]}." if row.note else ""
    return [row.row, *commands, row.read, note]


if __name__ == "__main__":
    print(page())
