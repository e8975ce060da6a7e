"""The count of idioms finds sentences that need a second reading, and leaves their better forms."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.idioms import idioms, texts

HARD_AND_CLEAR = [
    (
        "one of this machine, or of any that shares the file system where that locks between"
        " machines",
        "A lock held on this machine, or on another machine if the file system supports locks"
        " across machines.",
    ),
    (
        "A directory with a manifest that is not one of its own is given as a line that says so.",
        "Report a directory whose manifest names another stage.",
    ),
]


@pytest.mark.parametrize(("hard", "clear"), HARD_AND_CLEAR)
def test_the_hard_form_of_a_sentence_is_counted_and_the_clear_one_is_not(
    hard: str, clear: str
) -> None:
    assert idioms(hard)
    assert idioms(clear) == []


def test_docstrings_comments_and_messages_are_read_and_code_and_short_strings_are_not(
    tmp_path: Path,
) -> None:
    module = tmp_path / "module.py"
    module.write_text('"""One of its own kind here."""\nwhatever = "those of"  # a comment\n')
    assert list(texts(module)) == [(2, "a comment"), (1, "One of its own kind here.")]
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n```\nwhatever\n```\n\nA paragraph\nof two lines.\n")
    assert list(texts(page)) == [(1, "# Title\n"), (7, "A paragraph\nof two lines.\n")]
