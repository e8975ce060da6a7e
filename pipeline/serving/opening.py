"""Open a finished policy: for questions with retrieval, or for single turns.

The functions run in the process of the policy, which holds the devices of its parent's lease.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from pipeline.engine.context import StageContext
from pipeline.engine.process.process import hold_devices
from pipeline.llm.shared_engine import SharedEngine
from pipeline.rollout.answering import OpenPolicy
from pipeline.rollout.policy import Policy
from pipeline.rollout.sampler import answer_questions
from tasks.sample import open_rollout, rollout_settings


@contextmanager
def open_answering(context: StageContext, policy: Policy) -> Iterator[OpenPolicy]:
    """The engine of ``policy``, and a function that answers questions with it; closed on exit.

    The stage ``evaluate-policy`` gives the same trajectories for the same questions.
    ``context.inputs`` holds corpus, graph and index. Raises what `open_rollout` raises.
    """
    config = context.config
    settings = rollout_settings(config, temperature=config.evaluation.temperature)
    with open_rollout(context, policy, settings) as rollout:
        shared = SharedEngine(rollout.engine)
        answers = partial(answer_questions, replace(rollout, engine=shared), seed=context.seed)
        yield OpenPolicy(answers, shared)


@contextmanager
def open_in_process(context: dict[str, Any], policy: Policy) -> Iterator[OpenPolicy]:
    """`open_answering` in a separate process, which holds the devices of this process's lease."""
    hold_devices()
    with open_answering(StageContext.from_json(context), policy) as opened:
        yield opened


@contextmanager
def open_turns_in_process(context: dict[str, Any], policy: Policy) -> Iterator[OpenPolicy]:
    """Like `open_in_process`, for single turns alone: without a retriever, and no questions."""
    hold_devices()
    engine = StageContext.from_json(context).models.policy_engine(policy.adapter)
    try:
        yield OpenPolicy(lambda questions, **_: iter(()), SharedEngine(engine))
    finally:
        engine.close()
