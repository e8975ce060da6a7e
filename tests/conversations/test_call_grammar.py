"""The grammar of a forced call takes what the template writes for one, and no other answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pipeline.core.errors import InputError
from pipeline.rollout.conversations.call_grammar import turn_grammar
from pipeline.rollout.conversations.messages import REASONING, Message
from tests.conversations.shipped_templates import FILES, SEARCH, chat_template

CALLED = {"query": 'Who is "Ené"\n?', "entities": ["a", "b"]}
CALL: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"type": "function", "function": {"name": "search", "arguments": CALLED}, "id": "call00000"}
    ],
}
ANSWER: Message = {"role": "assistant", "content": '{"person": "Ada"}'}
WHO = {
    "type": "object",
    "properties": {"person": {"type": "string"}},
    "additionalProperties": False,
}
TEXT: Message = {"role": "assistant", "content": "It is Ada."}
THOUGHT = dict.fromkeys(REASONING, "Hm.\nI look.")
# By the form of arguments: JSON, and the XML of Qwen 3.5 and of GLM.
EXPRESSED = {
    "qwen2_5": (True, True), "qwen3_training": (True, True), "qwen3_instruct_2507": (True, True),
    "qwen3_6": (True, True), "qwen3_5_nothink": (True, False), "llama3_1": (True, True),
    "gptoss": (True, True), "glm4moe": (True, True), "nemotron_3_nano": (True, True),
}  # fmt: skip


class Matcher:
    """xgrammar over the tokenizer of a template."""

    def __init__(self, template: Any, grammar: str) -> None:
        import xgrammar

        ends = sorted(template.end_ids)
        info = xgrammar.TokenizerInfo.from_huggingface(template.tokenizer, stop_token_ids=ends)
        self._compiled = xgrammar.GrammarCompiler(info).compile_structural_tag(grammar)
        self._template = template

    def takes(self, message: Message) -> bool:
        import xgrammar

        text, end = self._template.turn_text(message), sorted(self._template.end_ids)[0]
        ids = list(self._template.tokenizer(text, add_special_tokens=False)["input_ids"])
        matcher = xgrammar.GrammarMatcher(self._compiled)
        if not all(map(matcher.accept_token, ids)):
            return False
        return matcher.is_terminated() or matcher.accept_token(end)


@pytest.mark.parametrize("name", EXPRESSED)
def test_a_call_and_a_json_answer_are_taken_with_and_without_reasoning(name: str) -> None:
    pytest.importorskip("xgrammar", reason="vLLM is not installed")
    template = chat_template(FILES[name])
    forced = Matcher(template, turn_grammar(template, [SEARCH]))
    either = Matcher(template, turn_grammar(template, [SEARCH], WHO))
    wrong = json.loads(json.dumps(CALL).replace('"query"', '"question"'))
    for matcher, message, expected in (
        (forced, CALL, True), (forced, ANSWER, False), (forced, TEXT, False), (forced, wrong, False),
        (either, CALL, True), (either, ANSWER, True), (either, TEXT, False), (either, wrong, False),
    ):  # fmt: skip
        assert matcher.takes(message) == (expected and EXPRESSED[name][0])
        assert matcher.takes(message | THOUGHT) == (expected and EXPRESSED[name][1])


@pytest.mark.parametrize("name", ["gemma4", "lfm2_v2"])
def test_a_template_that_writes_arguments_in_another_form_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"tool_choice: .* or set model.chat_template to a templ"):
        turn_grammar(chat_template(FILES[name]), [SEARCH])


def test_counts_that_take_minutes_to_compile_are_left_out_or_refused() -> None:
    template = chat_template(FILES["qwen2_5"])
    large = {
        "type": "object",
        "properties": {
            "pattern": {"type": "string", "pattern": "^(a{1,100}){1,100}$", "maxLength": 10**9},
            "year": {"type": "string", "pattern": r"^\d{4}-\d{2}$", "minLength": 7},
            "maxItems": {"const": {"maxItems": 10**9}},
        },
        "required": ["pattern", "year", "maxItems"],
    }
    [way] = json.loads(turn_grammar(template, [], large))["format"]["elements"]
    assert way["elements"][0]["json_schema"]["properties"] == {
        "pattern": {"type": "string"},
        "year": {"type": "string", "pattern": r"^\d{4}-\d{2}$", "minLength": 7},
        "maxItems": {"const": {"maxItems": 10**9}},
    }
    many = {"properties": {f"p{number}": {} for number in range(201)}}
    with pytest.raises(InputError, match="more than 200 optional properties, too many for a gramm"):
        turn_grammar(template, [], {"properties": {"inner": many}})
    with pytest.raises(InputError, match="more than 50,000 characters is too long for a grammar"):
        turn_grammar(template, [], {"enum": [f"v{number}" for number in range(9000)]})
    turn_grammar(template, [], many | {"required": [*many["properties"]]})
