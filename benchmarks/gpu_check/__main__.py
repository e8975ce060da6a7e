"""``python -m benchmarks.gpu_check``: run the parts one after the other, each in its own process.

This module imports only the standard library, and project modules that need nothing else. On a
machine that lacks packages, each part then names them instead of failing. Parts run in the order of
`PARTS`, as far as the budget reaches. Output: the table of ``docs/log/gpu.md`` and
``docs/log/gpu.json``, which keep the figures of other parts that the same GPU has measured. Exit
status 0 when no part failed and every expected value held, 1 otherwise, 2 for wrong options and for
a GPU that is missing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.parts import PARTS, Part
from benchmarks.page import number, write_between_marks
from pipeline.core.atomic import write_json
from pipeline.core.errors import DependencyError, InputError, SteepError
from pipeline.core.gpus import GIB, VISIBLE, allotted, torch_for_cpus, visible_gpus

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/log/gpu.md"
_SHORTEST = 20.0  # seconds that a part needs at least: its imports take about ten
_PACKAGES = (
    "transformers", "trl", "peft", "accelerate", "vllm", "faiss-gpu", "sentence-transformers",
)  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Parse the options and run the parts; returns the exit status."""
    options = _options(arguments)
    parts = chosen([name.strip() for name in options.parts.split(",") if name.strip()])
    about = _machine(options.device)
    results = {}
    end = time.monotonic() + options.budget
    with tempfile.TemporaryDirectory(prefix="gpu-check-", dir=options.workspace) as workspace:
        for part in parts:
            results[part.name] = _result(part, options, workspace, end)
            print("\n".join(_lines(part, results[part.name])), flush=True)
            write_results(options.page, about, results)  # a stopped check keeps its figures
    rows = (row for result in results.values() for row in result["figures"])
    failed = any(result["state"] == "failed" for result in results.values())
    return int(failed or any(row["holds"] is False for row in rows))


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpu_check", description=__doc__.partition("\n")[0])
    option = parser.add_argument
    names = ", ".join(part.name for part in PARTS)
    option("--parts", default="", help=f"comma-separated; default all: {names}")
    option("--device", choices=("cuda", "cpu"), default="cuda")
    option("--shapes", choices=("real", "tiny"), default="real", help="tiny: on a CPU")
    option("--budget", type=float, default=600.0, help="seconds for all parts together")
    option("--workspace", type=Path, help="directory for models (about 20 GB); default: TMPDIR")
    option("--page", type=Path, default=PAGE, help="page with the table; the JSON lies beside it")
    options = parser.parse_args(arguments)
    if options.device == "cpu" and options.shapes == "real":
        raise InputError("--device cpu takes --shapes tiny; real shapes take hours there")
    if options.shapes == "tiny" and options.page == PAGE:
        raise InputError("--shapes tiny measures nothing; name another --page than docs/log/gpu.md")
    if options.workspace is not None and not options.workspace.is_dir():
        raise InputError(f"--workspace {options.workspace}: no such directory")
    return options


def chosen(names: list[str]) -> list[Part]:
    """The parts with these names or name prefixes (``sft``: both sizes), in the order of `PARTS`.

    Raises InputError for a name that no part has.
    """

    def has(part: Part, name: str) -> bool:
        return part.name == name or part.name.startswith(f"{name}-")

    for name in names:
        if not any(has(part, name) for part in PARTS):
            known = ", ".join(part.name for part in PARTS)
            raise InputError(f"--parts: no part {name!r}; parts: {known}")
    return [part for part in PARTS if not names or any(has(part, name) for name in names)]


def _machine(device: str) -> dict[str, Any]:
    """GPU, driver, versions and commit. Raises DependencyError without torch or a GPU for it.

    A process then sees the first GPU alone: with several, ``Trainer`` would wrap models in
    ``nn.DataParallel``, which TRL refuses. A lease of a free GPU (`pipeline.engine.leases`) is
    not taken: the check is for a machine that nothing else uses.
    """
    found = {one.name: one.version for one in distributions()}
    about: dict[str, Any] = {
        "torch": found.get("torch"),
        "packages": {name: found[name] for name in _PACKAGES if name in found},
        "commit": _output("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"),
        "measured": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        "driver": _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
    }
    if about["torch"] is None:
        raise DependencyError("the GPU check needs torch; run make setup-gpu")
    if device == "cuda":
        gpus = visible_gpus()
        if not gpus or torch_for_cpus():
            raise DependencyError(
                f"torch {about['torch']} finds no CUDA device; run this on a machine with an "
                "NVIDIA GPU (driver 580 or newer, or forward compatibility: docs/gpu.md) after "
                "make setup-gpu"
            )
        os.environ[VISIBLE] = (allotted() or ("0",))[0]
        about |= {"device": gpus[0].name, "memory_gib": round((gpus[0].memory or 0) / GIB, 1)}
    return about


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.partition("\n")[0]


def _result(part: Part, options: argparse.Namespace, workspace: str, end: float) -> dict[str, Any]:
    """Run one part in its own process group, within its limit and the rest of the budget."""
    left = end - time.monotonic()
    reason = part.missing(options.device)
    if reason is None and left < _SHORTEST:
        reason = f"not within the budget; run it alone: --parts {part.name}"
    if reason is not None:
        return {"state": "skipped", "reason": reason, "figures": [], "seconds": 0.0}
    output, started = Path(workspace) / f"{part.name}.json", time.monotonic()
    arguments = [part.name, options.device, options.shapes, workspace, str(output)]
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.gpu_check.parts", *arguments], cwd=ROOT,
        start_new_session=True,
    )  # fmt: skip
    limit, state = min(part.limit, left), "failed"
    try:
        reason = f"ended with status {process.wait(timeout=limit)}"
    except subprocess.TimeoutExpired:
        reason = f"over its limit of {limit:.0f} s; run it alone: --parts {part.name}"
        state = "failed" if limit == part.limit else "skipped"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    result = {"state": state, "reason": reason, "figures": []}
    if output.is_file():
        result = json.loads(output.read_text(encoding="utf-8"))
    return {**result, "seconds": time.monotonic() - started}


def write_results(page: Path, about: dict[str, Any], results: dict[str, Any]) -> None:
    """Write JSON and page; earlier results of the same device are kept for unmeasured parts."""
    file = page.with_suffix(".json")
    parts: dict[str, Any] = {}
    if file.is_file():
        before = json.loads(file.read_text(encoding="utf-8"))
        parts = before["parts"] if before["machine"].get("device") == about.get("device") else {}
    for name, result in results.items():
        if result["state"] != "skipped" or name not in parts:
            parts[name] = {**result, **{key: about[key] for key in ("measured", "commit", "torch")}}
    write_json(file, {"machine": about, "parts": parts})
    packages = ", ".join(f"{name} {version}" for name, version in about["packages"].items())
    lines = [
        f"Measured on {about.get('device', 'a CPU')}, {about.get('memory_gib', 0):g} GiB, driver "
        f"{about['driver']}, torch {about['torch']}, {packages} ({about['measured']} UTC, commit "
        f"{about['commit']}).\n\n| part | figure | value | expected |\n|---|---|---|---|"
    ]
    for part in PARTS:
        if part.name in parts:
            lines += _lines(part, parts[part.name], about["torch"])
    write_between_marks(page, "\n".join(lines) + "\n")


def _lines(part: Part, result: dict[str, Any], torch: str | None = None) -> Iterator[str]:
    """The rows of a table about one part."""
    state = ": ".join(filter(None, (result["state"], result["reason"])))
    if result.get("torch", torch) != torch:
        state += f" (torch {result['torch']})"
    cells = [(f"**{part.name}**", part.title, state, f"{result['seconds']:.0f} s in all")]
    for row in result["figures"]:
        verdict = "" if row["holds"] is None else " ✓" if row["holds"] else " ✗"
        value = f"{number(row['value'])} {row['unit']}".rstrip()
        cells.append(("", row["name"], value, row["expected"] + verdict))
    for texts in cells:
        yield f"| {' | '.join(text.replace('|', '/') for text in texts)} |"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SteepError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_status)
