"""The strict parser, and extraction that a kill costs at most one batch."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.engines.base import GenerationRequest
from pipeline.engines.scripted import ScriptedEngine
from pipeline.graph.build import build_graph
from pipeline.graph.extract import extract, parse_list
from pipeline.records import Chunk
from tests.graph.character_tokenizer import CharacterTokenizer

TRIPLES = st.lists(st.lists(st.text(), min_size=1, max_size=4), max_size=4)


@given(TRIPLES, st.sampled_from(["", "Here they are:\n", "As [asked]: ", "```json\n"]))
def test_prose_around_the_list_is_forgiven(values: list[list[str]], prose: str) -> None:
    text = f"{prose}{json.dumps(values)}\n```\nDone."
    assert parse_list(text) == (values, None)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("I see no facts.", "answer has no list of lists"),
        ('["a", "b", "c"]', "answer has no list of lists"),
        ('[["a", "b", "c"], ["d", "e', "answer is not valid JSON"),
        ("[['a', 'b', 'c']]", "answer is not valid JSON"),
        ('[["a", "b", "c"],]', "answer is not valid JSON"),
        ('[["a", "b", "c"]]\n[["d", "e", "f"]]', "answer has more than one list"),
    ],
)
def test_nothing_else_is_forgiven(text: str, fault: str) -> None:
    assert parse_list(text) == ([], fault)


CHUNKS = [Chunk(f"c{n}", f"T{n}", f"Passage {n}.", "d") for n in range(5)]


class CountingScript:
    """Answers about a passage; counts them, and breaks when told to."""

    def __init__(self, breaks_at: str = "never") -> None:
        self.asked: list[str] = []
        self.breaks_at = breaks_at

    def __call__(self, prompt: str, request: GenerationRequest) -> str:
        number = prompt.rsplit("Passage ", 1)[1][0]
        if number == self.breaks_at:
            raise KeyboardInterrupt
        self.asked.append(number)
        return "no list here" if number == "3" else f'[["P{number}", "is", "{number}"]]'

    def engine(self) -> ScriptedEngine:
        return ScriptedEngine(self, CharacterTokenizer())


def run(folder: Path, script: CountingScript) -> tuple[list[str], list[str]]:
    answers = extract(CHUNKS, open_engine=script.engine, folder=folder, batch=2, seed=0)
    graph, triplets = build_graph(answers)
    return [one.text for one in triplets], [one.reason for one in graph.rejects]


def test_a_killed_extraction_goes_on_where_it_stopped(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", CountingScript())
    assert whole == (["P0 is 0", "P1 is 1", "P2 is 2", "P4 is 4"], ["answer has no list of lists"])
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "killed", CountingScript(breaks_at="3"))
    again = CountingScript()
    assert run(tmp_path / "killed", again) == whole
    assert again.asked == ["2", "3", "4"]  # the first batch of two was kept
    finished = CountingScript()
    assert run(tmp_path / "killed", finished) == whole
    assert finished.asked == []
