"""Run the slow tests, each file in a process of its own, and write a page of their results.

    python -m tests.nightly [FILE ...] [--output docs/nightly.md] [--minutes 60]

Without files, all files with tests marked slow. A file that fails, ends or takes too long does not
end the others. The page is written after every file. The exit status is 1 if one of them failed.
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
    "| file | passed | failed | skipped | seconds | failing tests |\n|---|---|---|---|---|---|\n"
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run the slow tests, file by file.")
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "nightly.md")
    parser.add_argument("--minutes", type=float, default=60, help="at most, for each file")
    given = parser.parse_args(arguments)
    slow = (
        path
        for path in sorted(ROOT.glob("tests/*/**/test_*.py"))
        if "mark.slow" in path.read_text()
    )
    commit = ("git", "describe", "--always", "--dirty")
    named = subprocess.run(commit, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    title = (
        "# Slow tests\n\n"
        f"The last result of `make check-nightly`: commit {named}, {time.strftime('%Y-%m-%d', time.gmtime())}, "
        f"{os.cpu_count()} cores of {processor()}.\n\n"
    )
    rows, failed = [], False
    for file in given.files or list(slow):
        row, failing = run(file.resolve(), 60 * given.minutes)
        failed = failed or failing
        rows.append(row)
        print(row, flush=True)
        given.output.write_text(title + _HEAD + "\n".join(rows) + "\n", encoding="utf-8")
    return int(failed)


def run(file: Path, seconds: float) -> tuple[str, bool]:
    """The row of a file, and whether a test of it failed."""
    began, end = time.monotonic(), ""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-m", "slow", f"--junitxml={report}", file]
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
    name = file.relative_to(ROOT) if file.is_relative_to(ROOT) else file.name
    cells = (
        name,
        passed,
        wrong,
        counts["skipped"],
        f"{time.monotonic() - began:.0f}",
        ", ".join(failing),
    )
    return f"| {' | '.join(map(str, cells))} |", status not in (0, 5)  # 5: no test is slow


if __name__ == "__main__":
    sys.exit(main())
