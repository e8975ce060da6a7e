"""Answer times of ``steep browse`` by the number of trajectories.

``python -m benchmarks.browse COUNT FOLDER`` writes generated trajectories
(`benchmarks.trajectories`) and their pairs as a run below FOLDER, opens it, and prints one line of
JSON for each page: the time of the first request, medians of wall and CPU time in milliseconds over
9 further ones, and the size of the answer. The first line has the cost of the side table.
"""

from __future__ import annotations

import json
import math
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pyarrow.parquet import read_metadata

from benchmarks.timing import Row
from benchmarks.trajectories import _context, generate
from pipeline.core.record_io import iterate_records
from pipeline.core.records import Pair
from pipeline.core.trajectory_file import FILE
from pipeline.look.browse.filters import PAGE_SIZE

REPEATS = 9
_LISTS = ("pairs", "trajectories")
_FILTERS = {
    "no filter": "",
    "one data set and a reward": "?dataset=musique&term={term}&from=0.5&sort={term}",
    "a rare word": "?q=river123",
    "two words": "?q=river12+lives5",
    "a word of every trajectory": "?q=who",
    "the last page": "?page={last}&sort={term}",
}


def write_run(count: int, folder: Path) -> Path:
    """The store of a run with ``count`` generated trajectories and their pairs, made once."""
    store = folder / "runs" / "generated" / "store"
    if not store.is_dir():
        from tasks.pair import run

        work = folder / "work"
        generate(count, work)
        run(_context(work, "pair"))
        _stage(store, "score", "1" * 16, work / "score-1", {})
        _stage(store, "pair", "2" * 16, work / "outputs" / "pair", {"score": "1" * 16})
    return store


def _stage(store: Path, stage: str, name: str, written: Path, inputs: dict[str, str]) -> None:
    directory = store / stage / name
    directory.parent.mkdir(parents=True)
    shutil.move(written, directory)
    key = {"stage": stage, "version": 1, "settings": {}, "files": {}, "inputs": inputs, "round": 1}
    manifest = {"fingerprint": name, "key": key, "counts": {"rows": 1}, "files": {}}
    (directory / "manifest.json").write_text(json.dumps(manifest))


def pages(store: Path) -> Iterator[tuple[str, str]]:
    """Names and addresses of the measured pages."""
    run = "/run/generated"
    terms = {"pairs": "chosen_total", "trajectories": "term_total"}
    files = {"pairs": "pair/*/pairs.parquet", "trajectories": f"score/*/{FILE}"}
    counts = {name: read_metadata(next(store.glob(file))).num_rows for name, file in files.items()}
    for name in _LISTS:
        for title, filters in _FILTERS.items():
            filled = filters.format(term=terms[name], last=math.ceil(counts[name] / PAGE_SIZE))
            yield f"{name}: {title}", f"{run}/{name}{filled}"
    pair = next(iter(iterate_records(next(store.glob("pair/*/pairs.parquet")), Pair)))
    yield "start", f"{run}/"
    yield "pair", f"{run}/pair/round-1/{counts['pairs'] // 2}"
    yield "trajectory", f"{run}/trajectory/round-1/{counts['trajectories'] // 2}"
    yield "question", f"{run}/trajectories?question={quote(pair.question_id)}"
    yield "compare", "/compare?a=round-1&b=round-1"


def measured(call: Callable[[], Any]) -> dict[str, float]:
    """The wall time of the first call and medians of the next, wall and CPU, in milliseconds."""
    first = time.perf_counter()
    call()
    first = time.perf_counter() - first
    walls, cpus = [], []
    for _ in range(REPEATS):
        wall, cpu = time.perf_counter(), time.process_time()
        call()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    seconds = {"first": first, "wall": statistics.median(walls), "cpu": statistics.median(cpus)}
    return {f"{name}_ms": round(1000 * value, 1) for name, value in seconds.items()}


def rows(count: int) -> list[Row]:
    """Row ``browse``: the times of all pages over a generated run of ``count`` trajectories."""
    with tempfile.TemporaryDirectory(prefix="browse-") as name:
        figures = {line["page"]: line for line in measure(count, Path(name))}
    times = {page: line["wall_ms"] for page, line in figures.items() if "wall_ms" in line}
    slowest = max(times, key=lambda page: times[page])
    work = f"{len(times)} pages of {count:,} trajectories; slowest: {slowest}, {times[slowest]} ms"
    return [
        Row("browse", work, "–", list(times.values()), None, "wall ms per page", details=figures)
    ]


def main(arguments: list[str]) -> None:
    """Print one line for each page."""
    for line in measure(int(arguments[0]), Path(arguments[1])):
        print(json.dumps(line), flush=True)


def measure(count: int, folder: Path) -> Iterator[dict[str, Any]]:
    """Generate a run below ``folder``, open it, and measure its pages."""
    from starlette.testclient import TestClient

    from pipeline.look.browse.app import create_app
    from pipeline.look.browse.site import RunEntry, Site

    store = write_run(count, folder)
    shutil.rmtree(folder / "cache", ignore_errors=True)
    base_model = Path(__file__).parents[1] / "data" / "tiny_reader"
    site = Site(
        {"generated": RunEntry("generated", store, base_model=base_model)}, folder / "cache"
    )
    wall, cpu = time.perf_counter(), time.process_time()
    _ = site.first
    table = sum(file.stat().st_size for file in (folder / "cache").iterdir())
    spent = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
    line = {name: round(seconds, 1) for name, seconds in spent.items()}
    yield {"page": "side table", **line, "bytes": table}
    app = create_app(site)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        for name, address in pages(store):
            figures = measured(lambda address=address: client.get(address))  # type: ignore[misc]
            answer = client.get(address).raise_for_status()
            yield {"page": name, **figures, "bytes": len(answer.content)}


if __name__ == "__main__":
    main(sys.argv[1:])
