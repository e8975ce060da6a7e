"""The scripted engine behaves like a real engine, including stop strings."""

import pytest

from pipeline.core.errors import EngineError
from pipeline.llm.engine import GenerationRequest
from tests.llm.scripted_engine import ScriptedEngine
from tests.llm.small_models import small_tokenizer

TOKENIZER = small_tokenizer()
EOS = TOKENIZER.eos_token_id


def request(prompt: str, *, name: str = "0", max_tokens: int = 100, stop=("<Reference>",)):
    ids = TOKENIZER(prompt, add_special_tokens=False)["input_ids"]
    return GenerationRequest(name, ids, max_tokens, stop, 1.0, 1.0, 0)


def test_a_token_that_extends_past_the_stop_string_is_kept():
    engine = ScriptedEngine({"Q": "<Reference>\nnever written"}, TOKENIZER)
    [result] = engine.generate([request("Q")])
    assert result.text == "<Reference>\n"
    assert [TOKENIZER.decode([i]) for i in result.token_ids] == [
        "<",
        "Re",
        "f",
        "er",
        "en",
        "ce",
        ">\n",
    ]
    assert result.finish == "stop"


def test_the_end_of_sequence_id_is_not_part_of_the_text():
    engine = ScriptedEngine({"Q": "so."}, TOKENIZER)
    [result] = engine.generate([request("Q")])
    assert (result.text, result.token_ids[-1], result.finish) == ("so.", EOS, "eos")


def test_the_token_budget_truncates_a_segment():
    engine = ScriptedEngine({"Q": "wwww"}, TOKENIZER)
    [result] = engine.generate([request("Q", max_tokens=2)])
    assert (result.text, result.finish) == ("ww", "length")


def test_short_segments_return_before_long_ones_finish():
    engine = ScriptedEngine({"long": "wwwwwwww", "short": "w"}, TOKENIZER)
    engine.add(request("long", name="long"))
    engine.add(request("short", name="short"))
    order = []
    while engine.unfinished():
        order += [result.id for result in engine.step()]
    assert order == ["short", "long"]


def test_a_prompt_outside_the_script_is_an_error():
    with pytest.raises(EngineError, match="no segment for a prompt that ends in 'other'"):
        ScriptedEngine({"Q": "A"}, TOKENIZER).add(request("other"))
