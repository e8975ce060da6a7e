"""The page and the JSON file of the GPU check.

Input: the results of some parts. Output: ``docs/log/gpu.json`` with all parts that were measured on
this machine, and the table of ``docs/log/gpu.md`` between two marks. Parts that were measured on
the same device earlier, but not now, stay.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.catalogue import PARTS, Part
from pipeline.core.atomic import write_json, write_text
from pipeline.core.errors import InputError

_RESULT = {"state", "reason", "seconds", "figures"}
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"


def describe(part: Part, result: dict[str, Any]) -> str:
    """One line for each part and each figure, for the terminal."""
    head = f"{part.name}: {result['state']}"
    if result["reason"]:
        head += f" ({result['reason']})"
    if result["seconds"]:
        head += f", {result['seconds']:.0f} s"
    lines = [
        f"    {row['name']}: {number(row['value'])} {row['unit']}".rstrip() + _verdict(row)
        for row in result["figures"]
    ]
    return "\n".join([head, *lines])


def write_results(page: Path, about: dict[str, Any], results: dict[str, Any]) -> None:
    """Write JSON and page; earlier results of the same device are kept for unmeasured parts.

    Raises InputError as `earlier_parts` does.
    """
    file = page.with_suffix(".json")
    device, parts = earlier_parts(page)
    if device != about.get("device"):
        parts = {}
    for name, result in results.items():
        if result["state"] != "skipped" or name not in parts:
            kept = {key: value for key, value in result.items() if key != "late"}
            parts[name] = {**kept, **{key: about[key] for key in ("measured", "commit", "torch")}}
    write_json(file, {"machine": about, "parts": parts})
    write_between_marks(page, table(about, parts))


def write_between_marks(page: Path, figures: str) -> None:
    """Replace the text between the two marks of a page; a new page has nothing else."""
    text = page.read_text(encoding="utf-8") if page.is_file() else f"{BEGIN}\n{END}\n"
    before_text, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    write_text(page, f"{before_text}{BEGIN}\n{figures}{END}{after}")


def earlier_parts(page: Path) -> tuple[str | None, dict[str, Any]]:
    """The device and the parts of the JSON file beside ``page``; nothing where there is no file.

    Raises InputError when the file is not what `write_results` writes.
    """
    file = page.with_suffix(".json")
    if not file.is_file():
        return None, {}
    remedy = "move the file away, and the check writes it again"
    try:
        before = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{file}: not readable as JSON ({error}); {remedy}") from None
    for name in ("machine", "parts"):
        if not isinstance(before, dict) or not isinstance(before.get(name), dict):
            raise InputError(f"{file}: expected an object whose {name!r} is an object; {remedy}")
    for name, part in before["parts"].items():
        if not isinstance(part, dict) or not part.keys() >= _RESULT:
            raise InputError(f"{file}: part {name!r} is not a result of the check; {remedy}")
    return before["machine"].get("device"), before["parts"]


def table(about: dict[str, Any], parts: dict[str, Any]) -> str:
    """The machine and one row per figure, in the order of the catalogue."""
    packages = ", ".join(f"{name} {version}" for name, version in about["packages"].items())
    device = f"{about.get('device', 'CPU')}, {about.get('memory_gib', 0):g} GiB"
    lines = [
        f"Measured on {device}, driver {about['driver']}, CUDA {about.get('cuda', 'none')}, torch "
        f"{about['torch']}, {packages} ({about['measured']} UTC, commit {about['commit']}).",
        "",
        "| part | figure | value | expected |",
        "|---|---|---|---|",
    ]
    for part in PARTS:
        if part.name not in parts:
            continue
        result = parts[part.name]
        state = result["state"] + (f": {result['reason']}" if result["reason"] else "")
        if (torch := result.get("torch", about["torch"])) != about["torch"]:
            state += f" (torch {torch})"
        seconds = f"{result['seconds']:.0f} s in all" if result["seconds"] else ""
        lines.append(f"| **{part.name}** | {part.title} | {_cell(state)} | {seconds} |")
        for row in result["figures"]:
            value = f"{number(row['value'])} {row['unit']}".rstrip()
            lines.append(f"| | {row['name']} | {_cell(value)} | {row['expected']}{_verdict(row)} |")
    return "\n".join(lines) + "\n"


def number(value: float | str) -> str:
    """A value with three or four digits."""
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _verdict(row: dict[str, Any]) -> str:
    return "" if row["holds"] is None else (" ✓" if row["holds"] else " ✗")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
