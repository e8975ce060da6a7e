"""BM25 of every passage for a query, from an index on disk (library bm25s).

Input: the texts of all passages, which are those that are embedded. Output: one score per passage.
The variant is Lucene's, k1 = 1.5, b = 0.75, without English stop words. In scripts without spaces
every two neighboring letters are a word. A saved index is memory-mapped: 8 bytes for each distinct
word of each passage, and the vocabulary in memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.core.errors import DependencyError, StoreError
from pipeline.core.text import SPACELESS

BM25 = "bm25"  # directory below the index stage's output
_RUN = re.compile(f"(?:{SPACELESS.pattern})+")
_ARRAYS = ("data", "indices", "indptr")


class Bm25:
    """An index over passages in the order of their rows; `build` or `load` it."""

    def __init__(self, index: Any) -> None:
        self._index = index

    @classmethod
    def build(cls, texts: Iterable[str]) -> Bm25:
        """Index the texts, which are read once. Raises DependencyError without bm25s."""
        library = _library()
        tokens = library.tokenize(map(_in_words, texts), show_progress=False)
        index = library.BM25()
        with np.errstate(invalid="ignore"):  # the mean length of texts without words is 0
            index.index(tokens, create_empty_token=bool(tokens.vocab), show_progress=False)
        return cls(index)

    def save(self, folder: Path) -> None:
        """Write the index into ``folder``."""
        self._index.save(folder, show_progress=False)

    @classmethod
    def load(cls, folder: Path) -> Bm25:
        """Memory-map a saved index.

        Raises StoreError when a file is missing or broken, DependencyError without bm25s.
        """
        try:
            index = _library().BM25.load(folder, mmap=True, show_progress=False)
        except (OSError, ValueError) as error:
            raise StoreError(
                f"{folder}: not a BM25 index ({error}); set index.links to true and run the index "
                "stage again"
            ) from None
        # As plain arrays: indexing into a memmap object costs a microsecond of bookkeeping.
        index.scores.update({name: np.asarray(index.scores[name]) for name in _ARRAYS})
        return cls(index)

    def __len__(self) -> int:
        return int(self._index.scores["num_docs"])

    def scores(self, query: str) -> NDArray[np.float32]:
        """BM25 [N] of every passage, 0 without a common word."""
        (words,) = _library().tokenize([_in_words(query)], return_ids=False, show_progress=False)
        known = self._index.get_tokens_ids(words)
        scores_N: NDArray[np.float32] = (
            self._index.get_scores_from_ids(known) if known else np.zeros(len(self), np.float32)
        )
        return scores_N


def _in_words(text: str) -> str:
    """``text`` with runs of a script without spaces as pairs of letters, without their marks."""
    return text if text.isascii() else _RUN.sub(_pairs, text)


def _pairs(run: re.Match[str]) -> str:
    letters = [letter[0] for letter in SPACELESS.findall(run[0])]
    return f" {' '.join(map(''.join, pairwise(letters))) or letters[0]} "


def _library() -> Any:
    try:
        import bm25s
    except ImportError:
        raise DependencyError("bm25s is not installed; pip install bm25s") from None
    return bm25s
