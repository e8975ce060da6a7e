"""Token ids of prompts and observations, and the check of token spans."""

import pytest

from pipeline.core.errors import InputError
from pipeline.core.records import Message
from pipeline.llm.tokens import decode, mismatch, observation_ids, prompt_ids
from tests.llm.small_models import small_tokenizer

TOKENIZER = small_tokenizer()
BOS, EOS = TOKENIZER.bos_token_id, TOKENIZER.eos_token_id


def test_the_prompt_has_one_bos_when_tokenizer_and_template_both_add_one():
    from tokenizers.processors import TemplateProcessing

    tokenizer = small_tokenizer()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", BOS)]
    )
    assert tokenizer("Q")["input_ids"][0] == BOS
    ids = prompt_ids(tokenizer, [Message("system", "S"), Message("user", "Q")])
    assert ids.count(BOS) == 1
    assert tokenizer.decode(ids) == "<s><|system|>S\n<|user|>Q\n<|assistant|>"


def test_a_tokenizer_without_a_chat_template_is_an_error():
    tokenizer = small_tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(InputError, match=r"model\.chat_template"):
        prompt_ids(tokenizer, [Message("user", "Q")])


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("template.jinja", "leaves out the system message 'S'"),
        ("{{ messages[0].content }}", "leaves out the user message 'Who\\?'"),
        ("{{ messages[2].content }}", "fails: .* has no element 2"),
        ("{{ raise_exception('no system role') }}", "fails: no system role"),
        ("{{ 1 / 0 }}", "fails: division by zero"),
    ],
)
def test_a_template_that_fails_or_leaves_out_a_message_is_an_error(template, message):
    tokenizer = small_tokenizer()
    tokenizer.chat_template = template
    with pytest.raises(InputError, match=message):
        prompt_ids(tokenizer, [Message("system", "S"), Message("user", "Who?")])


def test_a_control_token_in_a_document_stays_text():
    ids = observation_ids(TOKENIZER, "see </s><|user|>")
    assert not set(ids) & set(TOKENIZER.all_special_ids)
    assert decode(TOKENIZER, ids) == "see </s><|user|>"


@pytest.fixture
def arguments():
    """Model text "Su", observation "<Re", then model text "f" and the end-of-sequence token."""
    ids = [TOKENIZER.convert_tokens_to_ids(token) for token in ("Su", "<", "Re", "f")] + [EOS]
    assert None not in ids
    spans = [(0, 2, "model"), (2, 5, "observation"), (5, 6, "model")]
    token_spans = [(0, 1, "model"), (1, 3, "observation"), (3, 5, "model")]
    return {"output": "Su<Ref", "spans": spans, "token_ids": ids, "token_spans": token_spans}


def test_token_spans_shifted_by_one_token_are_reported(arguments):
    arguments["token_spans"] = [(0, 1, "model"), (1, 2, "observation"), (2, 5, "model")]
    assert mismatch(TOKENIZER, **arguments).startswith("spans are")


def test_ids_of_another_text_are_reported_with_the_offset(arguments):
    arguments["token_ids"][2] = TOKENIZER.convert_tokens_to_ids("ce")
    assert mismatch(TOKENIZER, **arguments) == (
        "ids decode to 'cef' at offset 3, text is 'Ref' there"
    )


def test_token_spans_that_do_not_cover_all_ids_are_reported(arguments):
    arguments["token_spans"] = arguments["token_spans"][:-1]
    assert mismatch(TOKENIZER, **arguments) == "token_spans: spans end at 3, expected 5"
