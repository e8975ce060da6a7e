"""The records that stages exchange, as dataclasses.

A record's fields are the columns of its Parquet file and the keys of its JSON object
(`pipeline.core.record_io` reads and writes both). `Trajectory` is the central one: sampling writes
it, scoring adds rewards, pairing and evaluation read it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, Literal

from pipeline.core.formats import DEFAULT_FORMAT, FormatName
from pipeline.core.methods import GrammarName as GrammarName  # part of the records

HopType = Literal["single", "multi", "unknown"]
Stop = Literal["answer", "max_steps", "max_tokens", "malformed", "retrieval_error"]
# Sampled by the policy, inserted by the rollout, or written by the chat template between turns.
Writer = Literal["model", "observation", "frame"]
PairKind = Literal["format", "easy", "hard", "margin", "step"]
Span = tuple[int, int, Writer]  # offsets [start, end) and the writer of that piece


@dataclasses.dataclass(slots=True)
class Decomposed:
    """One hop of a question's decomposition, as MuSiQue publishes it."""

    question: str  # ``#n`` stands for the answer of hop n, from 1
    answer: str
    support_title: str | None = None  # title of the supporting passage
    support_text: str | None = None  # text of the supporting passage


@dataclasses.dataclass(slots=True)
class Question:
    """A question of any data set, in one shape.

    Fields from ``hops`` on are filled where the data set provides them.
    """

    question_id: str  # unique within a split
    dataset: str  # e.g. "musique"; see `corpus.questions.load.DATASETS`
    question: str
    answers: list[str]  # gold answers, aliases included, at least one
    hop: HopType  # "unknown" for questions that do not say
    evidence: list[str] = dataclasses.field(default_factory=list)  # golden evidence, "Title: text"
    hops: int | None = None  # number of reasoning hops
    type: str | None = None  # the data set's question type, e.g. "bridge"
    decomposition: list[Decomposed] = dataclasses.field(default_factory=list)
    split_part: str | None = None  # e.g. "unseen": a test question about entities not in training


@dataclasses.dataclass(slots=True)
class Chunk:
    """A passage of the corpus."""

    id: str  # ``<doc_id>-<n>``
    title: str
    text: str  # without the title
    doc_id: str  # the document that the passage was cut from
    source: str = ""  # where the document comes from: a path, the page of a file, or an address


@dataclasses.dataclass(slots=True)
class Triplet:
    """A fact (head, relation, tail) of the knowledge graph, in the surface forms of its source."""

    id: str  # ``<chunk_id>:<n>``
    head: str
    relation: str
    tail: str
    chunk_id: str  # the chunk that it was extracted from

    @property
    def text(self) -> str:
        """Head, relation and tail, separated by spaces."""
        return f"{self.head} {self.relation} {self.tail}"


@dataclasses.dataclass(slots=True)
class Hyperedge:
    """An n-ary fact of the hypergraph (ProGraph-R1, section 3.1)."""

    id: str  # ``<chunk_id>:f<n>``
    text: str  # the fact as a sentence
    entities: list[str]  # names of its two or more entities
    chunk_id: str  # the chunk that it was extracted from


def asked(one: Question | Trajectory) -> dict[str, Any]:
    """The fields that a question and its trajectories share."""
    names = ("question_id", "dataset", "question", "answers", "hop", "evidence")
    return {name: getattr(one, name) for name in names}


@dataclasses.dataclass(slots=True)
class ContextItem:
    """One retrieved item of a step's context."""

    kind: Literal["chunk", "triplet", "hyperedge"]
    id: str  # id of the chunk, triplet or hyperedge; empty when parsed from text
    title: str  # title of a chunk; empty for the other kinds
    text: str  # the text that the model reads
    # PageRank mass under retrieval variant ``ppr``, sigmoid of the reranker's score under
    # ``semantic``, ``graph`` and ``concat``, the variant's ranking score for hyperedges.
    score: float


@dataclasses.dataclass(slots=True)
class Step:
    """One reasoning step. Each grammar fills its own fields; the others keep their defaults.

    =========  ============================================================
    tearag     entities, subquery, context, summary
    hiprag     reasoning, search, context, conclusion
    prograph   think, query, knowledge, context
    search-r1  think (first step only), subquery, context, summary
    =========  ============================================================
    """

    entities: list[str] = dataclasses.field(default_factory=list)  # key entities of the subquery
    subquery: str = ""  # search query
    context: list[ContextItem] = dataclasses.field(default_factory=list)  # items as inserted
    summary: str = ""  # conclusion from the context; search-r1: the reasoning after the documents
    reasoning: str = ""  # text before the search or the conclusion
    search: str | None = None  # search query; None for a step without search
    conclusion: str = ""  # result of the step
    think: str = ""  # text of the think block before the query or the answer
    query: str | None = None  # search query; None in the turn that answers
    knowledge: str = ""  # text of the knowledge block

    @property
    def retrieved(self) -> bool:
        """Whether the step has a search query, in any grammar."""
        return bool(self.subquery) or self.search is not None or self.query is not None

    @property
    def asked(self) -> str | None:
        """The search query, in any grammar; None for a step without a search."""
        return self.subquery or self.search or self.query if self.retrieved else None

    @property
    def answers_only(self) -> bool:
        """Whether the step is the turn that answers in ProGraph-R1's grammar: reasoning alone."""
        return not (self.retrieved or self.summary or self.conclusion)


@dataclasses.dataclass(slots=True)
class TokenCounts:
    """Tokens of ``output`` by writer; of the prompt, only retrieved context counts."""

    thinking: int = 0  # tokens sampled by the policy
    retrieved: int = 0  # tokens of retrieved context, the sum of ``per_retrieval``
    per_retrieval: list[int] = dataclasses.field(default_factory=list)  # one entry per retrieval

    @classmethod
    def of(cls, spans: Iterable[Span], per_retrieval: list[int]) -> TokenCounts:
        """The counts of an output with these spans of tokens."""
        thinking = sum(end - start for start, end, writer in spans if writer == "model")
        return cls(thinking, sum(per_retrieval), per_retrieval)


@dataclasses.dataclass(slots=True)
class Trajectory:
    """One trajectory: a question, the text and tokens after its prompt, and the parsed steps.

    ``spans`` and ``token_spans`` describe the same pieces in the same order, in characters and in
    tokens. Only pieces of writer "model" are trained. Trajectories imported from text have no token
    ids, token spans, log-probabilities or token counts.
    """

    # Unique; ``<question_id>/<sample>@<first 12 digits of policy>`` when sampled.
    trajectory_id: str
    question_id: str
    dataset: str
    question: str  # the question's text
    hop: HopType
    answers: list[str]  # gold answers, aliases included
    evidence: list[str]  # golden evidence; may be empty
    grammar: GrammarName  # the grammar that ``output`` was written and parsed in
    output: str  # all text after the prompt: model text and inserted observations
    format: FormatName = DEFAULT_FORMAT  # text with tags, or a conversation with tool calls
    messages: str = ""  # the conversation as JSON text; empty in format "tags"
    tools: str = ""  # JSON text of an agent's own tools; empty: the tool of the method
    # Fingerprint of the policy that sampled it (base model, or ``policy`` of its lineage.json);
    # the importer's policy name for imported outputs.
    policy: str = ""
    sample: int = 0  # index among the samples of this question by this policy, from 0
    seed: int = 0  # sampling seed of the trajectory
    spans: list[Span] = dataclasses.field(default_factory=list)  # characters; cover output exactly
    prompt_ids: list[int] = dataclasses.field(default_factory=list)  # token ids of the prompt
    # Ids after the prompt, as sampled and as inserted, end-of-sequence id included.
    token_ids: list[int] = dataclasses.field(default_factory=list)
    token_spans: list[Span] = dataclasses.field(default_factory=list)  # tokens; cover token_ids
    # Natural-log probability (nats) of each entry of token_ids under the distribution it was
    # sampled from (temperature and top-p applied; the model's own when greedy); None for
    # observation tokens.
    logprobs: list[float | None] = dataclasses.field(default_factory=list)
    steps: list[Step] = dataclasses.field(
        default_factory=list
    )  # complete steps before any format error
    answer: str | None = None  # final answer; None when the parser reached none
    format_ok: bool = False  # whether output follows the grammar
    format_error: str | None = None  # the first format error and its character offset
    stop: Stop = "answer"  # why sampling ended
    malformed_calls: int = 0  # calls answered by their errors (``sampling.malformed_calls``)
    tokens: TokenCounts = dataclasses.field(
        default_factory=TokenCounts
    )  # tokens of output by writer
    rewards: dict[str, Any] | None = None  # reward terms by name; None until scored
    reward: float | None = None  # given from outside, in place of the measured outcome


@dataclasses.dataclass(slots=True)
class Message:
    """One chat message."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclasses.dataclass(slots=True)
class CalledFunction:
    """The function of a tool call; ``arguments`` are JSON text, because objects of one Parquet
    column have the same fields."""

    name: str
    arguments: str


@dataclasses.dataclass(slots=True)
class ToolCall:
    """A tool call in the form of OpenAI's interface."""

    function: CalledFunction
    id: str | None = None
    type: str = "function"


@dataclasses.dataclass(slots=True)
class ChatMessage:
    """A message of a conversation with tool calls; a text with tags has role and content alone.

    Null fields are left out of JSON.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None


# Fields that JSON objects have only where they are set.
OPTIONAL = frozenset({"reasoning_content", "tool_calls", "tool_call_id", "tools"})


@dataclasses.dataclass(slots=True)
class SftExample:
    """One supervised example for the cold start: a text with tags, or a conversation.

    A conversation has ``messages`` after the prompt and ``tools``, the JSON text of their schemas;
    the chat template of the base model writes it.
    """

    example_id: str
    question_id: str
    hops: int  # reasoning steps in the completion; 0 for a closed-book question
    prompt: list[Message]
    completion: str  # the assistant's text, observations included; empty in a conversation
    spans: list[Span]  # character spans covering completion; writer "model" is trained
    messages: list[ChatMessage] = dataclasses.field(default_factory=list)
    tools: str | None = None
    # Of a sampled trajectory, as sampled; empty for an example that is built from text.
    prompt_ids: list[int] = dataclasses.field(default_factory=list)
    token_ids: list[int] = dataclasses.field(default_factory=list)
    token_spans: list[Span] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(slots=True)
class Pair:
    """A preference pair of two trajectories for one question.

    Training reads the ids and spans; the chat messages carry the same text for people, `datasets`
    and TRL. A side is one assistant's message with tags, or the turns of a conversation after the
    prompt, whose ``tools`` are JSON text.
    """

    question_id: str
    prompt: list[Message]
    chosen: list[ChatMessage]
    rejected: list[ChatMessage]
    chosen_id: str  # trajectory ids
    rejected_id: str
    kind: PairKind  # the rule that selected it: TeaRAG eq. 14, a reward margin, or a step pair
    chosen_rewards: dict[str, Any]  # all reward terms of the trajectory
    rejected_rewards: dict[str, Any]
    policy: str  # fingerprint of the policy that sampled both
    round: int  # training round, from 1
    prompt_ids: list[int]  # token ids, shared by both sides
    chosen_ids: list[int]  # token ids after the prompt
    rejected_ids: list[int]
    chosen_spans: list[Span]  # token spans covering chosen_ids
    rejected_spans: list[Span]
    tools: str | None = None  # JSON text of the tools of conversations
