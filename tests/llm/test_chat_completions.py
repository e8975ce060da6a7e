"""Reading replies of an endpoint: any bytes are a reply or a malformed reply, never another error."""

import json

from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.http_body import HttpReply
from pipeline.core.text import visible
from pipeline.llm.chat_completions import MalformedReplyError, error_text, read_completion

SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=8)
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3), max_leaves=6)
NAMES = st.sampled_from(["content", "refusal", "finish_reason", "prompt_tokens", "x"])
OBJECTS = st.dictionaries(NAMES, VALUES, max_size=4)
CHOICES = st.fixed_dictionaries({}, optional={"message": OBJECTS | VALUES, "finish_reason": VALUES})
BODIES = st.fixed_dictionaries(
    {},
    optional={"choices": st.lists(CHOICES | VALUES, max_size=2) | VALUES, "usage": OBJECTS | VALUES,
              "model": VALUES, "error": OBJECTS | VALUES},
).map(lambda body: json.dumps(body).encode())  # fmt: skip
ANYTHING = BODIES | st.binary(max_size=64) | VALUES.map(lambda value: json.dumps(value).encode())


def unchanged(text: str) -> str:
    return text


@given(ANYTHING)
def test_any_body_is_a_reply_or_a_malformed_reply(body: bytes) -> None:
    problem = ""
    try:
        reply = read_completion(body, "m", unchanged)
    except MalformedReplyError as error:
        problem = str(error)
    assert visible(problem) == problem
    assert "\n" not in problem
    if problem:
        return
    reply.text.encode()  # Parquet holds UTF-8 only
    reply.raw.encode()
    assert reply.finish in ("stop", "length", "filter")
    assert reply.prompt_tokens >= 0 <= reply.completion_tokens
    assert reply.counted or not reply.prompt_tokens + reply.completion_tokens
    assert visible(reply.other_model) == reply.other_model


@given(ANYTHING, st.integers(300, 599))
def test_any_error_response_is_one_short_visible_line(body: bytes, status: int) -> None:
    text = error_text(HttpReply(status, {}, body), unchanged)
    assert visible(text) == text
    assert len(text) <= 300
    assert "\n" not in text
