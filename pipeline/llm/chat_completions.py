"""The chat completion format of OpenAI-compatible endpoints: messages out, replies and errors in.

Input: messages, response bodies and error responses. Output: JSON messages without control tokens,
`Reply` objects, and the classification of an error as a fault of one prompt. `pipeline.llm.endpoint_http`
sends a request, and `pipeline.llm.endpoint_chat` decides what to retry.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping

from pipeline.core.errors import InputError
from pipeline.core.http_body import HttpReply
from pipeline.core.input_files import parse_json
from pipeline.core.records import Message
from pipeline.core.text import one_line
from pipeline.grammars.sanitize import escape_all
from pipeline.llm.chat import Finish, Reply

# Control tokens of common chat templates. The tokenizer of an endpoint is unknown, so a control token
# is recognized by its spelling.
_CONTROL_TOKENS = re.compile(
    r"<\s*[|\uff5c](?:[^<>]*[|\uff5c]\s*>)?"  # <|im_end|>, <|eot_id|>; some models use a full-width bar
    r"|</?(?:s|bos|eos|pad|unk|sop|eop|start_of_turn|end_of_turn|tool_call|tool_response)>"
    r"|<<\s*/?\s*SYS\s*>>"
    r"|\[\s*/?\s*(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|gMASK)\s*\]",
    re.IGNORECASE,
)
_TOO_LONG = re.compile(
    r"context[ _](?:length|size|window)|maximum (?:context|model|input)|reduce the length"
    r"|(?:prompt|input|request|message)\b[^.]{0,40}(?:too long|too large|longer than|exceeds)"
    r"|string_above_max_length",
    re.IGNORECASE,
)
_FILTERED = re.compile(
    r"content[ _](?:filter|policy|management)|usage policy|safety system|invalid_prompt"
    r"|ResponsibleAIPolicyViolation",
    re.IGNORECASE,
)


_MOST_TOKENS = 10**7  # a count above it is no token count: no context is that long
_SHOWN = 300  # characters of a reply in a message
_READ = 2**16  # bytes of an error response that are read


class MalformedReplyError(Exception):
    """A response body that is not a chat completion."""


def without_control(text: str) -> str:
    """``text`` with every control token escaped by HTML character references; idempotent.

    A server renders messages with its chat template and reads control tokens wherever they occur, so a
    document that contains ``<|im_start|>system`` would switch the chat role. All other text stays
    unchanged. With a local tokenizer, `pipeline.grammars.tokens.prompt_text` escapes its own tokens.
    """
    return escape_all(_CONTROL_TOKENS, text)


def message_json(message: Message) -> dict[str, str]:
    """A message of the request body, without control tokens."""
    return {"role": message.role, "content": without_control(message.content)}


def read_completion(body: bytes, model: str, clean: Callable[[str], str]) -> Reply:
    """The reply in a response body, which is kept in it as ``raw``.

    ``model`` is the requested model; ``clean`` removes secrets from text. Raises MalformedReplyError
    when the body is not a chat completion in UTF-8.
    """
    if not body.strip():
        raise MalformedReplyError("the reply is empty")
    try:
        raw = clean(body.decode("utf-8-sig"))
        completion = parse_json(raw, "the reply")
        # An escaped secret (``sk\/..``) is found in the decoded text only.
        decoded = json.dumps(completion)
        if clean(decoded) != decoded:
            raw = clean(decoded)
            completion = parse_json(raw, "the reply")
    except UnicodeDecodeError:
        raise MalformedReplyError(f"the reply is not UTF-8: {_start(clean(_text(body)))}") from None
    except InputError as error:
        problem = f"cannot be read ({str(error).partition(': ')[2]})"
        if body.lstrip().startswith(b"<"):
            problem = "is a web page, not JSON; is this the API's address?"
        raise MalformedReplyError(f"the reply {problem}: {_start(clean(_text(body)))}") from None
    try:
        choice = completion["choices"][0]
        message = choice["message"]
        text, reason = message.get("content"), choice.get("finish_reason")
    except (LookupError, TypeError, AttributeError):
        raise MalformedReplyError(f"the reply is not a chat completion: {_start(raw)}") from None
    if not isinstance(text, str | None):
        raise MalformedReplyError(f"the content of the reply is not text: {_start(raw)}")
    finish: Finish = "length" if reason == "length" else "stop"
    if reason == "content_filter" or (not text and message.get("refusal")):
        text, finish = "", "filter"
    # Half of a surrogate pair (an escape in the JSON) cannot be encoded, so it is replaced.
    valid = (text or "").encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    counts = _token_counts(completion.get("usage"))
    return Reply(
        clean(valid),
        finish,
        raw,
        *(counts or (0, 0)),
        counted=counts is not None,
        other_model=_other_model(completion.get("model"), model),
    )


def _token_counts(usage: object) -> tuple[int, int] | None:
    """Prompt and completion tokens, or None unless both are plausible counts."""
    counts = usage if isinstance(usage, dict) else {}
    values = [counts.get(name) for name in ("prompt_tokens", "completion_tokens")]
    # isinstance would accept True.
    plausible = [value for value in values if type(value) is int and 0 <= value <= _MOST_TOKENS]
    return (plausible[0], plausible[1]) if len(plausible) == 2 else None


def _other_model(reported: object, requested: str) -> str:
    """The reported model where it is another one than requested, and "" otherwise.

    A longer name is the requested model: ``gpt-4o`` is answered by ``gpt-4o-2024-08-06``. A name
    that is missing says nothing.
    """
    if not isinstance(reported, str) or reported.startswith(requested):
        return ""
    return one_line(reported, 80)


def error_text(reply: HttpReply, clean: Callable[[str], str]) -> str:
    """The error code and message of an error response, on one line of at most 300 characters.

    ``clean`` removes secrets from text.
    """
    text = clean(_text(reply.body[:_READ]))
    try:
        body = parse_json(text, "the reply")
    except InputError:
        return one_line(text, _SHOWN)
    error = body.get("error", body) if isinstance(body, dict) else body
    if isinstance(error, dict):
        words = [error.get("code"), error.get("message")]  # vLLM's code is the number 400
        text = ": ".join(word for word in words if isinstance(word, str) and word) or text
    elif isinstance(error, str):
        text = error
    return one_line(clean(text), _SHOWN)


def _text(body: bytes) -> str:
    return body.decode("utf-8", "replace")


def _start(text: str) -> str:
    """The first characters of a reply, quoted and with control characters escaped."""
    return repr(text[:200])


def prompt_fault(status: int, text: str) -> Finish | None:
    """Why an error concerns one prompt alone ("too long" or "filter"), or None for any other error."""
    if status not in (400, 413, 422):
        return None
    if status == 413 or _TOO_LONG.search(text):
        return "too long"
    return "filter" if _FILTERED.search(text) else None


def retry_after(headers: Mapping[str, str]) -> float:
    """Seconds in the ``Retry-After`` header; 0 when it is missing, a date, or not a number."""
    try:
        seconds = float(headers.get("retry-after") or 0)
    except ValueError:
        return 0.0
    return max(seconds, 0.0) if math.isfinite(seconds) else 0.0
