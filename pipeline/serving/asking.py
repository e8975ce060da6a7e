"""Prepare policies for questions, and search: finished indexes, checked policies, and a context.

No stage runs: an index or a policy that is not complete is an error that names the command. Input:
a configuration's task and names of policies. Output: one `AskedPolicy` for each, and their
processes, which hold the same lease of GPUs and CPU threads as a stage that rolls policies out. The
functions `open_in_process` and `open_turns_in_process` run in them.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.core.errors import ConfigError
from pipeline.core.records import Chunk, ContextItem
from pipeline.engine.context import StageContext
from pipeline.engine.leases import Capacity, held
from pipeline.engine.needs import need_faults, needs
from pipeline.engine.process.process import hold_devices
from pipeline.engine.stage import StageTask
from pipeline.evaluation.policy_names import policy_title
from pipeline.llm.shared_engine import SharedEngine
from pipeline.rollout.answering import OpenPolicy, PolicyProcess
from pipeline.rollout.policy import Policy
from pipeline.rollout.sampler import answer_questions
from pipeline.serving.named_policies import NamedPolicy, complete_policies, find_policy, finished
from pipeline.training.lineage import checked_policy
from tasks.evaluate_policy import EvaluatePolicy
from tasks.index import searched
from tasks.sample import open_rollout, rollout_settings

Tell = Callable[[str], None]
OpeningInProcess = Callable[[dict[str, Any], Policy], AbstractContextManager[OpenPolicy]]


@dataclass(frozen=True)
class AskedPolicy:
    """A policy with the context with which `open_answering` opens it."""

    named: NamedPolicy
    policy: Policy
    context: StageContext


def asked_policies(
    task: StageTask, names: Sequence[str] = (), *, searching: bool = True
) -> list[AskedPolicy]:
    """The named policies in this order, each once; without names the last trained one.

    Without ``searching`` they need no index. Each engine gets its part of the GPU's memory, because
    all are open at once. Raises InputError for an unusable policy, StoreError when an index or a
    policy is not complete.
    """
    named = [find_policy(task, name) for name in names] or complete_policies(task)[-1:]
    distinct = list({policy.directory: policy for policy in named}.values())
    evaluating = task.clone(EvaluatePolicy, number=0)  # it has the settings of the evaluation
    config = evaluating.settings
    own = searching and not config.retrieval.service
    inputs = finished(searched(evaluating)) if own else {}
    share = config.engine.gpu_memory_utilization / len(distinct)
    engine = config.engine.model_copy(update={"gpu_memory_utilization": share})
    if searching:  # else an agent of the user's reads what the policies write
        from tasks.policy import check_lineage

        for policy in distinct:
            check_lineage(config, policy.directory)
    context = StageContext(
        config=config.model_copy(update={"engine": engine}),
        stage="ask",
        output=Path(tempfile.gettempdir()),  # nothing is written there
        checkpoint_dir=Path(tempfile.gettempdir()),
        inputs=inputs,
        seed=config.seed,
        # A retrieval service compares the fingerprints of the indexes; any policy has the same.
        key=evaluating.key if config.retrieval.service else None,
    )
    return [
        AskedPolicy(
            policy, checked_policy(policy.directory, config.model.base, config.hashes_file), context
        )
        for policy in distinct
    ]


def search(task: StageTask, query: str) -> dict[str, Any]:
    """What the finished indexes of ``task``'s run find with its retrieval settings, best first.

    Each result has the id and the source of the passage that it comes from. Raises StoreError when
    an index is not complete, ConfigError when the retrieval is none.
    """
    from pipeline.knowledge.retrieval.origins import passage_id, passages

    inputs, [items] = _retrieved(task, [query])
    sources = {chunk.id: chunk.source for chunk in passages(items, inputs["corpus"])}
    results = [
        {
            "kind": item.kind, "id": item.id, "title": item.title, "text": item.text,
            "score": round(item.score, 6), "passage": (passage := passage_id(item)),
            "source": sources.get(passage, ""),
        }
        for item in items
    ]  # fmt: skip
    return {"query": query, "variant": task.settings.retrieval.variant, "results": results}


def found_passages(task: StageTask, queries: Sequence[str]) -> list[list[Chunk]]:
    """The passages that `search` finds for each query."""
    from pipeline.knowledge.retrieval.origins import passage_id, passages

    inputs, found = _retrieved(task, queries)
    every = passages([item for items in found for item in items], inputs["corpus"])
    by_id = {chunk.id: chunk for chunk in every}
    return [[by_id[name] for name in dict.fromkeys(map(passage_id, items))] for items in found]


def _retrieved(
    task: StageTask, queries: Sequence[str]
) -> tuple[dict[str, Path], list[list[ContextItem]]]:
    """The finished corpus, graph and index, and the items that each query finds."""
    from pipeline.knowledge.retrieval.base import Query
    from pipeline.knowledge.retrieval.factory import open_retriever

    settings = task.settings
    inputs = finished(searched(task))
    if not inputs:
        raise ConfigError("retrieval.variant is none, so nothing can be found; choose another")
    with redirect_stdout(sys.stderr):
        retriever = open_retriever(
            settings.retrieval, settings.index, inputs["corpus"], inputs["graph"], inputs["index"],
            cache_dir=settings.cache_dir,
        )  # fmt: skip
        try:
            return inputs, retriever.retrieve([Query(query, (query,)) for query in queries])
        finally:
            retriever.close()


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


@contextmanager
def opened(
    task: StageTask,
    asked: Sequence[AskedPolicy],
    tell: Tell,
    opening: OpeningInProcess = open_in_process,
    ended: threading.Event | None = None,
) -> Iterator[list[PolicyProcess]]:
    """The processes of the policies, started one after the other; all end with the block.

    ``opening`` opens a policy in its process. Once ``ended`` is set, a process that is not ready
    yet raises EngineError.

    ``tell`` gets a line for each step. While another run holds the GPUs, this waits. Raises
    ConfigError when the machine has fewer GPUs than the engine needs, and the errors of opening an
    engine.
    """
    with ExitStack() as stack:
        environment = stack.enter_context(_leased(task, len(asked), tell))
        processes = []
        for each in asked:
            name, kind = each.named.name, each.context.config.engine.kind
            started = time.monotonic()
            title = policy_title(name)
            tell(f"{title}: {each.named.source}; starting {kind}")
            of_policy = partial(opening, each.context.to_json(), each.policy)
            process = PolicyProcess(name, of_policy, environment)
            stack.callback(process.stop)
            process.wait_until_ready(ended)
            tell(f"{title}: ready after {time.monotonic() - started:.1f} s")
            processes.append(process)
        yield processes
        for process in processes:
            process.close()


@contextmanager
def _leased(task: StageTask, processes: int, tell: Tell) -> Iterator[Mapping[str, str]]:
    """Hold the lease of a policy's evaluation, with CPU threads for several processes.

    Yields the environment variables of the processes.
    """
    # A shard rolls out whether or not the evaluation is divided.
    evaluating = task.clone(EvaluatePolicy, number=0).shard(0)
    # Of all GPUs that there are: one engine may need fewer than the run had.
    capacity = Capacity.of(task.run_settings.model_copy(update={"gpus": 0}))
    for fault in need_faults(evaluating):
        raise ConfigError(fault)
    wanted = needs(evaluating)
    wanted = replace(wanted, threads=wanted.threads * processes)
    with held(capacity, wanted, lambda text: tell(f"the engine {text}")) as lease:
        yield lease.environment()
