"""``python -m benchmarks.gpu_check``: run the parts one after the other, each in its own process.

This module imports only the standard library, and project modules that need nothing else. On a
machine that lacks packages, each part then names them instead of failing. Parts run in the order of
the catalogue, as far as the budget reaches. Exit status 0 when no part failed and every expected
value held, 1 otherwise, 2 for wrong options and for a GPU that is missing or held by another run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.catalogue import PARTS, Part, chosen
from benchmarks.gpu_check.device import one_gpu
from benchmarks.gpu_check.page import describe, earlier_parts, write_results
from pipeline.core.errors import DependencyError, InputError, SteepError
from pipeline.core.gpus import machine_gpus

ROOT = Path(__file__).resolve().parents[2]
_ABOUT_CARD = """
import json, torch
about = {"torch": torch.__version__, "cuda": torch.version.cuda or "none"}
if torch.cuda.is_available():
    card = torch.cuda.get_device_properties(0)
    about |= {"device": card.name, "memory_gib": round(card.total_memory / 2**30, 1)}
print(json.dumps(about))
"""
_SHORTEST = 20.0  # seconds that a part needs at least: its imports take about ten
_PACKAGES = (
    "transformers",
    "trl",
    "peft",
    "accelerate",
    "vllm",
    "faiss-gpu",
    "sentence-transformers",
)


def main(arguments: list[str] | None = None) -> int:
    """Parse the options and run the parts; returns the exit status."""
    options = _options(arguments)
    parts = chosen([name.strip() for name in options.parts.split(",") if name.strip()])
    earlier_parts(options.page)  # reports a file that cannot be read before anything is measured
    results: dict[str, Any] = {}
    end = time.monotonic() + options.budget
    with contextlib.ExitStack() as stack:
        on_gpu = options.device == "cuda"
        environment = {**os.environ, **(stack.enter_context(one_gpu()) if on_gpu else {})}
        about = _machine(options.device, environment)
        folder = tempfile.TemporaryDirectory(prefix="gpu-check-", dir=options.workspace)
        workspace = stack.enter_context(folder)
        for part in parts:
            result = _result(part, options, workspace, end, environment)
            results[part.name] = result
            print(describe(part, result), flush=True)
            write_results(options.page, about, results)  # a stopped check keeps its figures
    if left := [name for name, result in results.items() if result.pop("late", False)]:
        print(f"not within {options.budget:g} s; run these alone: --parts {','.join(left)}")
    return int(any(_is_bad(result) for result in results.values()))


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpu_check", description=__doc__.partition("\n")[0])
    names = ", ".join(part.name for part in PARTS)
    parser.add_argument("--parts", default="", help=f"comma-separated; default all: {names}")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument(
        "--shapes", choices=("real", "tiny"), default="real", help="tiny: for tests, any device"
    )
    parser.add_argument(
        "--budget", type=float, default=600.0, help="seconds for all parts together"
    )
    parser.add_argument(
        "--workspace", type=Path, help="directory for models (about 20 GB); default: TMPDIR"
    )
    parser.add_argument(
        "--page", type=Path, default=ROOT / "docs/log/gpu.md",
        help="page with the table; the JSON lies beside it (docs/log/gpu.json)",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    if options.device == "cpu" and options.shapes == "real":
        raise InputError("--device cpu takes --shapes tiny; real shapes take hours there")
    if options.shapes == "tiny" and options.page == ROOT / "docs/log/gpu.md":
        raise InputError("--shapes tiny measures nothing; name another --page than docs/log/gpu.md")
    if options.workspace is not None and not options.workspace.is_dir():
        raise InputError(f"--workspace {options.workspace}: no such directory")
    return options


def _machine(device: str, environment: dict[str, str]) -> dict[str, Any]:
    """The GPU, driver and package versions. Raises DependencyError without torch or a GPU."""
    if find_spec("torch") is None:
        raise DependencyError(
            "the GPU check needs torch, which is not installed; run make setup-gpu"
        )
    about: dict[str, Any] = {"torch": _version("torch"), "python": platform.python_version()}
    if device == "cuda":
        about |= _card(environment)
        if "device" not in about and about["cuda"] == "none" and (gpus := machine_gpus()):
            raise DependencyError(
                f"torch {about['torch']} is built for CPUs, and this machine has a GPU "
                f"({gpus[0].name}); run make setup-gpu VENV=.venv-gpu, then make gpu-check "
                "VENV=.venv-gpu"
            )
        if "device" not in about:
            raise DependencyError(
                f"torch {about['torch']} finds no CUDA device; run this on a machine with an "
                "NVIDIA GPU (driver 580 or newer, or forward compatibility: docs/gpu.md) after "
                "make setup-gpu"
            )
    about["driver"] = _driver()
    about["packages"] = {name: version for name in _PACKAGES if (version := _version(name))}
    about["commit"] = _commit()
    about["measured"] = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
    return about


def _card(environment: dict[str, str]) -> dict[str, Any]:
    """The first GPU as torch describes it; versions alone if torch finds no GPU."""
    # In another process: the context of CUDA in this one would hold memory while parts run.
    command = [sys.executable, "-c", _ABOUT_CARD]
    asked = subprocess.run(command, capture_output=True, text=True, env=environment)
    if asked.returncode:
        last = "".join(asked.stderr.splitlines()[-1:])
        raise DependencyError(f"torch does not import ({last}); run make setup-gpu")
    about: dict[str, Any] = json.loads(asked.stdout.splitlines()[-1])
    return about


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "unknown"


def _version(name: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _result(
    part: Part,
    options: argparse.Namespace,
    workspace: str,
    end: float,
    environment: dict[str, str],
) -> dict[str, Any]:
    """Run one part in its own process group, within its limit and the rest of the budget."""
    reason = part.missing(options.device)
    if reason is not None:
        return _ended("skipped", reason)
    limit = min(part.limit, end - time.monotonic())
    alone = f"the budget of {options.budget:g} s; run it alone: --parts {part.name}"
    if limit < _SHORTEST:
        return _ended("skipped", f"not within {alone}") | {"late": True}
    output = Path(workspace) / f"{part.name}.json"
    command = [
        sys.executable,
        "-m",
        "benchmarks.gpu_check.part",
        part.name,
        options.device,
        options.shapes,
    ]
    started = time.monotonic()
    log = Path(workspace) / f"{part.name}.log"
    with log.open("w") as stream:
        process = subprocess.Popen(
            [*command, workspace, str(output)], stdout=stream, stderr=subprocess.STDOUT, cwd=ROOT,
            env=environment, start_new_session=True,
        )  # fmt: skip
        try:
            status = process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            _end(process)
    seconds = time.monotonic() - started
    if output.is_file():
        return {**json.loads(output.read_text(encoding="utf-8")), "seconds": seconds}
    if status is None and limit < part.limit:
        return _ended("skipped", f"ended with {alone}", seconds) | {"late": True}
    reason = (
        f"over its limit of {part.limit} s" if status is None else f"ended with status {status}"
    )
    last = "".join(log.read_text(errors="replace").splitlines()[-1:])
    return _ended("failed", f"{reason}; {last[:200]}", seconds)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the remaining processes of a part."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _ended(state: str, reason: str, seconds: float = 0.0) -> dict[str, Any]:
    return {"state": state, "reason": reason, "figures": [], "seconds": seconds}


def _is_bad(result: dict[str, Any]) -> bool:
    return result["state"] == "failed" or any(row["holds"] is False for row in result["figures"])


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SteepError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_status)
