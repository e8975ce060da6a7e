"""Parsing of extracted triples, with real malformed answers, and resumed extraction."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.content_cache import ContentCache
from pipeline.core.input_files import read_jsonl
from pipeline.core.record_io import write_jsonl, write_parquet
from pipeline.core.records import Chunk, Triplet
from pipeline.graph.build import build_graph
from pipeline.graph.extract import extract, parse_list, read_answer
from pipeline.llm.chat import EngineChat, Reply
from pipeline.llm.engine import GenerationRequest
from tests.graph.character_tokenizer import CharacterTokenizer
from tests.llm.scripted_engine import ScriptedEngine

TRIPLES = st.lists(st.lists(st.text(), min_size=1, max_size=4), max_size=4)


@given(
    TRIPLES,
    st.sampled_from(["", "Here they are:\n", "As [asked]: ", "```json\n", "<think>[[1]]</think>"]),
)
def test_parser_accepts_prose_around_the_list(values: list[list[str]], prose: str) -> None:
    text = f"{prose}{json.dumps(values)}\n```\nDone."
    assert parse_list(text) == (values, None)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("I see no facts.", "answer has no list of lists"),
        ('[["a", "b", "c"], ["d", "e', "answer is not valid JSON"),
        ("[['a', 'b', 'c']]", "answer is not valid JSON"),
        ('[["a", "b", "c"]]\n[["d", "e", "f"]]', "answer has more than one list"),
        ('[["a", "b", NaN]]', "answer is not valid JSON"),
        ('[["a", "b", ' + "9" * 5000 + "]]", "answer is not valid JSON"),
        ("[" * 100_000, "answer is nested too deeply"),
        ("[" + '["a", "b", "c"], ' * 100_000, "answer is not valid JSON"),
        ('<think> perhaps [["a", "b", "c"]]', "answer is all thoughts"),
    ],
)
def test_parser_rejects_malformed_answers(text: str, fault: str) -> None:
    assert parse_list(text) == ([], fault)


CHUNKS = [Chunk(f"c{n}", f"T{n}", f"Passage {n}.", "d") for n in range(5)]

GARBAGE = r"""Sure! Here are the triplets [as requested]:
```json
[["Ann", "born in", "Rome"], ["Ann", "born  in", "ROME"], ["Ann", "age", 42], ["Ann", null, "x"],
 ["Ann", "has", ["a", "b"]], [["Ann", "is", "x"]], ["Ann"], {"head": "Ann"}, "Ann is x", 7, null,
 [], ["", "is", "x"], ["Ann", "is", "\u200b \u00a0"], ["Ann", "is", "x\u0000y"],
 ["Ann", "is", "\ud800"], ["Ann", "is", "%s"], ["Ann", "\tborn\nin ", "\u00c9vora"],
 ["a", "b", "c", "d"]]
```
I hope this helps!""" % ("x" * 2000)  # fmt: skip


def test_malformed_items_of_a_real_answer_are_rejected_one_by_one(tmp_path: Path) -> None:
    graph, triplets = build_graph(read_answer(CHUNKS[0], Reply(GARBAGE, "stop", "")))
    assert triplets == [
        Triplet("c0:0", "Ann", "born in", "Rome", "c0"),
        Triplet("c0:1", "Ann", "born in", "Évora", "c0"),
    ]
    assert graph.duplicates == 1
    assert [item.reason for item in graph.rejects] == [
        "tail is not a string",
        "relation is not a string",
        "tail is not a string",
        "length 1",
        "length 1",
        "not a list",
        "not a list",
        "not a list",
        "not a list",
        "length 0",
        "head is empty",
        "tail is empty",
        "tail has control characters",
        "tail has control characters",
        "tail is over-long",
        "length 4",
    ]
    write_parquet(tmp_path / "triplets.parquet", triplets, Triplet)
    write_jsonl(tmp_path / "rejects.jsonl", graph.rejects)
    written = [value["value"] for _, value in read_jsonl(tmp_path / "rejects.jsonl")]
    assert written == [item.value for item in graph.rejects]


@given(st.text() | st.recursive(st.none() | st.floats() | st.text(), st.lists).map(json.dumps))
def test_parser_never_raises(text: str) -> None:
    extracted = list(read_answer(CHUNKS[0], Reply(text, "stop", "")))
    graph, triplets = build_graph(extracted)
    assert len(triplets) + graph.duplicates + len(graph.rejects) == len(extracted)


class CountingScript:
    """Answers prompts and records the number of each chunk; raises at chunk ``breaks_at``."""

    def __init__(self, breaks_at: str = "never") -> None:
        self.chunk_numbers: list[str] = []
        self.breaks_at = breaks_at

    def __call__(self, prompt: str, request: GenerationRequest) -> str:
        number = prompt.rsplit("Passage ", 1)[1][0]
        if number == self.breaks_at:
            raise KeyboardInterrupt
        self.chunk_numbers.append(number)
        return "no list here" if number == "3" else f'[["P{number}", "is", "{number}"]]'

    def engine(self) -> ScriptedEngine:
        return ScriptedEngine(self, CharacterTokenizer(), max_model_len=8192)


def run(folder: Path, script: CountingScript) -> tuple[list[str], list[str]]:
    cache = ContentCache(folder / "chat.sqlite")
    with EngineChat(script.engine, {}, cache, window=1) as chat:
        graph, triplets = build_graph(extract(CHUNKS, chat=chat))
    return [item.text for item in triplets], [item.reason for item in graph.rejects]


def test_interrupted_extraction_resumes_at_its_chunk(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", CountingScript())
    assert whole == (["P0 is 0", "P1 is 1", "P2 is 2", "P4 is 4"], ["answer has no list of lists"])
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "killed", CountingScript(breaks_at="3"))
    again = CountingScript()
    assert run(tmp_path / "killed", again) == whole
    assert again.chunk_numbers == ["3", "4"]
    finished = CountingScript()
    assert run(tmp_path / "killed", finished) == whole
    assert finished.chunk_numbers == []
