"""Malformed native files are refused with file, line and field, and accepted data keeps its rules.

The cases are drawn by `malformed.cases`; a long run takes other seeds and a larger count.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.corpus.malformed import (
    FORMATS,
    Case,
    Format,
    cases,
    problem_of,
    read_case,
    render,
)


def problems(folder: Path, seed: int, count: int, formats: Sequence[Format]) -> list[str]:
    """What is wrong with the outcomes of ``count`` cases; a crash raises."""
    found = []
    for case in cases(seed, count, formats):
        problem = problem_of(case, read_case(case, folder))
        if problem is not None:
            found.append(f"{case.file_name}: {case.defect}: {problem}")
    return found


def test_malformed_files_of_every_format_are_refused_with_their_position(tmp_path: Path) -> None:
    assert problems(tmp_path, seed=0, count=500, formats=FORMATS) == []


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
def test_the_generator_starts_from_files_that_are_accepted(tmp_path: Path, format: Format) -> None:
    outcome = read_case(Case(format, "none", render(format, format.records)), tmp_path)
    assert outcome.message is None
    assert outcome.texts or outcome.questions
