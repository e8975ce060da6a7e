"""Options and arguments that commands share, the configuration that they name, and its stages.

Input: the words of a command line. Output: a `Chosen` configuration, and completions for shells.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.core.errors import InputError, StoreError

if TYPE_CHECKING:
    from pipeline.config import Config
    from pipeline.engine.stage import StageTask

DEFAULT_CONFIGURATION = "embedded"


def complete_configurations(incomplete: str) -> list[str]:
    """Names of shipped configurations."""
    from pipeline.core.shipped import configuration_names

    return [name for name in configuration_names() if name.startswith(incomplete)]


def complete_variants(incomplete: str) -> list[str]:
    """Names of variants."""
    from pipeline.config.variants import variants

    return [name for name in variants() if name.startswith(incomplete)]


def complete_stages(incomplete: str) -> list[str]:
    """Stages that ``steep run`` takes."""
    from tasks import STAGES

    return [name for name, kind in STAGES.items() if kind.named and name.startswith(incomplete)]


StageArgument = Annotated[
    str,
    typer.Argument(help="stage, with everything that it needs", autocompletion=complete_stages),
]
RoundOption = Annotated[
    int | None, typer.Option("--round", help="round from 1, for stages of a round")
]
WorkersOption = Annotated[int | None, typer.Option("--workers", help="stages run at once")]
NoCheckOption = Annotated[
    bool, typer.Option("--no-check", help="start without the checks of steep check")
]
NAMES_OF_POLICIES = "number of a policy (0: SFT), base, RUN:NUMBER, or an adapter's directory"
PolicyOption = Annotated[
    str | None,
    typer.Option(
        "--policy",
        help=f"{NAMES_OF_POLICIES}; default: the last trained policy",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="print JSON")]
MarkdownOption = Annotated[
    str | None, typer.Option("--output", "-o", help="Markdown file for the tables")
]
Source = Annotated[str, typer.Argument(metavar="FILE", help="JSONL or Parquet file; - is stdin")]
OptionalSource = Annotated[
    str | None,
    typer.Argument(metavar="FILE", help="JSONL or Parquet file; - is stdin", show_default=False),
]
Output = Annotated[str, typer.Option("--output", "-o", help="JSONL file; - is standard output")]


@dataclass(frozen=True)
class Chosen:
    """The configuration that a command line names; ``given``: a file or variant was named."""

    config: str
    overrides: tuple[str, ...] = ()
    data: Path | None = None
    given: bool = True

    @property
    def root(self) -> str | None:
        """The directory of the data files. Raises InputError when it is not a directory."""
        if self.data is None:
            return None
        if not self.data.is_dir():
            raise InputError.at(
                self.data,
                "no such directory; --data (DATA=) takes the directory of the data files",
            )
        return str(self.data.absolute())

    def load(self) -> Config:
        """The configuration. Raises ConfigError with its errors."""
        from pipeline.config import load

        return load(self.config, self.overrides, self.root)

    def task(
        self, stage: str = "report", round: int | None = None, overrides: Sequence[str] = ()
    ) -> StageTask:
        """The Luigi task of a stage, with further overrides.

        Relative paths in a configuration, such as ``runs_dir``, are below the current directory.
        Raises ConfigError for an unknown stage or an impossible round.
        """
        from tasks import task_for

        return task_for(stage, self.config, (*self.overrides, *overrides), self.root, round)

    def finished(self, stage: str, round: int | None = None) -> Path:
        """The output of a stage.

        Raises StoreError, which names its command, if it is not done, or damaged.
        """
        return self.done(self.task(stage, round))

    def done(self, task: StageTask) -> Path:
        """The output of a task; raises as `finished`."""
        from pipeline.engine.job import check_output, run_command

        if not task.complete():
            raise StoreError(f"{task.label} is not done; run: {run_command(task)}")
        return check_output(task)


def _chosen(
    config: Annotated[
        str | None,
        typer.Option(
            "--config",
            "-c",
            help=f"configuration file, or name of a shipped one (default: {DEFAULT_CONFIGURATION})",
            autocompletion=complete_configurations,
        ),
    ] = None,
    variant: Annotated[
        str | None,
        typer.Option(
            "--variant",
            help="ablation or baseline, in place of --config; steep init --list",
            autocompletion=complete_variants,
        ),
    ] = None,
    set: Annotated[
        list[str] | None, typer.Option("--set", help="key.key=value; repeatable")
    ] = None,
    data: Annotated[Path | None, typer.Option("--data", help="directory of the data files")] = None,
) -> Chosen:
    if variant is not None:
        from pipeline.config.variants import check_variant

        check_variant(variant)
        if config is not None:
            raise InputError(
                f"--variant {variant} already names a configuration; leave out --config {config}"
            )
    name = config if variant is None else variant
    chosen = DEFAULT_CONFIGURATION if name is None else name  # an empty one names no file
    return Chosen(chosen, tuple(set or ()), data, name is not None)


_CHOICE = inspect.signature(_chosen, eval_str=True).parameters


def with_configuration(command: Callable[..., Any]) -> Callable[..., Any]:
    """``command`` with --config, --variant, --set and --data in place of ``chosen``.

    A command's option with one of these names stays.
    """
    signature = inspect.signature(command, eval_str=True)
    parameters = [one for one in signature.parameters.values() if one.name != "chosen"]
    added = {name: one for name, one in _CHOICE.items() if name not in signature.parameters}
    parameters += added.values()

    @functools.wraps(command)
    def run(**values: Any) -> Any:
        chosen = _chosen(**{name: values.pop(name, None) for name in added})
        return command(chosen=chosen, **values)

    keywords = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]
    run.__signature__ = signature.replace(parameters=keywords)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in keywords}
    return run


def refuse_options(context: typer.Context, names: Sequence[str], reason: str) -> None:
    """Raise InputError, ending in ``reason``, if the command line has one of the options."""
    named = {
        parameter.name: "FILE" if parameter.param_type_name == "argument" else parameter.opts[0]
        for parameter in context.command.params
    }
    used = [
        named[name]
        for name in names
        if (source := context.get_parameter_source(name)) and source.name == "COMMANDLINE"
    ]
    if used:
        raise InputError(f"steep {context.info_name}: {', '.join(used)} cannot be used {reason}")


MachineOption = Annotated[
    str | None,
    typer.Option(
        "--machine",
        help="plan for another machine: 8x80 has 8 GPUs of 80 GB",
    ),
]
