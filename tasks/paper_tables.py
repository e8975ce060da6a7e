"""The page ``docs/tables.md``: every row of the papers' tables and figures with its command.

``python -m tasks.paper_tables > docs/tables.md`` (``make tables-page``) writes it from ``docs/tables.yaml``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core.yaml_files import read_yaml

SOURCE = Path(__file__).resolve().parents[1] / "docs" / "tables.yaml"
_HEAD = """\
# The papers' tables

<!-- Written by `make tables-page` from docs/tables.yaml; a test compares them. -->

This page lists every row of every table and figure of the three papers, with the command that runs it or the reason
why it cannot be run. The column *closed world* has the command for two CPU cores, *published size* what to set in the
published configuration. No published configuration has been run yet.

- Files of the closed world have names of their own, so each is a whole run. `SET="name=…"` gives two of them the same
  name: they then share all stages that they do not change, and `metrics.json` and `report.html` are those of the last one.
- At the published size the name stays, so that the graph and the index are built once. Copy `metrics.json` and
  `report.html` before the next row.
- Figures are in `metrics.json` of the run, unless the column *read* says otherwise.
- The untrained model at the published size also needs a prompt for it, `prompt.system` ([baselines](evaluation.md#baselines)).
- PPO is not implemented. Rows of PPO are run by rounds of DPO+SFT, and rows of GRPO by GRPO on cached batches.
- The SFT term of DPO has two forms (`dpo.eta_of`). Published configurations use the sum over tokens that TeaRAG's eq. 15
  prints. The embedded runs use TRL's mean over tokens with η = 130, which is about η = 1 of the sum, because they have about
  130 trained tokens a trajectory. η 1, 0.5, 0.25 of the mean would be two orders of magnitude less. Which of the two the
  authors' code has is not known.
"""


@dataclass(frozen=True)
class Row:
    """One row: a configuration in the closed world and one at the published size, or why there is none.

    A configuration is its name below ``configs/`` and overrides.
    """

    paper: str
    table: str
    row: str
    embedded: tuple[str, tuple[str, ...]] | None
    published: tuple[str, tuple[str, ...]] | None
    base: str  # the configuration of the paper in the closed world
    published_base: str  # the published configuration of the paper
    settings: tuple[str, ...]  # what the row changes in ``base``
    command: str
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
    settings, file = tuple(row.get("settings", ())), row.get("file")
    runs = not {"missing", "command"} & row.keys()
    embedded = published = None
    if runs and row.get("embedded", True):
        embedded = (file, ()) if file else (paper["embedded"], settings)
    other = row.get("published", settings)
    if runs and other is not False:
        if isinstance(other, dict):
            published = (other["config"], tuple(other.get("settings", ())))
        else:
            published = (paper["published"], tuple(other))
    return Row(
        paper["paper"], table, row["row"], embedded, published, paper["embedded"],
        paper["published"], settings,
        row.get("command", ""), row.get("read", ""), row.get("note", ""), row.get("missing", ""),
    )  # fmt: skip


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
    embedded, published = _make(row.embedded, ""), _make(row.published, " DATA=DIR")
    note = f"{row.note[0].upper()}{row.note[1:]}." if row.note else ""
    if row.command:
        embedded = published = f"`{row.command}`"
        if row.command.startswith(("steep run", "steep evaluate")):
            embedded = f"`{row.command} --config configs/{row.base}.yaml`"
            published = f"`{row.command} --config configs/{row.published_base}.yaml --data DIR`"
    return [row.row, embedded, published, row.read, note]


def _make(run: tuple[str, tuple[str, ...]] | None, data: str) -> str:
    if run is None:
        return "–"
    name, settings = run
    overrides = f' SET="{" ".join(settings)}"' if settings else ""
    return f"`make run CONFIG=configs/{name}.yaml{data}{overrides}`"


if __name__ == "__main__":
    print(page())
