"""Runs a stage whole or in shards, as its tasks do, and reads the bytes that it wrote."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pipeline.engine.context import StageContext
from pipeline.engine.store import StageKey

Run = Callable[[StageContext], dict[str, int]]
_OF_TIME = ("timing.json", "manifest.json")


def in_directory(context: StageContext, folder: Path, **changes: Any) -> StageContext:
    (folder / "output").mkdir(parents=True, exist_ok=True)
    (folder / "checkpoints").mkdir(exist_ok=True)
    return replace(
        context,
        output=folder / "output",
        checkpoint_dir=folder / "checkpoints",
        notes={},
        **changes,
    )


def run_shard(run: Run, context: StageContext, folder: Path, number: int, count: int) -> Path:
    """The output of one shard, with its manifest."""
    part = in_directory(context, folder, shard=number, shards=count)
    write_manifest(part.output, context.stage, run(part))
    return part.output


def write_manifest(output: Path, stage: str, counts: dict[str, int]) -> None:
    """The manifest of a complete shard."""
    key = asdict(StageKey(f"{stage}-shard", 1, {}))
    manifest = {"fingerprint": output.parent.name, "key": key, "counts": counts, "files": {}}
    (output / "manifest.json").write_text(json.dumps(manifest))


def run_divided(
    context: StageContext, root: Path, count: int, *, shard: Run, merge: Run
) -> tuple[dict[str, int], Path]:
    """The counts and the output of a stage that joins ``count`` shards."""
    names = [f"shard-{number:03d}" for number in range(count)]
    shards = {
        name: run_shard(shard, context, root / name, number, count)
        for number, name in enumerate(names)
    }
    joined = in_directory(context, root / "joined", inputs={**context.inputs, **shards})
    return merge(joined), joined.output


def run_whole(context: StageContext, root: Path, run: Run) -> tuple[dict[str, int], Path]:
    """The counts and the output of a stage that is not divided."""
    whole = in_directory(context, root / "whole")
    return run(whole), whole.output


def content(output: Path) -> dict[str, bytes]:
    """The bytes of all files by name, except those about time."""
    return {
        str(path.relative_to(output)): path.read_bytes()
        for path in sorted(output.rglob("*"))
        if path.is_file() and path.name not in _OF_TIME
    }
