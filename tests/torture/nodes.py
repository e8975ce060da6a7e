"""Nodes of a Ray cluster that are lost: the finished run must equal one of a single machine.

Each victim runs on a cluster of two nodes with two CPUs each.
While it samples, and again while it scores or judges, the node of one of these stages is ended at a random moment,
and a new node joins. With a divided reference, whose victims are divided too, the stages are shards.
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil

from tests.ray_nodes import Nodes, process_of, ray_nodes
from tests.torture.figures import Figures
from tests.torture.runs import RunFolder, differing_files, stage_started

DIVIDED = ("shards=2", "workers=2")
KINDS = {"sampling": ("sample",), "scoring": ("score", "judge")}
_TOLD = ", from its checkpoint (start "


def run(folder: Path, reference: RunFolder, seed: int, count: int) -> Figures:
    """Lose ``count`` nodes at least, in victims of two each; ``reference`` is the local run."""
    chance = random.Random(seed)
    figures = Figures("ray")
    reference.finished()
    by_stage: Counter[str] = Counter()
    victims = restarts = 0
    while figures.cases < count and victims < count:
        victims += 1
        victim = replace(
            reference,
            root=folder / f"victim-ray-{victims}",
            overrides=(*reference.overrides, "execution=ray"),
        ).prepare()
        with ray_nodes(2, cpus=2) as nodes:
            status, output, lost = _finish_with_losses(victim, nodes, reference, chance)
        figures.cases += len(lost)
        by_stage.update(lost)
        restarts += output.count(_TOLD)
        if status != 0:
            figures.problems.append(f"victim {victims} did not finish: {output[-2000:]}")
            continue
        if len(lost) < len(KINDS):
            figures.problems.append(f"victim {victims}: nodes were lost only in {lost}")
        if orphans := victim.orphans():
            figures.problems.append(f"victim {victims}: {len(orphans)} processes outlive its run")
        different = differing_files(reference, victim)
        print(f"victim {victims}: lost {lost}, {len(different)} files differ", flush=True)
        figures.problems += [f"victim {victims}: {name} differs" for name in different]
        if not different:
            shutil.rmtree(victim.root)
    figures.facts |= {"victims": victims, "by_stage": dict(by_stage), "restarts": restarts}
    return figures


def _finish_with_losses(
    victim: RunFolder, nodes: Nodes, reference: RunFolder, chance: random.Random
) -> tuple[int, str, list[str]]:
    """Run to the end, and lose a node in one stage of each of `KINDS`.

    Returns the exit status, what was printed, and the stages that lost their node. When a stage ends before
    its moment comes, the next one of its kind takes its place.
    """
    stages = {kind: _stages(reference, names) for kind, names in KINDS.items()}
    due: dict[str, float] = {}
    lost: list[str] = []
    printed: list[str] = []
    with victim.start("run") as process:
        try:
            for line in _lines(process):
                printed.append(line)
                started = stage_started(line) or ""
                for kind, found in list(stages.items()):
                    if kind not in due and started.startswith(tuple(found)):
                        wait = chance.uniform(0, max(found.values()) / 2)
                        due[kind] = time.monotonic() + wait
                    if time.monotonic() > due.get(kind, math.inf):
                        del due[kind]
                        if stage := _lose(nodes, victim, found):
                            lost.append(stage)
                            del stages[kind]
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, "".join(printed), lost


def _stages(reference: RunFolder, names: tuple[str, ...]) -> dict[str, float]:
    """The stages of a kind with the seconds of the longest; only their shards, where they are divided."""
    seconds: dict[str, float] = {}
    for path in reference.store.glob("*/*/manifest.json"):
        stage = path.parent.parent.name
        if stage.startswith(names):
            taken = json.loads(path.read_text())["wall_seconds"]
            seconds[stage] = max(seconds.get(stage, 0.0), taken)
    return {stage: seconds[stage] for stage in seconds if f"{stage}-shard" not in seconds}


def _lines(process: subprocess.Popen[str]) -> Iterator[str]:
    """The lines that a process prints, and an empty one now and then, until it ends."""
    messages = process.stdout
    assert messages is not None
    os.set_blocking(messages.fileno(), False)
    while True:
        ended = process.poll() is not None
        yield from iter(messages.readline, "")
        if ended:
            return
        yield ""
        time.sleep(0.05)


def _lose(nodes: Nodes, victim: RunFolder, stages: Iterable[str]) -> str | None:
    """End the node of one of these stages and let a new one join; returns the stage, None when none runs."""
    for stage in stages:
        for record in (victim.store / stage).glob("[!.]*.progress.json"):
            with suppress(psutil.NoSuchProcess):
                nodes.lose_node_of(process_of(record))
                print(f"lost the node of {stage}", flush=True)
                nodes.add()
                return stage
    return None
