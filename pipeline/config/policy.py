"""The blocks of the policy: cold start, training, sampling, rewards and pairs.

Input: values of a configuration file. Output: frozen models, in stage order.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from pipeline.config.base import (
    Above0,
    AskedModel,
    AtLeastOne,
    Block,
    Count,
    Epochs,
    Execution,
    Few,
    Indirect,
    NotEmpty,
    PathOrName,
    Positive,
    Shards,
    Share,
    SizesByHops,
    Temperature,
    Weight,
    for_round,
)
from pipeline.config.knowledge import Reranker
from pipeline.core.records import Message


class Model(Block):
    """The base model; the embedded configurations use ``data/tiny_reader``."""

    base: Annotated[PathOrName, Indirect()] = Field(description="directory or hub name")
    chat_template: Annotated[NotEmpty | None, Indirect()] = Field(
        None,
        description="file of a Jinja template, `package:NAME/FILE` in an installed package, or the "
        "template; null: the tokenizer's template",
    )
    thinking: bool | None = Field(
        None,
        description="enable_thinking of the chat template, with `format: tools`; null: the "
        "template's choice",
    )


class Prompt(Block):
    """The instruction to the policy, and its question."""

    system: str = Field("", description="system message; empty: none")
    user: str = Field(
        "{question}", description="user message, in which `{question}` stands for the question"
    )

    @field_validator("user")
    @classmethod
    def _has_the_question(cls, value: str) -> str:
        if "{question}" not in value:
            raise ValueError(
                "the text does not hold {question}, so no question would be asked; write it where "
                "the question belongs"
            )
        return value

    def messages(self, question: str) -> list[Message]:
        """The prompt as chat messages; the model's chat template turns them into text."""
        system = [Message("system", self.system)] if self.system else []
        return [*system, Message("user", self.user.replace("{question}", question))]


class MemorySteps(Block):
    """Cold-start steps without a search, for hops that the base model answers without retrieval."""

    searched: Share = Field(
        0.5, description="share of the known hops that get a step with a search"
    )
    rehearsed: Count = Field(
        0,
        description="number of additional examples: closed-book questions with the base model's "
        "answers",
    )


class RejectionSampling(Block):
    """Supervised trajectories that a policy samples, kept where the answer is right."""

    teacher: Annotated[PathOrName, Indirect()] = Field(
        "base",
        description="policy that samples: base, or the directory of an adapter over model.base; or "
        "a file of trajectories on the questions of data.sft, such as the output of steep import",
    )
    samples: int = Field(8, ge=2, le=10_000, description="trajectories sampled per question")
    temperature: Temperature = Field(1.0, description="sampling temperature")
    min_f1: Share = Field(1.0, description="minimum token F1 of a kept answer")
    per_question: Positive = Field(4, description="maximum trajectories kept per question")

    @property
    def file(self) -> Path | None:
        """The teacher as a file of trajectories, None for a policy."""
        path = Path(self.teacher)
        return path if path.suffix in (".jsonl", ".parquet") else None


class SftData(AskedModel):
    """Supervised trajectories for the cold start (TeaRAG 4.3.1)."""

    triplets: Literal["graph", "llm"] = Field(
        "graph",
        description="source of the triplets of gold paragraphs: the graph, or extraction by a "
        "model, which paragraphs outside the corpus need, unless contexts hold passages alone",
    )
    selector: Literal["answer", "llm"] = Field(
        "answer",
        description="choice of supporting triplets: by the hop's answer in them, or by a model",
    )
    rewriter: Literal["fill", "llm"] = Field(
        "fill",
        description="subqueries: the hop's question with earlier answers filled in, or a model's "
        "rewriting of it",
    )
    sizes: SizesByHops = Field(
        description="training examples by number of hops; 1: single-hop questions, and single "
        "steps of longer ones"
    )
    test_sizes: SizesByHops = Field(
        default_factory=dict, description="held-out examples by number of hops"
    )
    min_share: Annotated[Share, Execution()] = Field(
        0.5,
        description="the stage fails if fewer than this share of `sizes` can be made",
    )
    context: Literal["gold", "retrieved"] = Field(
        "gold",
        description="passages that a step shows: the gold ones, or as many as the retrieval shows "
        "for its question, the gold ones at random places among them",
    )
    other_paragraph: Share = Field(
        0, description="probability that a context also holds the gold paragraph of another hop"
    )
    other_triplets: Share = Field(
        0, description="probability of each further fact of the gold paragraph in the context"
    )
    memory: MemorySteps | None = Field(
        None, description="steps from memory, for a method with such steps; null: none"
    )
    rejection_sampling: RejectionSampling | None = Field(
        None,
        description="sample the trajectories, and keep right ones, instead of building them from "
        "decompositions; then no other setting of sft_data is used",
    )
    shards: Shards = Field(None, description="parts of the requests to models; null: as in the run")

    @field_validator("sizes")
    @classmethod
    def _some_examples(cls, value: dict[int, int]) -> dict[int, int]:
        if not sum(value.values()):
            raise ValueError(
                "the numbers of examples sum to 0; training needs at least 1; raise one"
            )
        return value

    @model_validator(mode="after")
    def _one_model(self) -> SftData:
        if "llm" in (self.triplets, self.selector, self.rewriter):
            self.check_one_model("sft_data")
        return self


class Lora(Block):
    """PEFT LoRA; the paper's values."""

    r: Positive = Field(8, description="rank")
    alpha: Positive = Field(32, description="scaling: updates are multiplied by alpha / r")
    dropout: float = Field(
        0.1, ge=0, lt=1, description="dropout of the adapter's inputs in training"
    )
    targets: AtLeastOne[NotEmpty] = Field(
        ("q_proj", "k_proj", "v_proj", "o_proj"), description="modules that get an adapter"
    )


class Trainer(Block):
    """Settings of all training: of the cold start and of both objectives."""

    learning_rate: float = Field(gt=0, le=1, description="peak learning rate (AdamW)")
    batch_size: Positive = Field(description="examples per optimizer step, over all devices")
    per_device_batch_size: Annotated[Positive, Execution()] = Field(
        8, description="examples per forward pass; gradients are accumulated up to batch_size"
    )
    weight_decay: Weight = Field(0.001, description="weight decay (AdamW)")
    warmup_ratio: Share = Field(
        0.03,
        description="share of the steps with a rising learning rate; less than one step means no "
        "warm-up",
    )
    scheduler: Literal["linear", "cosine", "constant"] = Field(
        "cosine", description="course of the learning rate after the warm-up"
    )
    max_length: Positive = Field(4096, description="maximum tokens of prompt and output")
    over_long: Literal["refuse", "drop"] = Field(
        "refuse",
        description="examples longer than max_length: refuse stops the stage, drop leaves them out "
        "and counts them",
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "bfloat16",
        description="number format of the base weights and activations; auto: bfloat16 on a GPU, "
        "the faster one on a CPU",
    )
    quantization: Literal["none", "4bit", "8bit"] = Field(
        "none", description="quantization of the frozen base weights (bitsandbytes)"
    )
    processes: Annotated[Few, Execution()] = Field(
        1,
        description="training processes, each with a copy of the base; fewer start if GPUs are "
        "missing, with the same batch_size",
    )
    gradient_checkpointing: Annotated[bool, Execution()] = Field(
        False,
        description="recompute activations, on a GPU those that do not fit: less memory, more time",
    )


class Sft(Trainer):
    """Supervised training of the cold start (TeaRAG eq. 4)."""

    epochs: Epochs = Field(1, description="passes over the examples")

    def passes(self, round: int) -> float:
        """The passes over the examples of policy 0."""
        return self.epochs


class Dpo(Trainer):
    """DPO with an SFT term on the chosen trajectory (TeaRAG eq. 15-17), or another loss on pairs.

    Lists hold one value per round; the last value is used for all later rounds.
    """

    loss: Literal["sigmoid", "apo_zero", "sft"] = Field(
        "sigmoid",
        description="loss beside the SFT term, by TRL's names: sigmoid is DPO (eq. 16); apo_zero "
        "is APO-zero (arXiv 2408.06266), which treats each side by itself; sft: none, which is "
        "rejection-sampling fine-tuning (arXiv 2304.06767)",
    )
    beta: Above0 = Field(0.5, description="weight of the log-ratios to the reference")
    eta: AtLeastOne[Weight] = Field((1.0, 0.5, 0.25), description="weight of the SFT term")
    eta_of: Literal["sum", "mean"] = Field(
        "mean",
        description="the SFT term: the sum over a chosen trajectory's tokens, as in eq. 15, or the "
        "mean over the tokens of an optimizer step",
    )
    round_epochs: AtLeastOne[Epochs] = Field((2, 2, 1), description="passes over the pairs")
    reference: Literal["previous", "sft"] = Field(
        "previous",
        description="reference policy: the policy of the previous round, or policy 0 (SFT)",
    )

    @model_validator(mode="after")
    def _loss_fits(self) -> Dpo:
        if self.loss != "sft":
            return self
        if 0 in self.eta or self.eta_of == "sum" or self.reference == "sft":
            raise ValueError(
                "loss is sft, which is the SFT term alone, a mean over tokens without a reference, "
                f"and eta is {list(self.eta)}, eta_of {self.eta_of}, reference {self.reference}; "
                "set every eta above 0, eta_of to mean and reference to previous"
            )
        return self

    def passes(self, round: int) -> float:
        """The passes over the data of a round, from 1."""
        return for_round(self.round_epochs, round)


class Grpo(Trainer):
    """GRPO on a cached batch (ProGraph-R1 eq. 16). The reference is the policy that sampled it."""

    epochs: Epochs = Field(1, description="passes over the trajectories")
    beta: Weight = Field(
        0.001, description="weight of the KL to the reference; 0: no reference is loaded"
    )
    epsilon: float = Field(0.2, gt=0, le=1, description="clipping range of the probability ratio")
    per: Literal["step", "trajectory"] = Field(
        "step", description="one advantage per step (methods with step rewards) or per trajectory"
    )

    def passes(self, round: int) -> float:
        """The passes over the data of a round, the same in all rounds."""
        return self.epochs


class Sampling(Block):
    """Sampling of trajectories; ``evaluation`` sets its own temperature and may override more."""

    samples: int = Field(8, ge=2, le=10_000, description="R: trajectories per question")
    temperature: Temperature = Field(1.0, description="sampling temperature; 0: greedy")
    top_p: float = Field(
        1.0,
        gt=0,
        le=1,
        description="nucleus sampling: cumulative probability of the tokens to sample from",
    )
    max_steps: Few = Field(5, description="maximum retrievals per trajectory")
    malformed_calls: Literal["end", "answer"] = Field(
        "end",
        description="with `format: tools`: a malformed call ends its trajectory, or is answered by "
        "its error and counts as a retrieval",
    )
    max_segment_tokens: Positive = Field(
        512, description="maximum tokens that the model writes between two observations"
    )
    max_total_tokens: Positive = Field(
        4096, description="maximum tokens of a trajectory without its prompt"
    )
    max_context_tokens: Positive | None = Field(
        None,
        description="maximum tokens of an observation, whose documents are cut to fit; null: no "
        "limit",
    )
    in_flight: Annotated[Positive | None, Execution()] = Field(
        None,
        description="trajectories sampled at the same time; null: twice engine.max_num_seqs, so "
        "that the engine works while others retrieve",
    )
    shards: Shards = Field(
        None, description="parts of sampling and of scoring; null: as in the run"
    )
    batch: Annotated[Positive, Execution()] = Field(64, description="questions per checkpoint")
    recorded: Annotated[PathOrName | None, Indirect()] = Field(
        None,
        description="file of trajectories in place of sampling, such as of steep record; null: "
        "sample",
    )


class MethodRewards(Block):
    """Reward settings of one method."""

    @property
    def counts_verdicts(self) -> bool:
        """Whether verdicts of judges are among the reward terms."""
        return False


class TeaRagReward(MethodRewards):
    """Weights of TeaRAG's process reward (eq. 13); ablations set terms to 0."""

    consistency: Weight = Field(0.1, description="key entities that the subquery names (eq. 7-8)")
    subquery: Weight = Field(0.3, description="evidence matched by subqueries (eq. 9)")
    context: Weight = Field(0.3, description="evidence matched by retrieved items (eq. 10)")
    summary: Weight = Field(0.3, description="evidence matched by summaries (eq. 11)")
    divisor: Literal["steps"] | Above0 = Field(
        "steps",
        description="what divides the sums of these terms over steps and evidence: the number of "
        "steps (eq. 7-12), which favours few steps, or a constant; 1: the sums",
    )
    single_outcome: Literal["f1-per-step", "f1"] = Field(
        "f1-per-step",
        description="outcome of single-hop questions: F1 per step (4.3.2), or F1",
    )
    malformed_answer: Literal["parsed", "last"] = Field(
        "parsed",
        description="which answer of a malformed trajectory is scored. parsed: the one that was "
        "parsed before the error, if any; last: the text after its last `Final answer:`",
    )

    @property
    def highest_process(self) -> float:
        """The bound of the process reward; infinite with eq. 9-12: a step may match many facts."""
        sums = self.divisor != "steps" or any((self.subquery, self.context, self.summary))
        return math.inf if sums else self.consistency


class HiPragReward(MethodRewards):
    """Weights of HiPRAG's reward (eq. 1)."""

    format: Share = Field(0.2, description="lambda_f, the weight of the format")
    process: Weight = Field(
        0.4, description="lambda_p, the weight of correct search decisions; 0 needs no judge"
    )
    penalise: Literal["both", "over", "under"] = Field(
        "both", description="search errors that count; steps of the other kind count as correct"
    )
    unknown: Literal["left-out", "correct"] = Field(
        "left-out",
        description="a step without a verdict: in neither N nor N_corr, or correct, as in the "
        "released code",
    )

    @property
    def counts_verdicts(self) -> bool:
        return self.process > 0


class ProGraphReward(MethodRewards):
    """Weights of ProGraph-R1's step rewards (eq. 11-15); ablations set them to 0."""

    progress: Weight = Field(
        0.5, description="lambda_1, the weight of step progress; 0 samples no continuations"
    )
    structure: Weight = Field(0.5, description="lambda_2, the weight of the structure terms")
    continuations: Few = Field(4, description="M, continuations sampled from each state")
    outcome: Literal["sum", "gated"] = Field(
        "sum",
        description="r_outcome. sum: format (1 or 0) plus F1; gated, as in Graph-R1's code: -1, "
        "plus .5 for each well-formed turn up to 1, plus F1 where that is 1",
    )


class SearchR1Reward(MethodRewards):
    """Search-R1's outcome reward (arXiv 2503.09516) with a format term (arXiv 2505.15117)."""

    answer: Literal["em", "f1"] = Field("em", description="measure of the answer; f1: token F1")
    format: Share = Field(0.2, description="lambda_f, the weight of the format")


class Rewards(Block):
    """The reward of trajectories. Only the block of the method (``grammar``) is used."""

    tearag: TeaRagReward = Field(TeaRagReward(), description="weights of tearag")
    hiprag: HiPragReward = Field(HiPragReward(), description="weights of hiprag")
    prograph: ProGraphReward = Field(ProGraphReward(), description="weights of prograph")
    search_r1: SearchR1Reward = Field(SearchR1Reward(), description="weights of search-r1")
    reranker: Reranker | None = Field(
        None, description="similarity of evidence (tearag); null: the retrieval reranker"
    )


class Pairs(Block):
    """Thresholds of pairs: TeaRAG eq. 14, and margins for rewards that are a single number.

    The first eight fields are TeaRAG's, with the paper's values. ``margin`` and ``decisions`` apply
    to the other methods.
    """

    terms: Literal["outcome", "outcome-format", "all"] = Field(
        "all",
        description="reward terms that decide TeaRAG's pairs (table 8); without format, malformed "
        "trajectories can be chosen; without process, multi_process does not apply",
    )

    single_outcome: Share = Field(
        1.0, description="single-hop: minimum outcome of a chosen trajectory"
    )
    multi_outcome: Share = Field(
        1.0,
        description="multi-hop: minimum outcome of a chosen trajectory that reaches multi_process",
    )
    multi_process: Weight = Field(
        0.7, description="multi-hop: minimum process that goes with multi_outcome"
    )
    multi_outcome_relaxed: Share = Field(
        0.8,
        description="multi-hop: lower minimum outcome of a trajectory that reaches "
        "multi_process_relaxed",
    )
    multi_process_relaxed: Weight = Field(
        0.8, description="multi-hop: minimum process that goes with multi_outcome_relaxed"
    )
    easy_outcome: Share = Field(
        0.3, description="maximum outcome of a rejected partner of kind easy"
    )
    hard_margin: Share = Field(
        0.3, description="minimum difference of outcomes in pairs of kind hard"
    )
    margin: Above0 = Field(0.1, description="minimum difference of rewards in a pair")
    decisions: Positive = Field(
        1,
        description="HiPRAG: a chosen trajectory has at most this many right partners, and at most "
        "this many with a wrong search decision",
    )
    step_margin: Above0 | None = Field(
        None,
        description="methods with step rewards: minimum difference of R_t in step pairs; null: no "
        "step pairs",
    )
