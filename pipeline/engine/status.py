"""The state of every stage (such as done, stale or missing), and the reasons to run it.

`status` also finds damaged outputs by the sizes of files, and `verify` by their contents.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pipeline.engine.fingerprint import select_execution
from pipeline.engine.job import remake_command
from pipeline.engine.progress import read_failure, read_progress
from pipeline.engine.stage import Output, Outputs, StageTask, walk
from pipeline.engine.store import (
    Depth,
    differences,
    holds_checkpoints,
    problems,
    read_manifest,
)

_NAMED = 2  # upstream stages in the message of a stale stage

State = Literal["done", "reused", "stale", "missing", "running", "failed"]


@dataclass(frozen=True)
class StageState:
    """One stage as ``steep status`` shows it.

    Reused means that an output made under other settings is this stage's, because its inputs have
    the same content; stale means done with other settings or inputs. ``progress`` is the progress
    of a stage that runs, failed or was stopped. ``message`` is one sentence: the progress, the
    failure, the leftovers of a stop, or the changes.

    ``damage`` has one line for each problem of a stage that is done, and ``remake`` is the command
    that makes the output of a damaged stage again.
    """

    label: str
    state: State
    counts: dict[str, int]
    wall_seconds: float | None
    directory: str
    damage: list[str] = field(default_factory=list)
    remake: str | None = None
    progress: dict[str, Any] | None = None
    message: str | None = None


def status(task: StageTask) -> list[StageState]:
    """Every stage that ``task`` needs, in running order, and the shards of complete stages."""
    outputs = Outputs()
    return [_state(needed, outputs.of(needed)) for needed in _with_shards(task)]


def _with_shards(task: StageTask) -> Iterator[StageTask]:
    """The stages of `walk`, and the shards of done stages, which `walk` leaves out."""
    for needed in walk(task):
        if needed.complete():
            yield from (shard for shard in needed.shards().values() if shard.complete())
        yield needed


def _state(task: StageTask, output: Output | None) -> StageState:
    if output is None:
        unfinished = _unfinished(task)
        output = None if unfinished.state == "running" else Outputs().of(task)
        if output is None:  # it has not ended in the meantime
            return unfinished
    manifest: dict[str, Any] = {"counts": {}}
    if damage := problems(output.directory, Depth.SIZES):
        remake = remake_command(task)
    else:
        manifest, remake = read_manifest(output.directory), None
    counts, seconds = manifest["counts"], manifest.get("wall_seconds")
    state: State = "reused" if output.reused else "done"
    return StageState(task.label, state, counts, seconds, str(output.directory), damage, remake)


def _unfinished(task: StageTask) -> StageState:
    """The state of a stage without complete output."""
    store, key = task.store, task.key
    progress, message = read_progress(store.progress_file(key)), None
    earlier = store.manifests(task.stage, task.round_number)
    state: State = "stale" if earlier else "missing"
    if progress is not None and store.in_use(key):
        state, message = "running", progress.sentence()
    else:
        progress = None if progress is None else replace(progress, rate=None)  # it has none now
        if failure := read_failure(store.failure_file(key)):
            log = f" (log: {failure.log})" if failure.log else ""
            state, message = "failed", f"{failure.message}{log}"
        elif progress is not None:
            kept = holds_checkpoints(store.checkpoint_dir(key))
            then = "it continues from its checkpoints" if kept else "it starts again"
            where = f"at {progress.sentence()}" if progress.unit else "before its work began"
            message = f"stopped {where}; {then}"
        elif earlier:
            message = "; ".join(_changes(task, earlier[0])[0]) or None
    shown = None if progress is None else progress.to_json()
    directory = str(task.directory)
    return StageState(task.label, state, {}, None, directory, progress=shown, message=message)


def _changes(task: StageTask, manifest: dict[str, Any]) -> tuple[list[str], list[str]]:
    """The own changes of a stage since an output, and the names of the inputs that changed.

    If the stage itself is as before, the first list says which stages it follows.
    """
    own, names = [], []
    for line in differences(task.key, manifest):
        name = line.removeprefix("upstream stage ").partition(":")[0]
        if line.startswith("upstream stage ") and name in task.inputs:
            names.append(name)
        else:
            own.append(line)
    if not own and names:
        labels = [task.inputs[name].label for name in names]
        more = f" and {len(labels) - _NAMED} more" if len(labels) > _NAMED else ""
        own = [f"follows {', '.join(labels[:_NAMED])}{more}"]
    return own or _other_contents(task), names


def verify(task: StageTask) -> list[StageState]:
    """The completed outputs that ``task`` needs, in running order; their contents are checked."""
    rows = []
    for needed in walk(task):
        if needed.complete():
            damage = problems(needed.directory, Depth.HASHES)
            remake = remake_command(needed) if damage else None
            place = str(needed.directory)
            rows.append(StageState(needed.label, "done", {}, None, place, damage, remake))
    return rows


def why(task: StageTask) -> list[str]:
    """The settings, files or upstream stages whose change makes ``task`` run again.

    There is a line for each change, and for each stage between a change and ``task``. A stage that
    is done gives the settings that would execute it in another way.
    """
    output = Outputs().of(task)
    if output is None:
        earlier = task.store.manifests(task.stage, task.round_number)
        states = [_unfinished(one) for one in (task, *task.shards().values()) if not one.complete()]
        if failed := [
            f"{one.label}: failed: {one.message}" for one in states if one.state == "failed"
        ]:
            return failed
        if not earlier:
            return [f"{task.label}: never completed with any settings"]
        return list(_causes(task, earlier[0], {task.task_id}))
    if damage := problems(output.directory, Depth.SIZES):
        remake = f"{task.label}: make it again: {remake_command(task)}"
        return [*(f"{task.label}: damaged: {line}" for line in damage), remake]
    if output.reused:
        return [
            f"{task.label}: reused; nothing would run, because its inputs have the content that "
            f"{output.directory} was made from"
        ]
    return [f"{task.label}: done; nothing would run", *_other_execution(task)]


def _causes(task: StageTask, manifest: dict[str, Any], told: set[str]) -> Iterator[str]:
    """The changes of a stage since an output, and of the stages above it that are not yet told."""
    own, names = _changes(task, manifest)
    yield from (f"{task.label}: {line}" for line in own)
    for name in names:
        needed, old = task.inputs[name], manifest["key"]["inputs"].get(name)
        made = needed.store.manifests(needed.stage, needed.round_number)
        then = next((one for one in made if one["fingerprint"] == old), None)
        if needed.task_id in told:
            continue
        told.add(needed.task_id)
        if then is None:
            yield f"{needed.label}: its earlier output was removed, so its changes are unknown"
        else:
            yield from _causes(needed, then, told)


def _other_contents(task: StageTask) -> list[str]:
    """The inputs that were made again with another content after this stage's own output."""
    own = task.store.directory(task.key)
    if not task.store.complete(task.key):
        return []
    then, now = read_manifest(own).get("contents") or {}, Outputs().contents(task) or {}
    return [
        f"upstream stage {task.inputs[name].label} was made again and has another content"
        for name in sorted(now)
        if now[name] != then.get(name)
    ]


def _other_execution(task: StageTask) -> list[str]:
    """Changed settings of how a stage is executed, compared with its output."""
    before, now = (
        read_manifest(task.directory).get("execution", {}),
        select_execution(task.settings, task.reading()),
    )
    return [
        f"{task.label}: setting {name}: {before[name]!r} -> {now[name]!r} "
        "(changes how work is executed, not its result)"
        for name in sorted(before.keys() & now.keys())
        if before[name] != now[name]
    ]


def complete_outputs(report: StageTask) -> dict[str, Path]:
    """The complete outputs of a configuration's stages, in running order."""
    return {task.label: task.directory for task in walk(report) if task.complete()}
