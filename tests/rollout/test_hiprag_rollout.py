"""HiPRAG's algorithm 1 through the shared sampler, and truncation of long contexts."""

import pytest

from pipeline.core.records import Message, SftExample
from pipeline.llm.tokens import decode_mask
from pipeline.rollout.grammars.base import grammar
from pipeline.training.encode import IGNORED, encode_sft
from tests.methods.hiprag.test_hiprag_grammar import HOSTILE
from tests.rollout.rolled_out import Returning, passage
from tests.rollout.test_sampler import TOKENIZER, rolled

HIPRAG = grammar("hiprag", special_tokens=TOKENIZER.all_special_tokens)
SEARCHING = "Who?</reasoning>\n<search>who?</search>"
CONCLUSION = "Bob.</conclusion>"
NON_SEARCH_STEP = "<step>\n<reasoning>I know Bob.</reasoning>\n<conclusion>Rome.</conclusion>"
ANSWER = "</think>\n<answer>Rome</answer>"
CONTEXT = '\n<context>\nDoc 1(Title: "T") on who?\nDoc 2(Title: "") a b c\n</context>\n<conclusion>'


def policy_writing(*segments: str):
    """A scripted policy that writes these segments in turn and ignores the observations."""

    def script(prompt, request) -> str:
        output = prompt.split("<|assistant|>")[1]
        written = sum(segment in output for segment in segments)
        return segments[min(written, len(segments) - 1)]

    return script


def roll(*segments: str, **changes):
    [trajectory] = rolled(policy_writing(*segments), **{"grammar": HIPRAG, **changes})
    return trajectory


@pytest.fixture(scope="module")
def trajectory():
    """One with both kinds of steps."""
    return roll(SEARCHING, CONCLUSION, NON_SEARCH_STEP, ANSWER)


def test_a_trajectory_with_both_kinds_of_steps_is_recorded(trajectory):
    parts = [(writer, trajectory.output[start:end]) for start, end, writer in trajectory.spans]
    assert parts == [
        ("observation", "<think>\n<step>\n<reasoning>"),
        ("model", SEARCHING),
        ("observation", CONTEXT),
        ("model", CONCLUSION),
        ("observation", "\n</step>\n"),
        ("model", NON_SEARCH_STEP),
        ("observation", "\n</step>\n"),
        ("model", ANSWER),
    ]
    assert (trajectory.format_ok, trajectory.answer, trajectory.stop) == (True, "Rome", "answer")
    assert [step.search for step in trajectory.steps] == ["who?", None]
    assert [item.id for item in trajectory.steps[0].context] == ["c-who?", "t-who?"]
    assert trajectory.steps[1].context == []
    assert trajectory.grammar == "hiprag"


def test_a_stop_string_that_ends_inside_a_token_is_followed_by_its_observation():
    trajectory = roll(SEARCHING + "\n", CONCLUSION + "\n", ANSWER)  # ">" and newline are one token
    assert trajectory.format_ok
    per_retrieval = trajectory.tokens.per_retrieval
    assert len(per_retrieval) == 1
    assert trajectory.tokens.retrieved == per_retrieval[0]


def test_after_the_step_budget_the_rollout_inserts_the_answer_tag():
    two_steps = grammar("hiprag", max_steps=2)
    second_step = NON_SEARCH_STEP.replace("Rome", "Oslo")
    segments = (SEARCHING, CONCLUSION, second_step, "Oslo</answer>")
    trajectory = roll(*segments, grammar=two_steps, max_steps=2)
    assert trajectory.output.endswith("\n</step>\n</think>\n<answer>Oslo</answer>")
    assert trajectory.spans[-2][2] == "observation"
    assert (trajectory.format_ok, trajectory.stop, len(trajectory.steps)) == (True, "answer", 2)


@pytest.mark.parametrize("limit", [60, 150, 400, 10_000])
def test_a_long_context_is_truncated_before_its_closing_tag(limit):
    """The documents contain every closing tag."""
    hostile = Returning(*[passage(" ".join([HOSTILE, *["words"] * 60]))] * 2)
    trajectory = roll(SEARCHING, CONCLUSION, ANSWER, retriever=hostile, max_context_tokens=limit)
    parts = (trajectory.output[start:end] for start, end, _ in trajectory.spans)
    context = next(part for part in parts if "Doc" in part)
    assert context.endswith("\n</context>\n<conclusion>")
    assert trajectory.format_ok
    if limit > 60:  # the tags alone have more than 60 tokens
        assert trajectory.tokens.per_retrieval[0] <= limit
    assert len(trajectory.steps[0].context) == (2 if limit == 10_000 else 1)


def test_single_retrieval_inserts_a_first_step_with_the_question_as_query():
    trajectory = roll(CONCLUSION, "Rome</answer>", single_retrieval=True)
    assert trajectory.format_ok
    assert [step.search for step in trajectory.steps] == ["Q0?"]
    assert trajectory.tokens.retrieved > 0


def test_observations_are_masked_in_training(trajectory):
    mask = decode_mask(trajectory.token_ids, trajectory.token_spans, TOKENIZER)
    assert mask.trained == [SEARCHING, CONCLUSION, NON_SEARCH_STEP, ANSWER]
    assert mask.masked == [
        "<think>\n<step>\n<reasoning>", CONTEXT, "\n</step>\n", "\n</step>\n",
    ]  # fmt: skip
    messages = [Message("system", "S"), Message("user", "Q0?")]
    example = SftExample("e", "q", 2, messages, trajectory.output, trajectory.spans)
    [encoded] = encode_sft(TOKENIZER, [example])
    labels = [label for label in encoded.labels if label != IGNORED]
    assert TOKENIZER.decode(labels[:-1]) == "".join(mask.trained)
    assert labels[-1] == TOKENIZER.eos_token_id
