"""Stage ``sample``: R trajectories per question of one round (TeaRAG, arXiv 2511.05385, 4.3.2).

Input: the questions of stage ``questions-sampling``, and the policy that samples. Output:
``trajectories.parquet``, ``timing.json`` (seconds and generated tokens) and ``stops.json``
(trajectories by stop reason).

`roll_out_policy` serves the evaluation too, so that a policy is evaluated with the settings, prompt
and stop rules it was sampled with, `continue_policy` the Monte Carlo value estimates of
ProGraph-R1 (eq. 11). Finished questions are saved in batches
of ``sampling.batch`` without emptying the engine. Every trajectory has a seed that depends on its
question and sample only, so a rollout that was killed and continues gives the same trajectories in
the same order.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.config import Config
from pipeline.config.policy import RejectionSampling
from pipeline.core.atomic import write_json
from pipeline.core.errors import (
    EngineError,
    InputError,
    Place,
    RetrievalUnavailable,
    StoreError,
    missing,
)
from pipeline.core.input_files import read_json
from pipeline.core.records import Question, Trajectory
from pipeline.engine.fingerprint import roll_out_files
from pipeline.engine.opened import Opened, Work, policy_engine, retrieval
from pipeline.engine.plan.clock import Clock
from pipeline.engine.plan.sizes import TRAJECTORY_BYTES
from pipeline.engine.shards import DivisibleTask
from pipeline.engine.stage import RoundTask, StageTask
from tasks.index import searched
from tasks.policy import GivenPolicy, check_lineage, policy, policy_files
from tasks.questions import QUESTIONS, QUESTIONS_READ, input_questions, questions

if TYPE_CHECKING:
    from pipeline.engine.context import StageContext
    from pipeline.engine.store import StageKey
    from pipeline.knowledge.retrieval.base import Retriever
    from pipeline.knowledge.retrieval.remote.client import RemoteRetriever
    from pipeline.rollout.partial import PartialTrajectory
    from pipeline.rollout.policy import Policy, RolloutSettings
    from pipeline.rollout.sampler import Rollout

ROLL_OUT = (
    "retrieval",
    "prompt",
    "grammar",
    "format",
    "engine",
    "index.embedder",
    "model",
    "seed",
)
# Fields of `sampling` that bound a trajectory.
LIMITS = (
    "top_p", "max_steps", "max_segment_tokens", "max_total_tokens", "max_context_tokens",
)  # fmt: skip


def roll_out_models(task: StageTask) -> Iterator[Opened]:
    """The policy, and the retriever unless a service retrieves."""
    yield policy_engine(task.settings)
    own = task.settings.retrieval != task.run_settings.retrieval
    yield from retrieval(task.settings, "evaluation.retrieval" if own else "retrieval")


def sampled(task: RoundTask, clock: Clock) -> float:
    """The trajectories of a round."""
    return clock.sizes.in_round(task.round) * task.settings.sampling.samples


class RollOutTask(DivisibleTask):
    """A stage that rolls a policy out over questions."""

    served = ("corpus", "graph", "index")

    def trajectories(self, clock: Clock) -> float:
        """The number of trajectories, by the sizes of the data."""
        raise NotImplementedError

    @property
    def input_files(self) -> Mapping[str, tuple[str, ...]]:
        return {**QUESTIONS_READ, "policy": policy_files(self.inputs["policy"])}

    def files(self) -> dict[str, Path | str]:
        return roll_out_files(self.settings)

    def opens(self) -> Iterator[Opened]:
        return roll_out_models(self)

    def work(self, clock: Clock) -> Work:
        rows = self.trajectories(clock)
        return rows * (clock.trajectory(self.opens()) + Work(disk=TRAJECTORY_BYTES))

    def faults(self) -> Iterator[str]:
        from pipeline.engine.check.limits import roll_out_faults

        return roll_out_faults(self.settings)


class Sample(RoundTask, RollOutTask):
    """Trajectories of policy n - 1 for round n."""

    stage = "sample"
    help = "trajectories of a round"
    version = 2
    shards_block = "sampling"
    reads = ("sampling", *ROLL_OUT)

    @property
    def recorded(self) -> str | None:
        """The file of trajectories that stand in for sampling."""
        return self.settings.sampling.recorded

    @property
    def runs_model(self) -> bool:
        return self.recorded is None

    @property
    def input_files(self) -> Mapping[str, tuple[str, ...]]:
        files = super().input_files
        return files if self.recorded is None else {"policy": files["policy"]}

    @cached_property
    def inputs(self) -> dict[str, StageTask]:
        before = {"policy": policy(self, self.round - 1)}
        if self.recorded is not None:
            return before
        return {**searched(self), "questions": questions(self, "sampling"), **before}

    def files(self) -> dict[str, Path | str]:
        return super().files() if self.recorded is None else {"recorded": Path(self.recorded)}

    def opens(self) -> Iterator[Opened]:
        return super().opens() if self.recorded is None else iter(())

    def reading(self) -> tuple[str, ...]:
        return self.reads if self.recorded is None else ("sampling.recorded",)

    def faults(self) -> Iterator[str]:
        return super().faults() if self.recorded is None else iter(())

    def trajectories(self, clock: Clock) -> float:
        return sampled(self, clock)


class Sampled(Sample):
    """A round that is sampled although ``sampling.recorded`` names a file; no stage of a run."""

    @property
    def recorded(self) -> None:
        return None


class SftSample(RollOutTask):
    """Trajectories for the cold start by rejection sampling (``sft_data.rejection_sampling``)."""

    stage = "sft-sample"
    help = "trajectories of the base model or of a teacher, for the cold start"
    shards_block = "sampling"
    reads = ("sampling", *ROLL_OUT, "sft_data.rejection_sampling")

    @cached_property
    def settings(self) -> Config:
        """The run's settings, with the teacher's samples and temperature in ``sampling``."""
        settings, own = self.run_settings, self._own
        update = {"samples": own.samples, "temperature": own.temperature, "recorded": None}
        sampling = settings.sampling.model_copy(update=update)
        return settings.model_copy(update={"sampling": sampling})

    def reading(self) -> tuple[str, ...]:
        """Without the block that `settings` merges into ``sampling``."""
        return Sample.reads

    @property
    def _own(self) -> RejectionSampling:
        return self.run_settings.sft_data.rejection_sampling or RejectionSampling()

    @cached_property
    def inputs(self) -> dict[str, StageTask]:
        return {
            **searched(self),
            "questions": questions(self, "sft"),
            "policy": self.clone(GivenPolicy, source=self._own.teacher),
        }

    def trajectories(self, clock: Clock) -> float:
        return clock.sizes.questions["sft"] * self._own.samples


_STOPS, _TIMING = "stops.json", "timing.json"


def run(context: StageContext) -> dict[str, int]:
    """Sample ``inputs["policy"]`` over this shard of the sampling questions; returns counts.

    Raises InputError when there are no questions, and what `check_lineage` and `roll_out_policy`
    raise.
    """
    from pipeline.rollout.policy import read_policy

    directory = context.inputs["policy"]
    policy = read_policy(directory)
    recorded, seconds = context.config.sampling.recorded, dict[str, float]()
    if recorded is not None:
        trajectories = _recorded(recorded, policy.fingerprint, context.round)
    else:
        questions = input_questions(context)
        if not questions:
            raise InputError("no questions to sample; name files under data.sampling")
        check_lineage(context.config, directory)
        trajectories, seconds = roll_out_policy(
            context,
            questions[context.shard :: context.shards],
            policy,
            temperature=context.config.sampling.temperature,
            samples=context.config.sampling.samples,
        )
    return _write(context, trajectories, seconds)


def _write(
    context: StageContext, trajectories: Iterable[Trajectory], seconds: dict[str, float]
) -> dict[str, int]:
    from pipeline.core.record_io import write_parquet
    from pipeline.core.trajectory_file import FILE
    from pipeline.engine.files.malformed import warn_of_malformed

    stops: Counter[str] = Counter()
    questions: set[str] = set()
    generated, malformed = 0, 0
    read = _passages_with_triplets(context)
    shown: Counter[bool] = Counter()  # passages in steps, by whether they are among these

    def counted() -> Iterator[Trajectory]:
        nonlocal generated, malformed
        for trajectory in trajectories:
            questions.add(trajectory.question_id)
            generated += trajectory.tokens.thinking
            stops[trajectory.stop] += 1
            malformed += trajectory.malformed_calls
            items = (item for step in trajectory.steps for item in step.context)
            shown.update(item.id in read for item in items if item.kind == "chunk" and read)
            yield trajectory

    write_parquet(context.output / FILE, counted(), Trajectory)
    write_json(context.output / _TIMING, {**seconds, "generated_tokens": generated})
    write_json(context.output / _STOPS, dict(sorted(stops.items())))
    warn_of_malformed(context, context.output / FILE)
    print(f"{generated:,} generated tokens; stop reasons: {dict(stops.most_common())}")
    answered = {}
    if context.config.sampling.malformed_calls == "answer":
        answered["malformed_calls"] = malformed
    if read:
        answered |= {"shown_passages": shown.total(), "shown_without_triplets": shown[False]}
    return {"questions": len(questions), "trajectories": stops.total(), **answered}


def _passages_with_triplets(context: StageContext) -> frozenset[str]:
    """Ids of the passages with triplets if the graph is one of candidates, else none."""
    from pipeline.core.columns import Columns

    config, graph = context.config, context.inputs.get("graph")  # recorded trajectories read none
    if graph is None or config.graph.scope != "candidates" or config.retrieval.over_hypergraph:
        return frozenset()
    return frozenset(Columns(graph / "triplets.arrow", ("chunk_id",)).column(0))


def _recorded(path: str, policy: str, round: int | None) -> Iterator[Trajectory]:
    """The trajectories of ``sampling.recorded``.

    Raises InputError for a trajectory without token ids, or of another policy than the one with
    the fingerprint ``policy``: its log-probabilities would not be those of the reference.
    """
    from pipeline.core.record_io import iterate_records

    with Place(path) as place:
        for place.line, trajectory in enumerate(iterate_records(path, Trajectory), start=1):
            if not (trajectory.token_ids and trajectory.prompt_ids):
                raise InputError("token_ids: missing; training needs the ids that were sampled")
            if trajectory.policy != policy:
                raise InputError(
                    f"policy: {trajectory.policy[:12]}, and round {round} trains {policy[:12]}; "
                    "record with the policy before this round"
                )
            yield trajectory
        if place.line is None:
            raise InputError("no trajectories; record some with gold answers or rewards")


def merge(context: StageContext) -> dict[str, int]:
    """Join the trajectories of the shards, and add up their seconds and counts.

    Raises what `join_trajectories` raises.
    """
    from pipeline.core.columns import Columns
    from pipeline.core.trajectory_file import FILE
    from pipeline.engine.files.malformed import warn_of_malformed
    from pipeline.engine.files.shards import (
        added,
        join_trajectories,
        shard_counts,
        shard_directories,
    )

    questions = Columns(context.inputs["questions"] / QUESTIONS, ("question_id",))
    samples = range(context.config.sampling.samples)
    join_trajectories(context, list(itertools.product(questions.column(0), samples)))
    warn_of_malformed(context, context.output / FILE)
    shards = shard_directories(context)
    stops = added([read_json(shard / _STOPS) for shard in shards])
    write_json(context.output / _STOPS, dict(sorted(stops.items())))
    write_json(context.output / _TIMING, added([read_json(shard / _TIMING) for shard in shards]))
    return shard_counts(context)


def roll_out_policy(
    context: StageContext,
    questions: Sequence[Question],
    policy: Policy,
    *,
    temperature: float,
    samples: int,
) -> tuple[Iterator[Trajectory], dict[str, float]]:
    """Roll a policy out over questions: trajectories by question and sample, and seconds.

    The trajectories are read from their checkpoints while they are consumed, with a check that each
    question has each sample once.

    The caller has checked the policy (`check_lineage`). The seconds are engine_start, generation,
    semantic, graph, ppr and total, and with a retrieval service the seconds of waiting for it;
    generation and retrieval overlap. Checkpoints under ``context.checkpoint_dir`` are not rolled
    out again. Raises InputError for repeated question ids and for no samples, RetrievalError when
    retrieval fails for every trajectory of a batch, RetrievalUnavailable when no query can be
    answered, StoreError when checkpoints vanish or are damaged meanwhile, and what `open_rollout`
    raises.
    """
    from pipeline.core.content_cache import digest
    from pipeline.engine.files.rollout_checkpoints import RolloutCheckpoints, RolloutTimer
    from pipeline.rollout.sampler import roll_out

    question_ids = [question.question_id for question in questions]
    repeated = [name for name, count in Counter(question_ids).items() if count > 1]
    if repeated:
        raise InputError(f"question {repeated[0]} occurs twice; ids must be unique within a split")
    if samples < 1:
        raise InputError(f"samples is {samples}; expected at least 1 trajectory per question")
    name = policy.fingerprint
    settings = rollout_settings(context.config, temperature=temperature)
    # A stage has one directory per fingerprint; callers of the Python interface choose theirs.
    deciding = repr(replace(settings, in_flight=1))  # which does not change trajectories
    identity = digest(name, deciding, str(context.seed), str(context.round))
    checkpoints = RolloutCheckpoints(
        context.checkpoint_dir / "paths" / identity.hex(),
        question_ids,
        samples=samples,
        batch=context.config.sampling.batch,
    )
    remaining = [questions[number] for number in checkpoints.remaining()]
    total = len(questions) * samples
    context.progress.start(total, "trajectories", done=total - len(remaining) * samples)
    log = logging.getLogger(__name__)
    rest = f"{len(remaining)} of {len(questions)} questions to roll out"
    log.info("policy %s: %s, %d trajectories each", name, rest, samples)
    if remaining:
        start = time.perf_counter()
        with open_rollout(context, policy, settings) as rollout:
            checkpoints.seconds["engine_start"] += time.perf_counter() - start
            timer = RolloutTimer(
                start, rollout.engine, rollout.retriever, dict(checkpoints.seconds)
            )
            opened, generated = time.perf_counter(), 0
            try:
                number = context.round or 0
                for trajectory in roll_out(
                    rollout, remaining, samples=samples, seed=context.seed, round_number=number
                ):
                    checkpoints.add(trajectory, timer)
                    generated += trajectory.tokens.thinking
                    seconds = max(time.perf_counter() - opened, 1e-3)
                    context.progress.show(tokens_per_second=generated / seconds)
                    context.progress.advance()
                checkpoints.flush(timer)
            except (EngineError, RetrievalUnavailable):
                checkpoints.flush(timer)  # these questions finished before the outage
                raise
    seconds_spent = {name: round(value, 1) for name, value in checkpoints.seconds.items()}
    log.info("seconds: %s", seconds_spent)
    return checkpoints.read(), checkpoints.seconds


def continue_policy(
    context: StageContext, policy: Policy, trajectories: Iterable[PartialTrajectory]
) -> Iterator[Trajectory]:
    """Continue partial trajectories with the policy, settings and prompt that sampled them.

    Yields trajectories as they finish. Without a partial trajectory neither the engine nor the
    retriever is opened. Raises what these raise.
    """
    from pipeline.rollout.sampler import continue_trajectories

    remaining = iter(trajectories)
    if (first := next(remaining, None)) is None:
        return
    sampling = context.config.sampling
    settings = rollout_settings(context.config, temperature=sampling.temperature)
    with open_rollout(context, policy, settings) as rollout:
        yield from continue_trajectories(rollout, itertools.chain([first], remaining))


def rollout_settings(config: Config, *, temperature: float) -> RolloutSettings:
    """The rollout settings of a configuration; sampling and evaluation differ in temperature."""
    from pipeline.rollout.policy import RolloutSettings

    sampling = config.sampling
    return RolloutSettings(
        prompt=config.prompt,
        temperature=temperature,
        **sampling.model_dump(include=set(LIMITS)),
        in_flight=sampling.in_flight or 2 * config.engine.max_num_seqs,
        single_retrieval=config.retrieval.rounds == "single",
        prompt_retrieval=config.retrieval.rounds in ("prompt", "ircot"),
        loop=config.retrieval.rounds,
    )


@contextmanager
def open_rollout(
    context: StageContext, policy: Policy, settings: RolloutSettings
) -> Iterator[Rollout]:
    """The engine, the retriever (None for variant ``none``) and the format, closed on exit.

    Raises what `open_engine`, `open_retriever`, `open_remote_retriever` and `Format.open` raise.
    """
    from pipeline.rollout.sampler import Rollout

    with ExitStack() as stack:
        # Connecting to a retrieval service first reports an outage before the engine starts, which
        # takes minutes. A local retriever is opened after the engine.
        remote = context.config.retrieval.service is not None
        retriever = stack.enter_context(open_run_retriever(context)) if remote else None
        engine = context.models.policy_engine(policy.adapter)
        stack.callback(engine.close)
        yield Rollout(
            engine=engine,
            format=context.format.open(engine.tokenizer, context.config.sampling.max_steps),
            retriever=retriever if remote else stack.enter_context(open_run_retriever(context)),
            settings=settings,
            policy=policy.fingerprint,
        )


@contextmanager
def open_run_retriever(context: StageContext) -> Iterator[Retriever | None]:
    """The retriever of the configuration, in process or of a service; None for variant none."""
    config = context.config
    retriever: Retriever
    if config.retrieval.variant == "none":
        yield None
        return
    if config.retrieval.service is not None:
        retriever = open_remote_retriever(config, context.key)
    else:
        from pipeline.knowledge.retrieval.factory import open_retriever

        paths = [context.inputs[name] for name in ("corpus", "graph", "index")]
        cache = config.cache_dir
        retriever = open_retriever(config.retrieval, config.index, *paths, cache_dir=cache)
    with closing(retriever):
        yield retriever


def open_remote_retriever(config: Config, key: StageKey | None) -> RemoteRetriever:
    """The client of ``retrieval.service``.

    ``key`` has the fingerprints of the expected corpus, graph and index. Raises
    RetrievalUnavailable when the service is down or its identity differs, StoreError without
    ``key``: a stage outside a store has no fingerprints. Raises DependencyError when a package of
    the client is missing.
    """
    from pipeline.knowledge.retrieval.fingerprint import RetrievalIdentity

    try:
        from pipeline.knowledge.retrieval.remote.client import RemoteRetriever
    except ImportError as error:
        raise missing(f"retrieval.service needs {error.name}", "serve") from None

    settings = config.retrieval
    if key is None or settings.service is None:
        raise StoreError("retrieval.service needs the fingerprints of a store; use steep run")
    identity = RetrievalIdentity.from_settings(settings, key.inputs, key.files.get("reranker"))
    return RemoteRetriever(settings.service, identity, patience=settings.service_patience)
