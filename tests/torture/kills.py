"""Random kills in every stage: the finished run must equal one that was never interrupted.

A victim is started again and again. Each time the whole process group is killed with SIGKILL at a
random moment of one stage. Every stage is a target in turn; the moment is drawn over the seconds that
the stage takes in the uninterrupted run, so long stages are killed while they work and short ones
while they start or finish.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from tests.torture.figures import Figures
from tests.torture.runs import RunFolder, differing_files, kill_during

_START = 4  # seconds from the start of a stage's process to the work that its manifest counts


def run(
    folder: Path, reference: RunFolder, seed: int, count: int, only: Collection[str] = ()
) -> Figures:
    """Kill victims ``count`` times in all; the figures hold kills by stage and every difference.

    ``only`` limits the targets to stages with these labels.
    """
    chance = random.Random(seed)
    figures = Figures("kills")
    stages = {
        row["label"]: row["wall_seconds"] or 0.0
        for row in reference.finished()
        if not only or row["label"] in only
    }
    by_stage: Counter[str] = Counter()
    victims = 0
    while figures.cases < count:
        victims += 1
        victim = replace(reference, root=folder / f"victim-{victims}").prepare()
        left = min(count - figures.cases, len(stages))
        targets = sorted(chance.sample(range(len(stages)), left))
        for stage, seconds in (list(stages.items())[target] for target in targets):
            if stage in victim.done():  # stages may end in another order
                continue
            killed = kill_during(victim, stage, chance.uniform(0, seconds + _START))
            if killed is None:
                continue
            figures.cases += 1
            by_stage[killed.stage] += 1
            print(f"{figures.cases}: killed {killed.stage}", flush=True)
            if killed.orphans:
                figures.problems.append(f"{killed.orphans} processes outlived a kill in {stage}")
        status, output = victim.finish()
        if status != 0:
            figures.problems.append(f"victim {victims} did not finish: {output[-2000:]}")
            continue
        different = differing_files(reference, victim)
        print(f"victim {victims}: {len(different)} files differ", flush=True)
        figures.problems += [f"victim {victims}: {name} differs" for name in different]
        if not different:
            shutil.rmtree(victim.root)
    figures.facts |= {"victims": victims, "by_stage": dict(by_stage)}
    return figures
