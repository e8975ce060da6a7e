"""The configuration of one run: the settings of the run itself, then every block in stage order."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from pipeline.config.base import (
    Block,
    EngineConfig,
    Execution,
    Few,
    Indirect,
    Items,
    NotEmpty,
    PathOrName,
    Seed,
    shown,
)
from pipeline.config.evaluation import BASE, OVERRIDDEN, Evaluation, JudgeModel, Judges
from pipeline.config.knowledge import Corpus, Data, Graph, Hypergraph, Index, Retrieval
from pipeline.config.per_round import PER_ROUND, PerRound, located, merged
from pipeline.config.policy import (
    Dpo,
    Grpo,
    Lora,
    MethodRewards,
    Model,
    Pairs,
    Prompt,
    Rewards,
    Sampling,
    Sft,
    SftData,
)
from pipeline.core.errors import ConfigError
from pipeline.core.formats import CALL_TOOLS, DEFAULT_FORMAT, FormatName
from pipeline.core.methods import DEFAULT_METHOD, METHODS, MethodEntry, MethodName

SFT = "sft"  # the value of ``start`` for the cold start, and the name of its policy
Tracker = Literal["tensorboard", "wandb", "mlflow", "trackio"]


def run_name(value: str) -> str:
    """A valid name of a run. Raises ValueError for others."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}", value):
        raise ValueError(
            "expected at most 100 letters, digits, '.', '_' and '-' that do not start with "
            f"'.' or '-', got {shown(value)}; set name, which is also the name of a directory"
        )
    return value


class Slurm(Block):
    """Stages as Slurm jobs, submitted by submitit (extra ``slurm`` of pyproject.toml)."""

    cluster: Annotated[Literal["slurm", "local"], Execution()] = Field(
        "slurm", description="local: processes of this machine instead of jobs, to try a set-up"
    )
    directives: Annotated[Items[NotEmpty], Execution()] = Field(
        (),
        description="options of sbatch, such as `--partition=gpu`, `--mem-per-cpu=6G` and "
        "`--time=720` in minutes (1440 by default), after which a stage is queued again",
    )


class Executor(Block):
    """Where stages run."""

    kind: Annotated[Literal["local", "ray", "slurm"], Execution()] = Field(
        "local", description="processes of this machine, a Ray cluster, or Slurm jobs"
    )
    threads: Annotated[Few, Execution()] = Field(
        8,
        description="ray, slurm: CPU threads of a stage for each of its GPUs, or without a GPU",
    )
    slurm: Annotated[Slurm, Execution()] = Field(Slurm(), description="for kind slurm")


class Config(Block):
    """The settings of one run.

    Validation refuses blocks that do not fit together, and names the settings to change.
    """

    name: str = Field(description="name of the run, and of its directory in runs_dir")
    seed: Seed = Field(0, description="seed of all random draws")
    rounds: int = Field(
        3, ge=0, le=1000, description="rounds of sampling and training after the cold start"
    )
    start: Annotated[PathOrName, Indirect()] = Field(
        SFT,
        description="policy 0: sft (trained on supervised trajectories), base (the untrained "
        "model), or the directory of an adapter over model.base; only sft has the stages "
        "sft-data and sft",
    )
    per_round: Annotated[PerRound, Indirect()] = Field(
        {}, description="settings of single rounds: `{2: {pairs: {easy_outcome: 0.4}}}`"
    )
    until: Literal["report", "pair"] = Field(
        "report", description="last stage; pair: the pairs of round 1"
    )
    gpus: Annotated[int, Execution()] = Field(
        0,
        ge=0,
        le=1000,
        description="GPUs that stages use at once, each for one stage; 0: all GPUs, for one stage "
        "at a time",
    )
    threads: Annotated[Few | None, Execution()] = Field(
        None,
        description="CPU threads that concurrent stages share; null: all cores of the process",
    )
    workers: Annotated[Few | None, Execution()] = Field(
        None,
        description="maximum number of concurrent stages; null: gpus + 1, or 1 if gpus is 0",
    )
    shards: Annotated[Few, Execution()] = Field(
        1,
        description="parts into which each stage with a model is divided; a block with its own "
        "`shards` takes precedence",
    )
    execution: Annotated[Executor, Execution()] = Field(
        Executor(), description="where stages run: on this machine, with Ray or with Slurm"
    )
    runs_dir: Annotated[PathOrName, Execution()] = Field(
        "runs", description="directory of all runs"
    )
    cache_dir: Annotated[PathOrName, Execution()] = Field(
        "runs/cache", description="directory of cached embeddings, scores and model answers"
    )
    trackers: Annotated[Items[Tracker], Execution()] = Field(
        (), description="trackers of training curves; their packages must be installed"
    )
    data: Data = Field(description="sources of documents and questions")
    corpus: Corpus = Field(description="documents, cut into chunks")
    graph: Graph = Field(description="the graph of triplets")
    hypergraph: Hypergraph = Field(Hypergraph(), description="the hypergraph of n-ary facts")
    index: Index = Field(description="embeddings and FAISS indexes")
    retrieval: Retrieval = Field(description="retrieval for one subquery")
    model: Model = Field(description="the base model")
    engine: EngineConfig = Field(EngineConfig(), description="the engine that runs the policy")
    prompt: Prompt = Field(description="the instruction to the policy")
    grammar: MethodName = Field(
        DEFAULT_METHOD, description="the method, which decides the format of trajectories"
    )
    format: FormatName = Field(
        DEFAULT_FORMAT,
        description="tags: one assistant turn with tags; tools: a conversation with tool calls, "
        "through the chat template",
    )
    tools: Annotated[PathOrName | None, Indirect()] = Field(
        None,
        description="with `format: tools`: Python file that declares tools beside the search "
        "(`add_tool`); null: none",
    )
    sft_data: SftData = Field(description="supervised trajectories for the cold start")
    lora: Lora = Field(Lora(), description="the adapter that is trained")
    sft: Sft = Field(description="training of the cold start")
    sampling: Sampling = Field(Sampling(), description="sampling of trajectories")
    judges: Judges | None = Field(None, description="judges of steps, for rewards that count them")
    answer_judge: Annotated[JudgeModel | None, Execution()] = Field(
        None,
        description="judge of final answers (`steep metrics --judge`); null: the facts of a closed "
        "world",
    )
    rewards: Rewards = Field(Rewards(), description="the reward of trajectories")
    objective: Literal["dpo", "grpo"] = Field("dpo", description="objective of the rounds")
    pairs: Pairs = Field(Pairs(), description="thresholds of preference pairs")
    dpo: Dpo = Field(description="training of objective dpo")
    grpo: Grpo | None = Field(None, description="settings of objective grpo")
    evaluation: Evaluation = Field(Evaluation(), description="evaluation of every policy")

    @field_validator("name")
    @classmethod
    def _file_name(cls, value: str) -> str:
        return run_name(value)

    @model_validator(mode="after")
    def _blocks_fit_together(self) -> Config:
        faults = (self._of_retrieval, self._of_method, self._of_judges, self._of_rounds)
        for fault in (fault for of in faults for fault in of()):
            raise ValueError(fault)
        return self

    def _of_retrieval(self) -> Iterator[str]:
        variant, rounds = self.retrieval.variant, self.retrieval.rounds
        if self.graph.source == "none" and self._needs_graph:
            yield (
                f"graph.source is none, and retrieval.variant {variant} needs a graph; set "
                "graph.source, or retrieve with variant semantic or linked, or over a hypergraph "
                "from another source than triplets"
            )
        if self.retrieval.over_links and not self.index.links:
            reader = (
                f"variant {variant}" if variant in ("fused", "linked") else "chunk_scores fused"
            )
            yield (
                f"index.links is false, and retrieval.{reader} reads the links of the index; set "
                "index.links to true"
            )
        if self.graph.scope == "candidates" and self.retrieval.service is not None:
            yield (
                "graph.scope is candidates, which makes a second index after policy 0, and a "
                "retrieval.service serves one index; remove the service, or set scope to all"
            )
        if rounds == "single" and not self.method.single_retrieval:
            yield (
                f"retrieval.rounds is single, and grammar {self.grammar} cannot continue from a "
                "step that it did not write; set retrieval.rounds to iterative, or to prompt"
            )
        if rounds not in ("iterative", "single") and self.rounds:
            yield (
                f"retrieval.rounds is {rounds} and rounds is {self.rounds}; answers without steps "
                "cannot be trained; set rounds to 0, or evaluation.retrieval.rounds instead"
            )
        if self.teaches_hyperedges and self.sft_data.triplets == "llm":
            yield (
                f"sft_data.triplets is llm, which extracts triplets, and retrieval.variant "
                f"{variant} shows hyperedges; set sft_data.triplets to graph"
            )

    def _of_method(self) -> Iterator[str]:
        pairs, method, rewards = self.pairs, self.method, self.rewards
        if self.sft_data.memory is not None and not method.memory_steps:
            with_memory = [name for name, entry in METHODS.items() if entry.memory_steps]
            yield (
                f"sft_data.memory is set and grammar is {self.grammar}; only "
                f"{', '.join(with_memory)} has steps from memory; set it to null"
            )
        if pairs.step_margin is not None and not method.step_rewards:
            yield (
                f"pairs.step_margin is {pairs.step_margin}, and grammar {self.grammar} has no "
                "step rewards; set pairs.step_margin to null"
            )
        if pairs.terms != "all" and not method.separate_terms:
            yield (
                f"pairs.terms is {pairs.terms}, and the reward of grammar {self.grammar} is a "
                "single number; set pairs.terms to all"
            )
        if self._needs_entities and self.graph.source == "none":
            yield (
                f"rewards.prograph.structure is {rewards.prograph.structure}, and there are no "
                "entities to count, because graph.source is none and retrieval is not over the "
                "hypergraph; set rewards.prograph.structure to 0, or set graph.source"
            )
        if (highest := rewards.tearag.highest_process) < self._needed_process - 1e-9:
            yield (
                f"the weights of rewards.tearag give a process of at most {highest:g}, and "
                f"multi-hop pairs need {self._needed_process:g} (pairs.multi_process, "
                "pairs.multi_process_relaxed); raise the weights, or set pairs.terms to "
                "outcome-format, or to outcome to leave out the format too"
            )
        unread = {
            "model.thinking": (self.model.thinking, None),
            "tools": (self.tools, None),
            "sampling.malformed_calls": (self.sampling.malformed_calls, "end"),
        }
        for name, (value, default) in unread.items():
            if value != default and self.format not in CALL_TOOLS:
                yield (
                    f"{name} is set, and format is {self.format}, whose trajectories are text "
                    f"without tool calls; set format to tools, or {name} to {default or 'null'}"
                )
        if rewards.prograph.outcome == "gated" and self.format in CALL_TOOLS:
            yield (
                "rewards.prograph.outcome is gated, which reads tags, and format is "
                f"{self.format}; set outcome to sum, or format to tags"
            )

    def _of_judges(self) -> Iterator[str]:
        if self.judges is None and self.judged:
            yield "judges is missing, and the rewards count judged steps; add the block judges"
        blocks = {"judges": self.judges, "evaluation.judges": self.evaluation.judges}
        for block, judges in blocks.items():
            if judges is not None and not self.method.judged_steps:
                yield (
                    f"{block} is set, and steps in grammar {self.grammar} have no conclusion to "
                    f"judge; set {block} to null"
                )
        exact = {block: judges is not None and judges.exact for block, judges in blocks.items()}
        answers = self.answer_judge
        exact["answer_judge"] = answers is not None and answers.backend == "closed-world"
        for block, by_facts in exact.items():
            if by_facts and self.data.closed_world is None:
                yield (
                    f"{block} has backend closed-world, which needs data.closed_world; add it or "
                    "choose another backend"
                )

    def _of_rounds(self) -> Iterator[str]:
        if self.start != SFT and self.dpo.reference == "sft":
            yield (
                f"dpo.reference is sft, and start is {shown(self.start)}, so that the run has no "
                "policy 0 (SFT); set dpo.reference to previous"
            )
        if self.until == "pair" and not self.rounds:
            yield (
                "until is pair, and rounds is 0, so that no round makes pairs; set rounds to at "
                "least 1, or until to report"
            )
        for number in (number for number in self.per_round if number > self.rounds):
            yield (
                f"per_round has settings for round {number}, and rounds is {self.rounds}; "
                f"remove them, or set rounds to {number}"
            )
        if self.objective == "dpo":
            return
        if self.grpo is None:
            per = "" if self.method.step_rewards else ", per: trajectory"
            yield (
                "objective is grpo, which needs the block grpo; add it with at least these, for "
                f"example grpo: {{learning_rate: 1.0e-5, batch_size: 128{per}}}"
            )
        elif self.grpo.per == "step" and not self.method.step_rewards:
            yield (
                f"grpo.per is step, and grammar {self.grammar} has no step rewards; set grpo.per "
                "to trajectory"
            )
        if self.until == "pair":
            yield "until is pair, and objective grpo makes no pairs; set objective to dpo"
        if self.sampling.top_p < 1 or self.sampling.temperature == 0:
            yield (
                f"sampling.top_p is {self.sampling.top_p} and sampling.temperature "
                f"{self.sampling.temperature}; objective grpo needs the probabilities of the "
                "sampling distribution; set sampling.top_p to 1 and sampling.temperature above 0"
            )

    @model_validator(mode="after")
    def _rounds_and_evaluation_are_valid(self) -> Config:
        errors = []
        for number in self.per_round:
            try:
                self.of_round(number)
            except ValidationError as error:
                errors += located((PER_ROUND, number), error)
        try:
            self.for_evaluation()
        except ValidationError as error:
            errors += located(("evaluation",), error)
        if errors:
            raise ValidationError.from_exception_data(type(self).__name__, errors)
        return self

    def for_evaluation(self) -> Config:
        """The configuration under which policies are evaluated.

        The settings of ``evaluation.retrieval`` and ``evaluation.sampling`` replace the run's
        settings. Raises ValidationError when the settings do not fit together.
        """
        own = {name: getattr(self.evaluation, name) for name in OVERRIDDEN}
        if not any(own.values()):
            return self
        settings = self.model_dump(exclude={PER_ROUND})
        settings["evaluation"] |= {name: {} for name in OVERRIDDEN}
        # The checks for training apply to the run itself only.
        settings |= {"rounds": 0, "objective": "dpo", "until": "report"}
        return Config.model_validate(merged(settings, own))

    def of_round(self, number: int) -> Config:
        """This configuration with the settings that ``per_round`` has for round ``number``, from 1.

        The result has no ``per_round``. Raises ValidationError when the settings do not fit
        together.
        """
        if not self.per_round:
            return self
        settings = self.model_dump(exclude={PER_ROUND})
        return Config.model_validate(merged(settings, self.per_round.get(number, {})))

    def policy_name(self, number: int) -> str:
        """A policy's name in results: sft, base or start for policy 0, ``round-n`` for policy n."""
        if number:
            return f"round-{number}"
        return self.start if self.start in (SFT, BASE) else "start"

    def check_round(self, number: int, first: int = 1) -> None:
        """Raise ConfigError when the run has no round ``number``; for a policy ``first`` is 0."""
        if number < first:
            raise ConfigError(f"round is {number}; rounds count from {first}")
        if number > self.rounds:
            there_are = (
                f"choose a round up to {self.rounds}, or" if self.rounds else "to have rounds,"
            )
            raise ConfigError(
                f"round is {number}, and rounds is {self.rounds}; {there_are} set rounds to at "
                f"least {number} (--set rounds={number})"
            )
        if number > 1 and self.until == "pair":
            raise ConfigError(
                f"round is {number}, and until is pair, so that the run ends with the pairs of "
                "round 1; choose round 1, or set until to report"
            )

    @property
    def method(self) -> MethodEntry:
        """The facts about the method of this run."""
        return METHODS[self.grammar]

    @property
    def judged(self) -> bool:
        """Whether the reward counts verdicts of judges, so that the stage ``judge`` must run."""
        name = self.rewards_block.removeprefix("rewards.")
        # A method without settings of its own has no block.
        weights: MethodRewards = getattr(self.rewards, name, MethodRewards())
        return weights.counts_verdicts

    @property
    def rewards_block(self) -> str:
        """The key of the block with the weights of the method's reward."""
        return f"rewards.{self.grammar.replace('-', '_')}"

    @property
    def _needs_graph(self) -> bool:
        """Whether retrieval reads the graph of triplets, or a hypergraph made from it."""
        if self.retrieval.over_hypergraph:
            return self.hypergraph.source == "triplets"
        return self.retrieval.variant != "none" and not self.retrieval.over_passages

    @property
    def _needs_entities(self) -> bool:
        """Whether a step reward counts entities of the graph of triplets."""
        structure = self.method.step_rewards and self.rewards.prograph.structure > 0
        return self.rounds > 0 and structure and not self.retrieval.over_hypergraph

    @property
    def _needed_process(self) -> float:
        """The least process reward of a multi-hop trajectory that is chosen for a pair, or 0."""
        pairs = self.pairs
        counts = (
            self.rounds > 0
            and self.objective == "dpo"
            and self.method.separate_terms
            and pairs.terms == "all"
        )
        return min(pairs.multi_process, pairs.multi_process_relaxed) if counts else 0.0

    @property
    def trainer(self) -> Dpo | Grpo:
        """The trainer block that belongs to the objective."""
        if self.objective == "dpo":
            return self.dpo
        assert self.grpo is not None  # the configuration refuses the objective without it
        return self.grpo

    @property
    def evaluation_judges(self) -> Judges | None:
        """The judges of evaluated policies."""
        return self.evaluation.judges or self.judges

    @property
    def evaluation_judges_block(self) -> str:
        """The key of the block that `evaluation_judges` reads, for messages."""
        return "judges" if self.evaluation.judges is None else "evaluation.judges"

    @property
    def teaches_hyperedges(self) -> bool:
        """Whether cold-start contexts hold facts of the hypergraph instead of the graph."""
        return self.method.sft_shows_retrieved_kinds and self.retrieval.over_hypergraph

    @property
    def run_dir(self) -> Path:
        """The directory of the run: results, logs and the stage store."""
        return Path(self.runs_dir) / self.name

    @property
    def hashes_file(self) -> Path:
        """The file that remembers content hashes of raw files and models between runs."""
        return self.run_dir / "store" / ".hashes.json"
