"""All checks of a run, and the plan of one without faults.

`check_run` serves ``steep check``. `early_faults` are the checks that ``steep run`` makes before its first
stage: those of the machine and the settings, which take milliseconds and are certain.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from pipeline.config import Config
from pipeline.config.reading import load_with_faults
from pipeline.core.errors import SteepError
from tasks.checks.data import data_faults
from tasks.checks.devices import device_faults, division_faults
from tasks.checks.endpoints import endpoint_faults
from tasks.checks.lengths import length_faults
from tasks.checks.machine import Machine, this_machine
from tasks.checks.models import downloads, fit_faults, model_faults
from tasks.checks.packages import package_faults
from tasks.checks.space import folder_faults, ram_faults, space_faults
from tasks.checks.supply import supply_faults
from tasks.checks.uses import needed_gpus, runs_elsewhere, stage_names, used_models
from tasks.planning.gpu_time import gpu_seconds
from tasks.planning.memory import MemoryPlan, memory_plan
from tasks.planning.sizes import Sizes, sizes_of
from tasks.report import Report

_UNCHECKED = (
    "files, models and memory are checked once these settings are valid; correct them first"
)


@dataclass(frozen=True)
class Checked:
    """What `check_run` found.

    ``plan`` is None when the configuration is invalid. ``seconds`` are expected GPU seconds by stage, for
    runs on GPUs. ``downloads`` are models that are fetched from the hub, with their bytes if known.
    """

    faults: tuple[str, ...]
    settings: Config | None = None
    plan: MemoryPlan | None = None
    sizes: Sizes | None = None
    seconds: Mapping[str, float] | None = None
    downloads: tuple[tuple[str, float | None], ...] = ()


def check_run(
    config: str, overrides: tuple[str, ...], data: str | None, machine: Machine
) -> Checked:
    """Check the run of a configuration on a machine; arguments are those of `tasks.run.task_for`."""
    settings, found = load_with_faults(config, overrides, data)
    if settings is None:
        return Checked((*found, f"{config}: {_UNCHECKED}"))
    local = machine.here and not runs_elsewhere(settings)
    faults = list(found)
    stages = _stages(config, overrides, data, settings) if not found else _STAGES
    sizes = sizes_of(settings)
    gpus = machine.gpus if _on_gpus(settings, stages, machine) else ()
    plan = memory_plan(settings, stages, sizes, gpus)
    vectors = max(sizes.chunks, sizes.entities, sizes.hyperedges)
    fetched = tuple(downloads(settings, stages)) if machine.here else ()
    faults += _each(
        lambda: data_faults(settings, stages),
        lambda: supply_faults(settings, stages),
        lambda: model_faults(settings, stages, here=machine.here),
        lambda: fit_faults(settings, stages, vectors),
        lambda: division_faults(settings, stages),
        lambda: length_faults(settings, stages),
        lambda: endpoint_faults(settings, stages) if machine.here else (),
        lambda: device_faults(settings, stages, machine) if local or not machine.here else (),
        lambda: package_faults(settings, stages) if local else (),
        lambda: folder_faults(settings) if machine.here else (),
        lambda: plan.faults(),
        lambda: ram_faults(plan, machine) if local or not machine.here else (),
        lambda: _space(settings, plan, fetched) if machine.here else (),
    )
    return Checked(
        tuple(dict.fromkeys(faults)),
        settings,
        plan,
        sizes,
        gpu_seconds(settings, sizes) if gpus else None,
        fetched,
    )


def early_faults(
    settings: Config, stages: Collection[str], machine: Machine | None = None
) -> list[str]:
    """Faults of the stages that are about to run: devices, packages and limits.

    A machine that is not given is this one, and is looked at only where GPUs are needed. Nothing is
    checked where stages run on other machines.
    """
    if runs_elsewhere(settings):
        return []
    needs = needed_gpus(settings, stages)
    there = machine or (this_machine() if needs else Machine(()))
    return _each(
        lambda: device_faults(settings, stages, there),
        lambda: package_faults(settings, stages) if needs else (),
        lambda: fit_faults(settings, stages) if needs else (),
        lambda: division_faults(settings, stages),
    )


def _each(*checks: Callable[[], Iterable[str]]) -> list[str]:
    """The faults of all checks; a check that fails itself gives the reason as a fault."""
    faults: list[str] = []
    for check in checks:
        faults += _guarded(check)
    return faults


def _guarded(check: Callable[[], Iterable[str]]) -> Iterator[str]:
    try:
        yield from check()
    except (SteepError, OSError) as error:
        yield str(error)


def _stages(
    config: str, overrides: tuple[str, ...], data: str | None, settings: Config
) -> list[str]:
    task = Report(config=config, overrides=overrides, data=data)
    names = stage_names(task)
    retrieves = settings.retrieval.variant != "none"
    return [name for name in names if retrieves or name not in ("index", "hyper-index")]


# The stages of a configuration with invalid settings, which has no tasks.
_STAGES = [
    "questions-sft", "questions-sampling", "questions-test", "corpus", "graph", "index", "sft-data", "sft",
    "sample", "score", "train", "evaluate-policy",
]  # fmt: skip


def _on_gpus(settings: Config, stages: Collection[str], machine: Machine) -> bool:
    """Whether models run on the machine's GPUs: ``device: auto`` takes those that there are."""
    return bool(machine.gpus) and bool(list(used_models(settings, stages)))


def _space(
    settings: Config, plan: MemoryPlan, fetched: tuple[tuple[str, float | None], ...]
) -> Iterator[str]:
    return space_faults(settings, plan, sum(size or 0.0 for _, size in fetched))
