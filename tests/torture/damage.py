"""Damaged outputs of a finished run: `steep verify` must name every one, and only those."""

from __future__ import annotations

import contextlib
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.torture.figures import Figures
from tests.torture.runs import RunFolder

MANIFEST = "manifest.json"


def run(reference: RunFolder, seed: int, count: int) -> Figures:
    """Damage ``count`` files, one at a time, and restore each after the check."""
    from tasks import status
    from tasks.run import task_for

    chance = random.Random(seed)
    figures = Figures("damage")
    by_kind: Counter[str] = Counter()
    reference.finished()
    with _working_directory(reference.root):
        task = task_for("report", "small.yaml", reference.overrides)
        outputs = {row.label: Path(row.directory) for row in status.verify(task)}
        figures.problems += _named(status.verify(task), None, "nothing")
        files = [
            (label, path)
            for label, directory in outputs.items()
            for path in sorted(directory.rglob("*"))
            if path.is_file() and path.stat().st_size > 0
        ]
        for _ in range(count):
            label, path = chance.choice(files)
            kinds = ["cut", "empty"] if path.name == MANIFEST else list(DAMAGES)
            kind = chance.choice(kinds)
            content = path.read_bytes()
            DAMAGES[kind](path, content, chance)
            try:
                rows = status.verify(task)
            finally:
                path.write_bytes(content)
            by_kind[kind] += 1
            figures.problems += _named(rows, label, f"{kind} {path}")
    figures.cases = count
    figures.facts["by_kind"] = dict(by_kind)
    return figures


@contextlib.contextmanager
def _working_directory(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _named(rows: list, label: str | None, what: str) -> Iterator[str]:
    damaged = [row.label for row in rows if row.damage]
    if damaged != ([] if label is None else [label]):
        yield f"{what}: verify names {damaged}"


def _cut(path: Path, content: bytes, chance: random.Random) -> None:
    path.write_bytes(content[: chance.randrange(len(content))])


def _flip(path: Path, content: bytes, chance: random.Random) -> None:
    at = chance.randrange(len(content))
    flipped = content[at] ^ (1 << chance.randrange(8))
    path.write_bytes(content[:at] + bytes([flipped]) + content[at + 1 :])


DAMAGES: dict[str, Callable[[Path, bytes, random.Random], object]] = {
    "cut": _cut,
    "flip": _flip,
    "empty": lambda path, content, chance: path.write_bytes(b""),
    "append": lambda path, content, chance: path.write_bytes(content + b"\0"),
    "delete": lambda path, content, chance: path.unlink(),
}
