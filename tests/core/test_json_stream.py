"""Large JSON arrays and objects are read member by member, with the line of an error."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core import json_stream
from pipeline.core.errors import InputError
from pipeline.core.input_files import open_text
from pipeline.core.json_stream import iterate_elements, iterate_member, iterate_object

TEXT = st.text(max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | TEXT | st.floats(-9, 9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
)


@given(st.lists(JSON), st.sampled_from([None, 1]), st.integers(1, 40))
def test_members_equal_those_of_the_whole_value_for_any_block_size(
    tmp_path: Path, values: list[Any], indent: int | None, block: int
) -> None:
    path = tmp_path / "a.json"
    named = [(str(number % 2), value) for number, value in enumerate(values)]
    before, json_stream._BLOCK = json_stream._BLOCK, block
    try:
        path.write_text(json.dumps(values, indent=indent))
        with open_text(path) as stream:
            assert list(iterate_elements(stream)) == values
        path.write_text(json.dumps({"other": [1], "docs": values}, indent=indent))
        assert list(iterate_member(path, "docs")) == values
        members = ", ".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in named)
        path.write_text(f" {{{members}}}\n")
        assert list(iterate_object(path)) == named  # repeated names too
    finally:
        json_stream._BLOCK = before


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[{"a": 1},\n {"a": }]', ":2: not valid JSON: Expecting value"),
        ('[{"a": 1}\n {"a": 2}]', ":2: not valid JSON: expected ','"),
        ('[{"a": 1}', ":1: not valid JSON: expected ','"),
        ("[1]\n]", ":2: not valid JSON: text after the end"),
        ("[[1],\n" + "[" * 2000, ":2: "),
    ],
)
def test_an_error_names_its_line(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(InputError) as error, open_text(path) as stream:
        list(iterate_elements(stream))
    assert str(error.value).startswith(f"{path}{problem}")
