"""Row ``sampling``: rolling out one round, against the lockstep loop and against the engine alone.

Work: recorded trajectories of a finished run are rolled out again, from their questions, with their
seeds. The lockstep loop is the usual one elsewhere: generate for all until each stops, retrieve for
all, repeat. The engine alone generates the same segments at once, as if every observation were
known in advance. All three must give the same tokens.

`rows` opens the run's engine and its retriever. If both compute on the same cores, overlapping them
gains little. `simulated` therefore replays the recorded segments and contexts with the times of an
accelerator. A step of an 8B model on an A100 takes as long as reading its weights and the cache of
every sequence in it (`pipeline.engine.plan.clock`). A query takes as long as the run's retriever
needs when nothing else computes. Both wait in wall time.
"""

from __future__ import annotations

import itertools
import math
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, cast

from benchmarks.timing import Row, alternate
from pipeline.api import Run
from pipeline.config import Config, load
from pipeline.core.model_shapes import DTYPE_BYTES, PUBLISHED
from pipeline.core.records import ContextItem, Question, Trajectory
from pipeline.engine.context import StageContext
from pipeline.knowledge.retrieval.base import Query
from pipeline.llm.engine import Engine, GenerationRequest, GenerationResult
from pipeline.llm.tokenizer import Tokenizer
from pipeline.llm.tokens import control_tokens, segment_text
from pipeline.rollout import sampler
from pipeline.rollout.grammars.base import Grammar, grammar
from pipeline.rollout.partial import PartialTrajectory, stable_seed
from pipeline.rollout.policy import RolloutSettings, read_policy
from pipeline.rollout.sampler import Rollout, roll_out
from pipeline.rollout.tags import TaggedText

MODEL = "meta-llama/Meta-Llama-3-8B-Instruct"
_BATCH = 8  # queries that the sampler sends together when many trajectories run
Key = tuple[int, ...]


@dataclass(frozen=True)
class Recorded:
    """Trajectories of one round with the tokenizer and settings of their rollout."""

    trajectories: Sequence[Trajectory]
    questions: Sequence[Question]
    samples: int
    seed: int
    round_number: int
    settings: RolloutSettings
    tokenizer: Tokenizer
    grammar: Grammar

    def requests(self) -> list[GenerationRequest]:
        """Every recorded segment as a separate request."""
        return [request for request, _ in self._segments()]

    def segments(self) -> dict[int, GenerationResult]:
        """Every recorded segment by the seed of its request."""
        return {request.seed: result for request, result in self._segments()}

    def _segments(self) -> Iterator[tuple[GenerationRequest, GenerationResult]]:
        for item in self.trajectories:
            first = stable_seed(self.seed, self.round_number, item.question_id, item.sample)
            spans = [span for span in item.token_spans if span[2] == "model"]
            for number, (start, end, _) in enumerate(spans):
                ids = item.token_ids[start:end]
                name = f"{item.trajectory_id} {number}"
                request = GenerationRequest(
                    id=name,
                    prompt_ids=item.prompt_ids + item.token_ids[:start],
                    max_tokens=len(ids),
                    stop=self.grammar.stop,
                    temperature=self.settings.temperature,
                    top_p=self.settings.top_p,
                    seed=stable_seed(first, number),
                )
                finish: Any = "stop"
                if ids[-1] == self.tokenizer.eos_token_id:
                    finish = "eos"
                elif item.stop == "max_tokens" and number == len(spans) - 1:
                    finish = "length"
                text = segment_text(self.tokenizer, ids, finish)
                logps = cast(list[float], item.logprobs[start:end])
                yield request, GenerationResult(name, ids, logps, text, finish)


class Lockstep(sampler._Scheduler):
    """The usual loop elsewhere: all generate, then all retrieve."""

    def run(self, trajectories: Iterator[PartialTrajectory]) -> Iterator[Trajectory]:
        for trajectory in trajectories:
            yield from self._alone(trajectory, self._start)
        while self.generating or self.queued:
            while self.generating:
                for result in self.engine.step():
                    trajectory = self.generating.pop(result.id)
                    yield from self._alone(trajectory, partial(self._advance, result))
            waiting, self.queued = self.queued, []
            items = self._retrieve([query for _, [query] in waiting])
            for (trajectory, _), found in zip(waiting, items, strict=True):
                yield from self._alone(trajectory, partial(self._observe, [found]))


@dataclass
class SimulatedEngine(Engine):
    """Replays segments by the seed of their request; ``step_seconds`` gives the time of a step."""

    tokenizer: Tokenizer
    replay: dict[int, GenerationResult]
    step_seconds: Callable[[int], float]
    max_num_seqs: int
    max_model_len: int = 1 << 30
    _left: dict[str, list[Any]] = field(default_factory=dict)  # a result, and its tokens to come

    def add(self, request: GenerationRequest) -> None:
        found = self.replay[request.seed]
        result = GenerationResult(
            request.id, found.token_ids, found.logprobs, found.text, found.finish
        )
        self._left[request.id] = [result, len(found.token_ids)]

    def unfinished(self) -> int:
        return len(self._left)

    def close(self) -> None:
        self._left.clear()

    def _advance(self) -> list[GenerationResult]:
        running = list(self._left.values())[: self.max_num_seqs]
        time.sleep(self.step_seconds(len(running)))
        for each in running:
            each[1] -= 1
        done: list[GenerationResult] = [result for result, left in running if not left]
        for result in done:
            del self._left[result.id]
        return done


class SimulatedRetriever:
    """Replays contexts by subquery and entities; every query takes ``seconds``."""

    def __init__(self, trajectories: Sequence[Trajectory], seconds: float) -> None:
        self._seconds = seconds
        self._items = {
            (step.subquery, *step.entities): step.context
            for item in trajectories
            for step in item.steps
        }

    def retrieve(self, queries: Sequence[Query]) -> list[list[ContextItem]]:
        time.sleep(self._seconds * len(queries))
        return [self._items[(query.subquery, *query.entities)] for query in queries]


def accelerator_step(tokens: float) -> Callable[[int], float]:
    """Seconds of a step of `MODEL` on an A100, by its sequences of ``tokens`` tokens."""
    from pipeline.engine.plan.clock import Rates

    shape, width = PUBLISHED[MODEL], DTYPE_BYTES["bfloat16"]
    weights = shape.parameters * width
    cache = tokens * shape.layers * 2 * shape.kv_width * width
    return lambda batch: (weights + batch * cache) / Rates().writing


def simulated(
    recorded: Recorded, query_seconds: float, repeats: int, *, at_once: int = 64
) -> list[Row]:
    """Recorded trajectories replayed in the times of an accelerator with ``at_once`` sequences.

    A query takes ``query_seconds``. Raises AssertionError when a contender gives other tokens.
    """
    lengths = [len(item.prompt_ids) + len(item.token_ids) for item in recorded.trajectories]
    engine = SimulatedEngine(
        recorded.tokenizer,
        recorded.segments(),
        accelerator_step(sum(lengths) / len(lengths)),
        at_once,
    )
    retriever = SimulatedRetriever(recorded.trajectories, query_seconds)
    what = f"simulated A100, 8B, {at_once} at once, {1e3 * query_seconds:.1f} ms a query"
    rows = _compared(recorded, engine, retriever, what, repeats, ("≥ 1.5", "≥ 0.85"))
    queries = sum(len(item.tokens.per_retrieval) for item in recorded.trajectories)
    alone = rows[-1]
    assert alone.peer is not None
    slower = [max(seconds, queries * query_seconds) for seconds in alone.peer]
    name = "engine or retriever alone, the slower"
    return [*rows, replace(alone, peer_name=name, peer=slower, goal="")]


def new_numbers() -> Iterator[int]:
    """Numbers that make texts new to every cache on disk; engines seed the module `random`."""
    return itertools.count(secrets.randbelow(10**6))


def measure_query(retriever: Any, trajectories: Sequence[Trajectory]) -> float:
    """Seconds a query of ``trajectories`` takes, in batches of `_BATCH` and with cold caches."""
    steps = [step for item in trajectories for step in item.steps]
    queries = [
        Query(f"{step.subquery} {number}", tuple(step.entities))
        for step, number in zip(steps, new_numbers(), strict=False)
    ]
    start = perf_counter()
    for first in range(0, len(queries), _BATCH):
        retriever.retrieve(queries[first : first + _BATCH])
    return (perf_counter() - start) / len(queries)


def _compared(
    recorded: Recorded,
    engine: Engine,
    retriever: Any,
    what: str,
    repeats: int,
    goals: tuple[str, str],
) -> list[Row]:
    requests, found = recorded.requests(), dict[str, list[Key]]()

    def ours() -> None:
        found["ours"] = _ids(_rolled_out(recorded, engine, retriever))

    def lockstep() -> None:
        found["lockstep"] = _ids(_rolled_out(recorded, engine, retriever, Lockstep))

    def alone() -> None:
        results = engine.generate(requests)
        found["alone"] = sorted(tuple(result.token_ids) for result in results)

    seconds = alternate({"ours": ours, "lockstep": lockstep, "alone": alone}, repeats, perf_counter)
    assert found["lockstep"] == found["ours"], "the lockstep loop samples other tokens"
    assert found["ours"] == _ids(recorded.trajectories), "the recorded run sampled other tokens"
    recorded_segments = sorted(tuple(each.token_ids) for each in recorded.segments().values())
    assert found["alone"] == recorded_segments, "the engine alone samples other tokens"
    tokens = sum(len(ids) for ids in recorded_segments)
    work = f"{len(recorded.trajectories)} trajectories, {tokens:,} tokens, {what}"
    return [
        Row("sampling", work, name, seconds["ours"], seconds[peer], "wall s", goal)
        for name, peer, goal in (
            ("lockstep loop", "lockstep", goals[0]),
            ("the engine alone", "alone", goals[1]),
        )
    ]


def _rolled_out(
    recorded: Recorded,
    engine: Engine,
    retriever: Any,
    scheduler: type[sampler._Scheduler] = sampler._Scheduler,
) -> list[Trajectory]:
    rollout = Rollout(
        engine=engine,
        format=TaggedText(engine.tokenizer, recorded.grammar),
        retriever=retriever,
        settings=recorded.settings,
        policy=recorded.trajectories[0].policy,
    )
    if scheduler is sampler._Scheduler:
        return list(
            roll_out(
                rollout,
                recorded.questions,
                samples=recorded.samples,
                seed=recorded.seed,
                round_number=recorded.round_number,
            )
        )
    started = (
        PartialTrajectory(
            question=question,
            sample=item.sample,
            seed=stable_seed(recorded.seed, recorded.round_number, item.question_id, item.sample),
            prompt_ids=item.prompt_ids,
        )
        for question in recorded.questions
        for item in recorded.trajectories
        if item.question_id == question.question_id
    )
    return list(scheduler(rollout).run(started))


def _ids(trajectories: Sequence[Trajectory]) -> list[Key]:
    return sorted(tuple(item.token_ids) for item in trajectories)


def rows(directory: Path, questions: int, repeats: int) -> list[Row]:
    """Round 1 of the finished run in ``directory``: simulated, and on this machine.

    ``questions`` are rolled out on this machine, and twice as many in the simulation. Raises
    StoreError when the run is not finished.
    """
    from tasks.sample import open_rollout

    run = Run.from_directory(directory)
    config = load(directory / "config.yaml")
    everything = list(run.trajectories(1))
    many = _recorded(run, config, everything, 2 * questions)
    few = _recorded(run, config, everything, questions)
    policy = read_policy(run.policies()[0].directory)
    with (
        rollout_context(run, config) as context,
        open_rollout(context, policy, many.settings) as opened,
    ):
        engine, retriever = opened.engine, opened.retriever
        assert retriever is not None
        result = simulated(many, measure_query(retriever, many.trajectories), repeats)
        what = f"{config.engine.kind} on this CPU, warm caches"
        goals = ("reported", "reported")
        return result + _compared(few, engine, retriever, what, repeats, goals)


@contextmanager
def rollout_context(run: Run, config: Config) -> Iterator[StageContext]:
    """The context of round 1's roll-outs in a finished run, with a directory that is deleted."""
    with TemporaryDirectory(prefix="sampling-") as name:
        yield StageContext(
            config=config,
            stage="sample",
            output=Path(name),
            checkpoint_dir=Path(name),
            inputs={stage: run.stage(stage) for stage in ("corpus", "graph", "index")},
            seed=config.seed,
            round=1,
        )


def _recorded(run: Run, config: Config, everything: Sequence[Trajectory], count: int) -> Recorded:
    """The round with ``count`` of its questions, from all data sets.

    A question is left out if a malformed trajectory has a last context that belongs to no step,
    because that trajectory cannot be replayed.
    """
    from pipeline.llm.tokenizer import model_tokenizer
    from pipeline.training.lora import locate_base
    from tasks.sample import rollout_settings

    unknown = {
        item.question_id
        for item in everything
        if len(item.tokens.per_retrieval) > sum(bool(step.context) for step in item.steps)
    }
    questions = [each for each in run.questions("sampling") if each.question_id not in unknown]
    chosen = questions[:: math.ceil(len(questions) / count)]
    names = {question.question_id for question in chosen}
    items = [item for item in everything if item.question_id in names]
    tokenizer = model_tokenizer(locate_base(config.model.base))
    return Recorded(
        items,
        chosen,
        config.sampling.samples,
        config.seed,
        1,
        rollout_settings(config, temperature=config.sampling.temperature),
        tokenizer,
        grammar(
            config.grammar,
            max_steps=config.sampling.max_steps,
            special_tokens=control_tokens(tokenizer),
        ),
    )
