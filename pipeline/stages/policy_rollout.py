"""Roll out the policy of a stage, from questions or from partial trajectories.

`roll_out_policy` serves the stages ``sample`` and ``evaluate``, so that a policy is evaluated with
the settings, prompt and stop rules it was sampled with. `PolicyContinuations` serves the Monte
Carlo value estimates of ProGraph-R1 (eq. 11). Finished questions are saved in batches of
``sampling.batch`` without emptying the engine. Every trajectory has a seed that depends on its
question and sample only, so a rollout that was killed and continues gives the same trajectories in
the same order.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from pipeline.core.content_cache import digest
from pipeline.core.errors import InputError, RetrievalUnavailable
from pipeline.core.records import Question, Trajectory
from pipeline.retrieval.rerank import RERANKED
from pipeline.rollout.partial import PartialTrajectory
from pipeline.rollout.policy import read_policy
from pipeline.rollout.sampler import continue_trajectories, roll_out
from pipeline.run.context import StageContext
from pipeline.stages.files.rollout_checkpoints import RolloutCheckpoints, RolloutTimer
from pipeline.stages.policy import open_rollout, rollout_settings
from pipeline.stages.policy_directory import policy_in


def roll_out_policy(
    context: StageContext,
    questions: Sequence[Question],
    policy_dir: Path | None,
    *,
    temperature: float,
    samples: int,
) -> tuple[Iterator[Trajectory], dict[str, float]]:
    """Roll a policy out over questions: trajectories by question and sample, and seconds.

    The trajectories are read from their checkpoints while they are consumed, with a check that each
    question has each sample once. They are counted in ``context.work``.

    ``policy_dir`` is as in `policy_in`; None is the base model. The seconds are engine_start,
    generation, semantic, graph, ppr and total, and with a retrieval service the seconds of waiting
    for it; generation and retrieval overlap. Checkpoints under ``context.checkpoint_dir`` are not
    rolled out again. Raises InputError for repeated question ids, RetrievalError when retrieval
    fails for every trajectory of a batch, RetrievalUnavailable when no query can be answered,
    StoreError when checkpoints vanish or are damaged meanwhile, and what `open_rollout` raises.
    """
    question_ids = [question.question_id for question in questions]
    repeated = [name for name, count in Counter(question_ids).items() if count > 1]
    if repeated:
        raise InputError(f"question {repeated[0]} occurs twice; ids must be unique within a split")
    policy = policy_in(policy_dir, context.config)
    settings = rollout_settings(context.config, temperature=temperature)
    # A stage has one directory per fingerprint; callers of the Python interface choose theirs.
    deciding = repr(replace(settings, in_flight=1))  # which does not change trajectories
    rollout = digest(policy.fingerprint, deciding, str(context.seed), str(context.round))
    checkpoints = RolloutCheckpoints(
        context.checkpoint_dir / "paths" / rollout.hex(),
        question_ids,
        samples=samples,
        batch=context.config.sampling.batch,
    )
    remaining = [questions[number] for number in checkpoints.remaining()]
    total = len(questions) * samples
    context.progress.start(total, "trajectories", done=total - len(remaining) * samples)
    log = logging.getLogger(__name__)
    log.info(
        "policy %s: %d of %d questions to roll out, %d trajectories each",
        policy.fingerprint,
        len(remaining),
        len(questions),
        samples,
    )
    if remaining:
        start = time.perf_counter()
        with open_rollout(context, policy.adapter) as (engine, retriever, grammar):
            checkpoints.seconds["engine_start"] += time.perf_counter() - start
            timer = RolloutTimer(start, engine, retriever, dict(checkpoints.seconds))
            opened, generated = time.perf_counter(), 0
            try:
                for trajectory in roll_out(
                    remaining,
                    engine=engine,
                    grammar=grammar,
                    retriever=retriever,
                    settings=settings,
                    policy=policy.fingerprint,
                    samples=samples,
                    seed=context.seed,
                    round_number=context.round or 0,
                ):
                    checkpoints.add(trajectory, timer)
                    generated += trajectory.tokens.thinking
                    seconds = max(time.perf_counter() - opened, 1e-3)
                    context.progress.show(tokens_per_second=generated / seconds)
                    context.progress.advance()
                checkpoints.flush(timer)
            except RetrievalUnavailable:
                checkpoints.flush(timer)  # these questions finished before the outage
                raise
    seconds_spent = {name: round(value, 1) for name, value in checkpoints.seconds.items()}
    log.info("seconds: %s", seconds_spent)
    if len(remaining) < len(questions):  # the pairs of earlier attempts were not counted
        context.work.pop(RERANKED, None)
    context.work["start_seconds"] = round(checkpoints.seconds["engine_start"], 2)
    return _counted(context, checkpoints.read()), checkpoints.seconds


def _counted(context: StageContext, trajectories: Iterator[Trajectory]) -> Iterator[Trajectory]:
    """The trajectories; their number, tokens and retrievals become the work of the stage."""
    work = context.work
    names = ("trajectories", "prompt_tokens", "generated_tokens", "retrieved_tokens", "retrievals")
    work.update(dict.fromkeys(names, 0))
    for trajectory in trajectories:
        work["trajectories"] += 1
        work["prompt_tokens"] += len(trajectory.prompt_ids)
        work["generated_tokens"] += trajectory.tokens.thinking
        work["retrieved_tokens"] += trajectory.tokens.retrieved
        work["retrievals"] += len(trajectory.tokens.per_retrieval)
        yield trajectory


class PolicyContinuations:
    """Continues partial trajectories with the policy, settings and prompt that sampled them.

    Each call with at least one trajectory opens the engine and the retriever, and closes them after
    it. ``policy`` is the policy's fingerprint.
    """

    def __init__(self, context: StageContext, policy_dir: Path) -> None:
        self._context = context
        policy = read_policy(policy_dir)
        self._adapter, self.policy = policy.adapter, policy.fingerprint

    def __call__(self, trajectories: Iterable[PartialTrajectory]) -> Iterator[Trajectory]:
        """Trajectories as they finish; raises what engines and retrievers raise."""
        remaining = iter(trajectories)
        first = next(remaining, None)
        if first is None:
            return
        config = self._context.config
        with open_rollout(self._context, self._adapter) as (engine, retriever, grammar):
            yield from continue_trajectories(
                itertools.chain([first], remaining),
                engine=engine,
                grammar=grammar,
                retriever=retriever,
                settings=rollout_settings(config, temperature=config.sampling.temperature),
                policy=self.policy,
            )
