"""Where a text's sentences end, told by punctuation alone.

Purpose: pieces of a passage that state facts of their own, for graphs without a language model. Input:
a text. Output: its sentences. A sentence ends at ``.``, ``!`` or ``?`` before white space and a capital,
another script's letter or an opening quote; so it also ends, wrongly, after "U.S." before a name.
"""

from __future__ import annotations

import re

_END = re.compile(r"(?<=[.!?])\s+(?=[^\W\d_a-z\s]|[\"'“])")


def sentences(text: str) -> list[str]:
    """The sentences in order; together they are the text but for the white space between them."""
    return _END.split(text)
