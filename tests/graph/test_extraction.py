"""Parsing of extracted triples, with real malformed answers, and resumed extraction."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.content_cache import ContentCache
from pipeline.core.record_io import write_jsonl, write_parquet
from pipeline.core.records import Chunk, Triplet
from pipeline.core.row_files import read_jsonl
from pipeline.knowledge.graph.build import build_graph
from pipeline.knowledge.graph.extract import extract, read_answer
from pipeline.llm.chat import EngineChat, Reply
from pipeline.llm.engine import GenerationRequest
from pipeline.llm.json_replies import Dropped, read_items, read_object
from tests.graph.character_tokenizer import CharacterTokenizer
from tests.llm.scripted_engine import ScriptedEngine

TRIPLES = st.lists(st.lists(st.text(), min_size=1, max_size=4), max_size=4)


def read(text: str) -> tuple[list[Any], list[str]]:
    """The items of an answer, and the reasons for its other pieces."""
    items = list(read_items(text))
    dropped = [item.reason for item in items if isinstance(item, Dropped)]
    return [item for item in items if not isinstance(item, Dropped)], dropped


@given(
    TRIPLES,
    st.sampled_from(["", "Here they are:\n", "As [asked]: ", "```json\n", "<think>[[1]]</think>"]),
    st.sampled_from(["", "\n```\nDone.", "\n(See also [[Brenta]] and [1].)", "}", "]"]),
)
def test_parser_accepts_prose_around_the_list(
    values: list[list[str]], before: str, after: str
) -> None:
    assert read(f"{before}{json.dumps(values)}{after}") == (values, [])


@pytest.mark.parametrize(
    ("text", "kept", "faults"),
    [
        ("I see no facts.", 0, ["answer has no list of lists"]),
        ("I see [no] facts: [].", 0, []),
        ('[["a", "b", "c"], ["d", "e', 1, ["not valid JSON"]),
        ('[["a", "b", "c"],', 1, ["the list has no end"]),
        ('[["a", "b", "c"], ["d", "e", "f"]', 2, ["the list has no end"]),
        ('[["a", "b", "c",], ["d", "e", "f"],]', 2, []),
        ('[["a,]", "b\n", "c"]\n["d", "e", "f"]]', 2, []),
        ('["a", "b", "c"]\n["d", "e", "f"]', 2, []),
        ('Facts:\n- ["a", "b", "c"]\n- ["d", "e", "f"]\nThat is all.', 2, []),
        ('["a[[", "b", "c"]\n["[[", "[{", "f"]', 2, []),
        ('1. ["a", "b", "c"]\n2. ["d", "e', 1, ["not valid JSON"]),
        ('{"triplets": [["a", "b", "c"]]}', 1, []),
        ('{"head": "a"}\n{"head": "d"}', 2, []),
        ('[["a", "b", "c"], ["d", "]{', 1, ["not valid JSON"]),
        ('[["a", "b", "c"], ["d", "]{\\u00', 1, ["not valid JSON"]),
        ("[['a', 'b', 'c']]", 0, ["not valid JSON"]),
        ('[["a", "b" or "x", "c"], ["d", "e", "f"]]', 1, ["not valid JSON"]),
        ('[["the "a"", "b", "c"], ["d", "e", "f"]]', 1, ["not valid JSON"]),
        ('[["a", ["b" "c"]], ["d", ["e", "f"]]]', 1, ["not valid JSON"]),
        ('[["a", "b", "c"]]\n[["d", "e", "f"]]', 2, []),
        ('[["a", "b", "c"]]\nOr: [["d", "e", "f"]]', 1, ["answer has more than one list"]),
        ('[["a", "b", NaN], ["d", "e", "f"]]', 1, ["not valid JSON"]),
        ('[["a", "b", ' + "9" * 5000 + "]]", 0, ["not valid JSON"]),
        ("[" * 100_000, 0, ["answer is nested too deeply"]),
        ("[" + '["a", "b", "c"], ' * 100_000, 100_000, ["the list has no end"]),
        ('[["a" "b"], ' * 100_000, 0, ["not valid JSON"] * 100),
        ('[["\\"' + '\\"' * 100_000, 0, ["not valid JSON"]),
        ('[["\\"' + '\\"' * 100_000 + "\\", 0, ["not valid JSON"]),
        ('[["a" "b"' + "\n" * 100_000 + 'x", "c"], ["d", "e", "f"]]', 1, ["not valid JSON"]),
        ('[["a" "b"' + " \n" * 100_000 + '["d", "e", "f"]]', 1, ["not valid JSON"]),
        ('[["a" "b"]' + " " * 100_000 + 'x, ["d", "e", "f"]]', 0, ["not valid JSON"]),
        ('<think> perhaps [["a", "b", "c"]]', 0, ["answer is all thoughts"]),
    ],
)
def test_what_is_complete_is_kept_and_the_rest_is_counted(
    text: str, kept: int, faults: list[str]
) -> None:
    items, found = read(text)
    assert (len(items), found) == (kept, faults)


@given(
    st.lists(st.lists(st.text(), min_size=3, max_size=3), min_size=1, max_size=3),
    st.sampled_from([", ", ",\n", "\n", " ,\r\n  "]),
    st.sampled_from(["[", "Facts:\n```json\n[", ""]),
)
def test_an_answer_that_was_cut_anywhere_gives_exactly_its_complete_items(
    values: list[list[str]], between: str, before: str
) -> None:
    lines = [json.dumps(value, ensure_ascii=False) for value in values]
    text = before + between.join(lines) + ("]" if before else "")
    ends = [len(before + between.join(lines[: count + 1])) for count in range(len(lines))]
    for length in range(len(text)):
        reply = Reply(text[:length], "length", text)
        given_items = list(read_answer(CHUNKS[0], reply))
        kept = [item.value for item in given_items if item.fault is None]
        assert kept == values[: sum(end <= length for end in ends)]
        if before and length >= len(before):
            assert [item.fault for item in given_items][len(kept) :] == ["answer cut off"]


@pytest.mark.parametrize(
    ("item", "parts"),
    [
        ({"relation": "is", "tail": "b", "head": "a"}, ["a", "is", "b"]),
        ({"Subject": "a", "Predicate": "is", "Object": "b", "score": 1}, ["a", "is", "b"]),
        ({"fact": "a is b", "entities": ["a", "b"]}, ["a is b", ["a", "b"]]),
        ({"head": "a", "tail": "b"}, {"head": "a", "tail": "b"}),
    ],
)
def test_an_object_that_names_its_parts_is_an_item(item: dict[str, Any], parts: object) -> None:
    [read_item] = read_answer(CHUNKS[0], Reply(json.dumps([item]), "stop", ""))
    assert read_item.value == parts


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('Sure: {"answer": "a\nb", "hops": [1,],} Hope {this} helps.', {"answer": "a\nb", "hops": [1]}),
        ('<think>{"a": 1}</think>In {braces}: ```json\n{ "a": 2}```', {"a": 2}),
        ('{"answer": "a", "hops": [{"answer": "b"}', None),
        ('{"answer": "a" "b"}', None),
        ('{"answer": NaN}', None),
        ("[" * 100_000 + '{"a": ' * 100_000, None),
        ('{"a": "' + '\\"' * 100_000 + "\\", None),
        ('<think> perhaps {"a": 1}', None),
        ("no object", None),
    ],
)  # fmt: skip
def test_an_object_of_a_reply_is_read_whole_or_not_at_all(text: str, value: object) -> None:
    assert read_object(text) == value


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
