"""The passages that stand for a question's gold paragraph (TeaRAG, arXiv 2511.05385, 4.3.1).

The paper extracts triplets from the gold paragraphs of MuSiQue. A corpus may hold such a paragraph
word for word, or cut at other places (a Wikipedia dump in blocks of 100 words), or not at all.
Input: a paragraph, and the corpus's chunks with its title. Output: chunks, and how they were found:

- ``text``: chunks that are literally part of the paragraph;
- ``overlap``: the fewest chunks in a row that hold most of its words, and the answer if it does;
- ``own``: the paragraph itself, cut as the corpus is.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal

from pipeline.core.records import Chunk
from pipeline.core.text import tokenize
from pipeline.knowledge.corpus.chunk import chunk_documents, content_key
from pipeline.knowledge.corpus.raw_records import Document
from pipeline.knowledge.graph.locate import Locator
from pipeline.training.sft_data.mentions import mention

Source = Literal["text", "overlap", "own"]
# Other passages of the same article share a third to a half of a paragraph's words, mostly function
# words; a passage that holds the paragraph lacks few of them.
MIN_OVERLAP = 0.8


def find_paragraph(
    locator: Locator, own_words: int | None, title: str, text: str, answer: str
) -> tuple[list[Chunk], Source | None]:
    """The chunks of a paragraph that answers ``answer``, and how they were found.

    With ``own_words``, the words of a chunk, the paragraph itself takes the place of chunks that
    the corpus lacks.
    """
    if chunks := locator.of_text(title, text):
        return chunks, "text"
    if chunks := _best_window(locator.by_title(title), text, answer):
        return chunks, "overlap"
    return ([], None) if own_words is None else (own_chunks(title, text, own_words), "own")


def own_chunks(title: str, text: str, chunk_words: int) -> list[Chunk]:
    """The paragraph itself as chunks; ids begin with ``paragraph:`` and a hash of its content."""
    name = f"paragraph:{content_key(title, text).hex()[:12]}"
    return list(chunk_documents([Document(title, text, name)], chunk_words))


def _best_window(chunks: list[Chunk], text: str, answer: str) -> list[Chunk]:
    """The fewest chunks in a row with at least `MIN_OVERLAP` of the words of ``text``.

    The window must mention ``answer`` if ``text`` does. Among windows of one length the one with
    the most words wins, the first on a tie. Empty when there is none.
    """
    wanted = Counter(tokenize(text))
    counts = [Counter(tokenize(chunk.text)) for chunk in chunks]
    if not wanted or not counts:
        return []
    needs_answer = mention(text, answer) is not None
    longest = max(count.total() for count in counts)
    # A paragraph of n blocks begins inside one and ends inside another.
    most = -(-wanted.total() // max(longest, 1)) + 1
    for size in range(1, min(most, len(chunks)) + 1):
        windows = []
        for start in range(len(chunks) - size + 1):
            held = sum(counts[start : start + size], Counter())
            windows.append(((wanted & held).total() / wanted.total(), -start))
        for overlap, negative in sorted(windows, reverse=True):
            if overlap < MIN_OVERLAP:
                break
            window = chunks[-negative : -negative + size]
            joined = " ".join(chunk.text for chunk in window)
            if not needs_answer or mention(joined, answer) is not None:
                return window
    return []
