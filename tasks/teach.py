"""The stage ``teach``: the teacher's distributions for the loss ``distill`` of a round.

Input: ``pair`` (Pair) and policy n - 1. Output: ``taught.parquet`` (`Taught`), one row a pair
(`pipeline.training.self_distillation`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.engine.fingerprint import base_model_files
from pipeline.engine.opened import Opened, Work, policy_engine
from pipeline.engine.plan.clock import Clock
from pipeline.engine.stage import RoundTask, StageTask
from tasks.pair import Pair
from tasks.policy import policy, policy_files

if TYPE_CHECKING:
    from pipeline.engine.context import StageContext

FILE = "taught.parquet"


class Teach(RoundTask):
    """What policy n - 1 would write if it read the chosen side of each pair."""

    stage = "teach"
    help = "distributions of the policy that reads the chosen sides"
    reads = ("engine", "model")

    @property
    def input_files(self) -> Mapping[str, tuple[str, ...]]:
        return {"pair": ("pairs.parquet",), "policy": policy_files(self.inputs["policy"])}

    def upstream(self) -> dict[str, StageTask]:
        return {"pair": self.clone(Pair), "policy": policy(self, self.round - 1)}

    def files(self) -> dict[str, Path | str]:
        return base_model_files(self.settings)

    def opens(self) -> Iterator[Opened]:
        yield policy_engine(self.settings)

    def work(self, clock: Clock) -> Work:
        pairs = clock.sizes.questions["sampling"] * clock.rates.pairs_first
        return pairs * clock.judging(self.opens())


def run(context: StageContext) -> dict[str, int]:
    """Write ``taught.parquet``; returns the number of pairs."""
    from pipeline.core.progress import counted
    from pipeline.core.record_io import iterate_records, write_parquet
    from pipeline.core.records import Pair
    from pipeline.llm.transformers_engine import TransformersEngine
    from pipeline.rollout.policy import read_policy
    from pipeline.training.lora import load_tokenizer, locate_base
    from pipeline.training.self_distillation import Taught, taught

    config, base = context.config, locate_base(context.config.model.base)
    adapter = read_policy(context.inputs["policy"]).adapter
    pairs = counted(
        iterate_records(context.inputs["pair"] / "pairs.parquet", Pair), context.progress
    )
    context.progress.start(None, "pairs")
    with closing(TransformersEngine(config.engine, base, adapter=adapter)) as engine:
        rows = taught(engine, load_tokenizer(base, config.model), pairs)
        return {"pairs": write_parquet(context.output / FILE, rows, Taught)}
