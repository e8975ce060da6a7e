"""Strict YAML: which values are numbers, and what is refused, with the line."""

from __future__ import annotations

import pytest

from pipeline.config.yaml_files import YamlProblem, parse_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),
        (".5", 0.5),
        ('"3"', "3"),
        ("010", "010"),
        ("1:30", "1:30"),
        ("2020-01-01", "2020-01-01"),
        ("no", False),
        (r'"a \ud83d\ude00\uDBFF\uDFFF"', "a \N{GRINNING FACE}\U0010ffff"),
        (r'"\ud83d \ude00\ud83d"', "\ud83d \ude00\ud83d"),  # the check of texts refuses halves
        ("", None),
        ("{3: 420, a: [x, ~]}", {3: 420, "a": ["x", None]}),
        ("{a: &a {b: 1, c: 2}, d: {<<: *a, b: 3}}", {"a": {"b": 1, "c": 2}, "d": {"b": 3, "c": 2}}),
        ("{a: {b: &b {<<: {c: 2}, c: 1}}, d: {<<: *b}}", {"a": {"b": {"c": 1}}, "d": {"c": 1}}),
    ],
)
def test_values_are_read_as_people_write_them(text: str, value: object) -> None:
    parsed = parse_yaml(text)
    assert parsed == value
    assert type(parsed) is type(value)


# Twenty aliases, each of two of the one before.
DOUBLED = "- &a0 [x]\n" + "".join(f"- &a{n + 1} [*a{n}, *a{n}]\n" for n in range(20))


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, "the key a is also on line 1; remove one"),
        ("{2: 100,\n0x2: 50}", 2, "the key 0x2 is also on line 1; remove one"),
        ("{true: 1, 1: 2}", 1, "the key 1 is also on line 1"),
        ("{<<: {a: 1}, <<: {b: 1}}", 1, "the key << is also on line 1"),
        ("a: !!bool x", 1, "tag, escape, alias or nesting is out of range"),
        ("a: !!int ''", 1, "out of range"),
        ("a: &a {b: [*a]}", 1, "out of range"),
        (DOUBLED, 1, "alias or nesting is out of range"),
        ("a: !!timestamp x", 1, "out of range"),
        ("? [a]\n: 1\n", 1, "unhashable key"),
        ("a: " + "[" * 500, 1, "nesting is out of range"),
        ("a: !!python/object/apply:os.system [ls]", 1, "could not determine a constructor"),
        ("a: 1\n--- \na: 2\n", 2, "expected a single document"),
        ('a: "\\UFFFFFFFF"', 1, "out of range"),
        (f"%YAML {'9' * 5000}.1\n---\na: 1", 1, "out of range"),
        ("a: 1\nb: \0\n", 2, r"holds the character U\+0000; remove it"),
    ],
)
def test_refused_yaml_is_named_with_its_line(text: str, line: int, problem: str) -> None:
    with pytest.raises(YamlProblem, match=problem) as caught:
        parse_yaml(text)
    assert caught.value.line == line
    assert "\n" not in str(caught.value)
