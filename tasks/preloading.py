"""Preload heavy packages once per run, and fork the processes of stages from there.

On Linux without a GPU a fork server (`pipeline.run.fork_server`) imports the packages that the
stages of the run need, while the first stages run.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace

from pipeline.run.fork_server import ForkServer
from tasks.base import StageTask
from tasks.needs import needs
from tasks.planning.machine import has_gpu
from tasks.sharding import ShardedTask

_ENCODERS = ("sentence_transformers",)
_VLLM = ("pipeline.llm.vllm_engine:import_vllm", "vllm.v1.engine.llm_engine", "peft")
_TRAINING = ("pipeline.stages.train", "peft", "accelerate")
_TRAINERS = {"sft": "trl.trainer.sft_trainer", "dpo": "trl.trainer.dpo_trainer"}


@contextlib.contextmanager
def preloaded(todo: Iterable[StageTask]) -> Iterator[None]:
    """Run a fork server for the stages of ``todo`` that import heavy modules, if this machine
    allows one."""
    tasks = [task for task in todo if modules_of(task)]
    settings = tasks[-1].run_settings if tasks else None
    if settings is None or settings.execution.kind != "local" or settings.gpus or not _can_fork():
        yield
        return
    modules = dict.fromkeys(name for task in tasks for name in modules_of(task))
    # One thread, because threads do not survive a fork; forked processes set their own number.
    environment = {**os.environ, **tasks[-1].environment(), "OMP_NUM_THREADS": "1"}
    with ForkServer.running(list(modules), environment) as server:
        for task in tasks:
            task.fork_server = replace(server, modules=modules_of(task))
        try:
            yield
        finally:
            for task in tasks:
                task.fork_server = None


def _can_fork() -> bool:
    return sys.platform == "linux" and not has_gpu()


def modules_of(task: StageTask) -> tuple[str, ...]:
    """Heavy modules that the stage imports, as the fork server takes them.

    Light stages, such as those that join shards, import none.
    """
    if isinstance(task, ShardedTask) and task.divided:
        return ()
    stage, settings = task.stage.removesuffix("-shard"), task.settings
    if stage in ("index", "hyper-index"):
        return _ENCODERS
    if stage == "sft":
        return (*_TRAINING, _TRAINERS["sft"])
    if stage == "train":
        return (*_TRAINING, _TRAINERS.get(settings.objective, "trl.trainer.grpo_trainer"))
    if stage == "score":
        if settings.method.scoring_samples:
            return (*_ENCODERS, *_VLLM)
        return _ENCODERS if settings.method.similarity_rewards else ()
    if not needs(task).vllm:
        return ()
    retrieves = stage in ("sample", "evaluate-policy", "evaluate-any")
    return (*_ENCODERS, *_VLLM) if retrieves else _VLLM
