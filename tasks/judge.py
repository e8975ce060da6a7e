"""Stage ``judge``: a verdict on every step of a round's trajectories (HiPRAG 3.2).

Input: trajectories, the policy that sampled them, and the closed world if it is the judge. Output:
``verdicts.parquet`` (one `Verdict` per step), ``calls.parquet`` (every distinct case with prompt,
raw reply and verdict), ``statistics.json`` (counts) and ``chat.json`` (answers, tokens, cost).
Replies are cached as they arrive (`llm.chat`), so a killed run continues. When too many verdicts
are unknown, the stage fails and leaves its files in the checkpoint directory; a rerun requests only
those verdicts. Steps are read from the file whenever they are needed; memory holds the distinct
cases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pipeline.config import Judges
from pipeline.core.atomic import write_json
from pipeline.core.errors import ConfigError, JudgeError
from pipeline.core.progress import Progress
from pipeline.engine.fingerprint import base_model_files, model_identity
from pipeline.engine.opened import Opened, Work, judges, policy_engine
from pipeline.engine.plan.clock import Clock
from pipeline.engine.plan.sizes import ANSWER_BYTES
from pipeline.engine.shards import DivisibleTask
from pipeline.engine.stage import TRAJECTORIES, PolicyTask, RoundTask, StageTask
from tasks.evaluate_policy import EvaluatePolicy
from tasks.policy import policy, policy_files
from tasks.sample import Sample, sampled
from tasks.world import World

if TYPE_CHECKING:
    from pipeline.core.verdicts import JudgedStep
    from pipeline.engine.context import StageContext
    from pipeline.judges.cases import Judge as AnyJudge
    from pipeline.judges.judge_steps import Answerer
    from pipeline.judges.opening import Judging
    from pipeline.llm.chat import Usage
    from pipeline.llm.replies import ReplyExchange


class _Judging(DivisibleTask):
    """Base of the tasks that judge a round or an evaluated policy."""

    version = 4
    reads: ClassVar[tuple[str, ...]] = (
        "grammar",
        "engine",
        "model",
        "sampling.max_steps",
    )

    @property
    def input_files(self) -> Mapping[str, tuple[str, ...]]:
        return {"paths": TRAJECTORIES, "policy": policy_files(self.inputs["policy"])}

    @property
    def judges(self) -> Judges:
        """The judges; raises ConfigError when the configuration has none."""
        block = self.judges_block
        judges = self.settings.judges if block == "judges" else self.settings.evaluation.judges
        if judges is None:
            raise ConfigError(f"{self.config}: judges is missing; add the block")
        return judges

    @property
    def judges_block(self) -> str:
        """The block of the judges."""
        return "judges"

    def reading(self) -> tuple[str, ...]:
        return (*_Judging.reads, self.judges_block)

    def judged(self, trajectories: StageTask, policy: StageTask) -> dict[str, StageTask]:
        """The trajectories, the policy that sampled them, and the world of an exact judge."""
        needs = {"paths": trajectories, "policy": policy}
        if self.judges.exact:
            needs["world"] = self.clone(World)
        return needs

    def files(self) -> dict[str, Path | str]:
        """The models that answer and judge, except the policy's adapter."""
        files = base_model_files(self.settings)
        for kind, judge in (("over", self.judges.over), ("under", self.judges.under)):
            if judge.model is not None:
                files[f"judge of {kind}-search"] = model_identity(judge.model)
        return files

    def opens(self) -> Iterator[Opened]:
        """The policy, whose closed-book answers are judged, and then each judge."""
        yield policy_engine(self.settings)
        yield from judges(self.judges_block, self.judges)

    def trajectories(self, clock: Clock) -> float:
        """The number of trajectories that are judged."""
        raise NotImplementedError

    def work(self, clock: Clock) -> Work:
        each = clock.judging(self.opens()) + Work(disk=ANSWER_BYTES)
        return self.trajectories(clock) * each


class Judge(_Judging, RoundTask):
    """Verdicts on the steps of round n's trajectories."""

    stage = "judge"
    help = "verdicts on the steps of a round"
    reads = (*_Judging.reads, "judges")

    @cached_property
    def inputs(self) -> dict[str, StageTask]:
        return self.judged(self.clone(Sample), policy(self, self.round - 1))

    def trajectories(self, clock: Clock) -> float:
        return sampled(self, clock)


class JudgePolicy(PolicyTask, _Judging):
    """Verdicts on the steps of one policy's evaluation."""

    stage = "judge-policy"
    help = "verdicts on the steps of one policy's evaluation"
    reads = (*_Judging.reads, "judges", "evaluation.judges")

    @property
    def judges_block(self) -> str:
        return self.settings.evaluation_judges_block

    def trajectories(self, clock: Clock) -> float:
        return clock.sizes.questions[self.settings.evaluation.split]

    @cached_property
    def inputs(self) -> dict[str, StageTask]:
        return self.judged(self.clone(EvaluatePolicy), policy(self, int(self.number)))


VERDICTS, CALLS = "verdicts.parquet", "calls.parquet"


def run(context: StageContext) -> dict[str, int]:
    """Judge the trajectories of ``inputs["paths"]``; returns counts of steps, calls and unknowns.

    A stage that joins shards takes their replies. When too many verdicts are unknown, it fails, and
    a rerun sends the prompts without a usable reply to an endpoint again. Raises
    JudgeError when too many verdicts are unknown.
    """
    from pipeline.core.trajectory_file import FILE
    from pipeline.engine.files.shards import shard_directories
    from pipeline.llm.replies import replies_of

    steps = StepsOfFile(context.inputs["paths"] / FILE)
    failed_before = (context.checkpoint_dir / CALLS).exists()
    replies = replies_of(shard_directories(context), retry=failed_before)
    judging, answerer = _opened(context, replies)
    over, under = judging.judges()
    with over, under:
        counts = judge_to(
            context.output, context.checkpoint_dir, steps, answerer, over, under,
            ceiling=judging.settings.unknown_ceiling, progress=context.progress,
        )  # fmt: skip
    write_json(context.output / "chat.json", _report(judging.usages))
    return counts


def run_shard(context: StageContext) -> dict[str, int]:
    """Ask all models about one shard of the cases; returns the number of replies."""
    from pipeline.core.trajectory_file import FILE
    from pipeline.judges.judge_steps import judge_steps
    from pipeline.llm.replies import ReplyLog

    steps = StepsOfFile(context.inputs["paths"] / FILE, context.shard, context.shards)
    replies = ReplyLog()
    judging, answerer = _opened(context, replies)
    over, under = judging.judges()
    with over, under:
        judge_steps(steps, answerer, over, under, context.progress)
    _report(judging.usages)
    return {"replies": replies.write(context.output)}


def _opened(context: StageContext, replies: ReplyExchange) -> tuple[Judging, Answerer]:
    """The judges of the round, or of the evaluation for an evaluated policy, and its answers."""
    from pipeline.judges.opening import Judging
    from pipeline.rollout.grammars import grammar
    from pipeline.rollout.policy import read_policy

    config, world = context.config, context.inputs.get("world")
    of_policy = context.stage.startswith("judge-policy")
    settings = config.evaluation_judges if of_policy else config.judges
    assert settings is not None  # the task has refused a configuration without them
    judging = Judging(settings, context.models, replies, context.progress, world)
    adapter = read_policy(context.inputs["policy"]).adapter
    policy_grammar = grammar(config.grammar, max_steps=config.sampling.max_steps)
    return judging, partial(judging.answers, adapter, policy_grammar)


def _report(usages: Mapping[str, Usage]) -> dict[str, dict[str, Any]]:
    """Print the usage of each model; returns it as JSON values."""
    for name, usage in usages.items():
        print(f"{name}: {usage.line()}")
    return {name: usage.total() for name, usage in usages.items()}


@dataclass(frozen=True)
class StepsOfFile:
    """The steps to judge of a file of trajectories, read anew by every iteration.

    A shard has the steps of its share of the queries and, for steps without a search, of the cases.
    Two shards therefore share no prompt.
    """

    path: Path
    shard: int = 0
    shards: int = 1

    def __iter__(self) -> Iterator[JudgedStep]:
        from pipeline.core.trajectory_file import iterate_trajectories
        from pipeline.core.verdicts import steps_of

        columns = ["trajectory_id", "stop", "steps"]
        for trajectory in iterate_trajectories(self.path, columns):
            for step in steps_of([trajectory]):
                if self.shards == 1 or _share(step) % self.shards == self.shard:
                    yield step


def _share(step: JudgedStep) -> int:
    """A number that is equal for steps that need the same answer or verdict."""
    from pipeline.core.content_cache import digest

    parts = (step.reasoning, step.conclusion) if step.query is None else (step.query,)
    return int.from_bytes(digest(*parts), "little")


def judge_to(
    output: Path,
    checkpoint_dir: Path,
    steps: Iterable[JudgedStep],
    answerer: Answerer,
    over: AnyJudge,
    under: AnyJudge,
    *,
    ceiling: float,
    progress: Progress | None = None,
) -> dict[str, int]:
    """Judge steps and write the stage's files to ``output``; returns counts.

    ``steps`` is iterated several times. ``ceiling`` is the highest accepted share of unknown
    verdicts. Above it, raises JudgeError and writes the files to ``checkpoint_dir`` instead.
    """
    from pipeline.core.record_io import write_parquet
    from pipeline.core.verdicts import Verdict
    from pipeline.judges.cases import CallRecord
    from pipeline.judges.judge_steps import judge_steps
    from pipeline.judges.search_errors import constant_verdicts, count_search_errors

    judged = judge_steps(steps, answerer, over, under, progress)
    errors = count_search_errors(judged.verdicts(steps))
    fails = errors.unknown_share is not None and errors.unknown_share > ceiling
    folder = checkpoint_dir if fails else output
    count = write_parquet(folder / VERDICTS, judged.verdicts(steps), Verdict)
    records = (
        CallRecord(kind=case.kind, **asdict(case), **asdict(call))
        for case, call in judged.calls.items()
    )
    write_parquet(folder / CALLS, records, CallRecord)
    faults = Counter(call.fault for call in map(judged.call, steps) if call.verdict == "unknown")
    unknown = errors.over.unknown + errors.under.unknown
    statistics = {
        "over": asdict(errors.over),
        "under": asdict(errors.under),
        "unknown": unknown,
        "calls": dict(Counter(case.kind for case in judged.calls)),
        "faults": dict(faults.most_common()),
    }
    write_json(folder / "statistics.json", statistics)
    for name, value in statistics.items():
        print(f"{name}: {value}")
    for line in constant_verdicts(statistics):
        print(line)
    if fails:
        reasons = ", ".join(f"{count} {fault}" for fault, count in faults.most_common())
        raise JudgeError(
            f"{unknown} of {count} steps have no verdict ({reasons}); expected at most "
            f"{ceiling:.1%} (judges.unknown_ceiling); see {folder / CALLS}, fix the judge and "
            "rerun, which requests only the missing verdicts"
        )
    return {"steps": count, "calls": len(judged.calls), "unknown": unknown}
