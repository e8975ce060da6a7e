"""All checks of a run, and its plan if there are no faults.

`check_run` serves ``steep check``. `check_start` checks in the same way the stages that ``steep
run`` is about to run. The declarations of the stages (`StageTask.opens`, `StageTask.faults`) decide
the checks.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline.config import Config, load
from pipeline.config.machine_choices import resolve_dtypes
from pipeline.core.errors import ConfigError, SteepError
from pipeline.engine.check.devices import Machine, device_faults, division_faults, this_machine
from pipeline.engine.check.models import (
    access_faults,
    downloads,
    fit_faults,
    model_faults,
    template_notes,
)
from pipeline.engine.check.packages import package_faults
from pipeline.engine.check.presets import kept_settings
from pipeline.engine.execution.start import execution_faults
from pipeline.engine.needs import need_faults
from pipeline.engine.opened import Opened, Remote
from pipeline.engine.plan.memory import gib
from pipeline.engine.plan.plan import Plan, make_plan
from pipeline.engine.plan.sizes import sizes_of
from pipeline.engine.shards import whole
from pipeline.engine.stage import STAGES, Outputs, StageTask, walk_configured, whole_name
from pipeline.llm.endpoint_client import ApiKey


class RunRefused(SteepError, RuntimeError):
    """A run has faults and was not started; the message has a line for each of them."""


@dataclass(frozen=True)
class Checked:
    """The result of the checks.

    ``plan`` is None when the configuration is invalid. ``downloads`` are models that are fetched
    from the hub, with their bytes if known. ``notes`` are sentences about the data of a run without
    faults.
    """

    faults: tuple[str, ...]
    plan: Plan | None = None
    downloads: tuple[tuple[str, float | None], ...] = ()
    notes: tuple[str, ...] = ()


def check_run(
    config: str, overrides: tuple[str, ...], data: str | None, machine: Machine
) -> Checked:
    """Check a whole run on a machine; other arguments as in `pipeline.engine.stage.task_for`."""
    try:
        dtypes = resolve_dtypes(load(config, overrides, data), gpus=bool(machine.gpus)).dtypes
    except SteepError as error:
        rest = (
            "files, models and memory are checked once the settings are valid; correct them first"
        )
        return Checked((*str(error).splitlines(), f"{config}: {rest}"))
    chosen = (*overrides, *(f"{name}={dtype}" for name, dtype in dtypes.items()))
    tasks = list(walk_configured(STAGES["report"](config=config, overrides=chosen, data=data)))
    checked = check_tasks(tasks, machine)
    if checked.faults:
        return checked
    try:
        settings = tasks[-1].run_settings
        kept = (note for fatal, note in kept_settings(settings, distinct(tasks)) if not fatal)
        of_data = (note for task in tasks for note in task.notes())
        return replace(checked, notes=(*template_notes(settings), *kept, *of_data))
    except (SteepError, OSError) as error:
        return replace(checked, faults=(str(error),))


def check_start(
    tasks: Collection[StageTask], todo: Sequence[StageTask], machine: Machine | None = None
) -> Checked:
    """Check the stages of ``todo``; ``tasks`` also has the complete stages of the run.

    The default machine is this one. Raises RunRefused.
    """
    opening = [whole(task) for task in todo if not task.shards()]  # joining shards opens nothing
    stages, running = {one.stage for one in opening}, {one.task_id for one in opening}
    held = _held_bytes([task for task in tasks if whole_name(task) in stages])
    examined = [task for task in walk_configured(todo[-1]) if task.task_id in running]
    if not examined:
        return Checked(())
    checked = check_tasks(examined, machine or this_machine(), held=held)
    if checked.faults:
        raise RunRefused("\n".join(checked.faults))
    return checked


def check_with(error: SteepError, task: StageTask) -> None:
    """Check all stages of ``task``, whose state ``error`` made unknown.

    Raises RunRefused with ``error`` and the other faults, if there are any.
    """
    checked = check_tasks(list(walk_configured(task)), this_machine())
    file = str(error).partition(": ")[0]  # a fault about the same file says the same
    others = [fault for fault in checked.faults if not fault.startswith(file)]
    if others:
        raise RunRefused("\n".join([str(error), *others])) from None


def check_tasks(tasks: Sequence[StageTask], machine: Machine, *, held: float = 0.0) -> Checked:
    """Check the stages of ``tasks``, which are not shards, on a machine.

    Only the files, models and directories of these stages are checked. ``held`` are bytes that they
    have written already, which count as part of the disk that they need.
    """
    settings = tasks[-1].run_settings
    local = machine.here and settings.execution.kind == "local"
    here_or_described = local or not machine.here
    opened = distinct(tasks)
    on_device = [one for one in opened if one.on_device]
    sizes = sizes_of(settings)
    plan = make_plan(tasks, sizes, machine.gpus if on_device else ())
    fetched = tuple(downloads(on_device)) if machine.here else ()
    space = sum(size or 0.0 for _, size in fetched)
    faults = _each(
        *(task.faults for task in tasks),
        lambda: (fault for task in tasks for fault in need_faults(task)),
        lambda: model_faults(settings, on_device, here=machine.here),
        lambda: access_faults(on_device) if local else (),
        lambda: fit_faults(on_device),
        lambda: division_faults(on_device),
        lambda: (fault for fatal, fault in kept_settings(settings, opened) if fatal),
        lambda: _keys(opened) if machine.here else (),
        lambda: device_faults(settings, on_device, machine) if here_or_described else (),
        lambda: package_faults(settings, on_device) if local else (),
        lambda: execution_faults(settings) if machine.here else (),
        lambda: folder_faults(settings) if machine.here else (),
        lambda: plan.faults(),
        lambda: _space_faults(settings, plan, space, held) if machine.here else (),
    )
    told = tuple(dict.fromkeys(faults))
    absent = _absent_files(tasks, told) if machine.here else ()
    return Checked((*told, *absent), plan, fetched)


def distinct(tasks: Iterable[StageTask]) -> list[Opened]:
    """Everything that the tasks open, each once: the rounds of a stage open the same."""
    found: list[Opened] = []
    for one in (one for task in tasks for one in task.opens()):
        if one not in found:
            found.append(one)
    return found


def _each(*checks: Callable[[], Iterable[str]]) -> Iterator[str]:
    """The faults of all checks; a check that fails itself gives the reason as a fault."""
    for check in checks:
        try:
            yield from check()
        except (SteepError, OSError) as error:
            yield str(error)


def _absent_files(tasks: Iterable[StageTask], told: Collection[str]) -> Iterator[str]:
    """A sentence for each missing file that a stage reads and that no fault in ``told`` names."""
    labels: dict[Path, str] = {}
    for task in tasks:
        with suppress(SteepError):  # a fault of the task
            paths = (path for path in task.files().values() if isinstance(path, Path))
            labels = {path: task.label for path in paths if not path.exists()} | labels
    for path, label in labels.items():
        if not any(str(path) in fault for fault in told):
            yield f"{path}: no such file, and {label} reads it; correct the setting that names it"


def _keys(opened: Iterable[Opened]) -> Iterator[str]:
    """A sentence for each endpoint without a key in its environment variable; sends nothing."""
    for one in opened:
        if isinstance(one, Remote):
            try:
                ApiKey(one.settings.api_key_env, one.block)
            except ConfigError as error:
                yield str(error)


def folder_faults(settings: Config) -> Iterator[str]:
    """A sentence for each directory of the run that cannot be made or written; nothing is made."""
    for path in (settings.run_dir / "store", settings.run_dir / "logs"):
        if os.path.lexists(path) and not path.is_dir():  # also a link to nothing
            yield f"{path} is not a directory; remove it, or set runs_dir or name"
    for key, path in (("runs_dir", settings.run_dir), ("cache_dir", Path(settings.cache_dir))):
        place = _existing(path)
        if place.is_dir() and not os.access(place, os.W_OK | os.X_OK):
            yield f"{key}: {place} cannot be written; change its permissions, or set {key}"


def _existing(path: Path) -> Path:
    """The path, or the nearest directory above it that exists."""
    for place in (path, *path.parents):
        if place.exists():
            return place
    return Path()


def _space_faults(settings: Config, plan: Plan, fetched: float, held: float = 0.0) -> Iterator[str]:
    """A sentence when the disk of the run has too little room.

    ``fetched`` are the bytes of models that are fetched from the hub, ``held`` the bytes of the
    plan that are on the disk already.
    """
    free = shutil.disk_usage(_existing(settings.run_dir)).free
    needed = max(plan.disk - held, 0.0) + fetched
    if needed > free:
        largest = max(plan.stages, key=lambda stage: stage.work.disk)
        yield (
            f"runs_dir: the run needs {gib(needed)} GiB of disk ({largest.stage} "
            f"{gib(largest.work.disk)}, models {gib(fetched)}), and {_existing(settings.run_dir)} "
            f"has {gib(free)} free; make room, or set runs_dir"
        )


def _held_bytes(tasks: Collection[StageTask]) -> float:
    """Bytes of the stages' outputs and checkpoints, and of the caches' answers and vectors."""
    outputs = Outputs()
    folders = [outputs.directory(task) for task in tasks]
    folders += [task.store.checkpoint_dir(task.key) for task in tasks]
    held = sum(_size(file) for folder in folders for file in folder.rglob("*"))
    caches = {Path(task.settings.cache_dir) for task in tasks}
    return held + sum(_size(file) for folder in caches for file in folder.glob("*.sqlite"))


def _size(path: Path) -> float:
    try:
        return path.stat().st_size if path.is_file() else 0.0
    except OSError:  # removed by another process
        return 0.0
