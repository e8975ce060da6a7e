"""``steep synthesise``: questions from documents, written and verified by a language model."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.options import Chosen, JsonOption, with_configuration
from pipeline.cli.printing import print_json
from pipeline.core.errors import InputError

if TYPE_CHECKING:
    from pipeline.config import Config
    from pipeline.llm.chat import Chat


@with_configuration
def synthesise(
    chosen: Chosen,
    output: Annotated[Path, typer.Option("--output", "-o", help="new directory for the questions")],
    questions: Annotated[int, typer.Option(min=1, help="questions to draft")] = 200,
    multi_hop: Annotated[
        float, typer.Option(min=0, max=1, help="share of two-hop questions among them")
    ] = 0.5,
    held_out: Annotated[
        float, typer.Option(min=0, max=0.9, help="share of the documents for test.jsonl")
    ] = 0.1,
    endpoint: Annotated[
        str | None,
        typer.Option(
            help="address of an OpenAI-compatible endpoint; default: the model or endpoint of "
            "sft_data, else of graph, else model.base"
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="name of the model at the endpoint")] = None,
    api_key_env: Annotated[
        str | None, typer.Option(help="environment variable with the API key")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write questions about the documents with a language model, verified by its own answers.

    Every reply is kept, so that an interrupted synthesis continues. The corpus and the graph of the
    run must be complete.
    """
    if (endpoint is None) != (model is None) or (endpoint is None and api_key_env is not None):
        raise InputError("--endpoint and --model belong together; name both, or neither")
    overrides = []
    if endpoint is not None:
        place = {"base_url": endpoint, "model": model, "api_key_env": api_key_env}
        overrides = ["sft_data.model=null", f"sft_data.endpoint={json.dumps(place)}"]
    from pipeline.synthesis.run import Wanted, synthesise
    from tasks.named_policies import finished

    task = chosen.task("graph", overrides=overrides)
    inputs = finished({"corpus": task.inputs["corpus"], "graph": task})
    wanted = Wanted(questions, multi_hop, held_out, task.settings.seed)
    with redirect_stdout(sys.stderr):
        name, chat = _writer(task.settings)
        with chat:
            done = synthesise(
                inputs["corpus"], inputs["graph"], chat, wanted, output,
                name=f"{task.settings.name}-questions", model=name, tell=print,
            )  # fmt: skip
    kept = {"questions": len(done.questions), "test": len(done.test)}
    if as_json:
        print_json({**kept, "funnel": done.funnel, **done.usage})
        return
    typer.echo(f"{kept['questions']:,} questions and {kept['test']:,} test questions: {output}")
    for hops, counts in done.funnel.items():
        reasons = (f"{name}: {count:,}" for name, count in counts.items())
        typer.echo(f"{hops}: {', '.join(reasons)}")


def _writer(settings: Config) -> tuple[str, Chat]:
    """The name of the model that writes, and the model."""
    from pipeline.llm.models import Models

    models = Models(
        settings.model, settings.engine, settings.cache_dir, settings.hashes_file, settings.seed
    )
    for block, asked in (("sft_data", settings.sft_data), ("graph", settings.graph)):
        name = asked.model if asked.endpoint is None else asked.endpoint.model
        if name is not None:
            return name, models.chat(block, asked)
    return settings.model.base, models.policy_chat(None)
