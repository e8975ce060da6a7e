"""Stage ``score``: every trajectory of a round with its rewards.

Input: the sampled trajectories, and the verdicts of stage ``judge`` where the rewards count judged
steps. Output: ``trajectories.parquet``, the trajectories with ``rewards`` filled, and
``statistics.json``, sums of the terms by data set. The method (`pipeline.methods`) gives the
scorer, and `StageInputs` opens what the scorer asks for: TeaRAG's similarity model, and for
ProGraph-R1 the entities of the graph and value estimates, which come from continuing trajectories
with the policy that sampled them. Continuations are kept in ``<cache_dir>/progress.sqlite``;
``progress.json`` counts the continued states and their tokens. Finished batches are kept as
checkpoints, so that a killed run loses at most one. Trajectories whose retrieval failed (stop
"retrieval_error") keep ``rewards`` null: they say nothing about the policy.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import compress, groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.core.atomic import write_json
from pipeline.core.errors import InputError, Place
from pipeline.core.input_files import read_json
from pipeline.core.records import Trajectory
from pipeline.core.row_files import iterate_parquet
from pipeline.engine.fingerprint import model_identity, roll_out_files
from pipeline.engine.opened import Opened, Work, reranker
from pipeline.engine.plan.clock import Clock
from pipeline.engine.plan.sizes import TRAJECTORY_BYTES
from pipeline.engine.shards import DivisibleTask
from pipeline.engine.stage import TRAJECTORIES, RoundTask, StageTask
from tasks.index import knowledge
from tasks.judge import Judge
from tasks.policy import policy, policy_files
from tasks.sample import LIMITS, ROLL_OUT, Sample, continue_policy, roll_out_models, sampled

if TYPE_CHECKING:
    import pyarrow as pa

    from pipeline.core.answer_metrics import CoverMatch
    from pipeline.core.similarity import Similarity
    from pipeline.core.verdicts import Verdict
    from pipeline.engine.context import StageContext
    from pipeline.methods.base import Scorer
    from pipeline.methods.prograph.structure import GraphEntities
    from pipeline.rollout.partial import PartialTrajectory


class Score(RoundTask, DivisibleTask):
    """Trajectories of round n with every reward term."""

    stage = "score"
    help = "trajectories of a round with rewards"
    shards_block = "sampling"
    version = 2
    shard_version = 6  # punctuation of all scripts is no part of an answer
    served = ("corpus", "index")  # scoring reads the entities of the graph itself
    reads = (
        "grammar",
        "rewards",
        "retrieval.reranker",
        "index.embedder",
        "evaluation.cem",
        *("sampling", *ROLL_OUT),
    )

    @property
    def input_files(self) -> Mapping[str, tuple[str, ...]]:
        files: dict[str, tuple[str, ...]] = {"sample": TRAJECTORIES, "judge": ("verdicts.parquet",)}
        if "policy" in self.inputs:
            files["policy"] = policy_files(self.inputs["policy"])
        return files

    @cached_property
    def inputs(self) -> dict[str, StageTask]:
        needs: dict[str, StageTask] = {"sample": self.clone(Sample)}
        if self.settings.judged:
            needs["judge"] = self.clone(Judge)
        if self.settings.method.scoring_samples:
            # Scoring continues trajectories (policy, retrieval) and reads their entities (graph).
            needs |= {**knowledge(self), "policy": policy(self, self.round - 1)}
        return needs

    def reading(self) -> tuple[str, ...]:
        """Only the part of the block ``rewards`` that the method uses."""
        rewards = self.settings.rewards
        names = ["grammar", "sampling.shards", self.settings.rewards_block]
        if self.settings.method.similarity_rewards:
            names.append("retrieval.reranker" if rewards.reranker is None else "rewards.reranker")
            names.append("index.embedder")
        if self.settings.method.cover_match:
            names.append("evaluation.cem")
        if self.settings.method.scoring_samples:
            names += ["sampling", *ROLL_OUT]
        return tuple(names)

    def files(self) -> dict[str, Path | str]:
        if self.settings.method.scoring_samples:
            return roll_out_files(self.settings)
        if not self.settings.method.similarity_rewards:
            return {}
        reranker = self.settings.rewards.reranker or self.settings.retrieval.reranker
        return {"reranker": model_identity(reranker.model or self.settings.index.embedder.model)}

    def opens(self) -> Iterator[Opened]:
        """The models that continue trajectories, or the reranker for evidence and knowledge."""
        settings = self.settings
        if settings.method.scoring_samples:
            yield from roll_out_models(self)
        elif settings.method.similarity_rewards:
            own = settings.rewards.reranker
            block = "retrieval" if own is None else "rewards"
            yield reranker(settings, own or settings.retrieval.reranker, f"{block}.reranker")

    def work(self, clock: Clock) -> Work:
        settings, a, rows = self.settings, clock.rates, sampled(self, clock)
        if settings.method.scoring_samples:
            continued = a.continued_states * settings.rewards.prograph.continuations
            # From the middle of a trajectory on average.
            each = continued / 2 * clock.trajectory(self.opens())
        else:
            each = Work(clock.reranking(self.opens(), a.rewarded_pairs))
        return rows * (each + Work(disk=TRAJECTORY_BYTES))


COST = "progress.json"
_COUNTED = ["dataset", "hop", "rewards"]  # columns

_BATCH = 512  # trajectories scored at once, which a kill can lose


def run(context: StageContext) -> dict[str, int]:
    """Fill ``context.output`` with trajectories.parquet and statistics.json.

    Raises InputError when a judged step has no verdict or a reward is not finite, and the errors of
    the method's models.
    """
    from pipeline.methods import method

    of_method = method(context.config.grammar)
    scorer = of_method.scorer(context.config.rewards, StageInputs(context))
    batch = None if of_method.whole_shard else _BATCH
    return score_file(context, scorer, of_method.terms, batch)


def merge(context: StageContext) -> dict[str, int]:
    """Join the scored trajectories of the shards, and add up their terms and costs.

    Raises what `join_trajectories` raises.
    """
    from pipeline.core.trajectory_file import FILE
    from pipeline.engine.files.shards import added, join_trajectories, shard_directories
    from pipeline.methods import method

    statistics = _Statistics()
    sampled = iterate_parquet(context.inputs["sample"] / FILE, ["question_id", "sample"])
    expected = [(row["question_id"], row["sample"]) for row in sampled]
    join_trajectories(context, expected, {"rewards": method(context.config.grammar).terms})
    for row in iterate_parquet(context.output / FILE, _COUNTED):
        statistics.add(**row)
    statistics.write(context.output)
    costs = [shard / COST for shard in shard_directories(context)]
    if known := [read_json(cost) for cost in costs if cost.exists()]:  # a shard may have no row
        write_json(context.output / COST, added(known))
    return statistics.counts


def score_file(
    context: StageContext, scorer: Scorer, terms: type, batch: int | None
) -> dict[str, int]:
    """Score this shard of the sampled trajectories; returns row counts.

    All trajectories of a question are in one shard, because they share states to continue.
    ``terms`` is the type of the scorer's results. ``batch`` is the number of trajectories scored
    at once. With None the whole shard is scored at once, and again after a kill, because its scorer
    writes further files. The input ``judge`` has verdicts in the order of the trajectories. Raises
    InputError for a step without a verdict.
    """
    from pipeline.core.record_io import parse_record
    from pipeline.core.trajectory_file import FILE
    from pipeline.engine.files.checkpoints import write_checkpoint
    from pipeline.engine.files.shards import question_numbers

    source, progress, parts = context.inputs["sample"] / FILE, context.progress, []
    question_ids = (row["question_id"] for row in iterate_parquet(source, ["question_id"]))
    numbers = question_numbers(question_ids)
    mine = [question % context.shards == context.shard for question in numbers]
    rows = compress(enumerate(iterate_parquet(source), start=1), mine)
    progress.start(sum(mine), "trajectories")
    verdicts = context.inputs.get("judge")
    judged = None if verdicts is None else _Verdicts(verdicts / "verdicts.parquet")
    start = 0
    while numbered := list(islice(rows, batch)):
        # Named by rows, so that a checkpoint made with another batch size is not reused.
        name = f"{start:09d}-{start + len(numbered):09d}"
        start += len(numbered)
        part = None if batch is None else _finished(context.checkpoint_dir, name, numbered)
        if part is None:
            with Place(source) as place:
                trajectories = [parse_record(Trajectory, row) for place.line, row in numbered]
            on_steps = None if judged is None else [judged.on(item) for item in trajectories]
            scored = with_rewards(trajectories, scorer, on_steps)
            folder, columns = context.checkpoint_dir, {"rewards": terms}
            part = write_checkpoint(folder, name, scored, Trajectory, columns)
            progress.advance(len(numbered))
        else:
            progress.skip(len(numbered))
        parts.append(part)
    return _join_batches(parts, context.output, terms)


def _finished(
    checkpoint_dir: Path, name: str, rows: Sequence[tuple[int, dict[str, Any]]]
) -> Path | None:
    """The checkpoint of these numbered rows, if it exists and is intact."""
    from pipeline.engine.files.checkpoints import intact, read_checkpoint

    expected = [row["trajectory_id"] for _, row in rows]
    for part in intact(checkpoint_dir, name):
        table = read_checkpoint(part, ["trajectory_id"])
        if table["trajectory_id"].to_pylist() == expected:
            return part
        logging.getLogger(__name__).warning(
            "%s does not hold the trajectories of its rows of the input; it is not used", part
        )
    return None


class _Verdicts:
    """The verdicts of a file, read along with the trajectories in their order."""

    def __init__(self, path: Path) -> None:
        from pipeline.core.record_io import iterate_records
        from pipeline.core.verdicts import Verdict

        self._path = path
        self._groups = groupby(iterate_records(path, Verdict), key=lambda verdict: verdict.id)
        self._current: tuple[str | None, list[Verdict]] = (None, [])

    def on(self, trajectory: Trajectory) -> Sequence[Verdict]:
        """The verdicts on the steps of a trajectory, in order.

        Verdicts on trajectories before it are skipped. Raises InputError when a step has none.
        """
        if trajectory.stop == "retrieval_error" or not trajectory.steps:
            return ()
        while self._current[0] != trajectory.trajectory_id:
            name, group = next(self._groups, (None, ()))
            if name is None:
                self._current = (None, [])
                break
            self._current = (name, list(group))
        verdicts = sorted(self._current[1], key=lambda verdict: verdict.step)
        if [verdict.step for verdict in verdicts] != list(range(len(trajectory.steps))):
            raise InputError.at(
                self._path,
                f"trajectory {trajectory.trajectory_id} has {len(trajectory.steps)} steps and "
                f"{len(verdicts)} verdicts; expected one verdict per step, in the order of the "
                "trajectories; rerun the stage judge of this round",
            )
        return verdicts


def with_rewards(
    trajectories: Sequence[Trajectory],
    scorer: Scorer,
    verdicts: Sequence[Sequence[Verdict]] | None = None,
) -> list[Trajectory]:
    """The same trajectories with ``rewards`` filled, null where retrieval failed.

    ``verdicts``: on the steps of every trajectory, in order. Raises InputError for a reward that is
    not finite.
    """
    places = [
        place
        for place, trajectory in enumerate(trajectories)
        if trajectory.stop != "retrieval_error"
    ]
    judged = None if verdicts is None else [verdicts[place] for place in places]
    terms = scorer([trajectories[place] for place in places], judged)
    for place, rewards in zip(places, terms, strict=True):
        trajectories[place].rewards = dict(rewards)
        try:
            json.dumps(rewards, allow_nan=False)
        except ValueError:
            raise InputError(
                f"trajectory {trajectories[place].trajectory_id}: the rewards {rewards} hold a "
                "number that is not finite; check the model that scores (rewards.reranker) and the "
                "weights of the rewards"
            ) from None
    return list(trajectories)


def _join_batches(parts: Sequence[Path], output: Path, terms: type) -> dict[str, int]:
    """Join scored batches into one file with the sums of their terms; returns row counts."""
    from pipeline.core.trajectory_file import FILE
    from pipeline.engine.files.checkpoints import read_checkpoint, write_tables

    statistics = _Statistics()

    def tables() -> Iterator[pa.Table]:
        for part in parts:
            table = read_checkpoint(part)
            for row in table.select(_COUNTED).to_pylist():
                statistics.add(**row)
            yield table

    write_tables(output / FILE, tables(), Trajectory, {"rewards": terms})
    statistics.write(output)
    return statistics.counts


class _Statistics:
    """Row counts, and sums of reward terms by data set in the order of the trajectories."""

    def __init__(self) -> None:
        self.counts = {"trajectories": 0, "retrieval_error": 0}
        self._sums: dict[str, dict[str, float]] = {}
        self._unmeasured = 0

    def add(self, dataset: str, hop: str, rewards: Mapping[str, Any] | None) -> None:
        from pipeline.methods.tearag.evidence_match import has_evidence

        self.counts["trajectories"] += 1
        if hop == "unknown" and not has_evidence(rewards or {}):
            self._unmeasured += 1
        if rewards is None:
            self.counts["retrieval_error"] += 1
            return
        of_dataset = self._sums.setdefault(dataset, {"n": 0})
        of_dataset["n"] += 1
        for term, value in rewards.items():
            if isinstance(value, (int, float)):
                of_dataset[term] = of_dataset.get(term, 0.0) + value

    def write(self, output: Path) -> None:
        """Write ``statistics.json`` and log the means."""
        write_json(output / "statistics.json", {**self.counts, "datasets": self._sums})
        if self._unmeasured:
            print(
                f"{self._unmeasured:,} of {self.counts['trajectories']:,} trajectories answer "
                "questions with neither hops nor evidence; outcome and format alone count for them"
            )
        for dataset, terms in self._sums.items():
            means = {term: round(terms[term] / terms["n"], 4) for term in terms if term != "n"}
            logging.getLogger(__name__).info(
                "%s: means over %d trajectories: %s", dataset, terms["n"], means
            )


@dataclass(frozen=True)
class StageInputs:
    """`pipeline.methods.base.ScoreInputs` of one run of the stage."""

    context: StageContext

    @property
    def cem(self) -> CoverMatch:
        """The cover exact match of the run."""
        return self.context.config.evaluation.cem

    def similarity(self) -> Similarity:
        """The similarity model of ``rewards.reranker``, by default the retrieval's model."""
        from pipeline.knowledge.retrieval.rerank import open_reranker, reranker_similarity

        config = self.context.config
        reranker = config.rewards.reranker or config.retrieval.reranker
        return reranker_similarity(open_reranker(reranker, config.index.embedder, config.cache_dir))

    def entities(self) -> GraphEntities:
        """The entities of the graph that retrieval searched."""
        return open_entities(self.context.inputs["graph"])

    def state_values(
        self, trajectories: Sequence[Trajectory], continuations: int
    ) -> list[list[float]]:
        """Monte Carlo value estimates of all states; writes their cost to ``progress.json``.

        Raises InputError for a trajectory of another policy, and the errors of engines and
        retrievers.
        """
        from pipeline.core.content_cache import ContentCache
        from pipeline.methods.prograph.progress import ValueEstimator
        from pipeline.rollout.policy import read_policy

        context, policy = self.context, read_policy(self.context.inputs["policy"])
        name = policy.fingerprint
        if other := next((one for one in trajectories if one.policy != name), None):
            raise InputError(
                f"trajectory {other.trajectory_id} is of policy {other.policy[:12]}, and round "
                f"{context.round} continues with {name[:12]}; name the round after the policy "
                "that sampled it"
            )

        def shown(partial: Iterable[PartialTrajectory]) -> Iterator[Trajectory]:
            resumed = continue_policy(context, policy, partial)
            for number, trajectory in enumerate(resumed, start=1):
                context.progress.show(continuations=number)
                yield trajectory

        cache = ContentCache(Path(context.config.cache_dir) / "progress.sqlite")
        identity = continuation_identity(context, name)
        estimator = ValueEstimator(shown, cache, identity, continuations, context.seed)
        values = estimator.values(trajectories)
        cost = estimator.cost
        print(f"{cost.known:,} of {cost.distinct:,} distinct states had been continued before")
        # Cache hits are not recorded, because a rerun would have more.
        counts = {name: n for name, n in asdict(cost).items() if name != "known"}
        write_json(context.output / COST, counts)
        return values


def open_entities(graph: Path) -> GraphEntities:
    """V(.) of the directory of a graph or hypergraph."""
    from pipeline.core.columns import Columns
    from pipeline.knowledge.graph.adjacency import Adjacency
    from pipeline.methods.prograph.structure import GraphEntities

    names = Columns(graph / "entities.arrow", ("name",)).column(0)
    if not (graph / "hyperedges.arrow").exists():
        return GraphEntities(names)
    ids = Columns(graph / "hyperedges.arrow", ("id",)).column(0)
    rows = {name: row for row, name in enumerate(ids)}
    return GraphEntities(names, rows, Adjacency.load(graph / "members"))


def continuation_identity(context: StageContext, policy: str) -> str:
    """The digest of all settings that decide a continuation besides its state.

    ``policy`` is the policy's fingerprint.
    """
    from pipeline.core.content_cache import digest
    from pipeline.knowledge.retrieval.fingerprint import RetrievalIdentity

    config, key = context.config, context.key
    retrieval = "outside a store"
    if key is not None:
        retrieval = RetrievalIdentity.from_settings(
            config.retrieval, key.inputs, key.files.get("reranker")
        ).fingerprint
    fields = {"temperature", *LIMITS} & config.sampling.deciding().keys()  # as in fingerprints
    sampling = config.sampling.model_dump_json(include=fields)
    # Merged adapters, the default, are not named: seeds of continuations depend on this digest.
    loaded = {"adapters"} if config.engine.adapters == "loaded" else set()
    engine = config.engine.model_dump_json(include={"kind", "dtype", "max_model_len", *loaded})
    grammar = f"{config.grammar} {config.retrieval.rounds}{context.format.identity}"
    return digest(policy, retrieval, sampling, engine, grammar, str(context.round)).hex()
