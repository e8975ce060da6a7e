"""Everything that is needed to ask policies questions: finished indexes, checked policies, and a context.

No stage runs: an index or a policy that is not complete is an error that names the command. Input: a
configuration's task and names of policies. Output: one `AskedPolicy` for each.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.core.errors import StoreError
from pipeline.rollout.policy import Policy
from pipeline.run.context import StageContext
from pipeline.run.output_check import Depth
from pipeline.stages.policy_directory import checked_policy
from tasks.base import StageTask
from tasks.evaluate import EvaluatePolicy
from tasks.knowledge import searched
from tasks.named_policies import NamedPolicy, complete_policies, find_policy, run_command


@dataclass(frozen=True)
class AskedPolicy:
    """A policy with the context that `pipeline.stages.answering` opens it with."""

    named: NamedPolicy
    policy: Policy
    context: StageContext


def asked_policies(task: StageTask, names: Sequence[str] = ()) -> list[AskedPolicy]:
    """The named policies in this order, each once; without names the last trained one.

    Each engine gets its part of the GPU's memory, because all are open at once. Raises InputError for an
    unusable policy, StoreError when an index or a policy is not complete.
    """
    named = [find_policy(task, name) for name in names] or complete_policies(task)[-1:]
    distinct = list({policy.directory: policy for policy in named}.values())
    inputs = _finished_inputs(task)
    config = task.settings
    share = config.engine.gpu_memory_utilization / len(distinct)
    engine = config.engine.model_copy(update={"gpu_memory_utilization": share})
    context = StageContext(
        config=config.model_copy(update={"engine": engine}),
        stage="ask",
        output=Path(tempfile.gettempdir()),  # nothing is written there
        checkpoint_dir=Path(tempfile.gettempdir()),
        inputs=inputs,
        seed=config.seed,
        # A retrieval service compares the fingerprints of the indexes; any policy has the same.
        key=task.clone(EvaluatePolicy, number=0).key if config.retrieval.service else None,
    )
    return [
        AskedPolicy(policy, checked_policy(policy.directory, config), context)
        for policy in distinct
    ]


def _finished_inputs(task: StageTask) -> dict[str, Path]:
    """The directories of corpus, graph and index; none where a service has them or nothing is searched."""
    if task.settings.retrieval.service:
        return {}
    inputs = {}
    for name, stage in searched(task).items():
        if not stage.complete():
            raise StoreError(
                f"{stage.label} of {task.settings.run_dir} is not complete, and a policy searches finished "
                f"indexes; run `{run_command(stage)}` first"
            )
        stage.check_output(Depth.FOOTERS)
        inputs[name] = stage.directory
    return inputs
