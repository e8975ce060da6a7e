"""The stage ``evaluate-policy``: greedy trajectories of one policy over the test questions.

`run` reads the questions of a held-out split, or one shard of them, and a policy. It writes
``trajectories.parquet`` and ``rows.json`` (`pipeline.evaluation.measured`). The stages
``evaluate-any`` and ``explore`` do the same for other questions and policies.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING

from pipeline.config import Config
from pipeline.core.errors import InputError
from pipeline.core.input_files import read_json
from pipeline.engine.luigi_adapter import luigi
from pipeline.engine.plan.clock import Clock
from pipeline.engine.stage import PolicyTask, StageTask
from tasks.index import searched
from tasks.policy import check_lineage, policy
from tasks.questions import QUESTIONS, input_questions, questions
from tasks.sample import LIMITS, ROLL_OUT, RollOutTask, roll_out_policy

if TYPE_CHECKING:
    from pipeline.engine.context import StageContext


# `EvaluatePolicy.settings` merges these into others, which count in their place.
_MERGED = ("evaluation.retrieval", "evaluation.sampling", "evaluation.final_split")


class EvaluatePolicy(PolicyTask, RollOutTask):
    """Greedy trajectories of one policy over the test questions, and their metrics."""

    stage = "evaluate-policy"
    help = "trajectories and metrics of one policy"
    version = 4  # punctuation of all scripts is no part of an answer
    reads = (
        "evaluation.temperature",
        "evaluation.split",
        "evaluation.cem",
        *(f"sampling.{name}" for name in LIMITS),
        "sampling.malformed_calls",
        "sampling.in_flight",
        "sampling.batch",
        *ROLL_OUT,
        *_MERGED,
    )
    final = luigi.BoolParameter(default=False, description="on evaluation.final_split")

    @cached_property
    def settings(self) -> Config:
        """The settings of evaluation, with ``final_split`` as the split of a final evaluation."""
        settings = super().settings
        own = settings.evaluation
        split = own.final_split if self.final else own.split
        update = {"split": split, "final_split": None}
        return settings.model_copy(update={"evaluation": own.model_copy(update=update)})

    def reading(self) -> tuple[str, ...]:
        return tuple(name for name in self.reads if name not in _MERGED)

    @property
    def round_number(self) -> int | None:
        return None if self.final else super().round_number

    @property
    def command(self) -> tuple[str, ...]:
        return ("run", "evaluate") if self.final else super().command

    @property
    def label(self) -> str:
        split = f"-{self.number}-{self.settings.evaluation.split}" if self.final else ""
        return f"{super().label}{split}"

    @cached_property
    def inputs(self) -> dict[str, StageTask]:
        return {
            **searched(self),
            "questions": questions(self, self.settings.evaluation.split),
            "policy": policy(self, int(self.number)),
        }

    def findings(self) -> Iterator[str]:
        """EM with its interval, and the gain over the policy before if that is evaluated."""
        from pipeline.evaluation.compare import interval_text
        from pipeline.evaluation.measured import average
        from pipeline.evaluation.policy_names import policy_in_text

        row = self.settings.evaluation.average, self.settings.seed
        own = average(self.directory, *row)
        interval = interval_text(own["ci"]["em"], scale=100)
        yield f"EM {100 * own['em']:.1f}" + (interval and f" (95 % interval {interval})")
        if self.number and not self.final:
            before: StageTask = self.clone(EvaluatePolicy, number=self.number - 1)
            if before.complete():
                gain = own["em"] - average(before.directory, *row)["em"]
                name = policy_in_text(self.run_settings.policy_name(self.number - 1))
                yield f"{100 * gain:+.1f} EM over {name}"

    def trajectories(self, clock: Clock) -> float:
        return clock.sizes.questions[self.settings.evaluation.split]


_ANY_QUESTIONS = "questions"  # the split that ``evaluate-any`` records


def run(context: StageContext) -> dict[str, int]:
    """Sample trajectories of ``inputs["policy"]`` per held-out question and measure them.

    Their number is the fact ``samples``, or 1. Except for the temperature the sampling settings are
    as in training, so a policy is evaluated under the conditions of its training. Without a policy
    the base model is evaluated. Raises InputError when there are no questions.
    """
    from pipeline.core.trajectory_file import FILE
    from pipeline.engine.files.malformed import warn_of_malformed
    from pipeline.evaluation.measured import write_measured
    from pipeline.training.lineage import policy_in

    split, questions = _split(context), input_questions(context)
    if not questions:
        path = context.inputs["questions"] / QUESTIONS
        raise InputError.at(path, f"no questions to evaluate on; add files to data.{split}")
    questions = questions[context.shard :: context.shards]
    config, directory = context.config, context.inputs.get("policy")
    samples = context.facts.get("samples", 1)
    check_lineage(config, directory)
    trajectories, seconds = roll_out_policy(
        context,
        questions,
        policy_in(directory, config.model.base, config.hashes_file),
        temperature=config.evaluation.temperature,
        samples=samples,
    )
    by_id = {question.question_id: question for question in questions}
    counts = write_measured(
        context.output,
        trajectories,
        by_id,
        split=split,
        seconds=seconds,
        cem=config.evaluation.cem,
        samples=samples,
    )
    warn_of_malformed(context, context.output / FILE)
    return {"questions": len(questions), **counts}


def merge(context: StageContext) -> dict[str, int]:
    """Join the trajectories and outcomes of the shards of `run`; their seconds are added up.

    Raises what `join_trajectories` raises.
    """
    from pipeline.core.trajectory_file import FILE
    from pipeline.engine.files.malformed import warn_of_malformed
    from pipeline.engine.files.shards import added, join_trajectories, shard_directories
    from pipeline.evaluation.measured import ROWS, rows_file

    questions = [question.question_id for question in input_questions(context)]
    rows = [read_json(shard / ROWS) for shard in shard_directories(context)]
    seconds = added([of_shard["seconds"] for of_shard in rows])
    samples = context.facts.get("samples", 1)
    owners = join_trajectories(context, list(product(questions, range(samples))))
    warn_of_malformed(context, context.output / FILE)
    outcomes = [iter(of_shard["outcomes"]) for of_shard in rows]
    with rows_file(context.output, _split(context), seconds) as add:
        for owner in owners[::samples]:
            add(next(outcomes[owner]))
    return {"questions": len(questions), "trajectories": len(owners)}


def _split(context: StageContext) -> str:
    """The recorded name of the questions; ``evaluate-any`` and ``explore`` take any questions."""
    any_questions = context.stage.startswith(("evaluate-any", "explore"))
    return _ANY_QUESTIONS if any_questions else context.config.evaluation.split
