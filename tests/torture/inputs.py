"""Generated bad input for configurations, native data, literals, hosts, commands and policies.

Every case must be refused with one sentence, or be accepted where it is valid after all.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from starlette.testclient import TestClient

from pipeline.retrieval.remote.server import create_app
from tests.cli import malformed_inputs
from tests.config import config_cases
from tests.corpus import malformed
from tests.llm import adapter_defects
from tests.retrieval import malformed_hosts
from tests.retrieval.served import IDENTITY, FakeRetriever
from tests.torture.figures import Figures


def run(seed: int, count: int) -> Figures:
    """``count`` cases, as many for each area; with ``STEEP_DATA`` also for the real data sets."""
    figures = Figures("inputs")
    areas: Counter[str] = Counter()
    parts: list[tuple[str, Callable[[int, int, Path], Iterator[str | None]]]] = [
        ("configuration", _configuration),
        ("native data", _native_data),
        ("literals", _literals),
        ("hosts", _hosts),
        ("commands", _commands),
        ("adapters and templates", adapter_defects.problems),
    ]
    for number, (name, problems) in enumerate(parts):
        share = (count + number) // len(parts)
        with tempfile.TemporaryDirectory() as folder:
            for problem in problems(seed, share, Path(folder)):
                areas[name] += 1
                if problem is not None:
                    figures.problems.append(f"{name}: {problem}")
    figures.cases = sum(areas.values())
    figures.facts["by_area"] = dict(areas)
    return figures


def _configuration(seed: int, count: int, folder: Path) -> Iterator[str | None]:
    for case in config_cases.cases(seed, count):
        try:
            config_cases.check(case, folder)
        except AssertionError as error:
            yield str(error)
        else:
            yield None


def _native_data(seed: int, count: int, folder: Path) -> Iterator[str | None]:
    formats = list(malformed.FORMATS)
    if "STEEP_DATA" in os.environ:
        formats += malformed.real_formats(Path(os.environ["STEEP_DATA"]))
    for case in malformed.cases(seed, count, formats):
        yield _read(case, folder)


def _read(case: malformed.Case, folder: Path) -> str | None:
    try:
        problem = malformed.problem_of(case, malformed.read_case(case, folder))
    except Exception as error:  # noqa: BLE001 - the crash is what is looked for
        problem = f"{type(error).__name__}: {error}"
    return problem and f"{case.file_name}: {case.defect}: {problem}"


def _literals(seed: int, count: int, folder: Path) -> Iterator[str | None]:
    for case in malformed.literal_cases(seed, count):
        yield _read(case, folder)


def _hosts(seed: int, count: int, _: Path) -> Iterator[str | None]:
    app = create_app(FakeRetriever(), IDENTITY, {}, names=malformed_hosts.NAMES)
    with TestClient(app) as client:
        for host in malformed_hosts.hosts(seed, count):
            yield malformed_hosts.problem_of(host, client, "/health")


def _commands(seed: int, count: int, folder: Path) -> Iterator[str | None]:
    for number, case in enumerate(malformed_inputs.cases(seed, count)):
        directory = folder / str(number)
        directory.mkdir()
        problem = malformed_inputs.check(case, directory)
        yield problem and f"{case.name}: {problem}"
