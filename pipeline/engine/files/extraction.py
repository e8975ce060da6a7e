"""Extraction by a language model, for the stages ``graph`` and ``hypergraph``, whole or in shards.

The model is asked about blocks of chunks; the replies on a finished block are a checkpoint. A shard
asks about consecutive chunks and writes ``answers.parquet``, one `ReplyRecord` per chunk in their
order. The joined stage reads these files as an undivided one reads its checkpoints, so both write
the same bytes. Replies on an unfinished block are in the cache of answers (`llm.chat`). That cache
holds every prompt, which for the 21 million chunks of the paper is 76 GB. The replies of a corpus
with more chunks than `CACHED_CHUNKS` are therefore kept beside the checkpoints until their block is
finished. Memory: one block.

The first block is a trial: when too few of its answers can be read, the extraction stops there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, pairwise
from pathlib import Path

from pipeline.config.base import AskedModel
from pipeline.core.columns import Records
from pipeline.core.content_cache import ContentCache
from pipeline.core.errors import InputError, StoreError
from pipeline.core.record_io import iterate_records
from pipeline.core.records import Chunk
from pipeline.engine.context import StageContext
from pipeline.engine.files.checkpoints import (
    intact,
    read_checkpoint,
    write_checkpoint,
    write_tables,
)
from pipeline.engine.files.shards import first_and_last, shard_directories
from pipeline.knowledge.graph.build import Extracted
from pipeline.knowledge.graph.extract import (
    BLOCK,
    ExtractionPrompt,
    answer_fault,
    ask_about,
    read_answer,
)
from pipeline.llm.chat import Chat, Reply, Usage
from pipeline.llm.replies import ReplyRecord

ANSWERS = "answers.parquet"
CACHED_CHUNKS = 1_000_000  # of a larger corpus the answers are kept in checkpoints alone
TRIAL = 4096  # chunks of the first block
MIN_READABLE = 0.5  # of the first block's answers
_UNFINISHED = "replies.sqlite"  # replies on the block that is being asked about


def corpus_chunks(context: StageContext) -> Records[Chunk]:
    """All chunks of the corpus, read from disk on demand."""
    return Records(context.inputs["corpus"] / "chunks.arrow", Chunk)


def chosen_chunks(context: StageContext) -> Records[Chunk]:
    """The candidates if the stage has them as an input, else all chunks of the corpus."""
    folder = context.inputs.get("candidates", context.inputs["corpus"])
    return Records(folder / "chunks.arrow", Chunk)


def extract_by_model(
    context: StageContext,
    block: str,
    settings: AskedModel,
    chunks: Sequence[Chunk],
    prompt: ExtractionPrompt,
) -> Iterator[Extracted]:
    """Yield the items that a model extracts from every chunk, in order.

    A stage that joins shards reads their answers. ``settings`` names the model; ``block`` is the
    name of the block. At the end, writes ``chat.json`` (calls, tokens, cost) into the stage's
    output. Raises the errors of `graph.extract.extract`, InputError when too few of the first
    answers can be read (`MIN_READABLE`), and StoreError when the shards' answers are not on these
    chunks, in their order.
    """
    files = [shard / ANSWERS for shard in shard_directories(context)]
    if joins := bool(files):
        context.progress.start(len(chunks), "chunks")
    else:
        files = _ask(context, block, settings, chunks, prompt, (0, len(chunks)))
    yield from _extracted(context, settings, chunks, files, report=joins)


def write_answers(
    context: StageContext,
    block: str,
    settings: AskedModel,
    chunks: Sequence[Chunk],
    prompt: ExtractionPrompt,
) -> dict[str, int]:
    """Write the answers on one shard of the chunks; returns their number."""
    rows = first_and_last(len(chunks), context.shard, context.shards)
    files = _ask(context, block, settings, chunks, prompt, rows)
    answers = write_tables(context.output / ANSWERS, map(read_checkpoint, files), ReplyRecord)
    return {"answers": answers}


def _ask(
    context: StageContext,
    block: str,
    settings: AskedModel,
    chunks: Sequence[Chunk],
    prompt: ExtractionPrompt,
    rows: tuple[int, int],
) -> list[Path]:
    """Checkpoints with the replies on chunks ``rows`` (first, and after the last), in order."""
    first, last = rows
    files = []
    unfinished = None
    if len(chunks) > CACHED_CHUNKS:
        unfinished = ContentCache(context.checkpoint_dir / _UNFINISHED, private=True)
    context.progress.start(last - first, "chunks")
    with context.models.chat(block, settings, unfinished) as chat:
        chat.progress = context.progress
        chat.stores_prompts = unfinished is None
        bounds = {first, *range(first + TRIAL, last, BLOCK), last}
        for start, end in pairwise(sorted(bounds)):
            name = f"answers-{start:09d}-{end:09d}"
            if finished := intact(context.checkpoint_dir, name):
                context.progress.skip(end - start)
                files.append(finished[0])
                for reply in _distinct(iterate_records(finished[0], ReplyRecord)):
                    chat.usage.add(reply, reused=True)
            else:
                records = _replies(chunks[start:end], chat, prompt)
                files.append(write_checkpoint(context.checkpoint_dir, name, records, ReplyRecord))
                if unfinished is not None:
                    unfinished.clear()
            if start == first and end < last:
                _check_readable(files[0], block)
    print(chat.usage.line())
    return files


def _check_readable(answers: Path, block: str) -> None:
    """Raise InputError when too few of the first answers can be read, before asking for more."""
    faults: Counter[str | None] = Counter()
    for record in iterate_records(answers, ReplyRecord):
        faults[answer_fault(record.reply)] += 1
    count, readable = faults.total(), faults.pop(None, 0)
    if readable < MIN_READABLE * count:
        fault, times = faults.most_common(1)[0]
        raise InputError(
            f"{block}: {readable:,} of the first {count:,} answers of the model hold a list of "
            f"facts, fewer than {MIN_READABLE:.0%} ({times:,}: {fault}); name a model that follows "
            "the instruction"
        )


def _replies(
    chunks: Sequence[Chunk], chat: Chat, prompt: ExtractionPrompt
) -> Iterator[ReplyRecord]:
    """The model's reply on each chunk, in order."""
    replies: dict[bytes, Reply] = {}
    chat.on_reply = replies.__setitem__
    ask_about(chunks, chat, prompt)
    for chunk in chunks:
        key = chat.key(prompt.messages(chunk.title, chunk.text), prompt.max_tokens)
        yield ReplyRecord.of(chunk.id, key, replies[key])


def _distinct(records: Iterable[ReplyRecord]) -> Iterable[Reply]:
    """The replies to distinct prompts."""
    return {record.key: record.reply for record in records}.values()


def _extracted(
    context: StageContext,
    settings: AskedModel,
    chunks: Sequence[Chunk],
    files: Iterable[Path],
    *,
    report: bool = False,
) -> Iterator[Extracted]:
    """The items of the answers in ``files``, one on each chunk; ``report`` counts them."""
    usage = _usage(settings)
    answers = chain.from_iterable(iterate_records(file, ReplyRecord) for file in files)
    for start in range(0, len(chunks), BLOCK):
        block = chunks[start : start + BLOCK]
        replies: dict[str, Reply] = {}  # of distinct prompts
        for chunk in block:
            record = next(answers, None)
            if record is None or record.source != chunk.id:
                found = "they end" if record is None else f"they go on with {record.source}"
                raise StoreError(
                    f"the answers of the model are not on the chunks of the corpus: expected chunk "
                    f"{chunk.id}, and {found}; rerun the stage with --force"
                )
            reply = replies.setdefault(record.key, record.reply)
            yield from read_answer(chunk, reply)
        for reply in replies.values():
            usage.add(reply, reused=True)
        if report:
            context.progress.advance(len(block))
    if any(True for _ in islice(answers, 1)):
        raise StoreError(
            "the answers of the model are on more chunks than the corpus has; rerun the stage "
            "with --force"
        )
    usage.write(context.output)


def _usage(settings: AskedModel) -> Usage:
    if settings.endpoint is None:
        return Usage()
    prices = settings.endpoint.prices
    return Usage(prices.prompt, prices.completion)
