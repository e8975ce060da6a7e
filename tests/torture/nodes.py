"""Nodes of a Ray cluster that are lost while a run uses them."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Sequence
from contextlib import suppress

import psutil

from tests.ray_nodes import Nodes, process_of
from tests.torture.runs import RunFolder, lines_of, share_done, stage_started


def finish_with_losses(
    victim: RunFolder, nodes: Nodes, stages: Sequence[str], chance: random.Random
) -> tuple[str, list[str]]:
    """Run to the end, and once in each of the stages end the node on which it runs; a new one joins.

    A node ends when a share of the stage's work is done, drawn from 0 to 0.5. Returns what was
    printed, and the stages that lost their node.
    """
    due = {stage: chance.uniform(0, 0.5) for stage in stages}
    running = ""
    lost: list[str] = []
    printed: list[str] = []
    with victim.start("run", *victim.goal) as process:
        try:
            for line in lines_of(process):
                printed.append(line)
                running = stage_started(line) or running
                if running in due and share_done(victim, running) > due[running]:
                    del due[running]
                    if _lose(nodes, victim, running.partition("-")[0]):
                        lost.append(running)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    assert process.returncode == 0, "".join(printed)
    return "".join(printed), lost


def _lose(nodes: Nodes, victim: RunFolder, stage: str) -> bool:
    """End the node of a stage and let a new one join; False when the stage does not run any more."""
    for record in (victim.store / stage).glob("[!.]*.progress.json"):
        with suppress(psutil.NoSuchProcess):
            nodes.lose_node_of(process_of(record))
            nodes.add()
            return True
    return False
