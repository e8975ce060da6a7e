"""Roll out a policy: many trajectories in flight, with retrieval running during generation.

Input: questions, an engine, a format and a retriever. Output: finished trajectories, in the order
in which they finish. Sampling (TeaRAG, arXiv 2511.05385, 4.3.2), evaluation and the baselines all
use this module. While one batch of queries is retrieved in a thread, the engine generates the other
trajectories; all queries that arrive in the meantime form the next batch. It starts as soon as its
queries are more than an eighth of the segments that are being generated, because an embedder is
slow with a few short texts at a time.

The seed of a trajectory is a hash of run seed, round, question and sample, and every segment has a
seed derived from it. Trajectories are therefore independent of the number in flight and their
order.
"""

from __future__ import annotations

import bisect
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from pipeline.core.errors import RetrievalError, RetrievalUnavailable
from pipeline.core.records import ContextItem, Question, Stop, Trajectory
from pipeline.knowledge.retrieval.base import Query, Retriever
from pipeline.llm.engine import Engine, EngineEnded, GenerationRequest, GenerationResult
from pipeline.llm.tokens import observation_ids
from pipeline.rollout.formats import OpenFormat
from pipeline.rollout.grammars.base import Finish
from pipeline.rollout.partial import PartialTrajectory, stable_seed
from pipeline.rollout.policy import RolloutSettings
from pipeline.rollout.prompted import LOOPS
from pipeline.rollout.tags import OneTurn

Retrieved = list[ContextItem] | None  # None: retrieval failed
Finished = Trajectory | None  # None: the trajectory goes on
Failed = Callable[[Question, Exception], object]
_FULL_BATCH = 8  # segments in generation for each query of a batch
MOST_CHARACTERS = 50_000  # of a passage that is inserted; the rest is cut


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """All that rolls out a policy.

    Without a ``retriever`` this is the zero-shot baseline (`OneTurn`). ``settings.loop`` names
    another loop of an untrained model (`pipeline.rollout.prompted`). With
    ``settings.prompt_retrieval`` it is single-round retrieval (definition 3.1): the items that the
    question retrieves are shown in the prompt, before the question. ``policy`` is the fingerprint
    that the trajectories record.
    """

    engine: Engine
    format: OpenFormat
    retriever: Retriever | None
    settings: RolloutSettings
    policy: str


def roll_out(
    rollout: Rollout,
    questions: Sequence[Question],
    *,
    samples: int,
    seed: int,
    round_number: int = 0,
) -> Iterator[Trajectory]:
    """Yield ``samples`` trajectories per question as they finish.

    A query whose retrieval fails ends its trajectory with stop "retrieval_error". Raises
    EngineError when the engine fails and RetrievalUnavailable when no query can be answered.
    """
    scheduler = _Scheduler(rollout)
    scheduler.seed_of = partial(stable_seed, seed, round_number)
    begun = (scheduler.begun(question, range(samples)) for question in questions)
    return scheduler.run(itertools.chain.from_iterable(begun))


def answer_questions(
    rollout: Rollout,
    questions: Iterator[Question],
    *,
    seed: int,
    watch: Callable[[PartialTrajectory], object] | None = None,
    failed: Failed | None = None,
) -> Iterator[Trajectory]:
    """Yield a trajectory per question as they finish, the one that `roll_out` gives.

    ``questions`` is asked for more whenever there is room, also after it ended, so that questions
    join a roll-out that runs. ``watch`` gets a trajectory whenever its next segment is requested.
    ``failed`` gets a question and the exception that ended its trajectory, and the others go on.
    """
    scheduler = _Scheduler(rollout)
    scheduler.watch, scheduler.failed = watch, failed
    scheduler.seed_of = partial(stable_seed, seed, 0)

    def begun(question: Question) -> PartialTrajectory | None:
        with scheduler.isolated(question):
            return next(scheduler.begun(question, [0]))
        return None

    # Unlike generators, these go on after their end.
    return scheduler.run(filter(None, map(begun, questions)))


def continue_trajectories(
    rollout: Rollout, trajectories: Iterable[PartialTrajectory]
) -> Iterator[Trajectory]:
    """Continue each partial trajectory once, and yield the trajectories as they finish.

    Existing tokens and steps count against the budgets, as if the trajectory had been rolled out
    from its question. ``settings.prompt`` has no effect, since the prompts exist already.
    Everything else is as in `roll_out`.
    """
    return _Scheduler(rollout).run(iter(trajectories))


class _Scheduler:
    """Moves each open trajectory between the engine and the retrieval thread."""

    def __init__(self, rollout: Rollout) -> None:
        settings, retriever, written = rollout.settings, rollout.retriever, rollout.format
        self.engine, self.policy = rollout.engine, rollout.policy
        self.settings, self.retriever = settings, retriever
        single = settings.single_retrieval and retriever is not None
        in_prompt = settings.prompt_retrieval and retriever is not None
        self.asks_question = single or in_prompt  # before the first turn
        loop = LOOPS.get(settings.loop) if retriever is not None else None
        if retriever is None or in_prompt or loop is not None:
            made = loop or OneTurn
            written = made(written.tokenizer, written.grammar, settings.prompt)
        self.format, self.max_steps = written, 1 if single else settings.max_steps
        self.generating: dict[str, PartialTrajectory] = {}
        self.queued: list[tuple[PartialTrajectory, list[Query]]] = []
        self.requests = 0
        self.open = 0  # trajectories that began and have not finished
        self.seed_of: Callable[[str, int], int] = stable_seed
        self.watch: Callable[[PartialTrajectory], object] | None = None
        self.failed: Failed | None = None

    def begun(self, question: Question, samples: Iterable[int]) -> Iterator[PartialTrajectory]:
        """Trajectories of a question that consist of their prompt."""
        messages, prompt = self.format.prompt(self.settings.prompt, question.question)
        for sample in samples:
            seed = self.seed_of(question.question_id, sample)
            yield PartialTrajectory(question, sample, seed, prompt, messages=list(messages))

    def run(self, trajectories: Iterator[PartialTrajectory]) -> Iterator[Trajectory]:
        retrieving: list[tuple[PartialTrajectory, list[Query]]] = []
        results: Future[list[Retrieved]] | None = None
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="retrieval") as worker:
            while True:
                free = max(self.settings.in_flight - self.open, 0)
                begun = list(itertools.islice(trajectories, free))
                self.open += len(begun)
                for trajectory in begun:
                    yield from self._alone(trajectory, self._start)
                if results is None and len(self.queued) > len(self.generating) // _FULL_BATCH:
                    retrieving, self.queued = self.queued, []
                    batch = [query for _, queries in retrieving for query in queries]
                    results = worker.submit(self._retrieve, batch)
                if results is not None and (results.done() or not self.generating):
                    retrieved = iter(results.result())
                    for trajectory, queries in retrieving:
                        found = [next(retrieved) for _ in queries]
                        yield from self._alone(trajectory, partial(self._observe, found))
                    retrieving, results = [], None
                elif self.generating:
                    for result in self.engine.step():
                        trajectory = self.generating.pop(result.id)
                        yield from self._alone(trajectory, partial(self._advance, result))
                elif not begun:  # those that began may have ended without a token
                    return

    @contextmanager
    def isolated(self, question: Question) -> Iterator[None]:
        """Give an exception that concerns one question to ``failed``, if it is there."""
        try:
            yield
        except (EngineEnded, RetrievalUnavailable):  # concern all
            raise
        except Exception as error:
            if self.failed is None:
                raise
            self.failed(question, error)

    def _alone(
        self, trajectory: PartialTrajectory, act: Callable[[PartialTrajectory], Finished]
    ) -> Iterator[Trajectory]:
        """The trajectory if ``act`` finishes it; an exception ends it too."""
        open_before = self.open
        with self.isolated(trajectory.question):
            yield from filter(None, [act(trajectory)])
            return
        self.open = open_before - 1

    def _start(self, trajectory: PartialTrajectory) -> Finished:
        if self.asks_question and not (trajectory.output or trajectory.contexts):
            question = trajectory.question.question
            self.queued.append((trajectory, [Query(question, (question,))]))
            return None
        self.format.begin(trajectory)
        return self._generate(trajectory)

    def _generate(self, trajectory: PartialTrajectory) -> Finished:
        """Request the next segment, or end where the token budget is spent."""
        if self.watch is not None:
            self.watch(trajectory)
        ids = self.format.request(trajectory)
        budget = min(
            self.settings.max_segment_tokens,
            self.settings.max_total_tokens - len(trajectory.token_ids),
            self.engine.max_model_len - len(ids),
        )
        if budget < 1:
            return self._finish(trajectory, "max_tokens")
        request_id = str(self.requests)
        self.requests += 1
        self.engine.add(
            GenerationRequest(
                id=request_id,
                prompt_ids=ids,
                max_tokens=budget,
                stop=self.format.stop,
                temperature=self.settings.temperature,
                top_p=self.settings.top_p,
                seed=stable_seed(trajectory.seed, trajectory.segments),
            )
        )
        self.generating[request_id] = trajectory
        return None

    def _advance(self, result: GenerationResult, trajectory: PartialTrajectory) -> Finished:
        """Append a finished segment, then take the format's next action."""
        self.format.append_segment(trajectory, result)
        action = self.format.next_action(trajectory, result, self.max_steps)
        if isinstance(action, Finish):
            return self._finish(trajectory, action.stop)
        if action is None:
            return self._generate(trajectory)
        later = bool(trajectory.contexts)
        self.queued.append((trajectory, [replace(query, later=later) for query in action]))
        return None

    def _retrieve(self, queries: Sequence[Query]) -> list[Retrieved]:
        """Runs in the retrieval thread; the queries of a failed batch are retried one by one."""
        assert self.retriever is not None
        if not queries:  # calls without a retrieval
            return []
        try:
            return list(self.retriever.retrieve(queries))
        except RetrievalUnavailable:
            raise  # concerns all trajectories: the stage stops, and a rerun continues
        except Exception as error:
            if self.failed is None and not isinstance(error, RetrievalError):
                raise
            if len(queries) == 1:
                logging.getLogger(__name__).warning("%s: %s", queries[0].subquery, error)
                return [None]
        return [self._retrieve([query])[0] for query in queries]

    def _observe(self, retrieved: Sequence[Retrieved], trajectory: PartialTrajectory) -> Finished:
        """Append the documents of each query and request the next segment."""
        contexts = [
            self._truncate(trajectory, [_cut(item) for item in items])
            for items in retrieved
            if items is not None
        ]
        if len(contexts) < len(retrieved):
            return self._finish(trajectory, "retrieval_error")
        if self.format.append(trajectory, contexts):
            return self._generate(trajectory)
        return self._finish(trajectory, "max_steps")

    def _truncate(
        self, trajectory: PartialTrajectory, items: list[ContextItem]
    ) -> list[ContextItem]:
        limit = self.settings.max_context_tokens
        if limit is None:
            return items

        def token_count(kept: list[ContextItem]) -> int:
            return len(observation_ids(self.engine.tokenizer, self.format.shown(trajectory, kept)))

        return fit_items(items, limit, token_count)

    def _finish(self, trajectory: PartialTrajectory, stop: Stop) -> Trajectory:
        self.open -= 1
        written, parsed = self.format, self.format.parse(trajectory, self.max_steps)
        return trajectory.finish(
            parsed, written.tokenizer, grammar=written.grammar.name, format=written.name,
            policy=self.policy, stop=stop,
        )  # fmt: skip


def _cut(item: ContextItem) -> ContextItem:
    return replace(item, title=item.title[:MOST_CHARACTERS], text=item.text[:MOST_CHARACTERS])


# Truncation of retrieved items to a token limit (HiPRAG, arXiv 2510.07794, 4.3) removes text from
# the last items and never touches the closing tag of the observation.


def truncate_items(items: Sequence[ContextItem], characters: int) -> list[ContextItem]:
    """The items up to ``characters`` characters of their texts in all; at least one item.

    A word that the limit would split is removed too, unless it is the only word of its item.
    """
    kept: list[ContextItem] = []
    for item in items:
        text = item.text
        if len(text) > characters:
            splits_word = not (text[:characters][-1:].isspace() or text[characters].isspace())
            text = text[: max(characters, 1)]
            if splits_word and len(text.split()) > 1:
                text = text.rsplit(maxsplit=1)[0]
        if characters > 0 or not kept:
            kept.append(replace(item, text=text))
        characters -= len(item.text)
        if characters <= 0:
            break
    return kept


def fit_items(
    items: list[ContextItem], limit: int, token_count: Callable[[list[ContextItem]], int]
) -> list[ContextItem]:
    """The items truncated so that ``token_count`` of them is at most ``limit``.

    Where even one character exceeds the limit, that one character is kept.
    """
    lengths = range(1, 1 + sum(len(item.text) for item in items))
    fitting = bisect.bisect_left(
        lengths, True, key=lambda length: token_count(truncate_items(items, length)) > limit
    )
    return items if fitting == len(lengths) else truncate_items(items, fitting)
