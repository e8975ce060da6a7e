"""All checks of a run, and the plan of one without faults.

`check_run` serves ``steep check``. `check_stages` makes the same checks of the stages that ``steep run`` is
about to run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from pipeline.config import Config
from pipeline.config.machine_choices import resolve_dtypes
from pipeline.config.reading import load_with_faults
from pipeline.core.errors import SteepError
from tasks.checks.access import access_faults
from tasks.checks.data import data_faults, data_notes
from tasks.checks.devices import device_faults, division_faults
from tasks.checks.endpoints import endpoint_faults
from tasks.checks.lengths import length_faults
from tasks.checks.machine import Machine
from tasks.checks.models import downloads, fit_faults, model_faults
from tasks.checks.packages import package_faults
from tasks.checks.space import folder_faults, ram_faults, space_faults
from tasks.checks.supply import supply_faults
from tasks.checks.uses import plain, runs_elsewhere, stage_names, used_models
from tasks.execution.start import check_execution
from tasks.planning.gpu_time import SECONDS_OF, gpu_seconds
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
    ``notes`` are sentences about the questions of a run without faults (`data_notes`).
    """

    faults: tuple[str, ...]
    settings: Config | None = None
    plan: MemoryPlan | None = None
    sizes: Sizes | None = None
    seconds: Mapping[str, float] | None = None
    downloads: tuple[tuple[str, float | None], ...] = ()
    notes: tuple[str, ...] = ()


def check_run(
    config: str, overrides: tuple[str, ...], data: str | None, machine: Machine
) -> Checked:
    """Check a whole run on a machine; the other arguments are those of `tasks.run.task_for`."""
    settings, found = load_with_faults(config, overrides, data)
    if settings is None:
        return Checked((*found, f"{config}: {_UNCHECKED}"))
    stages = _stages(config, overrides, data, settings) if not found else _STAGES
    checked = check_stages(settings, stages, machine)
    checked = replace(checked, faults=tuple(dict.fromkeys([*found, *checked.faults])))
    if checked.faults:
        return checked
    try:
        return replace(checked, notes=tuple(data_notes(settings, stages)))
    except (SteepError, OSError) as error:
        return replace(checked, faults=(str(error),))


def check_stages(
    settings: Config, stages: Collection[str], machine: Machine, *, held: float = 0.0
) -> Checked:
    """Check the named stages of a run on a machine.

    Only what these stages read, load and write is checked. ``held`` are bytes that they have written
    already, which count as part of the disk that they need.
    """
    settings = resolve_dtypes(settings, gpus=bool(machine.gpus)).settings
    local = machine.here and not runs_elsewhere(settings)
    stages = _indexed(settings, stages)
    sizes = sizes_of(settings)
    gpus = machine.gpus if _on_gpus(settings, stages, machine) else ()
    plan = memory_plan(settings, list(stages), sizes, gpus)
    vectors = max(sizes.chunks, sizes.entities, sizes.hyperedges)
    fetched = tuple(downloads(settings, stages)) if machine.here else ()
    faults = _each(
        lambda: data_faults(settings, stages),
        lambda: supply_faults(settings, stages),
        lambda: model_faults(settings, stages, here=machine.here),
        lambda: access_faults(settings, stages) if local else (),
        lambda: fit_faults(settings, stages, vectors),
        lambda: division_faults(settings, stages),
        lambda: length_faults(settings, stages),
        lambda: endpoint_faults(settings, stages) if machine.here else (),
        lambda: device_faults(settings, stages, machine) if local or not machine.here else (),
        lambda: package_faults(settings, stages) if local else (),
        lambda: _executor(settings) if machine.here else (),
        lambda: folder_faults(settings) if machine.here else (),
        lambda: plan.faults(),
        lambda: ram_faults(plan, machine) if local or not machine.here else (),
        lambda: _space(settings, plan, fetched, held) if machine.here else (),
    )
    return Checked(
        tuple(dict.fromkeys(faults)),
        settings,
        plan,
        sizes,
        _seconds(settings, sizes, stages) if gpus else None,
        fetched,
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
    return stage_names(task)


def _indexed(settings: Config, stages: Collection[str]) -> list[str]:
    """The stages without those of an index that nothing is retrieved from, which embed nothing."""
    retrieves = settings.retrieval.variant != "none"
    skipped = () if retrieves else ("index", "hyper-index")
    return [name for name in stages if name.removesuffix("-shard") not in skipped]


# The stages of a configuration with invalid settings, which has no tasks.
_STAGES = [
    "questions-sft", "questions-sampling", "questions-validation", "questions-test", "corpus", "graph", "index", "sft-data", "sft",
    "sample", "score", "train", "evaluate-policy",
]  # fmt: skip


def _on_gpus(settings: Config, stages: Collection[str], machine: Machine) -> bool:
    """Whether models run on the machine's GPUs: ``device: auto`` takes those that there are."""
    return bool(machine.gpus) and bool(list(used_models(settings, stages)))


def _seconds(settings: Config, sizes: Sizes, stages: Collection[str]) -> dict[str, float]:
    """Expected GPU seconds of the stages."""
    names = plain(stages) | {whole for stage, whole in SECONDS_OF.items() if stage in plain(stages)}
    return {name: value for name, value in gpu_seconds(settings, sizes).items() if name in names}


def _executor(settings: Config) -> Iterable[str]:
    check_execution(settings)
    return ()


def _space(
    settings: Config,
    plan: MemoryPlan,
    fetched: tuple[tuple[str, float | None], ...],
    held: float,
) -> Iterator[str]:
    return space_faults(settings, plan, sum(size or 0.0 for _, size in fetched), held)
