"""Part ``round``: the whole method on a real language model, with all rounds, on one GPU.

Input: the configuration ``smollm2``, whose model is a package's file, so that no network is needed.
Output: the time of each stage over all rounds, pairs, and EM and well-formed trajectories of every
policy. It runs the command that a user runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp

from benchmarks.gpu_check.figures import Figures, Place
from pipeline.api import Run
from pipeline.core.input_files import read_json
from pipeline.engine.store import MANIFEST

_ROUNDS = 3
_WELL_FORMED = 0.8  # below it the cold start has not taught the format, and the rounds train that
_MINIATURE = (  # with fewer examples the policy learns no format, and there are no pairs
    "data.closed_world.documents=300", "data.closed_world.musique_train=800",
    "data.closed_world.nq_sampling=12", "data.closed_world.hotpotqa_sampling=4",
    "data.closed_world.nq_test=4", "data.closed_world.hotpotqa_test=2",
    "data.closed_world.wiki2_test=2", "data.closed_world.musique_test=2",
    "sft_data.sizes={1: 110, 2: 20}", "sft_data.test_sizes={1: 4, 2: 2}", "sampling.samples=4",
)  # fmt: skip


def rounds(place: Place, figures: Figures) -> None:
    """Run `_ROUNDS` rounds and read the run's results."""
    folder = Path(mkdtemp(prefix="gpu-check-"))
    overrides = [
        f"runs_dir={folder}", f"cache_dir={folder / 'cache'}", f"model.base={place.model}",
        f"rounds={1 if place.tiny else _ROUNDS}",
    ]  # fmt: skip
    if place.tiny:
        overrides += _MINIATURE
    if place.cuda and not find_spec("vllm"):  # generates padded batches, so fewer at once
        overrides += ["engine.kind=transformers", "engine.max_num_seqs=64"]
    options = [part for override in overrides for part in ("--set", override)]
    status = subprocess.run(
        [sys.executable, "-m", "pipeline.cli", "run", "--config", "smollm2", *options],
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    ).returncode
    if status:
        raise RuntimeError(f"steep run ended with status {status}; its message is above")
    run = Run.from_directory(folder / "smollm2")
    seconds: dict[str, float] = {}
    for manifest in map(read_json, sorted((folder / "smollm2/store").glob(f"*/*/{MANIFEST}"))):
        stage = str(manifest["key"]["stage"])
        seconds[stage] = seconds.get(stage, 0.0) + float(manifest["wall_seconds"])
    for stage, sum_of_rounds in sorted(seconds.items(), key=lambda item: -item[1])[:8]:
        figures.add(f"stage {stage}, all rounds", sum_of_rounds, "s")
    whole = [row for row in run.metrics() if (row["dataset"], row["split"]) == ("all", "test")]
    for number, row in enumerate(whole):
        figures.add(f"{row['policy']}: EM", 100 * row["em"])
        judged = number == 0 and not place.tiny
        figures.add(
            f"{row['policy']}: well-formed", row["format_ok"], "of the trajectories",
            expected=f"≥ {_WELL_FORMED}" if judged else "",
            holds=row["format_ok"] >= _WELL_FORMED if judged else None,
        )  # fmt: skip
    for round in range(1, (1 if place.tiny else _ROUNDS) + 1):
        figures.add(f"pairs of round {round}", sum(1 for _ in run.pairs(round)))
