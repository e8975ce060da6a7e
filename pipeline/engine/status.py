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
from pipeline.engine.stage import Outputs, StageTask, needed_here, walk
from pipeline.engine.store import (
    differences,
    holds_checkpoints,
    problems,
    read_manifest,
)

_NAMED = 2  # upstream stages in the message of a stale stage

State = Literal["done", "reused", "stale", "missing", "running", "failed"]
_IDLE = ("stale", "missing", "failed")


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

    def below(one: StageTask) -> dict[str, StageTask]:
        """With the shards of a done stage that are there."""
        done, shards = outputs.of(one), one.shards().items()
        return needed_here(one) | {
            name: each for name, each in shards if not done or outputs.of(each)
        }

    stages = list(walk(task, below))
    rows, now = [_state(one, outputs) for one in stages], Outputs()
    return [  # a stage without a process may have ended in the meantime
        _state(one, now) if row.state in _IDLE and now.of(one) else row
        for one, row in zip(stages, rows, strict=True)
    ]


def _state(task: StageTask, outputs: Outputs, *, contents: bool = False) -> StageState:
    output = outputs.of(task)
    if output is None:
        return _unfinished(task, outputs)
    damage, place = problems(output.directory, contents=contents), str(output.directory)
    remake = remake_command(task, output.directory) if damage else None
    manifest = {} if damage else read_manifest(output.directory)
    counts, seconds = manifest.get("counts", {}), manifest.get("wall_seconds")
    state: State = "reused" if output.reused else "done"
    return StageState(task.label, state, counts, seconds, place, damage, remake)


def _unfinished(task: StageTask, outputs: Outputs) -> StageState:
    """The state of a stage without complete output."""
    store, key = task.store, task.key
    progress, message = read_progress(store.progress_file(key)), None
    earlier = outputs.earlier(task)
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
            message = "; ".join(_changes(task, earlier[0], outputs)[0]) or None
    shown = None if progress is None else progress.to_json()
    directory = str(store.directory(key))
    return StageState(task.label, state, {}, None, directory, progress=shown, message=message)


def _changes(
    task: StageTask, then: dict[str, Any], outputs: Outputs
) -> tuple[list[str], list[str]]:
    """The own changes of a stage since an output, and the names of the inputs that changed.

    If the stage itself is as before, the first list says which stages it follows.
    """
    own, inputs = differences(task.key, then)
    names = [name for name in inputs if name in task.inputs]
    own += [f"reads no {name} any more" for name in inputs if name not in task.inputs]
    if not own and names:
        labels = [task.inputs[name].label for name in names]
        more = f" and {len(labels) - _NAMED} more" if len(labels) > _NAMED else ""
        own = [f"follows {', '.join(labels[:_NAMED])}{more}"]
    return own or _other_contents(task, outputs), names


def verify(task: StageTask) -> list[StageState]:
    """The completed outputs that ``task`` needs, in running order; their contents are checked."""
    outputs = Outputs()
    found = (one for one in walk(task, outputs.requires) if outputs.of(one))
    return [_state(one, outputs, contents=True) for one in found]


def why(task: StageTask) -> list[str]:
    """The settings, files or upstream stages whose change makes ``task`` run again.

    There is a line for each change, and for each stage between a change and ``task``. A stage that
    is done gives the settings that would execute it in another way.
    """
    outputs = Outputs()
    output = outputs.of(task)
    if output is None:
        earlier = outputs.earlier(task)
        parts = (task, *task.shards().values())
        states = [_unfinished(one, outputs) for one in parts if not outputs.of(one)]
        if failed := [
            f"{one.label}: failed: {one.message}" for one in states if one.state == "failed"
        ]:
            return failed
        if not earlier:
            return [f"{task.label}: never completed with any settings"]
        return list(_causes(task, earlier[0]["fingerprint"], outputs))
    if damage := problems(output.directory):
        remake = f"{task.label}: make it again: {remake_command(task, output.directory)}"
        return [*(f"{task.label}: damaged: {line}" for line in damage), remake]
    if output.reused:
        return [
            f"{task.label}: reused; nothing would run, because its inputs have the content that "
            f"{output.directory} was made from"
        ]
    return [f"{task.label}: done; nothing would run", *_other_execution(task)]


def _causes(task: StageTask, fingerprint: str, outputs: Outputs) -> Iterator[str]:
    """The changes since an output, of its stage and of the stages above it, each told once."""
    told, todo = set[str](), [(task, fingerprint)]
    while todo:
        one, old = todo.pop()
        if one.task_id in told:
            continue
        told.add(one.task_id)
        then = next((made for made in outputs.earlier(one) if made["fingerprint"] == old), None)
        if then is None:
            yield f"{one.label}: its earlier output was removed, so its changes are unknown"
            continue
        own, names = _changes(one, then, outputs)
        yield from (f"{one.label}: {line}" for line in own)
        before = then["key"]["inputs"]
        todo += [(one.inputs[name], before.get(name, "")) for name in reversed(names)]


def _other_contents(task: StageTask, outputs: Outputs) -> list[str]:
    """The inputs that were made again with another content after this stage's own output."""
    own = task.store.directory(task.key)
    if not task.store.complete(task.key):
        return []
    then, now = read_manifest(own).get("contents") or {}, outputs.contents(task) or {}
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
    outputs = Outputs()
    found = ((task.label, outputs.of(task)) for task in walk(report, outputs.requires))
    return {label: output.directory for label, output in found if output}
