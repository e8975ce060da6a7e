"""Sanitize retrieved text before it is inserted into a policy's context, and find control tokens.

A document may contain any text, including ``</Reference>``, ``Final answer:`` at the start of a
line or ``<|im_end|>``. Inserted unchanged, such text would close the observation, forge a step or
switch the chat role; released code of comparable systems has this defect. `sanitize` rewrites these
strings with HTML character references: they look the same, but no grammar or chat template reads
them as tags. Whitespace runs become single spaces, so every document is one line. All other text is
unchanged, and sanitizing twice gives the same text as sanitizing once. The time grows linearly with
the text.

A policy may sample any token, including one meant for the chat template (``<|im_start|>``) or for
padding. The rollout keeps the sampled text, and a trajectory with such a control token is
malformed. The form that current chat templates share, ``<|name|>``, always counts, so imported
outputs are checked without a tokenizer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache

# Tag names of the grammars in this package, of Search-R1 and R1-Searcher, and the sequence markers
# of chat templates and pre-trained tokenizers.
_TAGS = (
    "reference|think|search|information|answer|step|reasoning|context|conclusion|final_answer"
    "|knowledge|query|summary|subquery|tool|tool_call|tool_response|document|documents"
    "|s|bos|eos|pad|unk|cls|sep|mask|start_of_turn|end_of_turn|system|user|assistant"
)
# The white space before a marker excludes these characters, because a marker starts a line.
_BREAKS = r"\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029"
_MARKERS = re.compile(
    rf"(^|[{_BREAKS}])([^\S\n{_BREAKS}]*)(Step\s+[0-9]+|Important\s+entity|Subquery|Summary|Final\s+answer|Evidence\s+[0-9]+)"
    r"(\s*):",
    re.IGNORECASE | re.MULTILINE,
)
# The end of a tag is optional: in "<think <think>>" the outer tag would have an end only after the
# inner tag is escaped, and a pass for each level takes quadratic time.
_CONTROL = (
    rf"<\s*/?\s*(?:{_TAGS})\b(?:[^<>]*>)?"  # grammar tags, with or without attributes
    r"|<\s*[|\uff5c](?:[^<>]*[|\uff5c]\s*>)?"  # <|im_end|>, <|eot_id|>; some use a full-width bar
    r"|<<\s*/?\s*SYS\s*>>"
    r"|\[\s*/?\s*(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS)\s*\]"
)


@cache
def _pattern(special_tokens: tuple[str, ...]) -> re.Pattern[str]:
    parts = [f"(?-i:{token})" for token in token_patterns(special_tokens)]
    return re.compile("|".join([*parts, _CONTROL]), re.IGNORECASE)


def sanitize(text: str, special_tokens: Iterable[str] = ()) -> str:
    """``text`` on one line, without grammar tags, step markers at line starts or chat tokens."""
    marked = _MARKERS.sub(r"\1\2\3\4&#58;", text)
    return escape_all(_pattern(tuple(special_tokens)), " ".join(marked.split()))


_CHAT = r"<[|\uff5c][^\s<>|\uff5c]+[|\uff5c]>"  # some templates use a full-width bar
_WRITTEN = frozenset("&#;0123456789ltg")  # characters of the references that escaping writes
ESCAPES = {"<": "&lt;", ">": "&gt;", "[": "&#91;", "]": "&#93;"}


def token_patterns(tokens: Iterable[str]) -> list[str]:
    """Patterns that match each of ``tokens``, longest first: one may be the prefix of another.

    White space is left out, and so are strings that escaping would write again, such as ``&#``.
    """
    found = (token for token in tokens if token.strip() and token not in _escape(token))
    visible = (token for token in found if not set(token) <= _WRITTEN)
    return [re.escape(token) for token in sorted(visible, key=len, reverse=True)]


def escape_all(pattern: re.Pattern[str], text: str) -> str:
    """``text`` with every match of ``pattern`` escaped, also matches inside another match."""
    while (escaped := pattern.sub(escape_match, text)) != text:
        text = escaped
    return text


def escape_match(match: re.Match[str]) -> str:
    """The matched text in HTML character references: it looks the same but is no longer a token."""
    return _escape(match.group())


def _escape(text: str) -> str:
    escaped = "".join(ESCAPES.get(character, character) for character in text)
    # Escaping the first character is enough for a special token without brackets.
    return escaped if escaped != text else f"&#{ord(text[0])};{text[1:]}"


def first_control_token(
    text: str, tokens: tuple[str, ...] = (), tags: Sequence[str] = ()
) -> re.Match[str] | None:
    """The first control token in ``text``, or None; ``tokens`` are the policy tokenizer's.

    ``tags`` are those of a grammar whose tags have the form of control tokens, and do not count.
    """
    found = _tokens_or_chat_form(tokens).finditer(text)
    return next((match for match in found if match.group() not in tags), None)


def control_token_error(match: re.Match[str], start: int = 0) -> str:
    """The format error for a control token; ``start`` is the offset of the searched text."""
    return f"control token {match.group()} at offset {start + match.start()}"


def escape_tokens(text: str, tokens: tuple[str, ...]) -> str:
    """``text`` with every one of ``tokens`` escaped and all other text unchanged."""
    return escape_all(_exact_tokens(tokens), text) if tokens else text


@cache
def _tokens_or_chat_form(tokens: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join([*token_patterns(tokens), _CHAT]))


@cache
def _exact_tokens(tokens: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(token_patterns(tokens)) or r"(?!)")
