"""How many questions a split will have, before they are read.

The sizes of the closed world, the limits of the configuration and the lines of JSONL files give the
number of questions before filters and decontamination. An earlier output gives the share that is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from tasks.base import StageTask
from tasks.planning.measured import Earlier, Measured

_LARGEST = 1 << 26  # bytes of a file whose lines are counted
_BLOCK = 1 << 20
_RENAMED = {"2wiki_test": "wiki2_test"}  # the file of a size of the closed world


def question_count(task: StageTask, split: str, earlier: Earlier) -> float | None:
    """Questions of a split in the configuration of ``task``; None when nothing tells.

    The split is sft, sampling, validation or test.
    """
    data = task.settings.data
    files = [file.model_dump(mode="json") for file in getattr(data, split)]
    world = None if data.closed_world is None else data.closed_world.model_dump(mode="json")
    before = records_before_filters(files, world, Path(data.root or "."))
    scaled = None
    for output in earlier.of(f"questions-{split}"):
        read, count = output.settings.get(f"data.{split}"), output.amounts.get("questions")
        of_world = _world(output, earlier)
        if read is None or count is None or (world is None) != (of_world is None):
            continue
        if read == files and (world == of_world if world else _same_files(task, output, files)):
            return count
        then = records_before_filters(read, of_world, None)
        if scaled is None and before and then:
            scaled = before * count / then
    return before if scaled is None else scaled


def records_before_filters(
    files: Sequence[Mapping[str, Any]], world: Mapping[str, Any] | None, root: Path | None
) -> float | None:
    """Records of question files: sizes of the world or lines, at most the limits; None if unknown.

    ``root`` is the directory of the files, None for files that are no longer there.
    """
    total = 0
    for file in files:
        available = _available(file["path"], world, root)
        limit = file.get("limit")
        known = [number for number in (available, limit) if number is not None]
        if not known:
            return None
        total += min(known)
    return total


def _available(path: str, world: Mapping[str, Any] | None, root: Path | None) -> int | None:
    if world is not None:
        stem = PurePosixPath(path).stem
        size = world.get(_RENAMED.get(stem, stem))
        return int(size) if size is not None else None
    if root is None or not path.endswith(".jsonl"):
        return None
    return _lines(root / path)


def _lines(path: Path) -> int | None:
    try:
        if path.stat().st_size > _LARGEST:
            return None
        with path.open("rb") as stream:
            return sum(block.count(b"\n") for block in iter(lambda: stream.read(_BLOCK), b""))
    except OSError:
        return None


def _world(output: Measured, earlier: Earlier) -> Mapping[str, Any] | None:
    """The sizes of the closed world that an output was made from; None if it read files."""
    fingerprint = output.inputs.get("world")
    world = earlier.find(fingerprint) if fingerprint else None
    return None if world is None else world.settings.get("data.closed_world")


def _same_files(task: StageTask, output: Measured, files: Sequence[Mapping[str, Any]]) -> bool:
    root = Path(task.settings.data.root or ".")
    paths: dict[str, Path | str] = {str(file["path"]): root / str(file["path"]) for file in files}
    if not all(name in output.files for name in paths):
        return False
    return all(output.files[name] == content for name, content in task.content_of(paths).items())
