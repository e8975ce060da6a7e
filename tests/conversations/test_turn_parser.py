"""Sampled turns under the real tokenizers: calls, answers, and everything that is malformed."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.core.errors import InputError
from pipeline.llm.tokenizer import Tokenizer
from pipeline.rollout.conversations.chat_template import ChatTemplate
from pipeline.rollout.conversations.messages import Call
from pipeline.rollout.conversations.turn_parser import ParsedTurn, TurnParser
from tests.conversations.shipped_templates import FILES, SEARCH, byte_tokenizer
from tests.real_tokenizers import real_tokenizer

QUERY = '{"query": "who?"}'
VALID = Call("search", {"query": "who?"})


def parser(data: Path, name: str, thinking: bool | None = None) -> TurnParser:
    file = FILES["llama3_1"] if name == "llama-3" else None
    tokenizer = real_tokenizer(data, name, file)
    ends = ["<|im_end|>", "<|endoftext|>"] if file is None else ["<|eot_id|>", "<|end_of_text|>"]
    ids = tokenizer.convert_tokens_to_ids(ends)
    return TurnParser(ChatTemplate(tokenizer, [SEARCH], thinking=thinking, end_ids=ids))


@pytest.fixture(scope="module")
def qwen25(real_data: Path) -> TurnParser:
    return parser(real_data, "qwen2.5")


@pytest.fixture(scope="module")
def qwen3(real_data: Path) -> TurnParser:
    return parser(real_data, "qwen3", thinking=True)


@pytest.fixture(scope="module")
def llama(real_data: Path) -> TurnParser:
    return parser(real_data, "llama-3")


def parsed(parser: TurnParser, text: str) -> ParsedTurn:
    tokenizer: Tokenizer = parser.template.tokenizer
    return parser.parse(tokenizer(text, add_special_tokens=False)["input_ids"])


def hermes(arguments: str, name: str = "search") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def test_calls_and_answers_of_qwen(qwen25: TurnParser, qwen3: TurnParser) -> None:
    text = f"So.\n{hermes(QUERY)}\n{hermes(QUERY)}<|im_end|>"
    assert parsed(qwen25, text) == ParsedTurn("So.", "", [VALID, VALID])
    assert parsed(qwen3, f"<think>\nhm\n</think>\n\n{text}") == ParsedTurn(
        "So.", "hm", [VALID, VALID]
    )
    for end in ("<|im_end|>", "<|endoftext|>"):
        assert parsed(qwen25, f"Answer: X{end}") == ParsedTurn("Answer: X")
    assert parsed(qwen25, f"Answer: X\n{hermes(QUERY)}<|im_end|>").calls == [VALID]


def test_a_whole_surrogate_pair_is_a_character(qwen25: TurnParser) -> None:
    [call] = parsed(qwen25, hermes(r'{"query": "\ud83d\ude00?"}') + "<|im_end|>").calls
    assert call.arguments == {"query": "\N{GRINNING FACE}?"}


def test_of_several_chat_templates_the_one_for_tools_decides(real_data: Path) -> None:
    """Hermes and Command R have a default one beside it."""
    one, several = (real_tokenizer(real_data, "qwen2.5") for _ in range(2))
    plain = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    several.chat_template = {"default": plain, "tool_use": str(one.chat_template)}
    ends = one.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    of_one, of_several = (ChatTemplate(each, [SEARCH], end_ids=ends) for each in (one, several))
    assert of_several.identity == of_one.identity
    assert of_several.identity != ChatTemplate(several).identity
    assert parsed(TurnParser(of_several), f"{hermes(QUERY)}<|im_end|>").problem is None
    wrong = parsed(TurnParser(of_several), f"{hermes(QUERY)}<|endoftext|>")
    assert wrong.problem == "<|endoftext|> after a call"


def test_a_call_in_a_think_block_does_not_count(qwen3: TurnParser) -> None:
    text = f"<think>\n{hermes(QUERY)}\n</think>\n\nAnswer: X<|im_end|>"
    assert parsed(qwen3, text) == ParsedTurn("Answer: X", hermes(QUERY))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (hermes("{}"), "the arguments of search: 'query' is a required property"),
        (hermes('"who?"'), "the arguments of search are no object"),
        ('<tool_call>{"name": "search"}</tool_call>', "the arguments of search are no object"),
        (hermes(QUERY, "find"), "tool 'find' is not declared"),
        ("<tool_call>[1]</tool_call>", "a call that cannot be parsed"),
        ('<tool_call>\n{"name": "search", "argum', "a call that cannot be parsed"),
        (hermes("[" * 9999), "a call that cannot be parsed"),
        # Before, no record could hold these, and the stage that wrote or read it stopped.
        (hermes('{"query": NaN}'), "a call that cannot be parsed"),
        (hermes('{"query": "who?", "most": [1e999]}'), "a call that cannot be parsed"),
        (hermes('{"query": "\\ud83d"}'), "a call that cannot be parsed"),
        (hermes(QUERY, "\\ude00"), "a call that cannot be parsed"),
        ("Answer: <|im_start|>", "control token <|im_start|> at offset 8"),
        (hermes('{"query": "<|im_start|>"}'), "control token <|im_start|>"),
        (f"<think>\n{hermes(QUERY)}\nAnswer: X", "the think block is not closed"),
        ("<think>\nhm\n</think>\n\n", "neither a call nor an answer"),
        ("", "neither a call nor an answer"),
    ],
)  # fmt: skip
def test_malformed_turns(qwen3: TurnParser, text: str, problem: str) -> None:
    turn = parsed(qwen3, f"{text}<|im_end|>")
    assert turn.calls == []
    assert problem in (turn.problem or "")


def test_the_end_of_a_document_after_a_call_is_malformed(
    qwen25: TurnParser, llama: TurnParser
) -> None:
    assert parsed(qwen25, f"{hermes(QUERY)}<|endoftext|>").problem == "<|endoftext|> after a call"
    bare = f'{{"name": "search", "parameters": {QUERY}}}'
    assert parsed(llama, f"{bare}<|end_of_text|>").problem == "<|end_of_text|> after a call"
    assert parsed(llama, bare).problem == "the turn has no end"


def test_llama_writes_calls_as_bare_json(llama: TurnParser) -> None:
    bare = f'{{"name": "search", "parameters": {QUERY}}}'
    for text, calls in {
        bare: [VALID],
        f"{bare}; {bare}": [VALID, VALID],
        bare.replace("parameters", "arguments"): [VALID],
        f"I search. {bare}": [VALID],
        'Answer: {"a": 1}': [],
    }.items():
        turn = parsed(llama, f"{text}<|eot_id|>")
        assert (turn.problem, turn.calls) == (None, calls)
    for text in ('{"a": 1}', '{"name": "search", "para', bare + " so", "{"):
        assert parsed(llama, f"{text}<|eot_id|>").problem == "a call that cannot be parsed"


def test_a_template_whose_calls_no_parser_reads_is_refused() -> None:
    template = (
        "{{ tools }}{% for m in messages %}{{ m.content }}{{ m.tool_calls }}<|im_end|>{% endfor %}"
    )
    tokenizer = byte_tokenizer(template)
    ids = tokenizer.convert_tokens_to_ids(["<|im_end|>"])
    with pytest.raises(InputError, match=r"response_template .*model\.chat_template"):
        TurnParser(ChatTemplate(tokenizer, [SEARCH], end_ids=ids))
