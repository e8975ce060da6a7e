"""Find control tokens in model text, and escape them in other text.

A policy may sample any token, including one meant for the chat template (``<|im_start|>``) or for
padding. The rollout keeps the sampled text, and a trajectory with such a token is malformed.
Input: text and the control tokens of the tokenizer. The form that current chat templates share,
``<|name|>``, always counts, so imported outputs are checked without a tokenizer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

_CHAT = r"<[|\uff5c][^\s<>|\uff5c]+[|\uff5c]>"  # some templates use a full-width bar
_WRITTEN = frozenset("&#;0123456789ltg")  # characters of the references that escaping writes
ESCAPES = {"<": "&lt;", ">": "&gt;", "[": "&#91;", "]": "&#93;"}


def token_patterns(tokens: Iterable[str]) -> list[str]:
    """Patterns that match each of ``tokens``, longest first: one may be the prefix of another.

    Left out are white space, and what escaping would write again, such as ``&#``.
    """
    found = (token for token in tokens if token.strip() and token not in _escape(token))
    visible = (token for token in found if not set(token) <= _WRITTEN)
    return [re.escape(token) for token in sorted(visible, key=len, reverse=True)]


def escape_all(pattern: re.Pattern[str], text: str) -> str:
    """``text`` with every match of ``pattern`` escaped, also one that is left inside another."""
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


def first_control_token(text: str, tokens: tuple[str, ...] = ()) -> re.Match[str] | None:
    """The first control token in ``text``, or None; ``tokens`` are the policy tokenizer's."""
    return _tokens_or_chat_form(tokens).search(text)


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
