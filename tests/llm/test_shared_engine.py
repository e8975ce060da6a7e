"""Turns of other threads in the batches of a roll-out."""

from dataclasses import replace

import pytest

from pipeline.llm.engine import EngineEnded, GenerationRequest, GenerationResult
from pipeline.llm.shared_engine import Refused, SharedEngine
from tests.llm.scripted_engine import ScriptedEngine
from tests.llm.small_models import small_tokenizer


def request(name: str, prompt: str) -> GenerationRequest:
    ids = small_tokenizer()(prompt, add_special_tokens=False)["input_ids"]
    return GenerationRequest(name, ids, 50, (), temperature=1, top_p=1, seed=0)


def test_turns_join_the_requests_of_a_roll_out_and_are_delivered() -> None:
    shared = SharedEngine(ScriptedEngine({"?": "long words.", "!": "so"}, small_tokenizer()))
    delivered = []
    shared.deliver = delivered.append
    shared.add(request("0", "who?"))
    shared.submit(request("turn", "go!"))
    shared.submit(request("unknown", "no script"))
    results = []
    while shared.unfinished():
        results += shared.step()
    assert [(result.id, result.text) for result in results] == [("0", "long words.")]
    [refused, turn] = delivered  # the turn ended before the roll-out's request
    assert (turn.id, turn.text) == ("turn", "so")
    assert refused == Refused(
        "unknown", "the script has no segment for a prompt that ends in 'no script'"
    )
    shared.submit(request("last", "go!"))
    shared.sample_turns(until=lambda: False)
    assert delivered[-1].id == "last"


class Failing(ScriptedEngine):
    """Cannot follow the grammar of any request."""

    def _advance(self) -> list[GenerationResult]:
        return [replace(result, finish="error") for result in super()._advance()]


def test_a_grammar_that_leads_nowhere_is_the_refusal_of_its_turn() -> None:
    shared = SharedEngine(Failing({"!": "so"}, small_tokenizer()))
    delivered = []
    shared.deliver = delivered.append
    shared.submit(request("turn", "go!"))
    shared.sample_turns(until=lambda: False)
    [refused] = delivered
    assert (refused.id, refused.problem) == (
        "turn",
        "the grammar of tool_choice or response_format leads nowhere; simplify its JSON schema",
    )


@pytest.mark.parametrize(
    "error",
    [ValueError("stop is empty"), AssertionError("bad")],
)
def test_any_exception_at_a_turn_is_its_answer_and_the_others_go_on(error: Exception) -> None:
    def script(prompt: str, asked: GenerationRequest) -> str:
        if prompt.endswith("bad"):
            raise error
        return "so"

    shared = SharedEngine(ScriptedEngine(script, small_tokenizer()))
    delivered = []
    shared.deliver = delivered.append
    for name in ("good", "bad", "fine"):
        shared.submit(request(name, name))
    shared.sample_turns(until=lambda: False)
    assert delivered[0] == Refused("bad", str(error))
    assert [turn.id for turn in delivered[1:]] == ["good", "fine"]


def test_an_engine_that_has_ended_is_no_refusal() -> None:
    def ended(prompt: str, asked: GenerationRequest) -> str:
        raise EngineEnded("its process was killed")

    shared = SharedEngine(ScriptedEngine(ended, small_tokenizer()))
    shared.submit(request("turn", "go"))
    with pytest.raises(EngineEnded, match="killed"):
        shared.sample_turns(until=lambda: False)
