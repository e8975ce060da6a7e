"""``steep check``: report all faults of a run that can be found before it starts."""

from __future__ import annotations

import typer

from pipeline.cli.options import (
    Chosen,
    JsonOption,
    MachineOption,
    with_configuration,
)
from pipeline.cli.plan import plan_json, print_plan
from pipeline.cli.printing import print_json, print_lines
from pipeline.core.errors import InputError


@with_configuration
def check(
    chosen: Chosen,
    machine: MachineOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check settings, files, models, packages, GPUs, their memory and disk before a run.

    Each fault is one line on standard error, and the exit status is 2. Without faults the plan is
    printed. Nothing is written, except a GGUF file's conversion. The network is used only to ask
    the hub whether it gives the missing models.
    """
    import tasks as tasks  # declares the stages
    from pipeline.engine.check.collect import check_run
    from pipeline.engine.check.devices import machine_of

    faults = []
    try:
        root = chosen.root
    except InputError as error:  # one of several faults
        faults, root = [str(error)], str(chosen.data)
    checked = check_run(chosen.config, chosen.overrides, root, machine_of(machine))
    faults += [line for fault in checked.faults for line in fault.splitlines()]
    print_lines(faults, err=True)
    if as_json:
        found = {"faults": faults, "notes": checked.notes, "downloads": dict(checked.downloads)}
        print_json({**found, "plan": plan_json(checked.plan)})
    elif checked.plan is not None and not faults:
        typer.echo("no faults")
        print_plan(checked.plan, checked.downloads)
        print_lines(checked.notes)
    if faults:
        raise typer.Exit(2)
