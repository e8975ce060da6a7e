"""``steep synthesise`` and ``decompose``: a language model writes questions, or their hops."""

from __future__ import annotations

import json
import sys
from collections import Counter
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.options import Chosen, JsonOption, Output, with_configuration
from pipeline.cli.printing import print_json
from pipeline.core.errors import InputError
from pipeline.core.record_io import as_json as record_json
from pipeline.core.record_io import write_jsonl

if TYPE_CHECKING:
    from pipeline.config import Config
    from pipeline.llm.chat import Chat


EndpointOption = Annotated[
    str | None,
    typer.Option(
        help="address of an OpenAI-compatible endpoint; default: the model or endpoint of "
        "sft_data, else of graph, else model.base"
    ),
]
ModelOption = Annotated[str | None, typer.Option(help="name of the model at the endpoint")]
KeyOption = Annotated[str | None, typer.Option(help="environment variable with the API key")]
CeilingOption = Annotated[
    int | None,
    typer.Option(min=1, help="tokens at which the work stops; a public address needs a ceiling"),
]


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
    endpoint: EndpointOption = None,
    model: ModelOption = None,
    api_key_env: KeyOption = None,
    token_ceiling: CeilingOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write questions about the documents with a language model, and verify them.

    Every reply is kept, so that an interrupted synthesis continues. The corpus and the graph of the
    run must be complete.
    """
    from pipeline.serving.named_policies import finished
    from pipeline.training.synthesis.run import Wanted, synthesise

    task = chosen.task("graph", overrides=_overrides(endpoint, model, api_key_env, token_ceiling))
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


@with_configuration
def decompose(
    chosen: Chosen,
    questions: Annotated[Path, typer.Argument(metavar="FILE", help="questions with answers")],
    output: Output = "-",
    dataset: Annotated[
        str, typer.Option(help="musique, hotpotqa, …, or any name for questions of another form")
    ] = "questions",
    endpoint: EndpointOption = None,
    model: ModelOption = None,
    api_key_env: KeyOption = None,
    token_ceiling: CeilingOption = None,
) -> None:
    """Add hops to questions with a language model, for the cold start.

    The passages are those that the finished index of the run finds for a question. Questions
    without hops that hold are left out and counted. Every reply is kept.
    """
    from pipeline.serving.asking import found_passages
    from pipeline.serving.evaluations import told_questions
    from pipeline.training.synthesis.decompose import decompose

    task = chosen.task("index", overrides=_overrides(endpoint, model, api_key_env, token_ceiling))
    with redirect_stdout(sys.stderr):
        asked = told_questions(questions, dataset, for_training=True)
    passages = found_passages(task, [question.question for question in asked])
    with redirect_stdout(sys.stderr):
        _, chat = _writer(task.settings)
        with chat:
            made = decompose(asked, passages, chat)
            print(chat.usage.line())
    found = [question for question in made if not isinstance(question, str)]
    reasons = Counter(reason for reason in made if isinstance(reason, str))
    counts = "".join(f"; {reason}: {count:,}" for reason, count in reasons.most_common())
    told = f"{len(found):,} of {len(made):,} questions were decomposed{counts}"
    if not found:
        raise InputError(f"{told}; name another model, or add the documents that hold the answers")
    write_jsonl(output, map(record_json, found))
    typer.echo(told, err=True)


def _overrides(
    endpoint: str | None, model: str | None, key: str | None, ceiling: int | None
) -> list[str]:
    """The settings of an endpoint. Raises InputError when one of its options is missing."""
    if endpoint is None and (model or key or ceiling):
        raise InputError(
            "--model, --api-key-env and --token-ceiling belong to --endpoint; name it too"
        )
    if endpoint is None:
        return []
    if model is None:
        raise InputError("--endpoint is set and --model is missing; name the model")
    place = {"base_url": endpoint, "model": model, "api_key_env": key, "token_ceiling": ceiling}
    return ["sft_data.model=null", f"sft_data.endpoint={json.dumps(place)}"]


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
