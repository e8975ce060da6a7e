"""``steep ask``: questions to the policies of a run, with the steps that led to each answer."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from pipeline.cli.options import Chosen, PolicyOption, with_configuration
from pipeline.cli.printing import console, print_json
from pipeline.core.errors import InputError
from pipeline.core.records import Chunk, Question, Step
from pipeline.core.text import visible

if TYPE_CHECKING:
    from pipeline.rollout.answering import Answered

Answers: TypeAlias = "list[tuple[str, Answered]]"  # by the name of the policy


@with_configuration
def ask(
    chosen: Chosen,
    question: Annotated[
        str | None,
        typer.Argument(
            help="the question; without it questions are read from the terminal, or from the lines "
            "of standard input, which may be JSON objects with the field question",
            show_default=False,
        ),
    ] = None,
    policy: PolicyOption = None,
    compare: Annotated[
        str | None,
        typer.Option(
            metavar="POLICY,POLICY…",
            help="ask several policies, such as 0,3, and show their answers beside each other",
        ),
    ] = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="show the whole text of each search result")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="print a JSON object for each question")
    ] = False,
) -> None:
    """Ask a policy of a run: its answer, its steps, and the results of each search.

    Nothing of the run is made or changed. The policy works with the settings of the evaluation.
    """
    names = _names(policy, compare)
    from pipeline.rollout.answering import question_record

    only = None if question is None else question_record(question)
    task = chosen.task("evaluate")
    from pipeline.serving.asking import asked_policies, opened

    asked = asked_policies(task, names)
    if len(asked) < len(names):
        raise InputError(f"--compare is {compare!r}, which names one policy twice; name each once")
    with opened(task, asked, _tell) as processes:
        for record in [only] if only is not None else _questions():
            pending = [(process.name, process.ask(record)) for process in processes]
            answers = [(name, answer.result()) for name, answer in pending]
            corpus = asked[0].context.inputs.get("corpus")
            if as_json:
                indent = None if only is None else 2
                print_json(_as_json(record, answers, compare is not None, corpus), indent=indent)
            else:
                _print(record, answers, whole, corpus)
            sys.stdout.flush()


def _names(policy: str | None, compare: str | None) -> list[str]:
    if compare is None:
        return [] if policy is None else [policy]
    if policy is not None:
        raise InputError("--policy cannot be used with --compare; name all policies in --compare")
    names = [name.strip() for name in compare.split(",") if name.strip()]
    if len(names) < 2:
        raise InputError(
            f"--compare is {compare!r}; expected two or more policies, separated by commas, such "
            "as 0,3"
        )
    return names


def _tell(line: str) -> None:
    """Print progress, apart from the answers."""
    typer.echo(visible(line), err=True)


def _questions() -> Iterator[Question]:
    """The questions that are typed, or the lines of standard input; empty lines are left out."""
    from pipeline.rollout.answering import question_record

    typed = sys.stdin.isatty()
    for number, line in enumerate(_typed() if typed else sys.stdin.buffer, start=1):
        try:
            text = line if isinstance(line, str) else line.decode()
            if text.strip():
                yield question_record(_question_of(text))
        except (InputError, UnicodeDecodeError) as error:
            problem = str(error) if isinstance(error, InputError) else "not UTF-8 text"
            if not typed:
                raise InputError.at("<stdin>", problem, number) from None
            _tell(f"error: {problem}")


def _question_of(line: str) -> str:
    """The field ``question`` of a JSON object, such as a line of a question file, or the line."""
    with suppress(ValueError):
        value = json.loads(line)
        if isinstance(value, dict) and isinstance(value.get("question"), str):
            return str(value["question"])
    return line


def _typed() -> Iterator[str]:
    import readline  # noqa: F401 - gives `input` a history and the usual keys

    _tell("ask a question; an end of file (Ctrl-D) ends")
    with suppress(EOFError):
        while True:
            yield input("question> ")
    typer.echo(err=True)


def _sources(answered: Answered, corpus: Path | None) -> list[Chunk]:
    """The passages of an answer's search results; none if a retrieval service has the corpus."""
    from pipeline.knowledge.retrieval.origins import passages

    items = [item for step in answered.trajectory.steps for item in step.context]
    return [] if corpus is None else passages(items, corpus)


def _as_json(
    question: Question, answers: Answers, several: bool, corpus: Path | None
) -> dict[str, Any]:
    """``answer``, ``steps`` and ``sources``; for several policies, a list of these objects."""
    objects = []
    for name, answered in answers:
        made = answered.trajectory
        sources = _sources(answered, corpus)
        objects.append(
            {
                "policy": name, "fingerprint": made.policy, "answer": made.answer,
                "steps": [_step_fields(step) for step in made.steps],
                "sources": [{"id": c.id, "title": c.title, "source": c.source} for c in sources],
                "format_ok": made.format_ok, "format_error": made.format_error, "stop": made.stop,
                "tokens": made.tokens, "output": made.output, "seconds": round(answered.seconds, 3),
            }
        )  # fmt: skip
    if several:
        return {"question": question.question, "policies": objects}
    return {"question": question.question, **objects[0]}


def _step_fields(step: Step) -> dict[str, Any]:
    """The search query of a step, its results, and the other fields that its grammar fills."""
    fields = dataclasses.asdict(step)
    named = {name: value for name, value in fields.items() if value not in ("", None, [])}
    return {**named, "query": step.asked, "context": fields["context"]}


def _print(question: Question, answers: Answers, whole: bool, corpus: Path | None) -> None:
    """Print the answers under the question: in a wide terminal in columns, else as a list."""
    from rich.panel import Panel
    from rich.text import Text

    from pipeline.evaluation.policy_names import policy_title
    from pipeline.evaluation.terminal import beside, cost_line, print_rule, printable, steps_text

    def shown(answered: Answered) -> Text:
        text = steps_text(answered.trajectory, whole=whole)
        sources = dict.fromkeys(chunk.source for chunk in _sources(answered, corpus))
        if named := ", ".join(filter(None, sources)):
            text.append(f"\nsources: {printable(named)}", style="dim")
        return text

    terminal = console(120)
    print_rule(terminal, question.question)
    panels = [
        Panel(
            shown(answered),
            title=Text(printable(policy_title(name))),
            subtitle=Text(cost_line(answered.trajectory, answered.seconds)),
            title_align="left",
        )
        for name, answered in answers
    ]
    beside(terminal, panels)
