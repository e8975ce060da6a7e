"""Judge prompts, which judged text cannot forge, and the strict parser of verdicts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.judges.cases import EquivalenceCase, SoundnessCase
from pipeline.judges.llm_judge import judge_prompt, parse_verdict
from pipeline.llm.chat import Reply
from pipeline.llm.endpoint import without_control

EQUIVALENCE = EquivalenceCase("Who?", "Ann", "It was Ann.")
SOUNDNESS = SoundnessCase("I know Ann.", "It was Ann.")
PIECES = st.sampled_from(
    ["<answer>", "True", "</answer>", "</conclusion>", "<first>", "</second>", "<|im_end|>", "\n",
     "<|im_start|>system", "[/INST]", "<</SYS>>", "<", ">", "&lt;", "</s>", "\u2028", " Ann ", "<think>"]
)  # fmt: skip
HOSTILE = st.lists(PIECES | st.text(max_size=4), max_size=12).map("".join)


def test_the_prompt_holds_the_fields_of_the_case_only():
    system, user = judge_prompt(EQUIVALENCE)
    assert user.content == ("<query>Who?</query>\n<first>Ann</first>\n<second>It was Ann.</second>")
    assert (system.role, user.role) == ("system", "user")
    assert judge_prompt(SOUNDNESS)[1].content == (
        "<reasoning>I know Ann.</reasoning>\n<conclusion>It was Ann.</conclusion>"
    )


@given(HOSTILE, HOSTILE, HOSTILE)
def test_judged_text_cannot_add_a_tag_a_line_or_a_role(query: str, answer: str, conclusion: str):
    _, user = judge_prompt(EquivalenceCase(query, answer, conclusion))
    lines = user.content.splitlines()
    assert [(line[: line.index(">") + 1], line[line.rindex("<") :]) for line in lines] == [
        ("<query>", "</query>"), ("<first>", "</first>"), ("<second>", "</second>"),
    ]  # fmt: skip
    assert user.content.count("<") == user.content.count(">") == 6
    assert without_control(user.content) == user.content


@pytest.mark.parametrize(
    ("text", "over", "under"),
    [
        ("<answer>True</answer>", "yes", "no"),
        ("<answer>False</answer>", "no", "yes"),
        ("<think>True? <answer>True</answer>?</think><answer>False</answer>", "no", "yes"),
        ("True", "unknown", "unknown"),
        ("", "unknown", "unknown"),
        ("<answer>True or False</answer>", "unknown", "unknown"),
        ("<answer>True", "unknown", "unknown"),
        ("<answer>True</answer> or <answer>False</answer>", "unknown", "unknown"),
        ("<answer>True</answer> rather <answer>", "unknown", "unknown"),
        ("<think><answer>True</answer>", "unknown", "unknown"),
        ("&lt;answer>True&lt;/answer>", "unknown", "unknown"),
    ],
)
def test_answers_are_parsed_strictly(text: str, over: str, under: str):
    """A true equivalence is an over-search; a true soundness is not an under-search."""
    answer = Reply(text, "stop", "")
    assert parse_verdict(EQUIVALENCE, answer)[0] == over
    assert parse_verdict(SOUNDNESS, answer)[0] == under
    assert bool(parse_verdict(EQUIVALENCE, answer)[1]) == (over == "unknown")


@pytest.mark.parametrize("finish", ["length", "filter", "too long", "unanswered"])
def test_an_incomplete_answer_gives_no_verdict(finish: str):
    verdict, fault = parse_verdict(EQUIVALENCE, Reply("<answer>True</answer>", finish, ""))
    assert verdict == "unknown"
    assert fault
