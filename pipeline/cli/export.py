"""``steep export``: pairs, policies and answers for other tools."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pipeline.cli.options import Chosen, OptionalSource, with_configuration
from pipeline.cli.printing import silence_model_loading
from pipeline.core.errors import InputError
from pipeline.core.records import Pair
from pipeline.core.text import file_name

if TYPE_CHECKING:
    from pipeline.engine.stage import StageTask
    from pipeline.training.export.model import TrainedPolicy
    from pipeline.training.export.sources import Source

app = typer.Typer(no_args_is_help=True)


Directory = Annotated[
    Path, typer.Option("--output", "-o", metavar="DIR", help="new directory", show_default=False)
]


@app.callback()
def main() -> None:
    """Export preference pairs, a policy or its answers for other tools."""


@app.command()
@with_configuration
def pairs(
    chosen: Chosen,
    output: Directory,
    source: OptionalSource = None,
    round: Annotated[int | None, typer.Option("--round", help="round of the run, from 1")] = None,
    to: Annotated[
        Literal["trl", "llama-factory", "kto", "parquet"],
        typer.Option(
            help="trl: messages, ids, masks and a trainer that keeps them; llama-factory: a "
            "ranking data set; kto: labelled trajectories; parquet: all fields"
        ),
    ] = "trl",
) -> None:
    """Export the pairs of a round, or of a FILE of steep pair, as a data set with its card."""
    from pipeline.core.record_io import iterate_records
    from pipeline.training.export.pairs import export_pairs

    if (source is None) == (round is None):
        raise InputError("steep export pairs: name one of --round and FILE")
    if source is not None:
        name, read, sources = f"Pairs of {file_name(Path(source).name)}", _of_file(source), None
    else:
        task = chosen.task("pair", round)
        pairs = chosen.finished("pair", round) / "pairs.parquet"
        name, read = f"{task.settings.name}, round {round}", lambda: iterate_records(pairs, Pair)
        sources = _sources(chosen.task("score", round), chosen.task("corpus"))
    counts = export_pairs(read, output, to, name=name, sources=sources)
    typer.echo(f"{output}: {', '.join(f'{value:,} {key}' for key, value in counts.items())}")


def _sources(score: StageTask, corpus: StageTask) -> dict[str, list[Source]]:
    """The passages that each trajectory of a round retrieved, as far as their stages are there."""
    from pipeline.core.trajectory_file import FILE, iterate_trajectories
    from pipeline.training.export.sources import with_sources

    if not (score.complete() and corpus.complete()):
        return {}
    trajectories = iterate_trajectories(score.directory / FILE, ["trajectory_id", "steps"])
    found = with_sources(trajectories, corpus.directory)
    return {one.trajectory_id: list(sources.values()) for one, sources in found}


def _of_file(source: str) -> Callable[[], Iterable[Pair]]:
    """The pairs of a file of ``steep pair``, which has totals beside the fields of a pair."""
    from pipeline.cli.records import parse_view, read_each

    pairs = [pair for _, pair in read_each(source, partial(parse_view, Pair))]
    return lambda: pairs


@app.command()
@with_configuration
def model(
    chosen: Chosen,
    output: Directory,
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy", "--round", help="number of the policy (0: SFT); default: the last trained"
        ),
    ] = None,
    merged: Annotated[
        bool,
        typer.Option("--merged/--adapter", help="base model plus adapter, or the adapter alone"),
    ] = False,
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"], typer.Option(help="numbers of a merged model")
    ] = "float32",
) -> None:
    """Export a policy of the run with its tokenizer, chat template, lineage and model card."""
    from pipeline.training.export.model import export_adapter, export_merged

    trained = _trained(chosen.task("report"), policy)
    silence_model_loading()
    if merged:
        export_merged(trained, output, dtype)
    else:
        export_adapter(trained, output)
    typer.echo(f"{output}: {trained.name}, over {trained.base_name}")


def _trained(task: StageTask, policy: str | None) -> TrainedPolicy:
    """The named policy, or the last one of the run."""
    from pipeline.evaluation.policy_names import policy_in_text
    from pipeline.serving.named_policies import complete_policies, find_policy
    from pipeline.training.export.model import TrainedPolicy
    from pipeline.training.lineage import checked_policy, read_lineage
    from pipeline.training.lora import locate_base

    named = complete_policies(task)[-1] if policy is None else find_policy(task, policy)
    settings = task.settings
    checked = checked_policy(named.directory, settings.model.base, settings.hashes_file)
    if checked.adapter is None or named.directory is None or named.number is None:
        raise InputError(
            f"{policy_in_text(named.name)} is no policy that {settings.name} trained; name the "
            "number of one with --policy"
        )
    trained_on = (*settings.data.sft, *settings.data.sampling)
    return TrainedPolicy(
        name=f"{settings.name}, {policy_in_text(named.name)}",
        base=settings.model.base,
        directory=locate_base(settings.model.base),
        adapter=checked.adapter,
        lineage=read_lineage(named.directory),
        chat_template=settings.model.chat_template,
        settings={
            "grammar": settings.grammar,
            "retrieval": settings.retrieval.variant,
            "documents": ", ".join(file.path for file in settings.corpus.files),
            "questions": ", ".join(dict.fromkeys(file.dataset for file in trained_on)),
        },
        metrics=_metrics(task, named.name),
    )


@app.command()
@with_configuration
def answers(
    chosen: Chosen,
    output: Directory,
    round: Annotated[
        int, typer.Option("--policy", "--round", help="number of the evaluated policy (0: SFT)")
    ],
) -> None:
    """Export an evaluated policy's answers in FlashRAG's form (intermediate_data.json)."""
    from pipeline.core.record_io import iterate_records
    from pipeline.core.records import Trajectory
    from pipeline.core.trajectory_file import FILE
    from pipeline.training.export.flashrag import export_answers

    evaluated = chosen.finished("evaluate-policy", round) / FILE
    corpus = chosen.finished("corpus")
    counts = export_answers(iterate_records(evaluated, Trajectory), corpus, output)
    typer.echo(f"{output}: {', '.join(f'{value:.4g} {key}' for key, value in counts.items())}")


def _metrics(task: StageTask, policy: str) -> list[dict[str, object]]:
    """The rows of the policy over whole splits, if the run has been evaluated."""
    from pipeline.core.input_files import read_json
    from tasks import STAGES

    evaluated = task.clone(STAGES["evaluate"])
    if not evaluated.complete():
        return []
    rows = read_json(evaluated.directory / "metrics.json", list)
    return [row for row in rows if row["policy"] == policy and "/" not in row["split"]]
