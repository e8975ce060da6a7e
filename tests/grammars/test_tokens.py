"""Token ids of prompts and observations, and the check of token spans."""

import pytest

from pipeline.core.errors import InputError
from pipeline.core.records import Message
from pipeline.llm.tokens import mismatch, prompt_ids
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


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "has no chat template; set model.chat_template"),
        ("template.jinja", "leaves out the system message 'S'"),
        ("{{ messages[0].content }}", "leaves out the user message 'Who\\?'"),
        ("{{ messages[2].content }}", "fails: .* has no element 2"),
        ("{{ raise_exception('no system role') }}", "fails: no system role"),
        ("{{ 1 / 0 }}", "fails: division by zero"),
    ],
)
def test_a_template_that_is_missing_fails_or_leaves_out_a_message_is_an_error(template, message):
    tokenizer = small_tokenizer()
    tokenizer.chat_template = template
    with pytest.raises(InputError, match=message):
        prompt_ids(tokenizer, [Message("system", "S"), Message("user", "Who?")])


# Model text "Su", observation "<Re", then model text "f" and the end-of-sequence token.
IDS = [*map(TOKENIZER.convert_tokens_to_ids, ("Su", "<", "Re", "f")), EOS]
SPANS = [(0, 2, "model"), (2, 5, "observation"), (5, 6, "model")]
TOKEN_SPANS = [(0, 1, "model"), (1, 3, "observation"), (3, 5, "model")]
OTHER = [*IDS[:2], TOKENIZER.convert_tokens_to_ids("ce"), *IDS[3:]]
SHIFTED = [(0, 1, "model"), (1, 2, "observation"), (2, 5, "model")]
GIVEN = [(0, 2, "model"), (2, 3, "observation"), (3, 6, "model")]


@pytest.mark.parametrize(
    ("ids", "token_spans", "problem"),
    [
        (IDS, TOKEN_SPANS, None),
        (IDS, SHIFTED, f"spans are {SPANS}, the ids give {GIVEN}"),
        (IDS, TOKEN_SPANS[:-1], "token_spans: spans end at 3, expected 5"),
        (OTHER, TOKEN_SPANS, "ids decode to 'cef' at offset 3, text is 'Ref' there"),
    ],
)
def test_where_text_and_tokens_differ_is_said(ids, token_spans, problem):
    assert mismatch(TOKENIZER, "Su<Ref", SPANS, ids, token_spans) == problem
