"""Stage ``sft-data``: supervised trajectories from questions with hops (TeaRAG 4.3.1, table 1).

Input: the questions of stage ``questions-sft``, the chunks of stage ``corpus``, and the triplets of
stage ``graph``, or the facts of the hypergraph if the retrieval of ProGraph-R1 shows those. Output:
``train.parquet`` and ``test.parquet`` (`SftExample` with character loss spans, eq. 4) and
``statistics.json``: the numbers of examples requested, available and taken, how gold paragraphs
were found, and the reasons for leaving hops out. The method (`pipeline.methods`) builds the steps
and their turns. With ``sft_data.rejection_sampling`` the input is the output of stage
``sft-sample`` instead, whose right trajectories are kept
(`pipeline.training.sft_data.rejection_sampling`).

Hops come from decompositions; a single-hop question with a gold passage is its own hop. Methods
whose contexts hold passages alone need no triplets. With ``sft_data.context: retrieved`` contexts
hold what the retrieval shows, so the stage needs its index.

If the corpus lacks a gold paragraph, the question's own paragraph takes its place
(`sft_data.paragraphs`). A model extracts its triplets: the model of ``graph`` if the triplets come
from there, else the model of ``sft_data``.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.config import Config
from pipeline.config.policy import RejectionSampling
from pipeline.config.policy import SftData as SftDataSettings
from pipeline.core.atomic import write_json, write_text
from pipeline.core.errors import InputError
from pipeline.core.formats import DEFAULT_FORMAT
from pipeline.core.progress import counted
from pipeline.core.records import Chunk, ContextItem, Question, SftExample, Step, Triplet
from pipeline.engine.fingerprint import (
    base_model_files,
    model_identity,
    roll_out_files,
    tool_files,
)
from pipeline.engine.opened import Opened, Work, chat, policy_engine, retrieval
from pipeline.engine.plan.clock import Clock
from pipeline.engine.plan.sizes import ANSWER_BYTES
from pipeline.engine.shards import DivisibleTask
from pipeline.engine.stage import TRAJECTORIES, StageTask
from tasks.corpus import Corpus
from tasks.graph import Graph
from tasks.hypergraph import Hypergraph
from tasks.index import knowledge
from tasks.questions import QUESTIONS_READ, input_questions, questions

if TYPE_CHECKING:
    from pipeline.config.policy import Prompt
    from pipeline.engine.context import StageContext
    from pipeline.llm.replies import ReplyExchange
    from pipeline.rollout.formats import Format
    from pipeline.training.sft_data.known_facts import KnownFacts
    from pipeline.training.sft_data.split import Example, SupervisedTrajectory
    from pipeline.training.sft_data.steps import Fact, Hop


_ALWAYS = ("sft_data", "prompt", "grammar", "seed")  # read under any configuration


class SftData(DivisibleTask):
    """Supervised trajectories from MuSiQue-shaped decompositions, or by rejection sampling."""

    stage = "sft-data"
    help = "supervised trajectories"
    served = ("index",)
    version = 7
    shards_block = "sft_data"
    reads = (
        *_ALWAYS,
        *("format", "retrieval.variant", "engine", "model"),
        *("graph.model", "graph.engine", "graph.endpoint", "corpus.chunk_words"),
    )

    @property
    def runs_model(self) -> bool:
        memory = self.settings.sft_data.memory is not None
        asks = self._asks_own_model or memory or self._asks_graph_model
        return asks and not self._rejects

    @property
    def _rejects(self) -> bool:
        return self.settings.sft_data.rejection_sampling is not None

    @property
    def _teacher_file(self) -> Path | None:
        chosen = self.settings.sft_data.rejection_sampling
        return None if chosen is None else chosen.file

    @cached_property
    def inputs(self) -> dict[str, StageTask]:
        if self._teacher_file is not None:
            return {"questions": questions(self, "sft")}
        if self._rejects:
            from tasks.sample import SftSample  # which is declared after this stage

            return {"trajectories": self.clone(SftSample)}
        facts = Hypergraph if self.settings.teaches_hyperedges else Graph
        retrieved = self.settings.sft_data.context == "retrieved"
        return {
            **(knowledge(self, explored=False) if retrieved else {}),
            "corpus": self.clone(Corpus),
            "graph": self.clone(facts),
            "questions": questions(self, "sft"),
        }

    @property
    def input_files(self) -> Mapping[str, tuple[str, ...]]:
        return {"trajectories": TRAJECTORIES, **QUESTIONS_READ}

    @property
    def _asks_own_model(self) -> bool:
        settings = self.settings.sft_data
        return "llm" in (settings.triplets, settings.selector, settings.rewriter)

    @property
    def _asks_graph_model(self) -> bool:
        """Whether the graph's model may extract from paragraphs that the corpus does not hold."""
        return self.settings.sft_data.triplets == "graph" and _extracts_from_own(self.settings)

    def files(self) -> dict[str, Path | str]:
        settings = self.settings.sft_data
        if self._rejects:
            teacher = self._teacher_file
            return ({"trajectories": teacher} if teacher else {}) | tool_files(self.settings)
        files = {"model": model_identity(settings.model)} if settings.model else {}
        if self._asks_graph_model and self.settings.graph.model:
            files["graph model"] = model_identity(self.settings.graph.model)
        if settings.memory is not None:
            files |= base_model_files(self.settings)
        if settings.context == "retrieved":
            files |= roll_out_files(self.settings)
        return files | tool_files(self.settings)

    def reading(self) -> tuple[str, ...]:
        """Adds the settings of the models that the stage asks, and of the chunks that it makes."""
        settings, names = self.settings.sft_data, [*_ALWAYS]
        if self.settings.format != DEFAULT_FORMAT:
            names += ["format"]
        if self._rejects:
            return (*names, "model.base")
        if settings.memory is not None:
            names += ["engine", "model"]
        if self._asks_graph_model:
            names += ["graph.model", "graph.engine", "graph.endpoint"]
        passages = not self.settings.method.sft_shows_retrieved_kinds
        if self._asks_graph_model or settings.triplets == "llm" or passages:
            names += ["corpus.chunk_words"]
        if settings.context == "retrieved":
            names += ["retrieval", "index.embedder", "sampling.max_context_tokens", "model"]
        return tuple(names)

    def slice(self) -> dict[str, Any]:
        """Adds the kinds of shown items."""
        values = super().slice()
        if self.settings.method.sft_shows_retrieved_kinds and not self._rejects:
            values["retrieval.shows"] = list(self.settings.retrieval.shows)
        return values

    def opens(self) -> Iterator[Opened]:
        """The models that are asked in turn, and the policy that answers from memory."""
        settings = self.settings
        if self._rejects:
            return
        if self._asks_own_model:
            yield from chat("sft_data", settings.sft_data)
        if self._asks_graph_model:
            yield from chat("graph", settings.graph, turn=1)
        if settings.sft_data.memory is not None:
            yield policy_engine(settings, turn=2)
        if settings.sft_data.context == "retrieved":
            yield from (replace(one, turn=3) for one in retrieval(settings))

    def work(self, clock: Clock) -> Work:
        block, a = self.settings.sft_data, clock.rates
        examples = sum(block.sizes.values()) + sum(block.test_sizes.values())
        asked = (one for one in self.opens() if one.turn == 0)
        shared = {"calls": a.helper_calls, "repeated": a.instruction_tokens}
        answers = (clock.answer(one, a.helper_tokens, a.helper_written, **shared) for one in asked)
        return examples * sum(answers, Work(disk=10 * ANSWER_BYTES))


_CLOSED_BOOK_TOKENS = 32  # of an answer to a closed-book question
_SAMPLED_COLUMNS = [
    "trajectory_id", "question_id", "dataset", "question", "answers", "answer", "output", "spans",
    "prompt_ids", "token_ids", "token_spans", "steps", "stop", "format_ok", "policy",
]  # fmt: skip


def run(context: StageContext) -> dict[str, int]:
    """Write the stage's files; returns the numbers of training and test examples.

    A stage that joins shards takes their replies. Raises InputError when fewer training examples
    could be built than ``sft_data.min_share``, or rejection sampling keeps none.
    """
    from pipeline.core.record_io import write_parquet
    from pipeline.engine.files.shards import shard_directories
    from pipeline.llm.replies import replies_of
    from pipeline.methods import method
    from pipeline.training.sft_data.known_facts import KnownFacts, select_known_facts
    from pipeline.training.sft_data.split import check_examples, count_faults, split, supply
    from pipeline.training.sft_data.steps import usable_hops

    settings = context.config.sft_data
    if settings.rejection_sampling is not None:
        return _keep_sampled(context, settings.rejection_sampling)
    questions, hops = _hops(context)
    usable, replies = usable_hops(hops), replies_of(shard_directories(context))
    faults: Counter[str] = Counter()
    supporting = _supporting(context, usable, faults, replies)
    known_facts = KnownFacts()
    if settings.memory is not None:
        known_facts = select_known_facts(
            usable,
            _ask_base_model(context, usable, replies),
            search_share=settings.memory.searched,
            num_closed_book=settings.memory.rehearsed,
            seed=context.seed,
        )
    if settings.context == "retrieved":
        _retrieve(context, usable)
    trajectories = _trajectories(context, questions, hops, supporting, known_facts.from_memory)
    faults.update(count_faults(hops))
    chosen = split(trajectories, settings.sizes, settings.test_sizes, context.seed)
    written, turns = context.format, method(context.config.grammar).turns
    prompt = context.config.prompt
    done = {
        name: list(filter(None, (_written(one, written, turns, prompt, faults) for one in part)))
        for name, part in zip(("train", "test"), chosen, strict=True)
    }
    statistics = _statistics(settings, usable, trajectories, done, faults, known_facts)
    available = supply(trajectories)
    check_examples(len(done["train"]), available, settings, len(questions), faults)
    if known_facts.closed_book:
        done["train"] += known_facts.closed_book
        random.Random(f"{context.seed}:order").shuffle(done["train"])
    for name, examples in done.items():
        write_parquet(context.output / f"{name}.parquet", examples, SftExample)
    write_json(context.output / "statistics.json", statistics)
    for name, count in statistics.items():
        print(f"{name}: {count:,}")
    return {name: len(part) for name, part in done.items()}


def run_shard(context: StageContext) -> dict[str, int]:
    """Ask all models about the hops of one shard of the questions; returns the number of replies.

    Raises InputError as `run` does, as far as it is known before the models answer.
    """
    from pipeline.llm.replies import ReplyLog
    from pipeline.training.sft_data.steps import usable_hops

    _, hops = _hops(context)
    usable = usable_hops(hops[context.shard :: context.shards])
    replies = ReplyLog()
    _supporting(context, usable, Counter(), replies)
    if context.config.sft_data.memory is not None:
        _ask_base_model(context, usable, replies)
    return {"replies": replies.write(context.output)}


def _keep_sampled(context: StageContext, settings: RejectionSampling) -> dict[str, int]:
    """Write the sampled trajectories that are kept, with counts and a card."""
    from pipeline.core.record_io import write_parquet
    from pipeline.core.trajectory_file import FILE as TRAJECTORIES
    from pipeline.core.trajectory_file import iterate_trajectories
    from pipeline.engine.card import CARD
    from pipeline.training.export.directory import card
    from pipeline.training.sft_data import rejection_sampling

    config = context.config
    context.progress.start(None, "trajectories")
    written = context.format
    others: Counter[str] = Counter()
    if settings.file is None:
        source = context.inputs["trajectories"] / TRAJECTORIES
        trajectories = iterate_trajectories(source, _SAMPLED_COLUMNS)
    else:
        trajectories = rejection_sampling.of_file(
            settings.file, input_questions(context), written.grammar.name, written.name, others
        )
    kept = rejection_sampling.keep(counted(trajectories, context.progress), settings)
    rows = kept.table()
    sums = sum(kept.outcomes.values(), others)
    counts = ", ".join(f"{outcome}: {count:,}" for outcome, count in sums.most_common())
    train, test = rejection_sampling.split(
        kept.trajectories, rejection_sampling.TEST_SHARE, context.seed
    )
    if not train:
        raise InputError(
            f"none of the {sums.total():,} trajectories of {rejection_sampling.TEACHER} "
            f"({settings.teacher}) can be trained on ({counts or 'no trajectories'}); raise "
            "sft_data.rejection_sampling.samples, lower its min_f1, name another "
            "teacher, or say in the prompt what the format is"
        )
    print(f"{sums.total():,} trajectories: {counts}")
    for name, part in (("train", train), ("test", test)):
        examples = (
            rejection_sampling.example(one, config.prompt.messages(one.question), written.tools)
            for one in part
        )
        write_parquet(context.output / f"{name}.parquet", examples, SftExample)
    write_json(context.output / "statistics.json", {"datasets": rows, **others})
    about = card(
        "rejection-sampling.md.j2", rows=rows, train=len(train), test=len(test),
        base=config.model.base, seed=context.seed, policies=sorted(kept.policies),
        settings=settings.model_dump(),
    )  # fmt: skip
    write_text(context.output / CARD, about)
    return {"train": len(train), "test": len(test)}


def _hops(context: StageContext) -> tuple[list[Question], list[list[Hop]]]:
    """The questions and the hops of each. Raises InputError when they are too few."""
    from pipeline.knowledge.graph.locate import Locator
    from pipeline.training.sft_data.split import check_supply
    from pipeline.training.sft_data.steps import collect_hops

    questions = input_questions(context)
    hyperedges = context.config.teaches_hyperedges
    corpus, graph = context.inputs["corpus"], context.inputs["graph"]
    chunks, facts = _evidence(questions, corpus, graph, hyperedges)
    settings = context.config.sft_data
    passages = not context.config.method.sft_shows_retrieved_kinds  # which need no triplets
    own = passages or settings.triplets == "llm" or _extracts_from_own(context.config)
    own_words = context.config.corpus.chunk_words if own else None
    hops = collect_hops(questions, Locator(chunks), facts, own_words)
    check_supply(hops, settings)
    return questions, hops


def _evidence(
    questions: Sequence[Question], corpus: Path, graph: Path, hyperedges: bool
) -> tuple[list[Chunk], Sequence[Fact]]:
    """Chunks with the title of a supporting paragraph, and the facts of those chunks.

    Other chunks and facts are skipped on disk: the paper's triplets would take 92 GB as Python
    objects.
    """
    from pipeline.core.columns import Records
    from pipeline.knowledge.graph.tables import read_hyperedges

    chunks = titled_chunks(questions, corpus)
    names = {chunk.id for chunk in chunks}
    if hyperedges:
        return chunks, read_hyperedges(graph, names)
    return chunks, Records(graph / "triplets.arrow", Triplet).where("chunk_id", names)


def titled_chunks(questions: Sequence[Question], corpus: Path) -> list[Chunk]:
    """The chunks of the corpus with the title of a supporting paragraph."""
    from pipeline.core.columns import Records
    from pipeline.knowledge.graph.entities import display
    from pipeline.training.sft_data.steps import parts_of

    titles = {
        display(part.support_title)
        for question in questions
        for part in parts_of(question)
        if part.support_title is not None
    }
    return Records(corpus / "chunks.arrow", Chunk).where("title", titles)


def _trajectories(
    context: StageContext,
    questions: Sequence[Question],
    per_question: Sequence[list[Hop]],
    supporting: Mapping[str, list[Fact]],
    from_memory: Set[str],
) -> list[SupervisedTrajectory]:
    """A trajectory for each question with hops, of steps as the configured method builds them."""
    from pipeline.methods import method
    from pipeline.training.sft_data.split import SupervisedTrajectory
    from pipeline.training.sft_data.steps import StepOptions

    config, build_step = context.config, method(context.config.grammar).build_step

    def step(hop: Hop, hops: Sequence[Hop]) -> Step | None:
        if hop.fault is not None:
            return None
        options = StepOptions(
            others=[other for other in hops if other is not hop],
            other_paragraph=config.sft_data.other_paragraph,
            other_facts=config.sft_data.other_triplets,
            kinds=config.retrieval.shows,
            from_memory=hop.id in from_memory,
        )
        rng = random.Random(f"{context.seed}:{hop.id}")
        return build_step(hop, supporting[hop.id], rng, options)

    context.progress.start(len(questions), "questions")
    asked = zip(counted(questions, context.progress), per_question, strict=True)
    return [
        SupervisedTrajectory(
            question.question_id,
            question.question,
            question.answers[0],
            tuple(step(hop, hops) for hop in hops),
            tuple(hop.answer for hop in hops),
        )
        for question, hops in asked
        if hops
    ]


def _retrieve(context: StageContext, hops: Sequence[Hop]) -> None:
    """Give every hop the passages that a roll-out would show for its question, cut as there.

    Raises what opening the retriever and the tokenizer, and `Retriever.retrieve` raise.
    """
    from pipeline.knowledge.retrieval.base import Query
    from pipeline.llm.tokens import observation_ids
    from pipeline.rollout.sampler import fit_items
    from pipeline.training.lora import load_tokenizer, locate_base
    from tasks.sample import open_run_retriever

    context.progress.start(None, "searches")
    with open_run_retriever(context) as retriever:
        if retriever is None:
            return
        found = retriever.retrieve([Query(hop.question, later=hop.number > 1) for hop in hops])
    if (limit := context.config.sampling.max_context_tokens) is not None:
        model, shown = context.config.model, context.format.grammar.observation
        tokenizer = load_tokenizer(locate_base(model.base), model)

        def size(items: list[ContextItem]) -> int:
            return len(observation_ids(tokenizer, shown(items, "")))

        found = [fit_items(items, limit, size) for items in found]
    for hop, items in zip(hops, found, strict=True):
        hop.retrieved = [
            Chunk(one.id, one.title, one.text, "") for one in items if one.kind == "chunk"
        ]


def _supporting(
    context: StageContext, hops: Sequence[Hop], faults: Counter[str], replies: ReplyExchange
) -> dict[str, list[Fact]]:
    """Supporting facts by hop id, by rules or by the models of the paper, as configured.

    ``replies`` takes part in the requests to the models.
    """
    from pipeline.training.sft_data.by_model import extract_triplets, rewrite, select_supporting
    from pipeline.training.sft_data.steps import supporting_facts

    settings = context.config.sft_data
    own = [hop for hop in hops if hop.source == "own"]
    if own and settings.triplets == "graph" and _extracts_from_own(context.config):
        with context.models.chat("graph", context.config.graph) as chat:
            replies.attach("graph", chat)
            faults["rejected triplets"] += extract_triplets(own, chat)
        print(chat.usage.line())
        write_json(context.output / "extraction_chat.json", chat.usage.total())
    if "llm" in (settings.triplets, settings.selector, settings.rewriter):
        with context.models.chat("sft_data", settings) as chat:
            selected: dict[str, list[Fact]] | None = None
            chat.progress = context.progress
            replies.attach("chat", chat)
            if settings.triplets == "llm":
                context.progress.start(None, "chunks with triplets")
                faults["rejected triplets"] += extract_triplets(hops, chat)
            if settings.rewriter == "llm":
                context.progress.start(len(hops), "rewritten hops")
                rewrite(hops, chat, faults)
            if settings.selector == "llm":
                context.progress.start(len(hops), "hops with supporting facts")
                selected = select_supporting(hops, chat, faults)
        print(chat.usage.line())
        chat.usage.write(context.output)
        if selected is not None:
            return {hop.id: selected.get(hop.id, []) for hop in hops}
    return {hop.id: supporting_facts(hop) for hop in hops}


def _extracts_from_own(config: Config) -> bool:
    """Whether the model of ``graph`` extracts from paragraphs that the corpus does not hold."""
    return config.graph.source == "llm" and not config.teaches_hyperedges


def _ask_base_model(
    context: StageContext, hops: Sequence[Hop], replies: ReplyExchange
) -> dict[str, str]:
    """The base model's greedy closed-book answer to each hop's question, by question.

    ``replies`` takes part in the requests, as "policy". Raises the errors of the base model's
    engine.
    """
    from pipeline.judges.closed_book import closed_book_answers

    context.progress.start(len({hop.question for hop in hops}), "closed-book answers")
    with context.models.policy_chat(None) as chat:
        chat.progress = context.progress
        replies.attach("policy", chat)
        asked, written = [hop.question for hop in hops], context.format.grammar
        answers = closed_book_answers(asked, chat, written, max_tokens=_CLOSED_BOOK_TOKENS)
        print(chat.usage.line())
    return {question: answer.text for question, answer in answers.items()}


def _written(
    example: Example,
    written: Format,
    turns: Callable[[Sequence[Step]], Sequence[Step]],
    prompt: Prompt,
    faults: Counter[str],
) -> SftExample | None:
    """The example in the format; None and a fault if the format's parser refuses it."""
    fields, parsed = written.example(example.question, example.steps, example.answer, turns)
    if not parsed.format_ok:
        faults[f"example: {(parsed.format_error or '').split(' at offset')[0]}"] += 1
        return None
    messages = prompt.messages(example.question)
    return SftExample(example.id, example.question_id, len(example.steps), messages, **fields)


def _statistics(
    settings: SftDataSettings,
    usable: Sequence[Hop],
    trajectories: Sequence[SupervisedTrajectory],
    done: dict[str, list[SftExample]],
    faults: Counter[str],
    known_facts: KnownFacts,
) -> dict[str, int]:
    requested = {"train": settings.sizes, "test": settings.test_sizes}
    complete = sum(trajectory.complete for trajectory in trajectories)
    counts = {"questions": len(trajectories), "complete questions": complete}
    for name, examples in done.items():
        taken = Counter(example.hops for example in examples)
        for hops in sorted({*taken, *requested[name]}):
            counts[f"{name} {hops}-hop"] = taken[hops]
            counts[f"{name} {hops}-hop asked for"] = requested[name].get(hops, 0)
    counts.update({f"left out: {reason}": count for reason, count in sorted(faults.items())})
    found = Counter(hop.source for hop in usable)
    return {
        **counts,
        **known_facts.statistics(),
        "hops with a paragraph found by text": found["text"],
        "hops with a paragraph found by overlap": found["overlap"],
        "hops with the question's own paragraph": found["own"],
    }
