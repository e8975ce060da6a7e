"""Disks that fill up or cannot be written: one sentence, nothing lost, and the rerun is right.

Two ways to fill a disk: a limit on the size of files, which needs no rights, and a small tmpfs, which
needs root and is left out without it. The run is started with too little space, must end with a
message and without a traceback, and is finished with enough space. Its store must then equal that of
the uninterrupted run.
"""

from __future__ import annotations

import os
import random
import resource
import subprocess
from dataclasses import replace
from pathlib import Path

from tests.torture.figures import Figures
from tests.torture.runs import RunFolder, differing_files


def run(folder: Path, reference: RunFolder, seed: int, count: int) -> Figures:
    """``count`` failures in all; ``reference`` is the uninterrupted run."""
    chance = random.Random(seed)
    figures = Figures("disk")
    reference.finished()
    sizes = [path.stat().st_size for path in reference.store.rglob("*") if path.is_file()]
    victim = replace(reference, root=folder / "limited").prepare()
    for _ in range(count // 2):
        limit = chance.choice(sizes) - 1
        status, output = _finish_limited(victim, max(limit, 1))
        figures.cases += 1
        if status != 0:
            figures.problems += _untold(f"files of at most {limit} bytes", output)
    _compare(figures, victim, reference, "limited")
    if os.geteuid() == 0:
        _small_disks(figures, folder / "disk", reference, chance, count - count // 2)
    else:
        figures.facts["tmpfs"] = "left out: needs root"
    return figures


def _small_disks(
    figures: Figures, folder: Path, reference: RunFolder, chance: random.Random, count: int
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    used = sum(p.stat().st_size for p in reference.root.rglob("*") if p.is_file()) // 1024
    _mount("tmpfs", "-t", "tmpfs", "-o", "size=64k", folder)
    try:
        victim = replace(reference, root=folder).prepare()
        for share in sorted(chance.random() for _ in range(count - 1)):
            _mount("-o", f"remount,size={max(64, int(used * share))}k", folder)
            status, output = victim.finish()
            figures.cases += 1
            if status != 0:
                figures.problems += _untold(f"a disk with {share:.0%} of the space", output)
        _mount("-o", "remount,ro", folder)
        status, output = victim.finish()
        figures.cases += 1
        figures.problems += _untold("a read-only disk", output)
        _mount("-o", f"remount,rw,size={used * 4}k", folder)
        _compare(figures, victim, reference, "small disk")
    finally:
        subprocess.run(["umount", folder], check=True)


def _mount(*arguments: object) -> None:
    subprocess.run(["mount", *map(str, arguments)], check=True)


def _finish_limited(victim: RunFolder, limit: int) -> tuple[int, str]:
    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return victim.finish(before=limited)


def _untold(what: str, output: str) -> list[str]:
    """A problem if the output of a failed run has no message, or shows a traceback."""
    if "Traceback" in output:
        return [f"{what}: traceback: {output[-1500:]}"]
    if "error: " not in output:
        return [f"{what}: no message: {output[-1500:]}"]
    return []


def _compare(figures: Figures, victim: RunFolder, reference: RunFolder, what: str) -> None:
    status, output = victim.finish()
    if status != 0:
        figures.problems.append(f"{what}: the rerun failed: {output[-1500:]}")
        return
    figures.problems += [f"{what}: {name} differs" for name in differing_files(reference, victim)]
