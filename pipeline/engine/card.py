"""The card of a stage's output: a README.md with which ``datasets.load_dataset`` loads its tables.

Input: the directory and the manifest of a stage. Output: a YAML header with a configuration for
each table, what the stage wrote into ``README.md``, and the row counts. Tables are the Parquet
files that have rows, or without these the JSON files, because `datasets` reads one format per
directory.
The text depends on the output alone, so it is the same after a kill. Inputs and settings are in
``manifest.json``, and the fields in the tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core.atomic import write_text
from pipeline.core.input_files import parse_json, read_text
from pipeline.core.row_files import read_jsonl

CARD = "README.md"
_SPLITS = ("train", "validation", "test")
_HISTORY = "history"  # the rows of log.json


@dataclass(frozen=True)
class Table:
    """A table file and, where ``key`` is set, the key of its rows in JSON."""

    file: str
    rows: int
    key: str | None = None

    @property
    def name(self) -> str:
        """The configuration of `datasets`; files that are named after splits share one."""
        stem = Path(self.file).stem
        return "default" if stem in _SPLITS else stem

    @property
    def data_file(self) -> dict[str, str]:
        """The file, and the split that it holds."""
        stem = Path(self.file).stem
        return {"split": stem if stem in _SPLITS else "train", "path": self.file}


def tables(directory: Path, first: Iterable[str] = ()) -> list[Table]:
    """The tables of an output; tables named in ``first`` come first, then the longest."""
    found = [_parquet(path) for path in directory.glob("*.parquet")]
    found = [table for table in found if table.rows]
    if not found:
        found = _json(directory)
    names = list(first)

    def order(table: Table) -> tuple[int, int, str]:
        place = names.index(table.name) if table.name in names else len(names)
        return place, -table.rows, table.file

    return sorted(found, key=order)


def write_card(directory: Path, manifest: Mapping[str, Any]) -> None:
    """Write the card of a stage's output; its first count names the table that loads by default.

    ``manifest`` lacks nothing but its files, of which the card is one.
    """
    import yaml

    path, key = directory / CARD, manifest["key"]
    stage, number, method = key["stage"], key["round"], key["settings"].get("grammar")
    own = path.read_text(encoding="utf-8").strip() if path.exists() else ""
    found = tables(directory, manifest["counts"])
    title = f"Stage {stage}" + ("" if number is None else f", round {number}")
    header = {
        "pretty_name": title,
        "tags": ["steep", "retrieval", stage, *([method] if method else [])],
        "configs": _configurations(found),
    }
    parts = [
        f"---\n{yaml.safe_dump(header, sort_keys=False)}---",
        f"# {title}",
        *([own] if own else []),
        'Each table loads with `datasets.load_dataset("path/to/this/directory", TABLE)`:',
        "\n".join(f"- `{table.name}`: {table.rows:,} rows of `{table.file}`" for table in found),
        f"`manifest.json` has the settings and inputs of this output, `{manifest['fingerprint']}`.",
    ]
    write_text(path, "\n\n".join(parts) + "\n")


def _configurations(found: list[Table]) -> list[dict[str, Any]]:
    configurations: dict[str, dict[str, Any]] = {}
    for table in found:
        one = configurations.setdefault(table.name, {"config_name": table.name, "data_files": []})
        one["data_files"].append(table.data_file)
        if table.key is not None:
            one["field"] = table.key
    if found:
        configurations[found[0].name]["default"] = True
    return list(configurations.values())


def _parquet(path: Path) -> Table:
    import pyarrow.parquet as pq

    return Table(path.name, pq.read_metadata(path).num_rows)


def _json(directory: Path) -> list[Table]:
    """The JSON files that are lists of objects, or have a history; without these, the objects."""
    lists, objects = [], []
    for path in directory.iterdir():
        if path.suffix == ".jsonl":
            value: Any = [row for _, row in read_jsonl(path)]
        elif path.suffix == ".json":
            value = parse_json(read_text(path), path)
        else:
            continue
        key = _HISTORY if isinstance(value, dict) and _HISTORY in value else None
        rows = value[key] if key else value
        if isinstance(rows, list) and rows and isinstance(rows[0], dict):
            lists.append(Table(path.name, len(rows), key))
        elif isinstance(rows, dict):
            objects.append(Table(path.name, 1))
    return lists or objects
