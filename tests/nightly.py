"""Run the slow tests, each file in a process of its own, and write a page of their results.

    python -m tests.nightly [FILE ...] [--output docs/log/nightly.md] [--minutes 60]

Without files, all files with tests marked slow. A file that fails, ends or takes too long does not
end the others. The page is written after every file, and keeps the rows of files that did not run.
The exit status is 1 if one of them failed.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.timing import processor

ROOT = Path(__file__).resolve().parents[1]
_HEAD = (
    "# Slow tests\n\nThe last result of each file in `make check-nightly`.\n\n"
    "| file | passed | failed | skipped | seconds | failing tests | commit, day, machine |\n"
    "|---|---|---|---|---|---|---|\n"
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run the slow tests, file by file.")
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "log" / "nightly.md")
    parser.add_argument("--minutes", type=float, default=60, help="at most, for each file")
    given = parser.parse_args(arguments)
    slow = [
        path
        for path in sorted(ROOT.glob("tests/**/test_*.py"))
        if "mark.slow" in path.read_text(encoding="utf-8")
    ]
    commit = ("git", "describe", "--always", "--dirty")
    named = subprocess.run(commit, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    day = time.strftime("%Y-%m-%d", time.gmtime())
    where = f"{named}, {day}, {os.cpu_count()} cores of {processor()}"
    page = given.output.read_text(encoding="utf-8") if given.output.exists() else ""
    lines = (line for line in page.splitlines() if line.startswith("| ") and ".py |" in line)
    rows = {line.split(" |")[0].removeprefix("| "): line for line in lines}
    if not given.files:  # deleted files lose their rows
        rows = {name: rows[name] for name in map(_name, slow) if name in rows}
    failed = False
    for file in given.files or slow:
        cells, failing = run(file.resolve(), 60 * given.minutes)
        failed = failed or failing
        row = rows[cells[0]] = f"| {' | '.join((*cells, where))} |"
        print(row, flush=True)
        text = "".join(f"{rows[name]}\n" for name in sorted(rows))
        given.output.write_text(_HEAD + text, encoding="utf-8")
    return int(failed)


def _name(file: Path) -> str:
    return str(file.relative_to(ROOT)) if file.is_relative_to(ROOT) else file.name


def run(file: Path, seconds: float) -> tuple[tuple[str, ...], bool]:
    """The cells of a file's row, and whether a test of it failed."""
    began, end = time.monotonic(), ""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-m",
            "slow",
            f"--junitxml={report}",
            str(file),
        ]
        with subprocess.Popen(command, cwd=ROOT, start_new_session=True) as process:
            try:
                status = process.wait(seconds)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                status, end = -signal.SIGKILL, f"ended after {seconds:.0f} s"
        suite = ElementTree.parse(report).find("testsuite") if report.is_file() else None
    failing, counts = (
        [end] if end else [],
        dict.fromkeys(("tests", "failures", "errors", "skipped"), 0),
    )
    if suite is not None:
        counts = {name: int(suite.get(name, 0)) for name in counts}
        cases = (case for case in suite if {"failure", "error"} & {part.tag for part in case})
        failing += [f"`{case.get('name')}`" for case in cases]
    elif not end:
        failing.append(f"pytest ended with status {status}")
    wrong = counts["failures"] + counts["errors"]
    passed = counts["tests"] - wrong - counts["skipped"]
    cells = (
        _name(file),
        *map(str, (passed, wrong, counts["skipped"])),
        f"{time.monotonic() - began:.0f}",
        ", ".join(failing),
    )
    return cells, status not in (0, 5)  # 5: no test is slow


if __name__ == "__main__":
    sys.exit(main())
