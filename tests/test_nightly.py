"""The nightly list of slow tests: a file that fails or takes too long is on the page, and does not end the
others; a file that did not run keeps its row."""

from pathlib import Path

import pytest

from tests.nightly import main

FAILS = """
import pytest

@pytest.mark.slow
def test_one_is_two():
    assert 1 == 2

@pytest.mark.slow
def test_one_is_one():
    assert 1 == 1

def test_that_is_quick():
    raise AssertionError
"""
SLEEPS = """
import time, pytest

@pytest.mark.slow
def test_that_never_ends():
    time.sleep(1000)
"""
PASSES = """
import pytest

@pytest.mark.slow
def test_passes():
    pass

@pytest.mark.slow
@pytest.mark.skip
def test_skips():
    pass
"""


@pytest.mark.slow
def test_every_file_has_a_row(tmp_path: Path) -> None:
    files = []
    for name, text in (
        ("test_fails.py", FAILS),
        ("test_passes.py", PASSES),
        ("test_sleeps.py", SLEEPS),
    ):
        files.append(tmp_path / name)
        files[-1].write_text(text)
    page, other = tmp_path / "nightly.md", "| tests/docs/test_site.py | 9 |"
    page.write_text(f"{other}\n")
    assert main([*map(str, files[:2]), "--output", str(page)]) == 1
    assert main([str(files[2]), "--output", str(page), "--minutes", "0.2"]) == 1
    lines = page.read_text().splitlines()
    assert lines.pop(lines.index(other)) == other
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in lines if ".py" in line
    ]
    assert [(row[0], *row[1:4], row[5]) for row in rows] == [
        ("test_fails.py", "1", "1", "0", "`test_one_is_two`"),
        ("test_passes.py", "1", "0", "1", ""),
        ("test_sleeps.py", "0", "0", "0", "ended after 12 s"),
    ]
    assert all(row[6].split(", ")[0] for row in rows)  # the commit
