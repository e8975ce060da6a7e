"""``steep audit-rewards``: rewards against the truth of the closed world, as tables or JSON.

Input: scored trajectories of a closed world, of a run's round or of a file with rewards of one's
own. Output: AUC and calibration of every reward, by step and by trajectory
(`pipeline.evaluation.reward_audit`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, redirect_stdout
from typing import Annotated, Any, TypeAlias

import typer

from pipeline.cli.options import (
    Chosen,
    JsonOption,
    MarkdownOption,
    OptionalSource,
    RoundOption,
    refuse_options,
    with_configuration,
)
from pipeline.cli.printing import (
    check_markdown,
    print_lines,
    show_tables,
    silence_model_loading,
)
from pipeline.cli.records import Record, read_each, read_trajectory
from pipeline.core.errors import InputError
from pipeline.core.records import Trajectory

Scored: TypeAlias = "Iterator[tuple[Trajectory, Mapping[str, Any]]]"


@with_configuration
def audit_rewards(
    context: typer.Context,
    chosen: Chosen,
    source: OptionalSource = None,
    round: RoundOption = None,
    likelihood: Annotated[
        bool,
        typer.Option(
            "--likelihood",
            help="also the likelihood of the gold answer under the round's policy, and what "
            "retrievals add to it",
        ),
    ] = False,
    as_json: JsonOption = False,
    output: MarkdownOption = None,
) -> None:
    """Measure rewards against the truth of a closed world: AUC and calibration.

    FILE has scored trajectories of the configuration, with any further numbers among their rewards.
    Without FILE the scored trajectories of the round are read. The outcome (EM) is the baseline.
    """
    check_markdown(output)
    if source is not None:
        refuse_options(context, ["round", "likelihood"], "with FILE; remove one of them")
    from pipeline.closed_world.truth import Truth
    from pipeline.core.trajectory_file import FILE
    from pipeline.evaluation.reward_audit import audit, audited, tables
    from pipeline.methods import method

    config = chosen.load()
    if config.data.closed_world is None:
        raise InputError(
            f"{chosen.config} has no closed world (data.closed_world), so nothing tells what is "
            "true; name a configuration with one, such as embedded"
        )
    truth = Truth.of(chosen.finished("world"))
    source = source or str(chosen.finished("score", round) / FILE)
    scored = _scored(source)
    if likelihood:
        scored = _with_likelihood(chosen, round, scored)
    rows = audit(audited(scored, truth))
    trained = method(config.grammar)
    of_steps = {f"step.{term}": f"{title}, step" for term, title in trained.step_titles.items()}
    shown = tables(rows, {**trained.reward_titles, **of_steps})
    show_tables(shown, output, [row.as_json() for row in rows] if as_json else None)


def _with_likelihood(chosen: Chosen, round: int | None, scored: Scored) -> Scored:
    """The same with the likelihood of the gold answers under the policy that sampled them."""
    from pipeline.evaluation.gold_likelihood import GoldLikelihood, add_likelihood
    from pipeline.evaluation.information_gain import add_information_gain
    from pipeline.llm.tokens import control_tokens
    from pipeline.llm.transformers_engine import TransformersEngine
    from pipeline.rollout.grammars import grammar
    from pipeline.rollout.policy import read_policy
    from pipeline.training.lora import load_tokenizer, locate_base
    from tasks.policy import policy

    sample = chosen.task("sample", round)
    config = sample.settings
    adapter = read_policy(chosen.done(policy(sample, sample.round - 1))).adapter
    rewarded = [(trajectory, dict(rewards)) for trajectory, rewards in scored]
    print_lines([f"{len(rewarded):,} trajectories are read by policy {sample.round - 1}"], err=True)
    silence_model_loading()
    base = locate_base(config.model.base)
    with (
        redirect_stdout(sys.stderr),  # merging an adapter prints lines
        closing(TransformersEngine(config.engine, base, adapter=adapter)) as engine,
    ):
        tokenizer = load_tokenizer(base, config.model)
        form = grammar(config.grammar, special_tokens=control_tokens(tokenizer))
        likelihood = GoldLikelihood(engine, tokenizer, form, config.prompt)
        add_likelihood(rewarded, likelihood)
        add_information_gain(rewarded, likelihood, config.seed)
    return iter(rewarded)


def _scored(source: str) -> Scored:
    """The trajectories with rewards; raises InputError if there is none, or a number too large."""
    from pipeline.pairs.candidates import number

    def scored(record: Record) -> tuple[Trajectory, Record] | None:
        rewards = record.get("rewards")
        if rewards is None:  # retrieval failed
            return None
        steps = rewards.get("steps") or [] if isinstance(rewards, dict) else None
        if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
            raise InputError(
                "rewards: expected an object of numbers; steps in it are a list of objects"
            )
        for terms in (rewards, *steps):
            for name in (name for name, value in terms.items() if type(value) is int):
                number(terms, name)
        return read_trajectory(record, required=("question_id",)), rewards

    found = False
    for _, one in read_each(source, scored):
        if one is not None:
            found = True
            yield one
    if not found:
        raise InputError.at(source, "no trajectory has rewards; add them with steep score")
