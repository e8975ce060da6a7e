"""A sampled control token stays in text and ids and makes the trajectory malformed.

Documents and questions never become control tokens.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.records import Trajectory
from pipeline.llm.tokens import control_ids, control_tokens, mismatch, segment_text
from pipeline.rollout.grammars import grammar
from tests.llm.small_models import small_tokenizer
from tests.rollout import test_sampler
from tests.rollout.rolled_out import Returning, passage
from tests.rollout.test_sampler import TOKENIZER

EOS, PAD = TOKENIZER.eos_token_id, TOKENIZER.pad_token_id
HEAD = "Step 1:\nImportant entity: Ada; Bob\nSubquery: who?\n<Reference>\n"
CONTEXT = 'Evidence 1: Title: "T" Text: x\n</Reference>\n'
TAIL = "Summary: Bob.\nFinal answer: Rome"


def rolled(head: str, tail: str = TAIL, **changes) -> Trajectory:
    """The trajectory of a policy that writes ``head``, observes CONTEXT, and writes ``tail``."""
    written = grammar("tearag", special_tokens=control_tokens(TOKENIZER))
    options = {"grammar": written, "retriever": Returning(passage("x")), **changes}
    [trajectory] = test_sampler.rolled({"<|assistant|>": head, "</Reference>\n": tail}, **options)
    return trajectory


def test_a_control_token_takes_precedence_over_a_spent_token_budget():
    trajectory = rolled("<pad>" + HEAD, max_segment_tokens=5)
    assert trajectory.stop == "malformed"
    assert (trajectory.token_ids[0], len(trajectory.token_ids)) == (PAD, 5)
    assert rolled(HEAD, max_segment_tokens=5).stop == "max_tokens"


WRITTEN = HEAD + TAIL


@given(
    # No token is sampled after the closing ">" of the head's tag, because generation has stopped.
    st.integers(0, len(WRITTEN)).filter(lambda at: at != len(HEAD) - 1),
    st.sampled_from([token for token in control_tokens(TOKENIZER) if token != "</s>"]),
)
def test_a_sampled_control_token_makes_the_trajectory_malformed_and_is_reported(at, token):
    spoiled = WRITTEN[:at] + token + WRITTEN[at:]
    cut = len(HEAD) + (len(token) if at < len(HEAD) else 0)
    trajectory = rolled(spoiled[:cut], spoiled[cut:])
    text, spans = trajectory.output, trajectory.spans
    assert mismatch(TOKENIZER, text, spans, trajectory.token_ids, trajectory.token_spans) is None
    assert (trajectory.format_ok, trajectory.stop) == (False, "malformed")
    place = trajectory.output.index(token)
    assert trajectory.format_error == f"control token {token} at offset {place}"
    assert TOKENIZER.convert_tokens_to_ids(token) in trajectory.token_ids


def test_the_token_that_ends_the_sequence_is_not_part_of_the_text():
    trajectory = rolled(HEAD)
    assert (trajectory.format_ok, trajectory.stop) == (True, "answer")
    assert trajectory.token_ids[-1] == EOS
    assert trajectory.output == HEAD + CONTEXT + TAIL
    ids = TOKENIZER("so", add_special_tokens=False)["input_ids"]
    assert segment_text(TOKENIZER, [*ids, EOS], "eos") == "so"
    # Some models have several end-of-turn tokens, but their tokenizer names only one as EOS.
    assert segment_text(TOKENIZER, [*ids, 4], "eos") == "so"
    assert segment_text(TOKENIZER, [*ids, 4], "length") == "so<|user|>"
    spans, token_spans = [(0, 2, "model")], [(0, len(ids) + 1, "model")]
    assert mismatch(TOKENIZER, "so", spans, [*ids, 4], token_spans) is None
    assert mismatch(TOKENIZER, "so<|user|>", [(0, 10, "model")], [*ids, 4], token_spans) is None
    assert mismatch(TOKENIZER, "s", [(0, 1, "model")], ids, [(0, len(ids), "model")]) is not None


def test_without_retrieval_a_control_token_ends_the_answer_and_makes_it_malformed():
    trajectory = rolled("Rome<|user|>and?", retriever=None)
    ended = (trajectory.answer, trajectory.stop, trajectory.format_ok)
    assert ended == ("Rome", "malformed", False)
    assert trajectory.format_error == "control token <|user|> at offset 4"
    assert rolled("<pad>", retriever=None).answer is None


def test_without_a_tokenizer_only_chat_control_tokens_count():
    tearag = grammar("tearag")
    for token in ("<|im_start|>", "<\uff5cend\u2581of\uff5c>"):
        parsed = tearag.parse(HEAD + CONTEXT + TAIL.replace("Bob", token))
        assert parsed.format_error == f"control token {token} at offset {len(HEAD + CONTEXT) + 9}"
    for text in ("a < b | c > d", "<b>", "<|>", "x<|y", "<| |>"):
        assert tearag.parse(HEAD + CONTEXT + TAIL.replace("Bob", text)).format_ok


def test_added_special_tokens_without_a_role_are_control_tokens():
    """Llama 3 flags 256 tokens as special, but only two of them have a role."""
    from tokenizers import AddedToken

    tokenizer = small_tokenizer()
    tokenizer.backend_tokenizer.add_special_tokens([AddedToken("<|header|>", special=True)])
    tokenizer.backend_tokenizer.add_tokens([AddedToken("<word>", special=False)])
    assert "<|header|>" not in tokenizer.all_special_tokens
    assert tokenizer.convert_tokens_to_ids("<|header|>") in control_ids(tokenizer)
    assert tokenizer.convert_tokens_to_ids("<word>") not in control_ids(tokenizer)
    assert "<|header|>" in control_tokens(tokenizer)


def test_the_unknown_token_is_a_control_token_only_with_another_role():
    from transformers import PreTrainedTokenizerFast

    backend = small_tokenizer().backend_tokenizer
    separate = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="</s>", unk_token="<pad>"
    )
    assert PAD not in control_ids(separate)
    shared = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", unk_token="</s>")
    assert EOS in control_ids(shared)
