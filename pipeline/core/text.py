"""Words of a text: the tokenizer and the folding that string comparisons share.

A word is a maximal run of letters and digits (`WORD`). Two foldings exist, because they serve
different comparisons:

- `tokenize`: NFKC and case folding, accents kept. Used by lexical similarity (`core.similarity`),
  question overlap (`corpus.overlap`) and placing triples in chunks (`graph.locate`).
- `fold`: case folding, accents dropped, because questions drop them. Used by name matching
  (`graph.names`, `sft_data.mentions`).

Three places tokenize differently on purpose. The answer metrics (`core.answer_metrics`) follow
SQuAD: punctuation is deleted, not a separator. `evaluation.name_match` compares both readings. BM25
uses the tokenizer of bm25s, which drops stop words.
"""

from __future__ import annotations

import re
import unicodedata

from pipeline.core.unicode_forms import nfkc

WORD = re.compile(r"[^\W_]+")
# The parenthesis at the end of a title that distinguishes it from others: "Frozen (2013 film)".
QUALIFIER = re.compile(r"\s*\([^()]*\)\s*$")


def tokenize(text: str) -> list[str]:
    """Words of the NFKC-normalized, case-folded text, in order, with repetitions."""
    return WORD.findall(nfkc(text).casefold())


def fold(word: str) -> str:
    """The word case-folded and without accents (NFKD, combining characters removed)."""
    characters = unicodedata.normalize("NFKD", word.casefold())
    return "".join(char for char in characters if not unicodedata.combining(char))
