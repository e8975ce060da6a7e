"""Unicode normalization in linear time, for untrusted text.

Normalization sorts every run of combining marks, in a time that is quadratic in its length: a
document with a run of 100,000 marks would occupy a stage for minutes. Runs are therefore cut into
pieces of 30 by a combining grapheme joiner, as the Stream-Safe Text Format of UAX #15 does. No
language has such runs, so other text is normalized as usual.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from typing import Literal

MAX_MARKS = 30
_JOINER = "\u034f"
_MARKS = range(0x0300, 0x1E94B)  # holds all characters with a combining class


def nfkc(text: str) -> str:
    """The text in normalization form KC."""
    return _normalized("NFKC", text)


def nfc(text: str) -> str:
    """The text in normalization form C."""
    return _normalized("NFC", text)


def _normalized(form: Literal["NFC", "NFKC"], text: str) -> str:
    if text.isascii():
        return text
    if len(text) > MAX_MARKS:
        text = _long_runs().sub(rf"\g<0>{_JOINER}", text)
    return unicodedata.normalize(form, text)


@cache
def _long_runs() -> re.Pattern[str]:
    """`MAX_MARKS` combining marks before another one."""
    marks = "".join(chr(code) for code in _MARKS if unicodedata.combining(chr(code)))
    return re.compile(f"[{marks}]{{{MAX_MARKS}}}(?=[{marks}])")
