"""Turns of other threads in the batches of a roll-out."""

from pipeline.llm.engine import GenerationRequest
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
