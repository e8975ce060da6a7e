"""Nodes of a Ray cluster that are lost while a run uses them."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress

import psutil

from tests.ray_nodes import Nodes, process_of
from tests.torture.runs import RunFolder, lines_of, stage_started


def finish_with_losses(
    victim: RunFolder, nodes: Nodes, stages: dict[str, float], chance: random.Random
) -> tuple[str, list[str]]:
    """Run to the end, and once in each of the stages end the node on which it runs; a new one joins.

    ``stages`` are labels with the seconds that they take. Returns what was printed, and the stages
    that lost their node.
    """
    due: dict[str, float] = {}
    lost: list[str] = []
    printed: list[str] = []
    with victim.start("run", *victim.goal) as process:
        try:
            for line in lines_of(process):
                printed.append(line)
                started = stage_started(line)
                if started in stages and started not in due:
                    due[started] = time.monotonic() + chance.uniform(0, stages[started] / 2)
                for label in [label for label, at in due.items() if time.monotonic() > at]:
                    due[label] = float("inf")
                    if _lose(nodes, victim, label.partition("-")[0]):
                        lost.append(label)
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
