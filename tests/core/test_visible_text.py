"""Untrusted text as people read it: controls are written out, everything else stays."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.text import one_line, visible

BIDIRECTIONAL = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J\x00\x7f", "␛[2J␀␡"),
        ("gpj.\u202eexe", "gpj.\\u202eexe"),
        ("a\u2028b\u2029c", "a\\u2028b\\u2029c"),
        ("a\u200b\u2060\ufeff\xadb", "a\\u200b\\u2060\\ufeff\\u00adb"),
        ("\U000e0041", "\\U000e0041"),  # a letter that only a model reads
        ("\ud83d", "\\ud83d"),
        ("a\r\nb\tc", "a␍\nb\tc"),
        *((f"a{control}b", f"a\\u{ord(control):04x}b") for control in BIDIRECTIONAL),
    ],
)
def test_a_control_is_written_out(text: str, shown: str) -> None:
    assert visible(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "שלום עולם (1954)",
        "مرحبا بالعالم ١٩٥٤",
        "می\u200cخواهم",  # Persian, with a zero width non-joiner
        "👩\u200d👩\u200d👧 ❤\ufe0f",
        "漢字\u3000かな\xa0é e\u0301",
        "line\n\ttab",
    ],
)
def test_text_of_any_script_stays_readable(text: str) -> None:
    assert visible(text) == text


@given(st.text())
def test_what_is_shown_has_no_control_but_lines_and_tabs(text: str) -> None:
    shown = visible(text)
    kinds = {unicodedata.category(char) for char in shown if char not in "\n\t"}
    assert not kinds & {"Cc", "Cs", "Zl", "Zp"}
    assert not set(shown) & set(BIDIRECTIONAL)
    assert visible(shown) == shown


@given(st.text(), st.integers(10, 50))
def test_one_line_is_visible_and_short(text: str, limit: int) -> None:
    line = one_line(text, limit)
    assert len(line) <= limit
    assert "\n" not in line
    assert visible(line) == line
